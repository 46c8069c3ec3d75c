"""The commands as an operator meets them: exit codes, one line for each mistake, nothing computed that need not be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e import image_files
from tests.e2e.commands import curate, curate_process
from tests.e2e.recipes import ORDER, stages, write_recipe

COUNT = 30


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_files.write_good(tmp_path_factory.mktemp("images"), COUNT)


@pytest.fixture(scope="module")
def source(images: Path) -> dict[str, Any]:
    return {"op": "acquire.folder", "path": images, "shard_rows": 10}


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory, source: dict[str, Any]) -> Path:
    """A folder with `recipe.yaml` and a workspace in which it has run, as `first`; read only."""
    folder = tmp_path_factory.mktemp("once")
    recipe = write_recipe(folder / "recipe.yaml", source)
    words = ["--run-id", "first", "--json", folder / "first.json"]
    printed = curate("run", recipe, "-w", folder / "workspace", *words)
    assert (printed.code, printed.err) == (0, "")
    return folder


@pytest.fixture
def work(once: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(once, tmp_path / "work"))


def _run(work: Path, *words: str | Path) -> dict[str, Any]:
    printed = curate("run", work / "recipe.yaml", "-w", work / "workspace", "-q", "--json", work / "again.json", *words)
    assert (printed.code, printed.err) == (0, ""), printed
    return json.loads((work / "again.json").read_text())


def _reused(work: Path, run_id: str) -> dict[str, bool]:
    return json.loads((work / f"workspace/runs/{run_id}/result.json").read_text())["reused"]


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# --- output ---


def test_run_writes_its_result_for_programs(once: Path) -> None:
    result = json.loads((once / "first.json").read_text())
    assert result["run_id"] == "first" and list(result["outputs"]) == list(result["ledger"]) == ORDER
    assert all(Path(place, "manifest.json").exists() for place in result["outputs"].values())
    assert result["ledger"]["sample"]["copies"] == 12


def test_run_names_dataset_and_report(work: Path) -> None:
    printed = curate("run", work / "recipe.yaml", "-w", work / "workspace")
    lines = dict(line.split(None, 1) for line in printed.out.splitlines()[-4:])
    assert Path(lines["dataset"], "small-000000.tar").exists()
    assert Path(lines["report"]).name == "index.html" and Path(lines["report"]).exists()
    assert lines["balance"] == "undecided against a random sample: fewer than 20 samples with a label or an embedding"
    assert printed.words.count("reused") >= len(ORDER)
    printed = curate("run", work / "recipe.yaml", "-w", work / "workspace", "--set", "sample.target=24")
    assert " a random sample: " in printed.out.partition("\nreport ")[2]


def test_status_shows_runs_and_a_funnel(once: Path) -> None:
    assert "first done local" in curate("status", "-w", once / "workspace").words
    words = curate("status", "first", "-w", once / "workspace").words
    assert "sample select.hierarchical 30 18 12 12 not_sampled 18" in words


def test_the_workspace_may_come_from_the_environment(once: Path) -> None:
    assert "first" in curate_process("status", CURATE_WORKSPACE=str(once / "workspace")).words


def test_explain_takes_a_key_its_start_a_source_id(once: Path) -> None:
    by_path = curate("explain", "kind0/0000.png", "-w", once / "workspace").words
    key = by_path.split("key ")[1].split()[0]
    for wanted in (key, key[:8]):
        assert curate("explain", wanted, "-w", once / "workspace").words == by_path
    for stage in ORDER[:-1]:
        assert f"{stage} (" in by_path or stage in ("sets", "tree")


def test_ops_lists_and_describes_every_stage(source: dict[str, Any]) -> None:
    listed = curate("ops").words
    for stage in stages(source).values():
        assert stage["op"] in listed
        printed = curate("ops", stage["op"])
        assert printed.code == 0 and "parameter" in printed.words
        for parameter in set(stage) - {"op", "from"}:
            assert parameter in printed.words


def test_schema_describes_the_recipes_that_run(once: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(curate("schema").out)
    recipe = {"stages": json.loads(json.dumps(stages({"op": "acquire.folder", "path": "."})))}
    jsonschema.validate(recipe, schema)
    recipe["stages"]["size"]["min_sid"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(recipe, schema)


def test_diff_names_what_changed(work: Path) -> None:
    _run(work, "--run-id", "second", "--set", "sample.target=9")
    words = curate("diff", "first", "second", "-w", work / "workspace").words
    assert "target: 12 -> 9" in words and "tree same" in words and "sample differs" in words


# --- nothing is computed that need not be ---


def test_plan_computes_nothing(source: dict[str, Any], tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", source)
    printed = curate("plan", recipe, "-w", tmp_path / "workspace")
    assert (
        printed.code == 0 and "pool acquire.folder acquire 0 30 30 estimated ? ? 0 of 3 shards exist" in printed.words
    )
    assert _files(tmp_path) <= {"recipe.yaml", "workspace/format.json"}


def test_a_run_litters_no_folder_of_images(once: Path, images: Path) -> None:
    before = _files(images)
    error = curate("run", once / "recipe.yaml", "-w", images).error
    assert error.startswith(f"curate: {images}: neither a workspace nor empty, since it has ") and ".jpg" in error
    assert _files(images) == before


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    image_files.write_good(tmp_path / "june", 2)
    (tmp_path / "images").mkdir()
    (tmp_path / "images/june").symlink_to(tmp_path / "june")
    image_files.write_good(tmp_path / "images/july", 2)
    source = {"op": "acquire.folder", "namespace": "images", "path": str(tmp_path / "images")}
    (tmp_path / "recipe.yaml").write_text(json.dumps({"stages": {"pool": source}}))
    command = (tmp_path / "recipe.yaml", "-w", tmp_path / "workspace")
    warning = "cannot read folder june: none of its files is imported"
    assert warning in curate("plan", *command).words
    printed = curate("run", *command, "--run-id", "one")
    assert printed.out.startswith(f"warning: pool: {warning}") and "outside_root 1" in printed.words
    assert warning in curate("logs", "one", "-w", tmp_path / "workspace").words


def test_plan_counts_existing_results(once: Path) -> None:
    before = _files(once)
    words = curate("plan", once / "recipe.yaml", "-w", once / "workspace", "-s", "sample.target=9").words
    assert "embed image.embed pass 30 30 0 exact" in words and "tree cluster.fit global 30 30 0 exact" in words
    assert "sample select.hierarchical global 0 30 30 estimated" in words
    assert _files(once) == before


def test_plan_loads_none_of_the_heavy_libraries(once: Path) -> None:
    script = (
        "import sys; from curate.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sorted({'torch', 'faiss', 'ray', 'timm', 'skimage', 'scipy', 'transformers'} & set(sys.modules)))"
    )
    words = ["plan", once / "recipe.yaml", "-w", once / "workspace"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_a_canary_goes_through_the_whole_dag(work: Path) -> None:
    result = _run(work, "--sample", "50%", "--run-id", "canary", "-s", "tree.levels=[3,1]")
    assert list(result["outputs"]) == ORDER
    assert 0 < result["ledger"]["pool"]["before"] < COUNT and result["ledger"]["sample"]["copies"] == 6


# --- mistakes ---

MISTAKES: dict[str, tuple[str, str, list[str]]] = {
    "unknown op": ("op: image.embed", "op: image.embedd", ["embed.op", "did you mean 'image.embed'?"]),
    "misspelt parameter": ("min_side: 16", "min_sid: 16", ["size.min_sid", "did you mean 'min_side'?"]),
    "wrong type": ("target: 12", "target: a dozen", ["sample.target", "'a dozen'", "integer"]),
    "missing input": (
        "from: prints\n  members",
        "from: print\n  members",
        ["sets", "'print'", "did you mean 'prints'?"],
    ),
    "cycle": ("from: pool", "from: clusters", ["cycle", "cannot be its own input"]),
    "unknown port": ("tree: tree\n    levels", "tre: tree\n    levels", ["clusters.tre", "did you mean"]),
    "wrong port": ("tree: tree\n    target", "tree: sets\n    target", ["sample: tree", "not make a cluster_tree"]),
    "missing parameter": ("    name: small\n", "", ["dataset.name", "missing"]),
    "target": ("target: 12", "target: 31", ["sample", "31", "30", "lower the target or raise the multiplier"]),
    "variable": ("target: 12", "target: ${many}", ["sample.target", "many", "define it under `vars`"]),
    "tab": ("    min_side", "\tmin_side", ["'\\t'"]),
    "twice": ("min_side: 16", "min_side: 16\n    min_side: 17", ["set twice"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_before_anything_is_computed(
    mistake: str, once: Path, source: dict[str, Any], tmp_path: Path
) -> None:
    good, bad, message = MISTAKES[mistake]
    recipe = write_recipe(tmp_path / "recipe.yaml", source)
    text = recipe.read_text()
    assert good in text
    recipe.write_text(text.replace(good, bad, 1))
    for command in ("run", "plan"):
        error = curate(command, recipe, "-w", tmp_path / "workspace").error
        assert f"{recipe}:" in error and error.split(f"{recipe}:")[1].split(":")[0].isdigit(), error
        for part in message:
            assert part in error, error
    assert _files(tmp_path) <= {"recipe.yaml", "workspace/format.json"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nowhere.yaml", "-w", "W"], ["cannot read nowhere.yaml ("]),
        (["run", "RECIPE"], ["--workspace is missing", "CURATE_WORKSPACE"]),
        (["run", "RECIPE", "-w", "W", "--engine", "spark"], ["spark", "expected local or ray"]),
        (["run", "RECIPE", "-w", "W", "--sample", "0"], ["--sample 0", "0.1%"]),
        (["run", "RECIPE", "-w", "W", "--sample", "lots"], ["--sample lots"]),
        (["run", "RECIPE", "-w", "W", "--set", "target"], ["--set", "expected name=value"]),
        (["run", "RECIPE", "-w", "W", "--set", "sampel.target=1"], ["sampel.target", "no such variable or stage"]),
        (["run", "RECIPE", "-w", "W", "--set", "sample.target=[1"], ["sample.target", "not YAML"]),
        (
            ["run", "RECIPE", "-w", "W", "--set", "pool.path=/nowhere"],
            ["/nowhere", "RECIPE:2: pool: acquire.folder: path"],
        ),
        (["run", "RECIPE", "-w", "W", "--set", "pool.namespace=../../x"], ["RECIPE:3: pool.namespace", "'../../x'"]),
        (["run", "RECIPE", "-w", "W", "--set", "tree.levels=[2, 6]"], ["RECIPE:", "tree.levels: [2, 6] must decrease"]),
        (["run", "RECIPE", "-w", "W", "--run-id", "../x"], ["--run-id '../x'", "letters, digits"]),
        (["run", "RECIPE", "-w", "W", "--run-id", ""], ["--run-id ''"]),
        (["run", "RECIPE", "-w", "W", "--json", "/nowhere/x.json"], ["--json /nowhere/x.json"]),
        (["run", "RECIPE", "-w", "W", "--run-id", "first"], ["--run-id first", "this run exists"]),
        (["run", "RECIPE", "-w", "/proc/nowhere"], ["/proc/nowhere"]),
        (["run", "RECIPE", "-w", "nosuch://bucket"], ["nosuch://bucket"]),
        (["status", "-w", "/nowhere/at/all"], ["/nowhere/at/all", "not a workspace"]),
        (["status", "last", "-w", "W"], ["'last'", "the latest runs are first"]),
        (["explain", "xyz", "-w", "W"], ["'xyz'", "no sample of run first"]),
        (["explain", "", "-w", "W"], ["''"]),
        (["explain", "xyz", "-w", "W", "--run", "second"], ["'second'", "first"]),
        (["diff", "first", "second", "-w", "W"], ["'second'", "first"]),
        (["gc", "-w", "W", "--drop", "second"], ["'second'", "first"]),
        (["tombstone", "add", "xyz", "--why", "test", "-w", "W"], ["'xyz' is the source id of 0 samples", "or URL; "]),
        (["tombstone", "add", "@/nowhere", "--why", "test", "-w", "W"], ["cannot read @/nowhere ("]),
        (["ops", "image.embedd"], ["did you mean 'image.embed'?"]),
        (["ops", "os:path"], ["os:path"]),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], message: list[str], once: Path) -> None:
    before = _files(once)
    names = {"W": str(once / "workspace"), "RECIPE": str(once / "recipe.yaml")}
    error = curate(*(names.get(word, word) for word in words)).error
    for part in message:
        assert part.replace("RECIPE", names["RECIPE"]) in error, error
    assert {name for name in _files(once) - before if "/runs/" not in name} == set()


def test_the_program_prints_errors_in_one_line(once: Path) -> None:
    printed = curate_process("run", once / "recipe.yaml", "-w", once / "workspace", "--set", "sample.target=0")
    assert (printed.code, printed.out) == (1, "") and "sample.target: 0" in printed.error
    assert curate_process("run").code == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["tree.levels=[31,2]"], "tree: cluster.fit.levels: 31 clusters for 30 rows"),
        (["sample.target=29", "captioned.min_chars=27"], "sample: target: 29 rows, but the pool can give at most 20"),
    ],
)
def test_errors_of_a_stage_name_their_place_in_the_recipe(changes: list[str], message: str, work: Path) -> None:
    words = [word for change in changes for word in ("-s", change)]
    printed = curate("run", work / "recipe.yaml", "-w", work / "workspace", "-q", *words)
    assert f"{work / 'recipe.yaml'}:" in printed.error and message in printed.error
    assert len(list((work / "workspace/datasets/small").iterdir())) == 1


# --- gc ---


def test_gc_removes_only_what_no_kept_run_reaches(work: Path) -> None:
    _run(work, "--run-id", "second", "--set", "sample.target=9", "--set", "captioned.min_chars=27")
    before = _files(work / "workspace")
    printed = curate("gc", "-w", work / "workspace", "--drop", "second")
    assert "would remove" in printed.words and "--delete" in printed.words and _files(work / "workspace") == before
    assert curate("gc", "-w", work / "workspace", "--drop", "second", "--delete").code == 0
    after = _files(work / "workspace")
    assert after < before and not any("second" in name for name in after)
    _run(work, "--run-id", "third")
    assert set(_reused(work, "third").values()) == {True}
    assert {name for name in _files(work / "workspace") if "/runs" not in f"/{name}"} == {
        name for name in after if "/runs" not in f"/{name}"
    }
    assert "would remove 0 outputs" in curate("gc", "-w", work / "workspace").words


# --- tombstones ---


def test_a_tombstoned_sample_is_left_out_and_its_datasets_are_named(work: Path) -> None:
    dataset = Path(json.loads((work / "first.json").read_text())["outputs"]["dataset"])
    key = pq.read_table(dataset / "index.parquet")["key"][0].as_py()
    printed = curate("tombstone", "add", key, "--why", "asked for", "-w", work / "workspace")
    assert "1 entry tombstoned" in printed.words and f"datasets/small/{dataset.name}" in printed.out.replace("\n", "")
    assert key in curate("tombstone", "list", "-w", work / "workspace").words
    result = _run(work, "--run-id", "second")
    made = Path(result["outputs"]["dataset"])
    assert made.name != dataset.name and result["ledger"]["sample"]["rejected"]["tombstone"] == 1
    assert key not in pq.read_table(made / "index.parquet")["key"].to_pylist()
    assert "rejected tombstone" in curate("explain", key, "-w", work / "workspace").words
    assert _reused(work, "second")["tree"] and not _reused(work, "second")["sample"]
    source_id = curate("explain", key, "-w", work / "workspace").words.split("source_id ")[1].split()[0]
    removed = ["tombstone", "remove", source_id, "-w", work / "workspace", "--why"]
    assert "1 tombstone removed" in curate(*removed, "a mistake").words
    listed = curate("tombstone", "list", "-w", work / "workspace").words
    assert f"added key {key} asked for removed key {key} a mistake" in listed and "affected" not in listed
    assert f"there is none for '{key}'" in curate(*removed, "again").error
    assert Path(_run(work, "--run-id", "third")["outputs"]["dataset"]).name == dataset.name
    assert _reused(work, "third")["sample"] and _reused(work, "third")["dataset"]
    assert "1 entry tombstoned" in curate("tombstone", "add", source_id, "--why", "x", "-w", work / "workspace").words
    assert f"datasets/small/{dataset.name}" in curate("tombstone", "list", "-w", work / "workspace").out.replace(
        "\n", ""
    )
