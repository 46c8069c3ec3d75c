"""Facts: tables that only grow and only get better, also with concurrent writers."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import CorruptError
from curate.core.nouns import facts
from curate.core.nouns.facts import DONE, ERROR, UNUSABLE, Notes, Published
from curate.core.store.storage import Storage

SIZE = 8
"""Rows of the shard."""
FOLDER, SHARD = "facts/op/stage/print", "shard"
COLUMNS = pa.schema(
    [pa.field("value", pa.int64(), metadata={"unit": "pixels"}), pa.field("texts", pa.list_(pa.string()))]
)
Row = tuple[int, int, bool, int]  # place, status, marked, value


def table(rows: list[Row]) -> pa.Table:
    """A table of facts. Rows that are not done have no values."""
    done = [status == DONE for _, status, _, _ in rows]
    columns = pa.table(
        [
            pa.array([value if good else None for (*_, value), good in zip(rows, done, strict=True)], pa.int64()),
            pa.array([[f"{value}"] if good else None for (*_, value), good in zip(rows, done, strict=True)]),
        ],
        schema=COLUMNS,
    )
    reasons = [None if good else f"reason_{value}" for (*_, value), good in zip(rows, done, strict=True)]
    return facts.build(
        np.array([place for place, *_ in rows], np.int64),
        np.array([status for _, status, _, _ in rows], np.int8),
        reasons,
        np.array([marked for _, _, marked, _ in rows], bool),
        columns,
    )


def lines(found: pa.Table) -> dict[int, dict[str, Any]]:
    """Place -> the row; in pool order, each place once."""
    rows = found.to_pylist()
    places = [row["_row"] for row in rows]
    assert places == sorted(set(places))
    return dict(zip(places, rows, strict=True))


def good(row: dict[str, Any]) -> int:
    """Rule 2: `error`, then computed from an error, then `done` or `unusable`."""
    return 0 if row["_status"] == ERROR else 1 if row["_marked"] else 2


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    places = sorted(draw(st.sets(st.integers(0, SIZE - 1))))
    statuses = st.sampled_from([DONE, DONE, UNUSABLE, ERROR])
    return table([(place, draw(statuses), draw(st.booleans()), draw(st.integers(0, 9))) for place in places])


def stands(fresh: dict[str, Any], base: dict[str, Any] | None) -> bool:
    """Whether a row replaces the existing one: a better row does, and the later of two errors."""
    return base is None or good(fresh) > good(base) or good(fresh) == good(base) == 0


def assert_grown(before: pa.Table, after: pa.Table) -> None:
    """Every row of `before` is in `after`, as good or better; a row without an error is the same or better."""
    then, now = lines(before), lines(after)
    assert set(then) <= set(now)
    for place, row in then.items():
        assert now[place] == row or stands(now[place], row)


# --- two tables -------------------------------------------------------------------------------------------------------


@given(tables(), tables())
def test_merging_keeps_the_better_status_of_a_row_and_the_first_of_equals_unless_both_are_errors(
    base: pa.Table, fresh: pa.Table
) -> None:
    merged, used = facts.merge(base, fresh)
    assert_grown(base, merged)
    mine, theirs, now = lines(fresh), lines(base), lines(merged)
    assert set(now) == set(mine) | set(theirs)
    wins = {place: stands(row, theirs.get(place)) for place, row in mine.items()}
    assert used.tolist() == list(wins.values())
    assert now == theirs | {place: mine[place] for place, won in wins.items() if won}
    assert merged.schema.remove_metadata() == base.schema.remove_metadata()
    again, used = facts.merge(merged, fresh)
    assert lines(again) == now
    assert used.tolist() == [good(row) == 0 and good(now[place]) == 0 for place, row in mine.items()]


@pytest.mark.parametrize("step", [1, 2, 300])
def test_rows_that_alternate_and_rows_in_runs_end_in_order(step: int) -> None:
    """Long runs are sliced, many short ones are taken row by row."""
    places = np.arange(1800)
    mine, theirs = (places[(places // step) % 2 == side].tolist() for side in (0, 1))
    base, fresh = (table([(place, DONE, False, place) for place in part]) for part in (mine, theirs))
    merged, used = facts.merge(base, fresh)
    assert used.all() and merged.column("value").to_pylist() == places.tolist()


# --- tables that follow each other ------------------------------------------------------------------------------------


def stored(storage: Storage) -> list[pa.Table]:
    """All tables of the shard, in order; their numbers have no gap."""
    names = sorted(storage.list(f"{FOLDER}/{SHARD}"))
    assert names == [f"{number:06d}.parquet" for number in range(1, len(names) + 1)]
    return [facts.read(storage, FOLDER, SHARD, number) for number in range(1, len(names) + 1)]


def put(storage: Storage, number: int, fresh: pa.Table, **notes: Any) -> Published:
    """Publish what a writer has that has read table `number`."""
    base = facts.read(storage, FOLDER, SHARD, number) if number else None
    return facts.publish(storage, FOLDER, SHARD, number, base, fresh, Notes(**notes))


@pytest.fixture
def storage(workspace: Path) -> Storage:
    return Storage(str(workspace))


@given(st.lists(st.tuples(tables(), st.integers(0, 5)), min_size=1, max_size=5))
def test_a_shards_tables_only_grow_and_get_better(memory: Path, writes: list[tuple[pa.Table, int]]) -> None:
    """Each writer has read some table, not always the last one."""
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        storage = Storage(folder)
        for fresh, behind in writes:
            there = stored(storage)
            read = max(0, len(there) - behind)
            made = put(storage, read, fresh)
            mine, now = lines(fresh), lines(made.table)
            assert all(good(now[place]) >= good(row) for place, row in mine.items())
            if read:
                assert_grown(there[read - 1], made.table)
            assert now == lines(facts.read(storage, FOLDER, SHARD, made.number))
            if read < len(there):  # others were first: what stands of theirs is as good
                stood = lines(there[min(made.number, len(there)) - 1])
                for place in made.adopted.tolist():
                    assert now[place] == stood[place] and good(now[place]) >= good(mine[place])
                assert {place for place in mine if now[place] != mine[place]} <= set(made.adopted.tolist())
                assert made.number > len(there) or set(made.adopted.tolist()) == set(mine)
            else:
                assert len(made.adopted) == 0 and made.number == len(there) + 1
        found = stored(storage)
        for before, after in pairwise(found):
            assert_grown(before, after)


def test_an_existing_value_never_changes(storage: Storage) -> None:
    put(storage, 0, table([(0, DONE, False, 1), (1, UNUSABLE, False, 1), (2, ERROR, False, 1), (3, DONE, True, 1)]))
    made = put(storage, 1, table([(place, DONE, False, 2) for place in range(4)]))
    assert made.number == 2 and made.table.column("value").to_pylist() == [1, None, 2, 2]
    made = put(storage, 2, table([(0, ERROR, False, 3), (1, ERROR, False, 3), (4, ERROR, False, 3)]))
    assert made.table.column("_status").to_pylist() == [DONE, UNUSABLE, DONE, DONE, ERROR]


def test_an_error_yields_to_everything_that_comes_later(storage: Storage) -> None:
    """To another error as well: it says why the row failed when it was tried last."""
    put(storage, 0, table([(0, ERROR, True, 1)]))
    made = put(storage, 1, table([(0, ERROR, False, 2)]))
    assert made.table.column("_reason").to_pylist() == ["reason_2"] and len(made.adopted) == 0
    late = put(storage, 1, table([(0, ERROR, False, 4)]))  # by one who has not seen the second
    assert (late.number, late.table.column("_reason").to_pylist(), len(late.adopted)) == (3, ["reason_4"], 0)
    assert put(storage, 3, table([(0, UNUSABLE, True, 3)])).table.column("_status").to_pylist() == [UNUSABLE]
    assert put(storage, 4, table([(0, ERROR, False, 5)])).table.column("_status").to_pylist() == [UNUSABLE]
    assert put(storage, 5, table([(0, DONE, False, 4)])).table.column("value").to_pylist() == [4]


def test_a_second_writer_with_nothing_new_creates_no_table(storage: Storage) -> None:
    rows = [(0, DONE, False, 1), (3, UNUSABLE, False, 1)]
    first = put(storage, 0, table(rows))
    second = put(storage, 0, table([(0, DONE, False, 2), (3, ERROR, False, 2)]))
    assert (first.number, second.number) == (1, 1) and second.table.equals(first.table)
    assert second.adopted.tolist() == [0, 3] and len(first.adopted) == 0 and len(stored(storage)) == 1


def test_a_second_writer_adds_its_own_rows(storage: Storage) -> None:
    put(storage, 0, table([(0, DONE, False, 1), (1, ERROR, False, 1)]))
    made = put(storage, 0, table([(0, DONE, False, 2), (1, DONE, False, 2), (2, DONE, False, 2)]))
    assert made.number == 2 and made.adopted.tolist() == [0]
    assert made.table.column("value").to_pylist() == [1, 2, 2]


def test_notes_are_kept_apart_from_rows(storage: Storage) -> None:
    tried = {"attempts": {0: 1, 1: 1}, "messages": {"reason_1": "because"}}
    put(storage, 0, table([(0, ERROR, False, 1), (1, ERROR, False, 1)]), counters=Counter(seen=2), **tried)
    made = put(storage, 1, table([(0, ERROR, False, 2), (1, DONE, False, 2)]), counters=Counter(seen=2), **tried)
    notes = Notes.of(facts.read(storage, FOLDER, SHARD, made.number).schema)
    assert notes.attempts == {0: 2} and notes.counters == Counter(seen=4)  # row 1 is in error no more
    assert notes.messages == {"reason_1": "because"}
    other = Notes(Counter(seen=2), {0: 1}, {"reason_1": "something else"}, "another device")
    same = facts.publish(storage, "other", SHARD, 0, None, table([(0, ERROR, False, 1), (1, ERROR, False, 1)]), other)
    assert same.table.to_pylist() == stored(storage)[0].to_pylist()


# --- writers at the same time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("writers", [2, 4])
@pytest.mark.parametrize("number", [0, 1])
def test_concurrent_writers_leave_one_value_per_row(storage: Storage, writers: int, number: int) -> None:
    """Real threads, at one barrier: all have read the same table, and all have rows that others have too."""
    if number:
        put(storage, 0, table([(0, DONE, False, 99), (1, ERROR, False, 99)]))
    barrier = threading.Barrier(writers)
    given = [
        [(0, DONE, False, who), (1, DONE, False, who), (2, ERROR, False, who), (10 + who, DONE, False, who)]
        for who in range(writers)
    ]
    given[1][2] = (2, DONE, False, 1)
    made: dict[int, Published] = {}

    def write(who: int) -> None:
        barrier.wait()
        made[who] = put(storage, number, table(given[who]))

    threads = [threading.Thread(target=write, args=(who,)) for who in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stored(storage)
    for before, after in pairwise(found):
        assert_grown(before, after)
    last = lines(found[-1])
    assert sorted(result.number for result in made.values()) == list(range(number + 1, number + 1 + writers))
    assert set(last) == {0, 1, 2, *range(10, 10 + writers)} and last[2]["value"] == 1
    assert last[0]["value"] == 99 if number else last[0]["value"] == last[1]["value"]
    for who, result in made.items():
        mine, now = lines(table(given[who])), lines(result.table)
        assert now == lines(found[result.number - 1])
        lost = {place for place in mine if now[place] != mine[place]}
        assert lost <= set(result.adopted.tolist()) | ({0} if number else set())
        for place in lost:
            assert good(now[place]) >= good(mine[place])
            assert place == 2 or last[place] == now[place]
    winners = [who for who, result in made.items() if result.number == number + 1]
    assert len(winners) == 1 and len(made[winners[0]].adopted) == 0


# --- what a table is --------------------------------------------------------------------------------------------------


@given(tables())
def test_facts_of_missing_rows_are_null(fresh: pa.Table) -> None:
    whole = facts.expanded(fresh, SIZE, ["texts", "value"])
    there = {place: (row["texts"], row["value"]) for place, row in lines(fresh).items()}
    expected = [there.get(place, (None, None)) for place in range(SIZE)]
    assert whole.column_names == ["texts", "value"]
    assert [tuple(row.values()) for row in whole.to_pylist()] == expected
    assert whole.schema.field("value").metadata == {b"unit": b"pixels"}


def test_the_highest_table_of_each_shard() -> None:
    names = ["a/000002.parquet", "a/000010.parquet", "b/000001.parquet", "versions/f/shards.parquet"]
    assert facts.latest(names) == {"a": 10, "b": 1}
    assert facts.latest(["a/000001.parquet.tmp", "a/.000003.parquet.x.tmp", "a/manifest.json", "000001.parquet"]) == {}


@pytest.mark.parametrize(("rows", "others"), [(200, "ZSTD"), (3, "UNCOMPRESSED")])
def test_vectors_are_stored_uncompressed_and_the_rest_compressed(storage: Storage, rows: int, others: str) -> None:
    """Small tables are not packed at all."""
    columns = pa.table(
        {
            "vector": pa.array([b"x" * 128] * rows, pa.binary(128)),
            "short": pa.array([b"x" * 8] * rows, pa.binary(8)),
            "words": pa.array([[["a"]]] * rows, pa.list_(pa.list_(pa.string()))),
        }
    )
    inputs = [b"i" * 16] * rows
    made = facts.build(np.arange(rows), np.zeros(rows, np.int8), [None] * rows, np.zeros(rows, bool), columns, inputs)
    put(storage, 0, made)
    file = pq.ParquetFile(storage.path(facts.table_path(FOLDER, SHARD, 1)))
    group = file.metadata.row_group(0)
    packing = {group.column(i).path_in_schema: group.column(i).compression for i in range(group.num_columns)}
    assert packing.pop("vector") == "UNCOMPRESSED" and set(packing.values()) == {others}
    assert facts.read(storage, FOLDER, SHARD, 1).to_pylist() == made.to_pylist()


DAMAGES = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "zeros": lambda path: path.write_bytes(bytes(4000)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_table_that_cannot_be_read_is_one_line(storage: Storage, damage: Any) -> None:
    put(storage, 0, table([(0, DONE, False, 1)]))
    damage(Path(storage.path(facts.table_path(FOLDER, SHARD, 1))))
    message = (
        rf"000001.parquet: this table of facts is corrupt or missing \(.*\); remove the folders {FOLDER}/{SHARD} and"
    )
    with pytest.raises(CorruptError, match=message) as caught:
        facts.read(storage, FOLDER, SHARD, 1)
    assert "\n" not in str(caught.value)


def test_a_column_that_a_table_lacks_is_one_line(storage: Storage) -> None:
    put(storage, 0, table([(0, DONE, False, 1)]))
    with pytest.raises(CorruptError, match=r"000001.parquet: .* \(.*'depth'.*\); remove the folder"):
        facts.read(storage, FOLDER, SHARD, 1, ["value", "depth"])
