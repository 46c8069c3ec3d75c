"""What a unit's rows have of a Map's facts: those of the tables that are there, and those that the pass adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core import facts
from curate.core.facts import DONE, ERROR, MISSING, UNUSABLE, Notes
from curate.core.nouns import Shard
from curate.engine.passes import answers
from curate.engine.passes.unit import Unit

NOWHERE = -1
COUNTS = ("computed", "copied", "requests", "repeated", "asked_again")


class Held:
    """Values lie in parts: part p >= 0 is a table that the pass has made, part -2 - i the highest table of shard i."""

    def __init__(
        self, unit: Unit, path: str, costly: bool, numbers: dict[str, int], counts: dict[str, Any], read: bool
    ) -> None:
        self.unit, self.path, self.numbers = unit, path, numbers
        """`numbers`: shard -> number of its highest table; as tables are published, of ours."""
        self._whole = read
        """Whether a later stage of the pass reads the values: tables are then read whole, once."""
        self.counts = counts
        for what in COUNTS:
            counts.setdefault(what, np.zeros(len(unit.shards), np.int64))
        self.status = np.full(unit.rows, MISSING, np.int8)
        self.reason = np.full(unit.rows, None, object)
        self.marked = np.zeros(unit.rows, dtype=bool)
        self.input: NDArray[Any] | None = np.full(unit.rows, None, object) if costly else None
        self.own = np.zeros(unit.rows, dtype=bool)
        """Rows that were computed here, and not copied from where the index leads already."""
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
        """Rows of a stretch that a table has."""
        return self._part[start:stop] < NOWHERE

    def has(self, row: int) -> bool:
        return bool(self._part[row] != NOWHERE)

    # --- values ---

    def values_of(self, name: str, field: pa.Field, rows: NDArray[np.int64]) -> tuple[pa.ChunkedArray, pa.Field]:
        """A column at some rows (ascending), null where there is no value. Its field is `field`, or that of the tables
        where `field` does not know its type yet."""
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
        """The whole of a shard's highest table."""
        if index not in self._tables:
            shard = self.unit.shards[index].id
            self._tables[index] = facts.read(self.unit.storage, self.path, shard, self.numbers[shard])
        return self._tables[index]

    # --- what the pass adds ---

    def add(self, rows: Sequence[int], table: pa.Table, status: Any, reason: Any) -> None:
        """Facts of some rows, in their order; `table` has the stage's columns."""
        self._parts.append(table)
        self._put(np.array(rows, np.int64), len(self._parts) - 1, np.arange(len(rows)), status, reason)

    def copy(self, rows: Sequence[int], table: pa.Table, places: Sequence[int], names: list[str]) -> None:
        """Facts of some rows out of a table of facts."""
        taken = table.take(pa.array(places, pa.int64()))
        status, reason = taken.column(facts.STATUS_COLUMN).to_numpy(), taken.column(facts.REASON).to_pylist()
        self.add(rows, taken.select(names), status, reason)
        self.count(rows, "copied")

    def follow(self, row: int, first: int, names: list[str]) -> None:
        """The facts of another row of the unit, which was computed from the same values."""
        part = self._part[first]
        if part < NOWHERE:
            self.copy([row], self._table(-2 - part), [self._place[first]], names)
            return
        place = self._place[first : first + 1]
        self._put(np.array([row]), part, place, self.status[first : first + 1], [self.reason[first]])
        self.count([row], "copied")

    def _put(self, rows: NDArray[np.int64], part: int, places: NDArray[np.int64], status: Any, reason: Any) -> None:
        self._part[rows], self._place[rows] = part, places
        self.status[rows] = status
        self.reason[rows] = np.array([*reason, None], object)[:-1]
        self._fresh.append(rows)

    def count(self, rows: Sequence[int], what: str, number: int | None = None) -> None:
        """Rows of the shards that were computed, copied …; or a number, which is noted with the first row's shard."""
        shards = np.searchsorted(self.unit.edges, rows if number is None else rows[:1], side="right") - 1
        np.add.at(self.counts[what], shards, 1 if number is None else number)

    # --- publishing ---

    def publish(self, schema: pa.Schema, hardware: str, whole: bool) -> bool:
        """Put what is new into the next table of each shard, of a `whole` unit also of those that have none; whether
        values changed because another run was first."""
        changed = False
        fresh = np.unique(np.concatenate([np.zeros(0, np.int64), *self._fresh]))
        self._fresh = []
        notes = Notes(self.counters, {}, self.messages, hardware)
        self.counters = Counter()
        edges = np.searchsorted(fresh, self.unit.edges)
        by_shard = [fresh[start:stop] for start, stop in pairwise(edges)]
        self._remember([(n, self._next(n), rows) for n, rows in enumerate(by_shard)])
        for index, rows in enumerate(by_shard):
            shard = self.unit.shards[index]
            if len(rows) or (whole and not self.numbers.get(shard.id, 0)):
                changed |= self._publish(index, shard, rows, schema, notes)
                notes = Notes(messages=self.messages, device=hardware)  # counters once
        return changed

    def _next(self, index: int) -> int:
        """Number of a shard's next table."""
        return self.numbers.get(self.unit.shards[index].id, 0) + 1

    def _publish(self, index: int, shard: Shard, rows: NDArray[np.int64], schema: pa.Schema, notes: Notes) -> bool:
        number = self.numbers.get(shard.id, 0)
        base = self._table(index) if number else None
        mine = self.table_of(index, rows, schema)
        tried = {int(row - self.unit.edges[index]): 1 for row in rows[self.status[rows] == ERROR]}
        notes = Notes(notes.counters, tried, notes.messages, notes.device)
        made = facts.publish(self.unit.storage, self.path, shard.id, number, base, mine, notes)
        if made.number != number + 1:
            self._remember([(index, made.number, rows)])
        self.numbers[shard.id], self._tables[index] = made.number, made.table
        self._bytes[shard.id], self.notes[shard.id] = made.bytes, Notes.of(made.table.schema)
        held = made.table.column(facts.ROW).to_numpy() + self.unit.edges[index]
        self._part[rows] = -2 - index
        there = held[self._part[held] == -2 - index]
        self._place[there] = places = np.searchsorted(held, there)
        self.status[there] = made.table.column(facts.STATUS_COLUMN).to_numpy()[places]
        self.reason[there] = made.table.column(facts.REASON).to_numpy(zero_copy_only=False)[places]
        self.marked[there] = made.table.column(facts.MARKED).to_numpy(zero_copy_only=False)[places]
        self.counts["repeated"][index] += len(made.adopted)
        return bool(len(made.adopted)) and _differ(mine, made.table, made.adopted)

    def _remember(self, places: Iterable[tuple[int, int, NDArray[np.int64]]]) -> None:
        """Where the answers to new inputs will lie: index of the shard, number of the table, rows. Said before the
        tables are published: a kill in between leaves lines that lead nowhere, and no answer that nobody finds."""
        lines: list[tuple[bytes, str, str, int]] = []
        for index, number, rows in places if self.input is not None else ():
            final = rows[(self.status[rows] != ERROR) & ~self.marked[rows] & self.own[rows]]
            shard = self.unit.shards[index].id
            lines += [(given, self.path, shard, number) for given in self.input[final]]  # type: ignore[index]
        if lines:
            answers.remember(self.unit.storage, self.path.rpartition("/")[0], lines)

    def table_of(self, index: int, rows: NDArray[np.int64], schema: pa.Schema) -> pa.Table:
        """A table of facts of some rows of a shard."""
        found = [self.values_of(field.name, field, rows) for field in schema]
        columns = pa.table([column for column, _ in found], schema=pa.schema([field for _, field in found]))
        inputs = None if self.input is None else self.input[rows]
        local = rows - self.unit.edges[index]
        return facts.build(local, self.status[rows], self.reason[rows], self.marked[rows], columns, inputs)

    def said(self, index: int) -> dict[str, Any]:
        """What the driver needs to know of a shard's facts."""
        shard, rows = self.unit.shards[index], slice(*self.unit.edges[index : index + 2])
        status = self.status[rows]
        codes = (("done", DONE), ("unusable", UNUSABLE), ("error", ERROR))
        summary: dict[str, Any] = {name: int((status == code).sum()) for name, code in codes}
        before = self.notes[shard.id].messages if shard.id in self.notes else {}
        found = {"number": self.numbers.get(shard.id, 0), "bytes": self._bytes.get(shard.id, 0), "summary": summary}
        found["messages"] = {**before, **self.messages}
        return found | {what: int(self.counts[what][index]) for what in COUNTS}


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """One array, however many chunks there are."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _differ(mine: pa.Table, theirs: pa.Table, rows: NDArray[np.int64]) -> bool:
    """Whether two tables of facts say different things of some rows."""
    found = []
    for table in (mine, theirs):
        at = {row: place for place, row in enumerate(table.column(facts.ROW).to_pylist())}
        part = table.take(pa.array([at[row] for row in rows.tolist()])).replace_schema_metadata(None)
        found.append(part.select(mine.column_names).to_pylist())
    return repr(found[0]) != repr(found[1])
