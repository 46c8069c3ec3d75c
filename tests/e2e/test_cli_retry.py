"""Commands about facts and datasets, as an operator calls them: retry, du, datasets, gc --costly."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from curate.core.store.storage import FORMAT
from tests.e2e.commands import curate

TOYS, RULES = "tests.engine.toys", "tests.engine.experiment"
STAGES = {
    "pool": {"op": f"{RULES}:Sizes", "namespace": "retry", "rows": 16, "shard_rows": 8},
    "inspect": {"op": f"{RULES}:Inspect", "from": "pool"},
    "size": {"op": f"{RULES}:MinSide", "from": "inspect", "min_side": 32},
    "text": {"op": f"{RULES}:Clean", "from": "size"},
    "caption": {"op": f"{RULES}:Caption", "from": "text"},
    "parity": {"op": f"{TOYS}:Parity", "from": "caption"},
    "even": {"op": f"{TOYS}:Even", "from": "parity"},
    "dataset": {"op": f"{TOYS}:PlainPack", "from": "even", "name": "small"},
}
OPTIONS = ("-q", "--failure-budget", "0.5")
FAILING = ("-s", "caption.fails=[' 3', ' 7']")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a workspace in which two captions have failed."""
    folder = tmp_path_factory.mktemp("once")
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": STAGES}, sort_keys=False))
    printed = curate(*_run(folder, "run", "first", *FAILING))
    assert (printed.code, printed.err) == (0, "") and "http_503 2" in printed.words
    return folder


@pytest.fixture
def work(once: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(once, tmp_path / "work"))


def _run(folder: Path, command: str, run_id: str, *words: str) -> list[str | Path]:
    stage = ["caption"] if command == "retry" else []
    place = ["-w", folder / "workspace", "--run-id", run_id, "--json", folder / f"{run_id}.json"]
    return [command, folder / "recipe.yaml", *stage, *place, *OPTIONS, *words]


def _stages(folder: Path, run_id: str) -> dict[str, dict[str, Any]]:
    return json.loads((folder / f"{run_id}.json").read_text())["stages"]


def test_json_records_what_each_stage_did(once: Path) -> None:
    value = json.loads((once / "first.json").read_text())
    assert set(value) == {"run_id", "outputs", "ledger", "seconds", "stages", "spend"}
    assert list(value["stages"]) == list(STAGES)
    printed = value["stages"]["caption"]
    wanted = {"alive": 16, "computed": 16, "reused": 0, "rejected": {}, "unusable": 0, "error": 2, "requests": 16}
    assert printed | wanted | {"after": 14, "rebuilt": True} == printed


def test_a_run_leaves_rows_in_error_alone_and_retry_computes_them(work: Path) -> None:
    assert curate(*_run(work, "run", "second")).code == 0
    assert (_stages(work, "second")["caption"]["computed"], _stages(work, "second")["caption"]["error"]) == (0, 2)
    printed = curate(*_run(work, "retry", "third", "--status", "error", "--reason", "http_503"))
    assert (printed.code, printed.err) == (0, "") and "computed 2, reused 14" in printed.words
    found = _stages(work, "third")["caption"]
    assert (found["computed"], found["requests"], found["error"], found["after"]) == (2, 2, 0, 16)
    assert curate(*_run(work, "retry", "fourth")).code == 0 and _stages(work, "fourth")["caption"]["computed"] == 0


def test_retry_of_another_reason_computes_nothing(work: Path) -> None:
    assert curate(*_run(work, "retry", "second", "--reason", "http_429")).code == 0
    assert (_stages(work, "second")["caption"]["computed"], _stages(work, "second")["caption"]["error"]) == (0, 2)


def test_attempts_are_shown(work: Path) -> None:
    assert curate(*_run(work, "retry", "second", "-s", "caption.fails=[' 3']")).code == 0
    words = curate("explain", "000003", "-w", work / "workspace").words
    assert "status error reason http_503 attempts 2" in words and "not computed caption: http_503" in words
    assert "answer about image 7" in curate("explain", "000007", "-w", work / "workspace").words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["retry", "RECIPE", "captoin"], "retry captoin: not a stage of the recipe; "),
        (["retry", "RECIPE", "size"], "retry size: a Filter has no rows in error; these stages may: inspect, text, "),
        (["retry", "RECIPE", "dataset"], "retry dataset: a Pack has no rows in error; "),
        (["retry", "RECIPE", "caption", "--status", "done"], "--status done: expected error or unusable; "),
        (["retry", "RECIPE", "caption", "--run-id", "first"], "--run-id first: this run exists"),
        (["gc", "--keep", "-1"], "--keep -1: expected 0 or more"),
        (["pin", "x", "first", "even"], "pin x: 'even' built no artifact or dataset in run first; expected one of"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], message: str, once: Path) -> None:
    named = [str(once / "recipe.yaml") if word == "RECIPE" else word for word in words]
    assert message in curate(*named, "-w", once / "workspace").error


def test_a_plan_does_not_end_at_the_budget_of_a_run(work: Path) -> None:
    """Two of 16 rows are in error, more than a hundredth."""
    printed = curate("plan", work / "recipe.yaml", "-w", work / "workspace")
    assert (printed.code, printed.err) == (0, "") and "caption rules.caption pass 16 16 0 exact" in printed.words


def test_retry_makes_no_workspace(once: Path, tmp_path: Path) -> None:
    place = tmp_path / "new"
    message = f"curate: {place}: not a workspace; check the path, or create one with `curate run`"
    assert curate("retry", once / "recipe.yaml", "caption", "-w", place).error == message
    assert not place.exists()


def test_du_counts_bytes_and_what_gc_would_free(work: Path) -> None:
    words = curate("du", "-w", work / "workspace").words
    size = sum(path.stat().st_size for path in (work / "workspace").rglob("*") if path.is_file())
    assert words.endswith(f" {size:,} 0") and "facts rules.caption caption" in words
    shutil.rmtree(work / "workspace/runs")
    assert not curate("du", "-w", work / "workspace").words.endswith(" 0")


def test_datasets_are_listed_pinned_and_kept(work: Path) -> None:
    place = ("-w", work / "workspace")
    name = next((work / "workspace/datasets/small").iterdir()).name
    assert f"small {name} first 9 2 " in curate("datasets", *place).words
    assert curate("pin", "good", "first", "dataset", *place).out == f"pin:good is dataset {name} (toy.pack)\n"
    assert curate("datasets", *place).words.endswith(" good")
    assert curate("gc", "--keep", "0", "--delete", *place).code == 0
    assert f"small {name} first 9 2 " in curate("datasets", *place).words  # a pin keeps its run
    assert curate("gc", "--drop", "first", "--delete", *place).code == 0
    assert f"small {name} 9 2 " in curate("datasets", *place).words
    assert not (work / "workspace/selections").exists() or not list((work / "workspace/selections").rglob("*.parquet"))


def test_gc_keeps_answers_of_costly_stages_by_default(work: Path) -> None:
    place = ("-w", work / "workspace")
    assert "would remove" in curate("gc", "--keep", "0", *place).words
    tables = sorted((work / "workspace/facts/rules.caption").rglob("00*.parquet"))
    assert len(tables) == 2 and curate("gc", "--keep", "0", "--delete", *place).code == 0
    assert [path for path in tables if path.exists()] == tables and curate(*_run(work, "run", "again")).code == 0
    assert _stages(work, "again")["caption"]["computed"] == 0
    assert curate("gc", "--keep", "0", "--costly", "--delete", *place).code == 0
    assert not [path for path in tables if path.exists()] and curate(*_run(work, "run", "anew")).code == 0
    assert _stages(work, "anew")["caption"]["computed"] == 16


def test_a_workspace_of_the_old_format_is_one_line(work: Path) -> None:
    place = work / "workspace"
    (place / "format.json").write_text('{"format": 1}')
    message = (
        f"curate: {place}: this workspace has format 1, written by an older version; this version reads format "
        f"{FORMAT}: choose another workspace and run the recipe there"
    )
    assert curate("run", work / "recipe.yaml", "-w", place).error == message
    assert curate("plan", work / "recipe.yaml", "-w", place).error == message
    assert curate("status", "-w", place).error == curate("du", "-w", place).error == message


# --- damage -----------------------------------------------------------------------------------------------------------

ASKED = ("plan", "explain", "run", "du", "gc", "diff", "status", "datasets")
EACH, TARS = "even.each=4", "dataset.shard_rows=3"
MASK, LINES, POOL, SELECTION = "this mask", "this list of shards", "this table of a pool", "this table of a selection"
DAMAGED = {  # files, their name in messages, the change in the next run, and the stage that fails on them
    "masks/*/*.parquet": (MASK, EACH, {"run", "explain"}),
    "masks/*/versions/*/shards.parquet": (LINES, EACH, {"run", "plan", "explain", "du", "gc"}),
    "facts/*/*/*/versions/*/shards.parquet": (LINES, EACH, {"explain", "du", "gc"}),
    "facts/*/*/*/*/0*.parquet": ("this table of facts", EACH, {"explain"}),
    "pools/*/versions/*/shards.parquet": (LINES, TARS, {"explain", "du", "gc"}),
    "pools/*/shards/*.parquet": (POOL, EACH, {"run", "explain"}),
    "selections/*/*/rows/*.parquet": (SELECTION, TARS, {"run", "explain", "diff"}),
    "selections/*/*/shards.parquet": (LINES, TARS, {"run", "explain", "diff"}),
}


@pytest.fixture(scope="module")
def twice(once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, with another selection each."""
    folder = Path(shutil.copytree(once, tmp_path_factory.mktemp("twice") / "work"))
    assert curate(*_run(folder, "run", "second", *FAILING, "-s", "even.each=2")).code == 0
    return folder


@pytest.mark.drawn
@pytest.mark.parametrize("how", ["turned", "cut", "gone"])
@pytest.mark.parametrize("files", DAMAGED)
@pytest.mark.long
def test_damage_is_one_line_and_its_remedy_works(twice: Path, tmp_path: Path, files: str, how: str) -> None:
    work = Path(shutil.copytree(twice, tmp_path / "work"))
    place, recipe = work / "workspace", work / "recipe.yaml"
    what, change, stumble = DAMAGED[files]
    paths = list(place.glob(files))
    assert paths
    for path in paths:
        _damage(path, how)
    words = {
        "run": _run(work, "run", "third", *FAILING, "-s", change),
        "plan": ["plan", recipe, "-w", place, "-s", change],
    }
    words |= {"explain": ["explain", "000003", "-w", place, "--run", "second"]}
    words |= {"diff": ["diff", "first", "second", "-w", place]}
    printed = {name: curate(*words.get(name, [name, "-w", place])) for name in ASKED}
    message = rf"curate: {place}/.*: {what} is corrupt or missing \(.+\); .*remove .* and rerun the recipe"
    failed = {name for name in ASKED if printed[name].code}
    assert failed >= stumble
    for name in sorted(failed):
        assert re.fullmatch(message, printed[name].error), printed[name]
    for attempt in range(20):
        again = curate(*_run(work, "run", f"mended-{attempt}", *FAILING, "-s", change))
        if not again.code:
            break
        _follow(place, again.error)
    whole = Path(shutil.copytree(twice, tmp_path / "whole"))
    assert curate(*_run(whole, "run", "whole", *FAILING, "-s", change)).code == 0
    found, wanted = work / f"mended-{attempt}.json", whole / "whole.json"
    assert json.loads(found.read_text())["ledger"] == json.loads(wanted.read_text())["ledger"]


def _damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:100])
    else:  # the end, where Parquet keeps its schema, stays
        path.write_bytes(data[:4] + bytes(byte ^ 255 for byte in data[4 : len(data) // 3]) + data[len(data) // 3 :])


def _follow(workspace: Path, error: str) -> None:
    """Do as an error says."""
    remedy = error.partition("); ")[2]
    names = re.findall(r"\b(?:facts|masks|pools|selections)/[^ ]+", remedy)
    names += [error.split(": ")[1].removeprefix(f"{workspace}/")] if "remove it" in remedy else []
    assert names, error
    for name in names:
        if (workspace / name).is_dir():
            shutil.rmtree(workspace / name)
        else:
            (workspace / name).unlink(missing_ok=True)
