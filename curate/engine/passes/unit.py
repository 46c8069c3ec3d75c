"""The rows of a unit (a few shards, concatenated): tables of the pool, and facts of a Map as stored and as added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from curate.core.nouns import facts
from curate.core.nouns.facts import DONE, ERROR, MISSING, UNUSABLE, Notes
from curate.core.nouns.masks import Fate, concatenated
from curate.core.nouns.pools import Shard
from curate.core.rows import CHILDREN, KnownShards, Rows
from curate.core.store.storage import Storage
from curate.engine.passes.answers import index as answer_index
from curate.engine.passes.answers.log import SHARD_FIELD
from curate.engine.passes.batches import BatchResult

NOWHERE = -1
COUNTS = ("computed", "copied", "requests", "repeated")


class Unit:
    """A few shards as one range of rows. Tables of the pool and of stages outside of the pass are read once each."""

    def __init__(self, storage: Storage, shards: Sequence[Shard], known: KnownShards) -> None:
        self.storage, self.shards = storage, shards
        self.edges = np.concatenate([[0], np.cumsum([shard.rows for shard in shards])]).astype(np.int64)
        """(S + 1,): first row of each shard, then the number of rows."""
        self.rows = int(self.edges[-1])
        self._pool = Rows(storage, known=known)
        self.computed, self.computes = 0, False
        """Results of all Maps so far; whether there are any Maps."""
        self._fates: dict[Any, Fate] = {}
        self._columns: dict[tuple[str, str | Rows | None], pa.Table] = {}
        """(name, folder of facts, or the children that it is about) -> a column."""

    def shard_indices(self, rows: ArrayLike) -> NDArray[np.int64]:
        """The index of each row's shard."""
        return np.searchsorted(self.edges, np.asarray(rows, dtype=np.int64), side="right") - 1

    def shards_of(self, rows: Sequence[int]) -> pa.DictionaryArray:
        """The id of each row's shard."""
        return pa.DictionaryArray.from_arrays(pa.array(self.shard_indices(rows)), [shard.id for shard in self.shards])

    def pool(self, names: Sequence[str]) -> pa.Table:
        """Columns of the pool."""
        return self.columns(self._pool, names)

    def columns(self, rows: Rows, names: Sequence[str]) -> pa.Table:
        """Named columns of all rows."""
        makers: dict[str, str | Rows | None] = {name: ref.path for ref in rows.columns for name in ref.names}
        makers |= {name: rows.children for name in names if name.startswith(f"{CHILDREN}.")}
        keys = [(name, makers.get(name, "")) for name in names]
        missing = [key for key in keys if key not in self._columns]
        paths = {ref.path for ref in rows.columns}
        own = tuple(name for name, maker in missing if maker not in paths)
        if own:
            self._add(makers, [rows.table(shard, own) for shard in self.shards])
        for ref in rows.columns:
            theirs = [name for name, maker in missing if maker == ref.path]
            if theirs:
                self._add(makers, [rows.facts(ref, shard, theirs) for shard in self.shards])
        tables = [self._columns[key] for key in keys]
        schema = pa.schema([table.schema.field(0) for table in tables])
        return pa.table([table.column(0) for table in tables], schema=schema)

    def _add(self, makers: Mapping[str, str | Rows | None], tables: list[pa.Table]) -> None:
        whole = pa.concat_tables(tables, promote_options="default").combine_chunks()  # nulls: a shard without children
        self._columns |= {(name, makers.get(name, "")): whole.select([name]) for name in whole.column_names}

    def fate(self, rows: Rows) -> Fate:
        """Fate of all rows on the paths from outside of the pass."""
        key = (rows.masks, rows.selection, rows.parents is None)
        if key not in self._fates:
            self._fates[key] = concatenated([rows.fate(shard) for shard in self.shards])
        return self._fates[key]

    def marks(self, rows: Rows, name: str) -> NDArray[np.bool_]:
        """Rows (n,) whose value of a column is an error's null, or computed from one."""
        return np.concatenate([rows.marked(shard, (name,)) for shard in self.shards])


class UnitFacts:
    """A Map's facts of a unit's rows: those of the stored tables, and those that the pass adds.

    Values are kept in parts: part p >= 0 is a table of the pass, part -2 - i the highest stored table of shard i."""

    def __init__(
        self,
        unit: Unit,
        path: str,
        schema: pa.Schema,
        costly: bool,
        numbers: dict[str, int],
        counts: dict[str, Any],
        read: bool,
    ) -> None:
        self.unit, self.path, self.schema, self.numbers = unit, path, schema, numbers
        """`schema`: of the stage's columns, null types until the stage is set up. `numbers`: shard -> its highest
        table; once tables are published, the number of ours."""
        self._whole = read
        """Whether a later stage of the pass reads the values: tables are then read whole, once."""
        self.counts = counts
        for name in COUNTS:
            counts.setdefault(name, np.zeros(len(unit.shards), np.int64))
        self.status = np.full(unit.rows, MISSING, np.int8)
        self.reason = np.full(unit.rows, None, object)
        self.marked = np.zeros(unit.rows, dtype=bool)
        self.input: NDArray[Any] | None = np.full(unit.rows, None, object) if costly else None
        self.own = np.zeros(unit.rows, dtype=bool)
        """Rows that this pass computed; the index of answers has the other rows already."""
        self.notes: dict[str, Notes] = {}
        self.messages: dict[str, str] = {}
        self.counters: Counter[str] = Counter()
        self._tables: dict[int, pa.Table] = {}
        self._bytes: dict[str, int] = {}
        self._parts: list[pa.Table] = []
        self._part = np.full(unit.rows, NOWHERE, np.int32)
        self._place = np.full(unit.rows, -1, np.int64)
        self._fresh: list[NDArray[np.int64]] = []
        self._load()

    def _load(self) -> None:
        for index, shard in enumerate(self.unit.shards):
            number = self.numbers.get(shard.id, 0)
            if not number:
                continue
            names = [item.name for item in facts.FIXED] + ([facts.INPUT] if self.input is not None else [])
            read = facts.read(self.unit.storage, self.path, shard.id, number, None if self._whole else names)
            if self._whole:
                self._tables[index] = read
            table = read.select(names)
            rows = table.column(facts.ROW).to_numpy() + self.unit.edges[index]
            self.status[rows] = table.column(facts.STATUS_COLUMN).to_numpy()
            self.reason[rows] = table.column(facts.REASON).to_numpy(zero_copy_only=False)
            self.marked[rows] = table.column(facts.MARKED).to_numpy(zero_copy_only=False)
            if self.input is not None:
                self.input[rows] = table.column(facts.INPUT).to_numpy(zero_copy_only=False)
            self._part[rows], self._place[rows] = -2 - index, np.arange(len(rows))
            self.notes[shard.id] = Notes.of(table.schema)

    def stored(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Rows of a range that a stored table has."""
        return self._part[start:stop] < NOWHERE

    # --- values ---

    def column(self, name: str, rows: NDArray[np.int64]) -> tuple[pa.ChunkedArray, pa.Field]:
        """Values of a column at some rows (ascending), null for rows without one, and the column's field. While
        `schema` does not know its type, the field is that of the tables."""
        field = self.schema.field(name)
        parts, order = [], []
        for part in np.unique(self._part[rows]):
            mine = np.flatnonzero(self._part[rows] == part)
            order.append(mine)
            if part == NOWHERE:
                parts.append(pa.nulls(len(mine), field.type))
                continue
            table = self._parts[part] if part >= 0 else self._table(-2 - part)
            if pa.types.is_null(field.type):
                field = table.schema.field(name)
            parts.append(_flat(table.column(name).take(pa.array(self._place[rows[mine]]))))
        if not parts:
            return pa.chunked_array([pa.nulls(0, field.type)]), field
        if len(parts) == 1:
            return pa.chunked_array([parts[0]]), field
        whole = pa.concat_arrays([part.cast(field.type) for part in parts])
        return pa.chunked_array([whole.take(pa.array(np.argsort(np.concatenate(order))))]), field

    def _table(self, index: int) -> pa.Table:
        """All of a shard's highest table."""
        if index not in self._tables:
            shard = self.unit.shards[index].id
            self._tables[index] = facts.read(self.unit.storage, self.path, shard, self.numbers[shard])
        return self._tables[index]

    # --- facts that the pass adds ---

    def add(self, rows: Sequence[int], table: pa.Table, status: Any, reason: Any) -> None:
        """Add facts of some rows; `table` has the stage's columns in the same order of rows."""
        self._parts.append(table)
        self._put(np.array(rows, np.int64), len(self._parts) - 1, np.arange(len(rows)), status, reason)

    def copy(self, rows: Sequence[int], table: pa.Table, places: Sequence[int]) -> None:
        """Copy facts of some rows from rows of another table of facts."""
        taken = table.take(pa.array(places, pa.int64()))
        status, reason = taken.column(facts.STATUS_COLUMN).to_numpy(), taken.column(facts.REASON).to_pylist()
        self.add(rows, taken.select(self.schema.names), status, reason)
        self.count(rows, "copied")

    def follow(self, row: int, first: int) -> None:
        """Copy the facts of another row of the unit, which has the same input."""
        part = self._part[first]
        if part < NOWHERE:
            self.copy([row], self._table(-2 - part), [self._place[first]])
            return
        place = self._place[first : first + 1]
        self._put(np.array([row]), part, place, self.status[first : first + 1], [self.reason[first]])
        self.count([row], "copied")

    def _put(self, rows: NDArray[np.int64], part: int, places: NDArray[np.int64], status: Any, reason: Any) -> None:
        self._part[rows], self._place[rows] = part, places
        self.status[rows] = status
        self.reason[rows] = np.array([*reason, None], object)[:-1]
        self._fresh.append(rows)

    def count(self, rows: Sequence[int], name: str, number: int | None = None) -> None:
        """Count each row under `name` (one of COUNTS) for its shard; or a `number`, for the shard of the first row."""
        indices = self.unit.shard_indices(rows if number is None else rows[:1])
        np.add.at(self.counts[name], indices, 1 if number is None else number)

    # --- publishing ---

    def publish(self, hardware: str, whole: bool) -> bool:
        """Publish new facts in the next table of each shard; for a `whole` unit, also an empty table for shards without
        one. Returns whether values changed because another run published first."""
        changed = False
        fresh = np.unique(np.concatenate([np.zeros(0, np.int64), *self._fresh]))
        self._fresh = []
        notes = Notes(self.counters, {}, self.messages, hardware)
        self.counters = Counter()
        edges = np.searchsorted(fresh, self.unit.edges)
        by_shard = [fresh[start:stop] for start, stop in pairwise(edges)]
        self._index([(n, self.numbers.get(self.unit.shards[n].id, 0) + 1, rows) for n, rows in enumerate(by_shard)])
        for index, rows in enumerate(by_shard):
            shard = self.unit.shards[index]
            if len(rows) or (whole and not self.numbers.get(shard.id, 0)):
                changed |= self._publish(index, shard, rows, notes)
                notes = Notes(messages=self.messages, device=hardware)  # counters once
        return changed

    def _publish(self, index: int, shard: Shard, rows: NDArray[np.int64], notes: Notes) -> bool:
        number = self.numbers.get(shard.id, 0)
        base = self._table(index) if number else None
        mine = self.table_of(index, rows)
        tried = {int(row - self.unit.edges[index]): 1 for row in rows[self.status[rows] == ERROR]}
        notes = Notes(notes.counters, tried, notes.messages, notes.device)
        made = facts.publish(self.unit.storage, self.path, shard.id, number, base, mine, notes)
        if made.number != number + 1:
            self._index([(index, made.number, rows)])
        self.numbers[shard.id], self._tables[index] = made.number, made.table
        self._bytes[shard.id], self.notes[shard.id] = made.bytes, Notes.of(made.table.schema)
        stored = made.table.column(facts.ROW).to_numpy() + self.unit.edges[index]
        self._part[rows] = -2 - index
        there = stored[self._part[stored] == -2 - index]
        self._place[there] = places = np.searchsorted(stored, there)
        self.status[there] = made.table.column(facts.STATUS_COLUMN).to_numpy()[places]
        self.reason[there] = made.table.column(facts.REASON).to_numpy(zero_copy_only=False)[places]
        self.marked[there] = made.table.column(facts.MARKED).to_numpy(zero_copy_only=False)[places]
        self.counts["repeated"][index] += len(made.adopted)
        return bool(len(made.adopted)) and _differ(mine, made.table, made.adopted)

    def _index(self, places: Iterable[tuple[int, int, NDArray[np.int64]]]) -> None:
        """Add the answers to new inputs to the stage's index: (index of the shard, number of the table, rows). Called
        before the tables are published: after a kill in between, lines of the index point to a missing table, but every
        published answer has its line."""
        lines: list[tuple[bytes, str]] = []
        folder, _, fingerprint = self.path.rpartition("/")
        for place, number, rows in places if self.input is not None else ():
            assert self.input is not None
            final = rows[(self.status[rows] != ERROR) & ~self.marked[rows] & self.own[rows]]
            table = facts.table_path(fingerprint, self.unit.shards[place].id, number)
            lines += [(given, table) for given in self.input[final]]
        answer_index.add(self.unit.storage, folder, lines)

    def table_of(self, index: int, rows: NDArray[np.int64]) -> pa.Table:
        """A table of facts of some rows of a shard."""
        columns = [self.column(field.name, rows) for field in self.schema]
        table = pa.table([column for column, _ in columns], schema=pa.schema([field for _, field in columns]))
        inputs = None if self.input is None else self.input[rows]
        local = rows - self.unit.edges[index]
        return facts.build(local, self.status[rows], self.reason[rows], self.marked[rows], table, inputs)

    def logged(self, rows: Sequence[int], made: BatchResult, hardware: str) -> pa.Table:
        """A segment of a log: new facts of some rows, without errors and values computed from them."""
        assert self.input is not None
        of_unit = np.array(rows, np.int64)
        final = np.flatnonzero((made.status != ERROR) & ~self.marked[of_unit])
        of_unit, shards = of_unit[final], self.unit.shard_indices(of_unit[final])
        unmarked, values = np.zeros(len(final), dtype=bool), made.table.take(pa.array(final))
        local, inputs = of_unit - self.unit.edges[shards], self.input[of_unit]
        table = facts.build(local, made.status[final], made.reason[final], unmarked, values, inputs)
        table = table.append_column(SHARD_FIELD, self.unit.shards_of(of_unit.tolist()).cast(pa.string()))
        return table.replace_schema_metadata({facts.NOTES: Notes(made.counters, device=hardware).dump()})

    def result(self, index: int) -> dict[str, Any]:
        """The driver's record of a shard's facts."""
        shard, rows = self.unit.shards[index], slice(*self.unit.edges[index : index + 2])
        status = self.status[rows]
        codes = (("done", DONE), ("unusable", UNUSABLE), ("error", ERROR))
        summary: dict[str, Any] = {name: int((status == code).sum()) for name, code in codes}
        before = self.notes[shard.id].messages if shard.id in self.notes else {}
        found = {"number": self.numbers.get(shard.id, 0), "bytes": self._bytes.get(shard.id, 0), "summary": summary}
        found["messages"] = {**before, **self.messages}
        return found | {name: int(self.counts[name][index]) for name in COUNTS}


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """One array, however many chunks there are."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _differ(mine: pa.Table, theirs: pa.Table, rows: NDArray[np.int64]) -> bool:
    """Whether two tables of facts differ in some rows."""
    found = []
    for table in (mine, theirs):
        at = {row: place for place, row in enumerate(table.column(facts.ROW).to_pylist())}
        part = table.take(pa.array([at[row] for row in rows.tolist()])).replace_schema_metadata(None)
        found.append(part.select(mine.column_names).to_pylist())
    return repr(found[0]) != repr(found[1])
