"""A derived pool in explain, plan, tombstones and gc."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from curate.core.nouns import tombstones
from curate.core.store.storage import open_storage, open_workspace
from curate.engine.backends.local import LocalBackend
from curate.engine.plan.planner import plan
from curate.engine.preflight import preflight
from curate.engine.record import claims, gc
from curate.engine.record.affected import affected_datasets
from curate.engine.record.explain import explain
from curate.engine.record.runs import RunRecord, latest
from curate.engine.run import run
from curate.engine.state import Options
from curate.engine.workers.scheduler import Scheduler
from tests.engine import derived, workspaces
from tests.engine.derived import LOOSE, STRICT, alive, members, rows, shards


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.long
def test_explain_continues_with_the_parent(workspace: Path) -> None:
    run(derived.pipeline(), str(workspace), run_id="loose")
    run(derived.pipeline(light__darkest=STRICT), str(workspace), run_id="strict")
    storage = open_storage(str(workspace))
    there = alive(workspace)[0]
    gone = next(row for row in rows(workspace) if row["key"] not in {other["key"] for other in alive(workspace)})
    story = explain(latest(storage, None), there["source_id"])
    assert [name for name, _, _ in story if not name.startswith("parent: ")][:3] == ["tiles", "shade", "lit"]
    by_name = {name: about for name, _, about in story}
    assert by_name["parent: pool"]["key"] == there["parent"] and by_name["parent: light"]["reject"] is None
    assert by_name["parent: tiles"] == {"children": 2}
    told = {name: about for name, _, about in explain(latest(storage, None), gone["key"])}
    assert told["tiles"]["reject"] == "absent: its parent was rejected at light: too_dark"
    assert told["shade"] == {"not computed": "tiles: absent: its parent was rejected at light: too_dark"}
    assert told["parent: light"]["reject"] == "too_dark" and told["parent: tiles"] == {
        "not computed": "light: too_dark"
    }
    assert explain(RunRecord.load(storage, "loose"), gone["key"])[0][2]["reject"] is None


def test_plan_counts_missing_children(workspace: Path) -> None:
    def planned(darkest: float) -> dict[str, tuple[Any, ...]]:
        made, storage = derived.pipeline(light__darkest=darkest), open_workspace(str(workspace))
        steps = plan(made, storage, Options(), Scheduler(LocalBackend()), preflight(made, storage, Options()))
        return {step.stage: (step.done, step.needed, step.compute, step.after, step.certainty) for step in steps}

    assert planned(STRICT)["tiles"] == (0, 20, 20, 20, "estimated")
    run(derived.pipeline(light__darkest=STRICT), str(workspace))
    there = planned(STRICT)
    assert there["tiles"] == (9, 9, 0, 18, "exact") and there["shade"] == (18, 18, 0, 18, "exact")
    assert all(compute == 0 for _, _, compute, _, _ in there.values())
    assert planned(0.0)["tiles"][1] == 20
    run(derived.pipeline(), str(workspace))
    run(derived.pipeline(light__darkest=LOOSE), str(workspace))
    first = workspace / shards(workspace)[0].table
    for version in workspace.glob("pools/tiles/versions/*"):
        shutil.rmtree(version)
    assert planned(0.0)["tiles"] == (20, 20, 0, 40, "exact")
    assert planned(LOOSE)["tiles"] == (10, 10, 0, 20, "exact") and planned(LOOSE)["even"][4] == "exact"
    shutil.rmtree(first.parent)
    done, needed, compute, _, certainty = planned(0.0)["tiles"]
    assert (done, needed, compute, certainty) == (15, 20, 5, "exact")


@pytest.mark.parametrize("by", ["key", "parent", "digest of the parent"])
def test_tombstones_of_a_parent_apply_to_its_children(workspace: Path, by: str) -> None:
    result = run(derived.pipeline(even__each=30), str(workspace))
    storage = open_storage(str(workspace))
    chosen = next(row for row in rows(workspace) if row["key"] in {line["key"] for line in members(result)})
    parent = {name: about for name, _, about in explain(latest(storage, None), chosen["key"])}["parent: pool"]
    mark = {"key": chosen["key"], "parent": parent["key"], "digest of the parent": parent["sha256"]}[by]
    tombstones.add(storage, [mark], "asked for")
    held = [line["key"] for line in members(result)]
    family = {row["key"] for row in rows(workspace) if row["parent"] == parent["key"]}
    buried = {chosen["key"]} if by == "key" else family
    assert affected_datasets(storage, tombstones.load(storage)) == {
        result.outputs["dataset"].removeprefix(f"{storage.url}/"): len(buried & set(held))
    }
    after = run(derived.pipeline(even__each=30), str(workspace))
    assert after.ledger["even"].rejected["tombstone"] == len(buried)
    assert not buried & {line["key"] for line in members(after)} and not after.counts["tiles"].computed
    assert affected_datasets(storage, tombstones.load(storage)).keys() == {
        result.outputs["dataset"].removeprefix(f"{storage.url}/")
    }


def collect(workspace: Path, *drop: str) -> dict[str, int]:
    storage = open_storage(str(workspace))
    with claims.exclusive(storage):
        garbage, runs = gc.unreachable(storage, drop=drop)
        gc.collect(storage, garbage, runs)
    assert gc.unreachable(storage)[0] == {}
    return garbage


def test_gc_leaves_what_a_kept_version_lists(workspace: Path) -> None:
    strict, loose = derived.pipeline(light__darkest=STRICT), derived.pipeline()
    run(strict, str(workspace), run_id="strict")
    before = workspaces.files(workspace, "pools/")
    run(loose, str(workspace), run_id="loose")
    assert collect(workspace) == {}
    held = workspaces.files(workspace, "pools/")
    gone = {name for name in collect(workspace, "loose") if "/derived/" in name}
    assert gone == {name for name in held.keys() - before.keys() if "/derived/" in name}
    assert "000002.parquet" in {name.rsplit("/", 1)[1] for name in gone}
    assert workspaces.files(workspace, "pools/") == before
    assert all(run(strict, str(workspace), run_id="again").reused.values())
    run(loose, str(workspace), run_id="loose")
    collect(workspace, "strict", "again")
    assert all(run(loose, str(workspace), run_id="kept").reused.values())
    collect(workspace, "loose", "kept")
    assert workspaces.files(workspace) == {"format.json": workspaces.files(workspace)["format.json"]}


def test_gc_leaves_the_tables_that_hold_no_child(workspace: Path, log: Path) -> None:
    """They record the parents without children."""
    short = derived.pipeline(tiles__none=tuple(range(5)), tiles__log=str(log))
    run(short, str(workspace), run_id="one")
    run(derived.pipeline(tiles__each=4), str(workspace), run_id="two")
    collect(workspace, "two")
    derived.computed(log)
    assert all(run(short, str(workspace)).reused.values()) and not derived.computed(log)
