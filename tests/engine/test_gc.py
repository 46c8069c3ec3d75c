"""What gc removes is what no kept run needs, and what it leaves is enough to go on from."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from curate.core import lease
from curate.core.errors import BudgetError, InputError, StageError
from curate.core.storage import Storage, open_storage
from curate.engine import gc
from curate.engine.context import Options
from curate.engine.explain import explain
from curate.engine.record import Run
from curate.engine.run import run
from tests.engine import toys, workspaces


def collect(workspace: Path, keep: int | None = None, drop: tuple[str, ...] = ()) -> set[str]:
    """Remove; the tops of what went."""
    storage = open_storage(str(workspace))
    garbage, runs = gc.unreachable(storage, keep, drop)
    gc.collect(storage, garbage, runs)
    assert gc.unreachable(storage)[0] == {}
    return {path.split("/")[0] for path in garbage}


def test_nothing_goes_while_all_runs_are_kept(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace))
    run(toys.pipeline(even__each=4), str(workspace))
    before = workspaces.times(workspace)
    assert collect(workspace) == set()
    assert workspaces.times(workspace) == before


def test_a_dropped_run_takes_along_what_was_its_own(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace), run_id="one")
    before = workspaces.files(workspace)
    run(toys.pipeline(even__each=4, bright__darkest=1.0), str(workspace), run_id="two")
    assert collect(workspace, drop=("two",)) == {"columns", "artifacts", "selections", "datasets"}
    assert workspaces.files(workspace) == before
    assert all(run(toys.pipeline(), str(workspace)).reused.values())


def test_the_last_runs_are_kept(workspace: Path) -> None:
    for each in (2, 3, 4):
        run(toys.pipeline(even__each=each), str(workspace), run_id=f"each-{each}")
    collect(workspace, keep=1)
    assert len(list(workspace.glob("datasets/toys/*"))) == 1
    assert all(run(toys.pipeline(even__each=4), str(workspace)).reused.values())


@pytest.mark.parametrize("repeat", [0, 15])
def test_a_pool_can_grow_after_its_first_version_is_gone(workspace: Path, memory: Path, repeat: int) -> None:
    """With keys that repeat, shards were amended; what they were amended from is needed when the pool grows."""
    changes = {"pool__repeat": repeat}
    run(toys.pipeline(**changes, pool__rows=30), str(workspace), run_id="small")
    run(toys.pipeline(**changes, pool__rows=40), str(workspace), run_id="large")
    collect(workspace, drop=("small",))
    assert all(run(toys.pipeline(**changes, pool__rows=40), str(workspace)).reused.values())
    run(toys.pipeline(**changes, pool__rows=60), str(workspace))
    clean = memory / f"grown-{repeat}"
    run(toys.pipeline(**changes, pool__rows=60), str(clean))
    ours, theirs = workspaces.files(workspace), workspaces.files(clean)
    assert {name: ours.get(name) for name in theirs} == theirs


@pytest.mark.parametrize("repeat", [0, 15])
def test_a_pool_that_is_gone_is_imported_again(workspace: Path, repeat: int) -> None:
    """The record of a portion whose shard was removed goes with it."""
    half = toys.chain(toys.Brightness(), rows=40, repeat=repeat, gaps=(0, 1))
    other = toys.chain(toys.Brightness(), rows=20, repeat=repeat)
    first = run(half, str(workspace), run_id="half")
    run(other, str(workspace), run_id="other")
    assert "pools" in collect(workspace, drop=("half",))
    again = run(half, str(workspace))
    assert again.ledger == first.ledger and not again.reused["pool"]
    whole = run(toys.chain(toys.Brightness(), toys.Costly(), rows=40, repeat=repeat), str(workspace))
    assert whole.ledger["stage_2"].after == (15 if repeat else 40)


def test_all_may_go(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace))
    collect(workspace, keep=0)
    assert set(workspaces.files(workspace)) == {"format.json"}
    assert run(toys.pipeline(), str(workspace)).ledger["dataset"].copies == 9


def test_what_a_failed_run_has_built_stays_for_the_next(workspace: Path) -> None:
    pipeline = toys.chain(toys.Bad(numbers=(25,)), shard_rows=5)
    with pytest.raises(BudgetError):
        run(pipeline, str(workspace), options=Options(failure_budget=0.0, task_rows=5), run_id="failed")
    columns = sorted(workspace.glob("columns/toy.bad/*/*.parquet"))
    assert len(columns) == 6
    assert collect(workspace) == set()
    assert sorted(workspace.glob("columns/toy.bad/*/*.parquet")) == columns


def test_what_a_killed_import_has_done_stays_for_the_next(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_FAULT_KILL", "publish:pools/*/repeats/*")
    if not (child := os.fork()):
        run(toys.pipeline(), str(workspace), run_id="killed")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    monkeypatch.delenv("CURATE_FAULT_KILL")
    shards = sorted(workspace.glob("pools/toys/shards/*"))
    assert len(shards) == 8 and collect(workspace) == set()
    assert sorted(workspace.glob("pools/toys/shards/*")) == shards
    with pytest.raises(InputError, match="no sample of run killed"):
        explain(Run.load(open_storage(str(workspace)), "killed"), "000001")
    assert "pools" in collect(workspace, drop=("killed",))


def test_what_somebody_builds_now_stays(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace), run_id="one")
    before = workspaces.files(workspace, "columns")
    storage = Storage(str(workspace))
    held = sorted({name.rsplit("/", 1)[0] for name in before if "/versions/" in name})
    with lease.hold(storage, held[0], lambda: False):
        gc.collect(storage, *gc.unreachable(storage, keep=0))
    left = workspaces.files(workspace, "columns")
    assert left and all(name.startswith(held[0].split("/versions/")[0]) for name in left)


@pytest.mark.usefixtures("at_once")
def test_states_of_an_artifact_under_way_stay(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that somebody builds now, of one that a kept run has failed to build; not of a dropped run's."""
    seen = []

    def broken(*_: Any) -> None:
        storage = open_storage(str(workspace))
        seen.append(gc.unreachable(storage)[0] | gc.unreachable(storage, drop=("one",))[0])
        raise OSError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(toys.Total, "finish", broken)
        with pytest.raises(StageError, match="no memory"):
            run(toys.pipeline(), str(workspace), run_id="one")
    states = sorted(workspace.glob("artifacts/toy.total/partials/*/*"))
    assert len(states) == 4 and not any(seen) and collect(workspace) == set()
    assert sorted(workspace.glob("artifacts/toy.total/partials/*/*")) == states
    assert "artifacts" in collect(workspace, drop=("one",))


@pytest.mark.parametrize(("silent", "state"), [(0, "running"), (3600, "killed")])
def test_a_run_of_another_host_is_told_by_the_clock(workspace: Path, silent: float, state: str) -> None:
    run(toys.pipeline(), str(workspace), run_id="far")
    storage = Storage(str(workspace))
    storage.remove("runs/far/result.json")
    held = {"owner": lease.owner() | {"host": "far-away"}, "beat": 9, "time": time.time() - silent}
    for output in ("runs/far", "artifacts/toy.total/0"):
        storage.create_json(lease.lease_path(output), held | {"output": output})
    assert Run.load(storage, "far").state == state
    garbage, runs = gc.unreachable(storage, keep=0)
    assert runs == ([] if state == "running" else ["far"]) and bool(garbage) == (state == "killed")


def test_a_run_that_is_not_there(workspace: Path) -> None:
    run(toys.chain(), str(workspace), run_id="one")
    with pytest.raises(InputError, match=r"run 'two': not in .*; the latest runs are one$"):
        gc.unreachable(open_storage(str(workspace)), drop=("two",))
