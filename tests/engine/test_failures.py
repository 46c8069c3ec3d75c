"""Failures only affect the rows involved: they get a status with a reason, and the rest of the pool continues."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.core.contracts import Filter, Portion, Table
from curate.core.errors import BudgetError, CorruptError, CurateError, LedgerError, StageError
from curate.core.ledger import SET_ASIDE
from curate.core.nouns import facts
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.passes.batches import KILLED
from curate.engine.record.events import read_events
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.tasks.job import ATTEMPTS, Outcome
from curate.engine.tasks.running import run_attempts
from curate.engine.units.pack import tasks as packing
from tests.engine import toys, workspaces
from tests.engine.forks import Drivers

HALF, TENTH = Options(failure_budget=0.5), Options(failure_budget=0.1)
KILL_AT_FOURTH = "publish:facts/toy.costly/*/log/*-000004-*:published"
"""When rows are saved for the fourth time."""


def lost(workspace: Path, result: Result, stage: str) -> dict[int, tuple[str, str]]:
    """Number of the image -> (status, reason), of a Map's rows that are not done."""
    storage = open_storage(str(workspace))
    path = f"{result.outputs[stage].split('/versions/')[0].removeprefix(f'{workspace}/facts/')}"
    found: dict[int, tuple[str, str]] = {}
    for shard, rows in workspaces.facts(workspace)[path].items():
        names = storage.read_table(f"pools/toys/shards/{shard}.parquet").column("meta").to_pylist()
        bad = [row for row in rows if row[facts.STATUS_COLUMN] != facts.DONE]
        assert all(value is None for row in bad for name, value in row.items() if not name.startswith("_"))
        status = {row[facts.ROW]: (facts.STATUS[row[facts.STATUS_COLUMN]], row[facts.REASON]) for row in bad}
        found |= {json.loads(names[row])["number"]: why for row, why in status.items()}
    return found


def test_an_invalid_image_is_unusable(workspace: Path) -> None:
    result = run(toys.chain(toys.Brightness(), toys.Total(), broken=7, rows=20), str(workspace))
    assert lost(workspace, result, "stage_1") == dict.fromkeys((0, 7, 14), ("unusable", "not_an_image"))
    assert result.ledger["stage_1"].unusable == Counter({"not_an_image": 3})
    assert not result.ledger["stage_1"].rejected and not result.ledger["stage_1"].error
    assert result.ledger["stage_2"].before == 17


def test_rows_that_raise_are_found_by_halving(workspace: Path) -> None:
    pipeline = toys.chain(toys.Bad(numbers=(3, 4, 17)), rows=20)
    result = run(pipeline, str(workspace), options=HALF, run_id="bad")
    assert lost(workspace, result, "stage_1") == dict.fromkeys((3, 4, 17), ("error", "ValueError"))
    assert result.ledger["stage_1"].error == Counter(ValueError=3) and result.ledger["stage_1"].after == 17


def test_a_stage_may_call_a_batch_unusable_by_raising(workspace: Path) -> None:
    result = run(toys.chain(toys.Bad(how="reject", numbers=(5,)), rows=10), str(workspace))
    assert lost(workspace, result, "stage_1") == {5: ("unusable", "disliked")}


def test_errors_beyond_the_budget_end_each_run(workspace: Path) -> None:
    pipeline = toys.chain(toys.Bad(numbers=(3, 4, 17, 18)), rows=20, shard_rows=5)
    message = (
        r"4 rows were lost to failures, the budget is 3 \(15.0% of 20\); first: stage_1: ValueError: cannot digest"
    )
    tight = Options(failure_budget=0.15)
    with pytest.raises(BudgetError, match=message):
        run(pipeline, str(workspace), options=tight)
    before = workspaces.files(workspace)
    with pytest.raises(BudgetError, match=message):
        run(pipeline, str(workspace), options=tight)
    assert workspaces.files(workspace) == before
    run(pipeline, str(workspace), options=Options(failure_budget=0.2))
    with pytest.raises(BudgetError, match="4 rows were lost"):
        run(pipeline, str(workspace), options=tight)


def test_errors_of_an_earlier_run_count_when_the_pool_has_grown(workspace: Path) -> None:
    """The new shard alone is folded; the rows that are in error in the others are still lost."""

    def pipeline(rows: int) -> Pipeline:
        return toys.chain(toys.Bad(numbers=(3, 4, 17, 18)), rows=rows, shard_rows=5)

    run(pipeline(20), str(workspace), options=HALF)
    with pytest.raises(BudgetError, match=r"4 rows were lost to failures, the budget is 3 .*; first: stage_1: Value"):
        run(pipeline(25), str(workspace), options=TENTH)
    assert run(pipeline(25), str(workspace), options=HALF).counts["stage_1"].computed == 5
    with pytest.raises(BudgetError, match="5 rows were lost to failures, the budget is 4 "):
        run(toys.chain(toys.Bad(numbers=(3, 4, 17, 18, 30)), rows=35, shard_rows=5), str(workspace), options=TENTH)


class Boom(Filter):
    """A filter with a bug."""

    op: ClassVar[str] = "toy.boom"

    def reads(self) -> tuple[str, ...]:
        return ("brightness",)

    def keep(self, table: Table) -> Any:
        raise ValueError("boom")


@pytest.mark.usefixtures("at_once")
def test_what_raises_leaves_no_mark_of_a_death(workspace: Path) -> None:
    """The next run computes marked shards apart, each in its own process."""
    with pytest.raises(CurateError, match="boom"):
        run(toys.chain(toys.Brightness(), Boom()), str(workspace))
    assert not list(workspace.glob("masks/*/attempts/*"))


def crash(workspace: Path, stage: toys.Stage, **source: Any) -> None:
    """Run until the stage kills the process."""
    child = os.fork()
    if not child:
        run(toys.chain(stage, **source), str(workspace))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.long
def test_rows_that_kill_are_found_by_the_next_run(workspace: Path) -> None:
    stage, source = toys.Bad(how="kill", numbers=(13, 14)), {"rows": 30}
    crash(workspace, stage, **source)
    result = run(toys.chain(stage, **source), str(workspace), options=HALF, run_id="next")
    assert lost(workspace, result, "stage_1") == dict.fromkeys((13, 14), ("error", KILLED))
    assert result.ledger["stage_1"].after == 28
    [found] = [e for e in read_events(open_storage(str(workspace)), "next") if e["event"] == "poison"]
    assert found["rows"] == {"stage_1": [3, 4]}
    assert not list(workspace.glob("masks/*/attempts/*"))


def test_poison_is_laid_at_the_door_of_the_stage_that_died(workspace: Path) -> None:
    stages = toys.Brightness(), toys.Bad(how="kill", numbers=(2,)), toys.Costly()
    pipeline = toys.chain(*stages, rows=4)
    child = os.fork()
    if not child:
        run(pipeline, str(workspace))
        os._exit(0)
    os.waitpid(child, 0)
    result = run(pipeline, str(workspace), options=HALF)
    assert lost(workspace, result, "stage_2") == {2: ("error", KILLED)}
    assert [result.ledger[f"stage_{i}"].after for i in (1, 2, 3)] == [4, 3, 3]


@pytest.mark.long
def test_ray_finds_rows_that_kill_workers_and_keeps_the_others(workspace: Path, on_ray: Any) -> None:
    pipeline = toys.chain(toys.Bad(how="kill", numbers=(2,)), toys.Total(reads_column="fine"), rows=12, shard_rows=4)
    result = run(pipeline, str(workspace), engine=on_ray, options=HALF)
    assert lost(workspace, result, "stage_1") == {2: ("error", KILLED)}
    assert result.ledger["stage_2"].before == 11


def cut(workspace: Path, which: int) -> tuple[Path, bytes]:
    """Truncate the tar of the shard that starts with image `which`."""
    for table in sorted(workspace.glob("pools/toys/shards/*.parquet")):
        if (
            json.loads(open_storage(str(workspace)).read_table(f"pools/toys/shards/{table.name}")["meta"][0].as_py())[
                "number"
            ]
            == which
        ):
            tar = table.with_suffix(".tar")
            whole = tar.read_bytes()
            tar.write_bytes(whole[: len(whole) // 2])
            return tar, whole
    raise AssertionError(which)


@pytest.fixture
def imported(workspace: Path) -> Path:
    """A workspace with the pool of the toy pipeline, and nothing else."""
    run(toys.chain(), str(workspace))
    return workspace


def aside(result: Result, stage: str) -> int:
    """Rows that a stage lost with their shard, and nothing else."""
    entry = result.ledger[stage]
    assert entry.lost == entry.error
    assert set(entry.error) <= {SET_ASIDE}
    return entry.error[SET_ASIDE]


@pytest.mark.usefixtures("at_once")
def test_a_shard_that_is_cut_is_set_aside_and_tried_again(imported: Path, memory: Path) -> None:
    tar, whole = cut(imported, 20)
    result = run(toys.pipeline(), str(imported), options=HALF, run_id="cut")
    assert aside(result, "bright") == 10
    befores = [result.ledger[name].before for name in ("bright", "dear", "parity", "total", "even")]
    assert befores == [40, 30, 30, 30, 30]
    [event] = [e for e in read_events(open_storage(str(imported)), "cut") if e["event"] == "shard_set_aside"]
    assert event["shard"] == tar.stem and "import it again" in event["error"]
    again = run(toys.pipeline(), str(imported), options=HALF)
    assert again.ledger == result.ledger
    assert all(again.reused.values()) and not again.counts["bright"].computed
    tar.write_bytes(whole)
    still = run(toys.pipeline(), str(imported), options=HALF)
    assert still.ledger == result.ledger  # only `curate retry` tries rows in error again
    mended = run(toys.pipeline(), str(imported), options=Options(retry={"bright": (SET_ASIDE,)}))
    assert mended.ledger["bright"].after == mended.ledger["even"].before == 40
    assert mended.counts["bright"].computed == 10
    clean = memory / "mended"
    run(toys.pipeline(), str(clean))
    theirs, ours = workspaces.nouns(clean), workspaces.nouns(imported)
    assert {name: ours.get(name) for name in theirs} == theirs
    known, wanted = workspaces.facts(imported), workspaces.facts(clean)
    assert {name: known.get(name) for name in wanted} == wanted


@pytest.mark.usefixtures("at_once")
def test_a_shard_set_aside_leaves_what_was_known_of_it(imported: Path) -> None:
    """A later stage cannot read the shard: the stage before keeps its facts, and its rows go on as far as these do."""
    first = run(toys.chain(toys.Brightness()), str(imported))
    cut(imported, 0)
    known = workspaces.facts(imported, "toy.brightness")
    result = run(toys.chain(toys.Brightness(), toys.Bad(), toys.Parity(), toys.Even()), str(imported), options=HALF)
    assert result.ledger["stage_1"] == first.ledger["stage_1"] and not result.counts["stage_1"].computed
    assert workspaces.facts(imported, "toy.brightness") == known
    assert aside(result, "stage_2") == 10
    assert [result.ledger[f"stage_{i}"].before for i in (2, 3, 4)] == [40, 30, 30]


@pytest.mark.parametrize("damage", ["empty", "cut", "foreign"])
def test_unreadable_facts_are_reported_and_rebuilt(workspace: Path, damage: str) -> None:
    run(toys.chain(toys.Brightness()), str(workspace))
    before = workspaces.facts(workspace)
    path = sorted(workspace.glob("facts/toy.brightness/*/*/*/000001.parquet"))[1]
    if damage == "foreign":
        open_storage(str(workspace)).publish_table(str(path.relative_to(workspace)), pa.table({"x": [1]}))
    else:
        path.write_bytes(path.read_bytes()[:100] if damage == "cut" else b"")
    shutil.rmtree(workspace / "masks")
    folder = path.parent.relative_to(workspace)
    with pytest.raises(CorruptError, match=f"remove the folders {folder} and masks, and rerun the recipe"):
        run(toys.chain(toys.Brightness()), str(workspace), options=HALF)
    shutil.rmtree(path.parent)
    result = run(toys.chain(toys.Brightness()), str(workspace))
    assert result.ledger["stage_1"].after == 40 and workspaces.facts(workspace) == before
    assert result.counts["stage_1"].computed == 10


@pytest.mark.usefixtures("at_once")
def test_set_aside_beyond_the_budget_ends_the_run(imported: Path) -> None:
    cut(imported, 20)
    why = r"10 rows were lost to failures, the budget is 8 \(20.0% of 40\); first: bright: .*import it again"
    for _ in range(2):
        with pytest.raises(BudgetError, match=why):
            run(toys.pipeline(), str(imported), options=Options(failure_budget=0.2))


@pytest.mark.usefixtures("at_once")
def test_a_budget_is_a_share_of_the_pool_as_it_was(imported: Path) -> None:
    """With 10 of 40 rows gone, a budget of a quarter is not overdrawn by the 30 that are left."""
    cut(imported, 20)
    result = run(toys.pipeline(), str(imported), options=Options(failure_budget=0.25))
    assert result.ledger["page"].before == 9


@pytest.mark.usefixtures("at_once")
def test_ray_sets_a_shard_aside(imported: Path, on_ray: Any) -> None:
    cut(imported, 20)
    result = run(toys.pipeline(), str(imported), engine=on_ray, options=HALF)
    assert aside(result, "bright") == 10
    assert lost(imported, result, "bright") == dict.fromkeys(range(20, 30), ("error", SET_ASIDE))


@pytest.mark.usefixtures("at_once")
def test_a_portion_that_cannot_be_read_is_set_aside(workspace: Path) -> None:
    pipeline = toys.chain(toys.Brightness(), rows=40, unreadable=(1,))
    result = run(pipeline, str(workspace), options=HALF)
    assert result.ledger["pool"].rejected == Counter({SET_ASIDE: 10})
    assert result.ledger["pool"].before == 40 and result.ledger["stage_1"].before == 30
    with pytest.raises(BudgetError, match="portion 2 of pool"):
        run(pipeline, str(workspace))


class Unsized(toys.Numbers):
    """Does not know how many rows a portion has before it reads it."""

    op: ClassVar[str] = "toy.unsized"

    def plan(self) -> list[Portion]:
        return [Portion(portion.content) for portion in super().plan()]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("source", [toys.Numbers, Unsized])
def test_a_portion_is_judged_against_all_that_came(workspace: Path, source: type[toys.Numbers]) -> None:
    """The first of four cannot be read: by then nothing has come, and of the unsized nothing is known."""
    pipeline = Pipeline().add("pool", source(namespace="toys", unreadable=(0,)))
    pipeline.add("bright", toys.Brightness(), "pool").check()
    for _ in range(2):
        result = run(pipeline, str(workspace), options=Options(failure_budget=0.25))
        assert result.ledger["pool"].before == 40 and result.ledger["pool"].rejected == Counter({SET_ASIDE: 10})
    with pytest.raises(BudgetError, match=r"10 rows were lost to failures, the budget is 8 \(20.0% of 40\)"):
        run(pipeline, str(workspace), options=Options(failure_budget=0.2))


@pytest.mark.usefixtures("at_once")
def test_a_failed_global_step_ends_the_run(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError("the disk\nis gone")

    monkeypatch.setattr(packing, "read_members", broken)
    with pytest.raises(StageError, match="dataset: OSError: the disk is gone; fix the cause and rerun the"):
        run(toys.pipeline(), str(workspace))


@pytest.mark.usefixtures("at_once")
def test_what_fails_once_is_tried_again() -> None:
    calls: list[int] = []

    def twice(payload: int) -> int:
        calls.append(payload)
        if len(calls) < ATTEMPTS:
            raise OSError("a moment")
        return payload

    assert run_attempts(twice, 5, 0) == Outcome(0, 5)
    assert calls == [5] * ATTEMPTS


def test_a_stage_that_loses_rows_is_a_bug_that_is_found(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toys.Total, "partial", lambda self, table: pa.table({"rows": [0], "sum": [0.0]}))
    monkeypatch.setattr("curate.core.rows.Rows.live_table", lambda self, shard, names: self.table(shard, names)[:5])
    with pytest.raises(LedgerError, match="total: 20 rows before, but light passed 40"):
        run(toys.pipeline(), str(workspace))


@pytest.mark.long
def test_costly_rows_are_not_computed_again(workspace: Path, memory: Path) -> None:
    """After a kill inside a shard, the next run resumes from the log and gets the same rows."""
    source = {"pool__rows": 32, "pool__shard_rows": 32}
    computed = memory / "computed.log"
    changes = {**source, "dear__log": str(computed)}
    with Drivers() as drivers:
        killed = drivers.run(workspace, changes=changes, environment={"CURATE_FAULT_KILL": KILL_AT_FOURTH})
        assert killed["signal"] == signal.SIGKILL
        segments = [pq.read_table(path) for path in workspace.glob("facts/toy.costly/*/log/*/*.parquet")]
        known = sum(segment.num_rows for segment in segments)
        before = computed.read_text().split()
        assert 16 <= len(before) == known < 32  # a segment for each batch, before the next is computed
        assert drivers.run(workspace, changes=changes)["error"] is None
        after = computed.read_text().split()[len(before) :]
        assert len(after) == 32 - len(before) and not set(after) & set(before)
        clean = memory / "without-a-kill"
        drivers.run(clean, changes=source)
    workspaces.assert_same(clean, workspace)
