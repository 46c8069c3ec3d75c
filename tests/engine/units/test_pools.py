"""Pools as a hostile source makes them: repeated keys, shards without rows, shards without a live row."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from curate.core.errors import InputError, RecipeError, TargetError
from curate.core.nouns import facts, tombstones
from curate.core.nouns.pools import read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage, open_storage, open_workspace
from curate.engine.backends.local import LocalBackend
from curate.engine.plan.planner import plan
from curate.engine.preflight import preflight
from curate.engine.record.runs import RunRecord
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.units import shuffle
from curate.engine.workers.scheduler import Scheduler
from tests.engine import toys, workspaces


def rows(result: Result) -> pa.Table:
    """The pool's table, all shards."""
    where = result.outputs["pool"]
    storage, base = open_storage(where.split("/pools/")[0]), "pools/" + where.split("/pools/")[1]
    return pa.concat_tables([storage.read_table(shard.table) for shard in read_shards(storage, base)])


@pytest.mark.parametrize("shard_rows", [4, 10, 30])
def test_a_key_lives_once_wherever_it_repeats(workspace: Path, shard_rows: int) -> None:
    """Numbers 0..29 have keys of 0..11; the first row of a key that is not rejected passes, for any shards."""
    result = run(
        toys.chain(toys.Brightness(), rows=30, repeat=12, refused=(0, 13), shard_rows=shard_rows), str(workspace)
    )
    table = rows(result)
    numbers = [json.loads(meta)["number"] for meta in table.column("meta").to_pylist()]
    fate = dict(zip(numbers, table.column("reject").to_pylist(), strict=True))
    assert {number for number, reason in fate.items() if reason is None} == {1, *range(2, 12), 12}
    assert result.ledger["pool"].rejected == Counter({"duplicate_key": 16, "unwanted": 2})
    assert result.ledger["stage_1"].before == 12


def test_repeats_are_found_bucket_by_bucket(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "LEAST_ROWS", 2)
    result = run(toys.chain(rows=30, repeat=12), str(workspace))
    assert result.ledger["pool"].rejected == Counter({"duplicate_key": 18})


def test_growing_a_pool_with_repeats_amends_the_new_shards(workspace: Path) -> None:
    run(toys.chain(toys.Brightness(), rows=20, repeat=15), str(workspace))
    before = workspaces.times(workspace)
    result = run(toys.chain(toys.Brightness(), rows=40, repeat=15), str(workspace))
    assert result.ledger["pool"].rejected == Counter({"duplicate_key": 25})
    assert result.ledger["stage_1"].after == 15
    assert {name: workspaces.times(workspace)[name] for name in before} == before


def test_empty_shards_are_carried_along(workspace: Path, on_ray: Any) -> None:
    changes = {"pool__rows": 50, "pool__gaps": (0, 2, 4)}
    result = run(toys.pipeline(**changes), str(workspace))
    assert [result.ledger[name].before for name in ("pool", "bright", "parity", "brighter", "even")] == [20] * 5
    other = workspace.parent / "ray"
    run(toys.pipeline(**changes), str(other), engine=on_ray)
    workspaces.assert_same(workspace, other)


def test_a_shard_without_a_live_row_computes_nothing(workspace: Path) -> None:
    refused = tuple(range(10, 20))
    stages = toys.Brightness(), toys.Parity(), toys.Even(), toys.PlainPack()
    result = run(toys.chain(*stages, refused=refused, rows=30), str(workspace))
    assert result.ledger["stage_1"].before == 20 and result.ledger["stage_1"].counters["seen"] == 20
    shard = open_storage(result.outputs["pool"]).read_table("shards.parquet").column("id")[1].as_py()
    for name in ("stage_1", "stage_2"):
        table = facts.read(open_storage(result.outputs[name].split("/versions/")[0]), "", shard, 1)
        assert table.num_rows == 0 and len(table.column_names) == len(facts.FIXED) + 1


def test_an_empty_pool_is_one_clear_error(workspace: Path) -> None:
    with pytest.raises(InputError, match=r"pool: toy.numbers found no samples; check its path and patterns"):
        run(toys.chain(toys.Brightness(), rows=20, gaps=(0, 1)), str(workspace))


def test_a_pool_whose_rows_are_all_rejected_ends_before_pack(workspace: Path) -> None:
    with pytest.raises(TargetError, match="each 3: the pool can give 0"):
        run(toys.pipeline(light__darkest=256.0), str(workspace), run_id="dark")
    ledger = RunRecord.load(open_storage(str(workspace)), "dark").ledger()
    assert ledger["bright"].after == 40 and ledger["light"].rejected == Counter({"too_dark": 40})
    assert [ledger[name].before for name in ("dear", "parity", "total", "contrast", "brighter")] == [0] * 5
    assert workspaces.rows_of(workspace, "toy.parity") == 0


# --- targets ----------------------------------------------------------------------------------------------------------


def test_a_target_beyond_rows_times_multiplier_is_rejected_first(workspace: Path) -> None:
    message = r"even: target 81 is more than 80 \(40 rows x multiplier 2\); lower the target or raise the multiplier"
    with pytest.raises(RecipeError, match=message):
        run(toys.pipeline(even__each=81, even__multiplier=2), str(workspace))
    assert workspaces.files(workspace) == {"format.json": workspaces.files(workspace)["format.json"]}


def test_a_target_beyond_the_eligible_rows_is_rejected_before_pack(workspace: Path) -> None:
    with pytest.raises(TargetError, match="each 35: the pool can give 30"):
        run(toys.pipeline(pool__refused=tuple(range(10)), even__each=35), str(workspace))
    assert not (workspace / "datasets").exists()


def test_a_selection_that_keeps_nothing_is_rejected(workspace: Path) -> None:
    stages = toys.Brightness(), toys.Parity(), toys.Nothing(), toys.PlainPack()
    with pytest.raises(TargetError, match="the selection 'stage_3' keeps no rows; loosen the filters upstream"):
        run(toys.chain(*stages), str(workspace))


# --- tombstones -------------------------------------------------------------------------------------------------------


def add_tombstones(workspace: Path, *entries: str) -> None:
    tombstones.add(Storage(str(workspace)), entries, "asked for")


def test_a_tombstoned_sample_is_neither_selected_nor_packed(workspace: Path) -> None:
    first = run(toys.pipeline(), str(workspace))
    index = open_storage(first.outputs["dataset"]).read_table("index.parquet")
    victim = index.column("key")[0].as_py()
    by_key = {row["key"]: row for row in rows(first).to_pylist()}
    other = index.column("key")[1].as_py()
    add_tombstones(workspace, victim, by_key[other]["sha256"])
    before = workspaces.times(workspace)
    second = run(toys.pipeline(), str(workspace))
    assert [name for name, reused in second.reused.items() if not reused] == ["even", "dataset", "page"]
    assert second.ledger["even"].rejected["tombstone"] == 2
    keys = open_storage(second.outputs["dataset"]).read_table("index.parquet").column("key").to_pylist()
    assert len(keys) == 9 and not {victim, other} & set(keys)
    after = workspaces.times(workspace)
    assert {name: after[name] for name in before} == before
    assert all(run(toys.pipeline(), str(workspace)).reused.values())


def test_tombstoned_rows_do_not_count_as_eligible(workspace: Path) -> None:
    first = run(toys.chain(toys.Brightness(), toys.Parity(units=1), rows=10), str(workspace))
    add_tombstones(workspace, *rows(first).column("key").to_pylist()[:5])
    with pytest.raises(TargetError, match="each 6: the pool can give 5"):
        run(toys.chain(toys.Brightness(), toys.Parity(units=1), toys.Even(each=6), rows=10), str(workspace))


def test_a_whole_unit_may_be_tombstoned(workspace: Path) -> None:
    first = run(toys.chain(toys.Brightness(), toys.Parity(units=1), rows=10), str(workspace))
    add_tombstones(workspace, *rows(first).column("key").to_pylist())
    stages = toys.Brightness(), toys.Parity(units=1), toys.Nothing()
    result = run(toys.chain(*stages, rows=10), str(workspace), options=Options())
    assert result.ledger["stage_3"].rejected == Counter({"tombstone": 10})


def test_equal_portions_are_one_shard_and_a_rejected_copy(workspace: Path) -> None:
    """Both have the same content id; only the second shard's rows are rejected."""
    pipeline = toys.chain(toys.Brightness(), rows=20, shard_rows=10, same=True)
    result = run(pipeline, str(workspace))
    assert result.ledger["pool"].rejected == Counter({"duplicate_key": 10})
    assert result.ledger["stage_1"].after == 10


def planned(pipeline: Pipeline, workspace: Path) -> list[tuple[str, int | None]]:
    """What each stage would do, and of how many rows."""
    storage, options = open_workspace(str(workspace)), Options()
    steps = plan(pipeline, storage, options, Scheduler(LocalBackend()), preflight(pipeline, storage, Options()))
    return [(step.kind, step.compute) for step in steps]


def test_a_plan_finds_the_version_of_a_pool_with_repeats(workspace: Path) -> None:
    pipeline = toys.chain(toys.Brightness(), rows=20, repeat=15)
    assert planned(pipeline, workspace) == [("acquire", 20), ("pass", 20)]
    run(pipeline, str(workspace))
    assert planned(pipeline, workspace) == [("acquire", 0), ("pass", 0)]
    before = workspaces.times(workspace)
    assert all(run(pipeline, str(workspace)).reused.values())
    assert workspaces.times(workspace) == before
