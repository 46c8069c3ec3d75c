"""Sources that may read something else the next time: every row stays, retries replace failed rows."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from curate.api import Workspace
from curate.core.errors import RecipeError
from curate.core.hashing import make_key
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import read_pool, read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.backends.local import LocalBackend
from curate.engine.plan.planner import plan
from curate.engine.preflight import preflight
from curate.engine.record.claims import exclusive
from curate.engine.record.explain import explain
from curate.engine.record.gc import collect, unreachable
from curate.engine.record.runs import RunRecord
from curate.engine.run import run
from curate.engine.state import Options
from curate.engine.units.keys import look_up
from curate.engine.units.source.fetches import Fetches
from curate.engine.workers.scheduler import Scheduler
from tests.engine import workspaces
from tests.engine.toys.lists import Listed
from tests.engine.units.flaky import ROWS, asked, build, fails, pool, recipe, table
from tests.engine.units.test_collect import write


def test_every_row_of_the_list_has_a_row(site: Path, workspace: Path) -> None:
    result = build(site, workspace)
    entry = result.ledger["pool"]
    assert (entry.before, entry.after, entry.rejected) == (ROWS, ROWS - 4, Counter())
    assert entry.error == Counter(timeout=2, reset=1) and entry.unusable == Counter(gone=1)
    rows = {row["source_id"]: row for row in table(result).to_pylist()}
    assert sorted(rows) == sorted(f"{n}-{n}" for n in range(ROWS))
    assert {(row["status"], row["reject"], row["size"]) for row in rows.values() if row["reject"]} == {
        ("error", "timeout", None), ("error", "reset", None), ("unusable", "gone", None)
    }  # fmt: skip
    assert result.ledger["bright"].before == ROWS - 4
    asked(site)
    again = build(site, workspace)
    assert again.reused["pool"] and again.ledger == result.ledger and asked(site) == []


def test_a_retry_replaces_the_rows_that_are_no_longer_in_error(site: Path, workspace: Path) -> None:
    first = build(site, workspace)
    before = workspaces.files(workspace, "pools/fetched/shards/")
    asked(site)
    fails(site, {"5-5": "TIMEOUT", "7-7": "gone", "9-9": "gone"})
    second = build(site, workspace, pool=())
    assert asked(site) == ["3-3", "5-5", "7-7"]
    entry = second.ledger["pool"]
    assert (entry.before, entry.after) == (ROWS, ROWS - 3)
    assert entry.error == Counter(timeout=1) and entry.unusable == Counter(gone=2)
    assert second.outputs["pool"] != first.outputs["pool"]
    assert before.items() <= workspaces.files(workspace, "pools/fetched/shards/").items(), "shards are immutable"
    assert second.ledger["bright"].after == ROWS - 3
    assert second.counts["bright"].computed == 1, "a retry computes the facts of its rows only"
    storage, base = pool(second)
    manifest = Manifest.load(storage, base)
    assert manifest is not None and Fetches.from_json(manifest.extra["fetches"]).codes.total() == ROWS + 3
    shards = read_shards(storage, base)
    for name, reason in {"3-3": None, "5-5": "timeout", "7-7": "gone", "9-9": "gone"}.items():
        places = look_up(storage, manifest, make_key("fetched", name))
        assert places is not None and len(places) == 1, "the index has the latest row of a key"
        [(shard, row)] = places
        assert read_pool(storage, shards[shard].table)["reject"][row].as_py() == reason
        [(_, _, found), *_] = explain(RunRecord.load(storage, second.run_id), name)
        assert found["reject"] == reason
    assert build(site, workspace).ledger == second.ledger, "a run without a retry has the latest generation"


def test_a_retry_of_some_reasons(site: Path, workspace: Path) -> None:
    build(site, workspace)
    asked(site)
    fails(site, {})
    entry = build(site, workspace, pool=("reset",)).ledger["pool"]
    assert asked(site) == ["7-7"] and entry.error == Counter(timeout=2)
    assert build(site, workspace, pool=()).ledger["pool"].error == Counter()
    assert asked(site) == ["3-3", "5-5"]


def test_a_retry_of_unusable_rows(site: Path, workspace: Path) -> None:
    """Settings may have been wrong: named reasons can be retried."""
    codes = {"1-1": "gone", "2-2": "port", "4-4": "port", "6-6": "port", "8-8": "TIMEOUT"}
    fails(site, codes)
    build(site, workspace)
    asked(site)
    options = Options(retry={"pool": ("port",)}, retry_status="unusable")
    del codes["4-4"]
    fails(site, codes | {"2-2": "gone", "6-6": "TIMEOUT"})
    result = run(recipe(site), str(workspace), options=options)
    assert asked(site) == ["2-2", "4-4", "6-6"]
    entry = result.ledger["pool"]
    assert entry.unusable == Counter(gone=2, port=1) and entry.error == Counter(timeout=1)
    assert (entry.before, entry.after) == (ROWS, ROWS - 4)
    storage, base = pool(result)
    manifest = Manifest.load(storage, base)
    assert manifest is not None
    assert all(len(look_up(storage, manifest, make_key("fetched", f"{n}-{n}")) or ()) == 1 for n in range(ROWS))
    [(_, _, found), *_] = explain(RunRecord.load(storage, result.run_id), "2-2")
    assert found["reject"] == "gone"


@pytest.mark.parametrize(
    ("retry", "message"),
    [
        ({"bright": ("timeout",)}, "retry bright: --status unusable applies to downloads only"),
        ({"pool": ()}, "retry pool: --status unusable needs --reason"),
    ],
)
def test_what_unusable_rows_cannot_be_retried(
    site: Path, workspace: Path, retry: dict[str, tuple[str, ...]], message: str
) -> None:
    build(site, workspace)
    with pytest.raises(RecipeError, match=message):
        Workspace(str(workspace)).submit(recipe(site).check(), options=Options(retry=retry, retry_status="unusable"))


def test_a_retry_that_gains_nothing_changes_nothing(site: Path, workspace: Path) -> None:
    first = build(site, workspace)
    before = workspaces.files(workspace, "pools/")
    second = build(site, workspace, pool=())
    assert second.outputs == first.outputs and workspaces.files(workspace, "pools/") == before


def test_only_new_rows_of_a_grown_list_are_fetched(site: Path, workspace: Path) -> None:
    build(site, workspace)
    asked(site)
    write(site / "lists", b=[(100, 100), (101, 101), (3, 3)])
    entry = build(site, workspace).ledger["pool"]
    assert asked(site) == ["100-100", "101-101"] and entry.before == ROWS + 2


def test_the_plan_of_a_list(site: Path, workspace: Path) -> None:
    def planned() -> dict[str, Any]:
        storage, made = open_storage(str(workspace)), recipe(site).check()
        with closing(Scheduler(LocalBackend())) as workers:
            lines = plan(made, storage, Options(), workers, preflight(made, storage, Options(), workers))
        return {line.stage: line for line in lines}

    lines = planned()
    assert lines["pool"].note == "depends on list" and lines["pool"].needed is None
    assert asked(site) == []
    build(site, workspace)
    write(site / "lists", b=[(100, 100)])
    assert planned()["pool"].note == "depends on list"
    run(Pipeline().add("list", Listed(folder=str(site / "lists"))), str(workspace))
    lines = planned()
    assert (lines["pool"].done, lines["pool"].needed, lines["pool"].compute) == (ROWS, ROWS + 1, 1)


def test_gc_keeps_what_a_later_run_needs(site: Path, workspace: Path) -> None:
    build(site, workspace)
    fails(site, {})
    write(site / "lists", b=[(100, 100)])
    last = build(site, workspace, pool=())
    storage = open_storage(str(workspace))
    with exclusive(storage):
        garbage, gone = unreachable(storage, keep=1)
        collect(storage, garbage, gone)
    asked(site)
    assert garbage and build(site, workspace).ledger == last.ledger and asked(site) == []
    assert build(site, workspace).reused["list"]


@pytest.mark.long
def test_the_same_on_ray(site: Path, workspace: Path, on_ray: Any) -> None:
    build(site, workspace)
    other = workspace.parent / "ray"
    build(site, other, engine=on_ray)
    fails(site, {"5-5": "TIMEOUT"})
    results = build(site, workspace, pool=()), build(site, other, engine=on_ray, pool=())
    assert results[0].ledger == results[1].ledger
    assert workspaces.files(workspace, "pools/") == workspaces.files(other, "pools/")


def test_a_source_that_cannot_be_retried(site: Path, workspace: Path) -> None:
    build(site, workspace)
    with pytest.raises(RecipeError, match="retry list: a Collect has no rows in error; these stages may: pool, bright"):
        Workspace(str(workspace)).submit(recipe(site).check(), options=Options(retry={"list": ()}))
