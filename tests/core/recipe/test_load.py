"""Recipes: every mistake gives one line with the file, the line, what was found and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import CurateError, RecipeError
from curate.core.recipe import load as recipe
from curate.core.recipe import registry

TOYS = "tests.engine.toys"
GOOD = f"""\
description: what it is for
vars:
  dark: 3.0
  seed: 1
workspace: ${{seed}}-place
stages:
  pool:
    op: {TOYS}:Numbers
    namespace: toys
  bright:
    op: {TOYS}:Shifted
    from: pool
    shift: ${{dark}}
  total:
    op: {TOYS}:Total
    from: bright
  brighter:
    op: {TOYS}:Brighter
    from: [bright]
    total: total
"""
ROOT = Path(__file__).parents[3]


def rejects(text: str, message: str, *overrides: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.parse(text, overrides, file="r.yaml")
    assert str(caught.value) == message


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_a_good_recipe() -> None:
    pipeline = recipe.parse(GOOD)
    assert list(pipeline.nodes) == ["pool", "bright", "total", "brighter"]
    assert pipeline.nodes["bright"].stage.shift == 3.0  # type: ignore[attr-defined]
    assert pipeline.nodes["brighter"].ports == {"total": "total"}
    assert pipeline.nodes["brighter"].place == "recipe:17"
    assert pipeline.source["workspace"] == "1-place"


def test_set_changes_variables_and_parameters() -> None:
    pipeline = recipe.parse(GOOD, ["dark=7", "total.reads_column=key", "bright.threads=1"])
    assert pipeline.nodes["bright"].stage.shift == 7.0  # type: ignore[attr-defined]
    assert pipeline.nodes["total"].stage.reads_column == "key"  # type: ignore[attr-defined]


def test_the_same_dag_in_python_has_the_same_parameters() -> None:
    from tests.engine.toys import Shifted

    assert recipe.parse(GOOD).nodes["bright"].stage == Shifted(shift=3.0)


def test_an_unknown_op() -> None:
    text = changed(f"op: {TOYS}:Numbers", "op: import.foldr")
    rejects(text, "r.yaml:8: pool.op: unknown stage 'import.foldr'; did you mean 'acquire.folder'?")
    text = changed(f"op: {TOYS}:Numbers", "op: import.webdataset")
    rejects(text, "r.yaml:8: pool.op: unknown stage 'import.webdataset'; did you mean 'acquire.webdataset'?")
    text = changed(f"op: {TOYS}:Numbers", "op: zzzzzz")
    rejects(text, "r.yaml:8: pool.op: unknown stage 'zzzzzz'; `curate ops` lists them")


def test_a_custom_op_that_cannot_be_imported() -> None:
    message = "cannot import 'nowhere:Stage' (No module named 'nowhere'); check the name or install its package"
    rejects(changed(f"{TOYS}:Numbers", "nowhere:Stage"), f"r.yaml:8: pool.op: {message}")
    message = "is not a Stage; give a class derived from curate.core.contracts.Stage"
    rejects(changed(f"{TOYS}:Numbers", "pathlib:Path"), f"r.yaml:8: pool.op: 'pathlib:Path' {message}")


def test_a_misspelt_parameter() -> None:
    message = f"bright.shft: unknown parameter of {TOYS}:Shifted; did you mean 'shift'?"
    rejects(changed("shift: ${dark}", "shft: 1"), f"r.yaml:13: {message}")
    message = f"bright.zz: unknown parameter of {TOYS}:Shifted; it has column, threads, shift"
    rejects(changed("shift: ${dark}", "zz: 1"), f"r.yaml:13: {message}")
    message = f"brighter.totl: unknown parameter of {TOYS}:Brighter; did you mean 'total'?"
    rejects(changed("total: total", "totl: total"), f"r.yaml:20: {message}")


def test_a_wrong_type() -> None:
    message = "bright.shift: 'very': input should be a valid number, unable to parse string as a number"
    rejects(changed("shift: ${dark}", "shift: very"), f"r.yaml:13: {message}")
    rejects(
        changed("total: total", "total: 3"),
        "r.yaml:20: brighter.total: expected the name of the stage that makes it, not 3",
    )


def test_a_missing_parameter() -> None:
    message = f"missing; `curate ops {TOYS}:Numbers` describes it"
    rejects(changed("    namespace: toys\n", ""), f"r.yaml:7: pool.namespace: {message}")


def test_a_missing_input_a_cycle_and_a_wrong_port() -> None:
    message = "brighter: unknown input 'brigt'; did you mean 'bright'?"
    rejects(changed("from: [bright]", "from: [brigt]"), f"r.yaml:17: {message}")
    text = changed("from: pool", "from: brighter")
    with pytest.raises(RecipeError, match=r"^r.yaml:\d+: \w+: cycle .*; a stage cannot be its own input$"):
        recipe.parse(text, file="r.yaml")
    message = "brighter: total: 'bright' (toy.shifted) does not make a toy_total; give a stage that does"
    rejects(changed("total: total", "total: bright"), f"r.yaml:17: {message}")


def test_an_unknown_column() -> None:
    text = changed("from: [bright]", "from: [pool]")
    message = "brighter: column 'brightness' is missing upstream; add 'bright' to `from`"
    rejects(text, f"r.yaml:17: {message}")


def test_a_key_set_twice() -> None:
    rejects(
        changed("    from: pool\n", "    from: pool\n    op: x\n"),
        "r.yaml:13: stages.bright.op is set twice (first in line 11)",
    )
    rejects(GOOD + "stages: {}\n", "r.yaml:21: stages is set twice (first in line 6)")


def test_a_set_of_a_stage() -> None:
    more = f"more={{op: {TOYS}:Shifted, from: pool, shift: 2.0}}"
    made = recipe.parse(GOOD, [more, f"total={{op: {TOYS}:Total, from: more}}", "more.shift=4.0"])
    assert made.nodes["more"].stage.shift == 4.0  # type: ignore[attr-defined]
    assert made.nodes["total"].inputs == ("more",) and made.nodes["brighter"].ports == {"total": "total"}
    rejects(GOOD, "r.yaml:6: more.op: unknown stage 'nothing'; `curate ops` lists them", "more={op: nothing}")
    with pytest.raises(RecipeError, match=r"^--set more: no such variable or stage"):
        recipe.parse(GOOD, ["more={from: pool}"])


def test_invalid_sets() -> None:
    rejects(GOOD, "--set drk: no such variable or stage; did you mean 'dark'?", "drk=1")
    rejects(
        GOOD,
        "--set qqqq: no such variable or stage; r.yaml has dark, seed, pool.…, bright.…, total.…, brighter.…",
        "qqqq=1",
    )
    rejects(GOOD, "--set: expected name=value or stage.parameter=value", "dark")
    rejects(
        GOOD, "--set dark: the value is not YAML (expected ',' or ']', but got '<stream end>'); quote it", "dark=[1"
    )
    rejects(
        GOOD, f"r.yaml:10: bright.shft: unknown parameter of {TOYS}:Shifted; did you mean 'shift'?", "bright.shft=1"
    )


def test_an_unknown_variable() -> None:
    rejects(
        changed("${dark}", "${drak}"),
        "r.yaml:13: bright.shift: Interpolation key 'drak' not found; define it under `vars`",
    )
    rejects(
        changed("seed: 1", "seed: ${none}"),
        "r.yaml:4: seed: Interpolation key 'none' not found; define it under `vars`",
    )


def test_files_that_are_not_recipes_of_stages() -> None:
    rejects("", "r.yaml: a recipe needs `stages:` with at least one named stage")
    rejects("- a\n- b", "r.yaml: a recipe needs `stages:` with at least one named stage")
    rejects("stages: {}", "r.yaml: a recipe needs `stages:` with at least one named stage")
    rejects(
        "vars: 3\nstages: {a: {op: x}}",
        "r.yaml: vars: expected a mapping, found int; write `name: value` lines below it",
    )
    rejects(
        "a: 1\nstages: {a: {op: x}}", "r.yaml:1: a: unknown section; a recipe has vars, workspace, stages, description"
    )
    rejects("stages:\n  a: 3", "r.yaml:2: a: a stage needs `op:`; `curate ops` lists them")
    rejects("stages:\n  a.b: {op: x}", "r.yaml:2: a.b: a stage's name must not contain a dot; rename it")
    rejects(
        changed("from: pool", "from: 3"),
        "r.yaml:12: bright.from: expected the name of a stage, or a list of names, not 3",
    )
    with pytest.raises(RecipeError, match=r"^r.yaml:3: not YAML \(.*\); fix the line$"):
        recipe.parse("stages:\n  a: {op: x\nb: ]", file="r.yaml")


def test_values_that_do_not_fit_their_type() -> None:
    rejects(changed("seed: 1", "seed: 2024-99-99"), "r.yaml: not YAML (a value does not fit its type); fix the line")
    rejects(GOOD, "--set dark: the value is not YAML (a value does not fit its type); quote it", "dark=!!int sk-123")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^cannot read .*none.yaml \(.*No such file.*\); give a recipe's YAML file$"):
        recipe.load(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"^cannot read .* \(.*codec can't decode.*\); give a recipe's YAML file$"):
        recipe.load(tmp_path / "binary.yaml")
    (tmp_path / "good.yaml").write_text(GOOD)
    assert len(recipe.load(tmp_path / "good.yaml", ["seed=2"]).nodes) == 4


def error_of(text: str, *overrides: str) -> str | None:
    try:
        recipe.parse(text, overrides, file="r.yaml")
    except CurateError as error:
        return str(error)
    return None


@given(st.data())
def test_every_error_is_one_line(data: st.DataObject) -> None:
    """Lines of a good recipe are dropped, doubled, swapped: it is read, or rejected with one line."""
    lines = GOOD.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        i, j = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        what = data.draw(st.sampled_from(["drop", "double", "swap", "cut", "indent"]))
        if what == "drop" and len(lines) > 1:
            del lines[i]
        elif what == "double":
            lines.insert(j, lines[i])
        elif what == "swap":
            lines[i], lines[j] = lines[j], lines[i]
        elif what == "cut":
            lines[i] = lines[i][: data.draw(st.integers(0, len(lines[i])))]
        else:
            lines[i] = "  " + lines[i]
    text = error_of("\n".join(lines))
    assert text is None or (text.startswith(("r.yaml:", "pipeline:")) and "\n" not in text)


# --- switch ---------------------------------------------------------------------------------------------------------


SWITCH = f"""\
vars:
  kind: costly
stages:
  pool:
    op: {TOYS}:Numbers
    namespace: toys
  bright:
    from: pool
    switch: ${{kind}}
    cases:
      costly: {{op: "{TOYS}:Costly"}}
      shifted: {{op: "{TOYS}:Shifted", shift: 2.0}}
  total:
    switch: ${{kind}}
    cases:
      costly: null
      shifted: {{op: "{TOYS}:Total", from: bright}}
"""


def test_a_variable_switches_between_stages() -> None:
    pipeline = recipe.parse(SWITCH)
    assert list(pipeline.nodes) == ["pool", "bright"]
    assert type(pipeline.nodes["bright"].stage).__name__ == "Costly" and pipeline.nodes["bright"].inputs == ("pool",)
    assert "switch" not in pipeline.source["stages"]["bright"]
    other = recipe.parse(SWITCH, ["kind=shifted", "bright.shift=5"])
    assert list(other.nodes) == ["pool", "bright", "total"]
    assert other.nodes["bright"].stage.shift == 5  # type: ignore[attr-defined]


def test_mistakes_in_a_switch() -> None:
    known = "costly, shifted; give one of these"
    rejects(SWITCH, f"r.yaml:10: bright.switch: 'cheap' is not one of its cases: {known}", "kind=cheap")
    rejects(SWITCH, f"r.yaml:10: bright.switch: ['costly'] is not one of its cases: {known}", "kind=[costly]")
    expected = "expected a mapping from values of `switch` to stages, or to null"
    for text in ("bright.cases=3", "bright.cases={costly: 3}"):
        rejects(SWITCH, f"r.yaml:10: bright.cases: {expected}", text)
    rejects(SWITCH, "r.yaml:4: pool: a stage needs `op:`; `curate ops` lists them", "pool.op=null")
    rejects(SWITCH, "r.yaml:7: bright: a stage needs `op:`; `curate ops` lists them", "bright.cases={costly: {}}")


def inputs(first: object, second: object, reader: object) -> object:
    """What a stage reads, once `first` and `second` are left out."""
    stages: dict[str, object] = {
        "pool": {"op": f"{TOYS}:Numbers", "namespace": "toys"},
        "bright": {"op": f"{TOYS}:Costly", "from": "pool"},
        "first": {"switch": "${on}", "from": first, "cases": {"false": None, "true": {"op": f"{TOYS}:Costly"}}},
        "second": {"switch": "${on}", "from": second, "cases": {"false": None, "true": {"op": f"{TOYS}:Costly"}}},
        "reader": {"op": f"{TOYS}:Total", "from": reader},
    }
    text = json.dumps({"vars": {"on": "false"}, "stages": stages})
    resolved = recipe.resolve(recipe.Document.parse(text, "r.yaml"))
    assert list(resolved["stages"]) == ["pool", "bright", "reader"]
    return resolved["stages"]["reader"]["from"]


@pytest.mark.parametrize(
    ("first", "second", "reader", "expected"),
    [
        ("bright", "pool", "first", "bright"),
        ("bright", "pool", ["first"], "bright"),
        (["pool", "bright"], "pool", "first", ["pool", "bright"]),
        ("bright", "pool", ["pool", "first"], ["pool", "bright"]),
        ("bright", "pool", ["first", "second"], ["bright", "pool"]),
        ("bright", "first", "second", "bright"),
        ("second", "bright", "first", "bright"),
        ("bright", "bright", ["first", "bright", "second"], "bright"),
        ("pool", "pool", "bright", "bright"),
        ([], "pool", "first", []),
        (["bright", ["pool"]], "pool", ["first", "bright"], ["bright", ["pool"]]),
        ({"a": 1}, "pool", "first", {"a": 1}),
        (None, "pool", "first", "first"),
    ],
    ids=str,
)
def test_a_null_case_is_passed_through(first: object, second: object, reader: object, expected: object) -> None:
    """Its readers read what it read, once; a value that is not an input is reported later, as anywhere."""
    assert inputs(first, second, reader) == expected


def test_a_stage_of_a_null_case_is_unknown_to_ports() -> None:
    text = SWITCH.replace("  total:", f"  brighter: {{op: '{TOYS}:Brighter', from: bright, total: total}}\n  total:")
    rejects(text, "r.yaml:13: brighter: unknown input 'total'; stages are pool, bright, brighter", "kind=costly")


# --- the schema for editors -------------------------------------------------------------------------------------------


def recipes() -> list[Path]:
    return [p for p in sorted((ROOT / "pipelines").glob("*.yaml")) if "stages" in yaml.safe_load(p.read_text())]


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed (it comes with moto)")
    schema = json.loads(json.dumps(recipe.json_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", recipes(), ids=lambda path: path.name)
def test_the_schema_accepts_our_recipes(validator: Any, path: Path) -> None:
    assert [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))] == []


def test_the_schema_rejects_what_the_recipe_rejects(validator: Any) -> None:
    good = {"stages": {"pool": {"op": "acquire.folder", "namespace": "n", "path": "p"}}}
    assert validator.is_valid(good)
    assert validator.is_valid({"vars": {"x": 1}, "stages": {"pool": good["stages"]["pool"] | {"path": "${x}"}}})
    for wrong in ({"op": "import.foldr"}, {"pth": "p"}, {"path": 3}, {"namespace": None}):
        assert not validator.is_valid({"stages": {"pool": good["stages"]["pool"] | wrong}})
    assert not validator.is_valid({"stages": {}}) and not validator.is_valid({})
    assert not validator.is_valid(good | {"stags": {}})


def test_the_schema_accepts_a_custom_stage(validator: Any) -> None:
    assert [error.message for error in validator.iter_errors(yaml.safe_load(GOOD))] == []
    for wrong in ({"op": "toys"}, {"op": ":Stage"}, {"op": "toys:Stage", "from": 3}):
        assert not validator.is_valid({"stages": {"mine": wrong}})


def test_every_registered_op_resolves() -> None:
    for op in registry.names():
        assert registry.resolve(op).op == op
