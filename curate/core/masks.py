"""Masks: who is alive at a point of the DAG, and why the others are not.

    masks/<chain>/<shard>-<tables>.parquet     per row, for each point: null, or (stage, reason); per item a reason
    masks/<chain>/versions/<digest>/           manifest.json, shards.parquet

A mask is the fold of the filters and statuses on the way to a point. It names the stage that a row left at, so that
every earlier point of the same way can be read from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.hashing import digest, digest_bytes

ALIVE = -1
"""Place in the DAG of the stage that a row left at, for a row that has left none."""
ABSENT = "absent"
"""Reason of a child whose parent is not alive: it was never there, and no ledger counts it."""
NO_ITEM = "no_item"
"""Said of a place where the column that makes the items is null: there is none to be rejected."""
NO_ITEMS = "no_items"
"""Reason of a row of which no item is left, where no filter has another."""
Reasons = NDArray[Any]  # (n,) objects: str or None


@dataclass
class Fate:
    """What became of n rows on the way to a point."""

    stage: NDArray[np.int32]
    """(n,): place in the DAG of the stage that each row left at; ALIVE."""
    reason: Reasons
    marked: NDArray[np.bool_]
    """(n,): something there is the null of a row in error, or computed from one."""
    items: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Family -> (n,) objects: a list of reasons or nulls, by place; None where all items are alive."""
    at: int = 0
    """Place in the DAG of the last stage on the way."""

    @classmethod
    def all_alive(cls, rows: int) -> Fate:
        return cls(np.full(rows, ALIVE, np.int32), np.full(rows, None, object), np.zeros(rows, bool))

    @property
    def alive(self) -> NDArray[np.bool_]:
        return self.stage == ALIVE

    def slice(self, start: int, stop: int) -> Fate:
        items = {family: lists[start:stop].copy() for family, lists in self.items.items()}
        rows = slice(start, stop)
        return Fate(self.stage[rows].copy(), self.reason[rows].copy(), self.marked[rows].copy(), items, self.at)

    def put(self, start: int, part: Fate) -> None:
        """Write a stretch of rows in place."""
        stop = start + len(part.stage)
        self.stage[start:stop], self.reason[start:stop] = part.stage, part.reason
        self.marked[start:stop] = part.marked
        for family, lists in part.items.items():
            if family not in self.items:
                self.items[family] = np.full(len(self.stage), None, object)
            self.items[family][start:stop] = lists

    def leave(self, rows: NDArray[Any], stage: int, reasons: Iterable[str]) -> None:
        """Rows (indices) leave at a stage. They must be alive."""
        self.stage[rows] = stage
        self.reason[rows] = np.array(list(reasons), object) if len(rows) else []

    def also(self, other: Fate) -> Fate:
        """Of two ways that meet: a row is alive if it is on both; it left where it first left."""
        theirs = (other.stage != ALIVE) & ((self.stage == ALIVE) | (other.stage < self.stage))
        stage = np.where(theirs, other.stage, self.stage)
        reason = np.where(theirs, other.reason, self.reason)
        items = dict(self.items)
        for family, lists in other.items.items():
            items[family] = _both(items[family], lists) if family in items else lists
        met = Fate(stage, reason, self.marked | other.marked, items, max(self.at, other.at))
        for family in self.items.keys() & other.items.keys():  # each way left an item, and none is on both
            none = [row for row in np.flatnonzero(met.alive) if items[family][row] and all(items[family][row])]
            met.leave(np.array(none, dtype=np.int64), met.at, [NO_ITEMS] * len(none))
        return met

    def reject_items(self, family: str, rows: NDArray[Any], reasons: Sequence[list[str | None] | None]) -> None:
        """Reasons by place of the family's items, for some rows (indices); earlier ones stand. All rows' lists are
        kept, those without a reason too: they say how many items a row has."""
        held = self.items.setdefault(family, np.full(len(self.stage), None, object))
        fresh = np.empty(len(rows), object)
        fresh[:] = [None if found is None else list(found) for found in reasons]
        held[rows] = _both(held[rows], fresh)

    def reasons(self) -> str:
        """Digest of who left where and why, per row and item: what reports show beside who is alive; "" where all rows
        are absent."""
        there = self.reason != ABSENT
        if not there.any():
            return ""
        rows = [(int(stage), reason) for stage, reason in zip(self.stage[there], self.reason[there], strict=True)]
        items = [[name, [list(found or ()) for found in lists[there]]] for name, lists in sorted(self.items.items())]
        return digest([rows, items])

    def content(self) -> str:
        """Digest of who is alive, per row and item, and what is marked; "" where nobody is. Reasons are not in it."""
        alive = self.alive
        if not alive.any():
            return ""
        parts = [np.packbits(alive).tobytes()]
        if (self.marked & alive).any():
            parts.append(b"marked" + np.packbits(self.marked & alive).tobytes())
        for family, lists in sorted(self.items.items()):
            dead = [
                f"{row}:{''.join('1' if reason else '0' for reason in lists[row])}"
                for row in np.flatnonzero(alive)
                if lists[row] is not None and any(lists[row])
            ]
            if dead:
                parts.append(f"{family} {' '.join(dead)}".encode())
        return digest_bytes(parts)


def _both(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Lists of reasons by row, the first's where both have one; what a shorter list does not reach has none."""
    merged = first.copy()
    for row in np.flatnonzero([other is not None for other in second]):
        mine = first[row]
        if mine is None:
            merged[row] = second[row]
        else:
            merged[row] = [a or b for a, b in zip_longest(mine, second[row])]
    return merged


def concatenated(fates: Sequence[Fate]) -> Fate:
    if len(fates) == 1:
        return fates[0]
    whole = Fate.all_alive(sum(len(fate.stage) for fate in fates))
    start = 0
    for fate in fates:
        whole.put(start, fate)
        start += len(fate.stage)
    return whole


def columns_of(point: str, fate: Fate, names: Sequence[str]) -> dict[str, pa.Array]:
    """A point's columns of a mask file; `names` by place in the DAG."""
    stage = pa.array([None if place == ALIVE else names[place] for place in fate.stage], pa.string())
    columns = {f"{point}.stage": stage, f"{point}.reason": pa.array(fate.reason, pa.string())}
    if fate.marked.any():
        columns[f"{point}.marked"] = pa.array(fate.marked)
    for family, lists in sorted(fate.items.items()):
        columns[f"{point}.items.{family}"] = pa.array(lists.tolist(), pa.list_(pa.string()))
    return columns


def fate_of(table: pa.Table, point: str, order: Mapping[str, int]) -> Fate:
    """A point's fate out of a mask file's table; `order` is each stage's place in the DAG."""
    stages = table.column(f"{point}.stage").to_pylist()
    fate = Fate.all_alive(table.num_rows)
    fate.at = max(order.get(name, 0) for name in point.split("+"))
    fate.stage = np.array([ALIVE if name is None else order.get(name, 0) for name in stages], np.int32)
    fate.reason = np.array(table.column(f"{point}.reason").to_pylist() or [], object)
    if f"{point}.marked" in table.column_names:
        fate.marked = table.column(f"{point}.marked").to_numpy(zero_copy_only=False).copy()
    start = f"{point}.items."
    for name in table.column_names:
        if name.startswith(start):
            lists = np.empty(table.num_rows, object)
            lists[:] = table.column(name).to_pylist()
            fate.items[name.removeprefix(start)] = lists
    return fate


def without_items(column: pa.ChunkedArray, reasons: NDArray[Any]) -> pa.ChunkedArray:
    """A list column in which rejected items are null; `reasons` (n,) by row as `Fate.items` has them."""
    rows = np.flatnonzero([found is not None and any(found) for found in reasons])
    if not len(rows):
        return column
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    flat = array.flatten()
    alive = np.ones(len(flat), dtype=bool)
    for row in rows:
        if lengths[row]:
            alive[starts[row] : starts[row + 1]] = [reason is None for reason in reasons[row]]
    values = pc.if_else(pa.array(alive), flat, pa.scalar(None, flat.type))
    null = pc.is_null(array)
    made = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), values, mask=null)
    return pa.chunked_array([made.cast(array.type)])


def item_counts(reasons: NDArray[Any] | None, rows: NDArray[np.bool_]) -> tuple[int, Counter[str]]:
    """(items alive, items rejected by reason) among some rows (n,); places without an item count as neither."""
    said: Counter[str | None] = Counter()
    for row in np.flatnonzero(rows) if reasons is not None else ():
        said.update(reasons[row] or ())  # type: ignore[index]
    alive = said.pop(None, 0)
    said.pop(NO_ITEM, 0)
    return alive, Counter({reason: count for reason, count in said.items() if reason is not None})
