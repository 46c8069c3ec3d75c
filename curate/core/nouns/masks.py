"""Masks: which rows are alive at a point of the DAG, and why the others are not.

    masks/<chain>/<shard>-<tables>.parquet     per row, for each point: null, or (stage, reason); per item a reason
    masks/<chain>/versions/<digest>/           manifest.json, shards.parquet

A mask combines all filters and statuses on the path to a point. It names the stage at which a row left, so that it
answers for every earlier point of the same path too.
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
from curate.core.items import element

ALIVE = -1
"""Stage at which a row left, for a row that is alive."""
ABSENT = "absent"
"""Reason of a child whose parent is not alive. No ledger counts it."""
NO_ITEM = "no_item"
"""Reason of a position where the column that makes the items is null: no item exists."""
NO_ITEMS = "no_items"
"""Reason of a row without remaining items, unless a filter gives another."""
Reasons = NDArray[Any]  # (n,) objects: str or None
NO_REASON = np.array(None, object)
"""To compare with: `reasons == NO_REASON`."""


@dataclass
class Fate:
    """The fate of n rows on the path to a point: alive, or where and why each one left."""

    stage: NDArray[np.int32]
    """(n,): index in the DAG of the stage at which each row left, or ALIVE."""
    reason: Reasons
    marked: NDArray[np.bool_]
    """(n,): whether a value is the null of a row in error, or computed from one."""
    items: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Family -> (n,) objects: a list of reasons or nulls by position; None if all items are alive."""
    at: int = 0
    """Index in the DAG of the last stage on the path."""

    @classmethod
    def all_alive(cls, rows: int) -> Fate:
        return cls(np.full(rows, ALIVE, np.int32), np.full(rows, None, object), np.zeros(rows, bool))

    @property
    def alive(self) -> NDArray[np.bool_]:
        return self.stage == ALIVE

    def alive_items(self, rows: NDArray[np.int64], items: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each pair (m,) of a row (index) and an item of it is alive."""
        keep = self.alive[rows]
        for lists in self.items.values():
            for place in np.flatnonzero(keep).tolist():
                keep[place] &= element(lists[rows[place]], items[place]) is None
        return keep

    def slice(self, start: int, stop: int) -> Fate:
        items = {family: lists[start:stop].copy() for family, lists in self.items.items()}
        rows = slice(start, stop)
        return Fate(self.stage[rows].copy(), self.reason[rows].copy(), self.marked[rows].copy(), items, self.at)

    def put(self, start: int, part: Fate) -> None:
        """Overwrite the rows from `start` on."""
        stop = start + len(part.stage)
        self.stage[start:stop], self.reason[start:stop] = part.stage, part.reason
        self.marked[start:stop] = part.marked
        for family, lists in part.items.items():
            if family not in self.items:
                self.items[family] = np.full(len(self.stage), None, object)
            self.items[family][start:stop] = lists

    def leave(self, rows: NDArray[Any], stage: int, reasons: Iterable[str]) -> None:
        """Reject rows (indices), which must be alive, at a stage."""
        self.stage[rows] = stage
        self.reason[rows] = np.array(list(reasons), object) if len(rows) else []

    def intersect(self, other: Fate) -> Fate:
        """Combine two paths: a row is alive if it is alive on both; otherwise it left at the earlier stage."""
        earlier = (other.stage != ALIVE) & ((self.stage == ALIVE) | (other.stage < self.stage))
        stage = np.where(earlier, other.stage, self.stage)
        reason = np.where(earlier, other.reason, self.reason)
        items = dict(self.items)
        for family, lists in other.items.items():
            items[family] = _both(items[family], lists) if family in items else lists
        met = Fate(stage, reason, self.marked | other.marked, items, max(self.at, other.at))
        for family in self.items.keys() & other.items.keys():  # each path keeps an item, but no item is alive on both
            none = [row for row in np.flatnonzero(met.alive) if items[family][row] and all(items[family][row])]
            met.leave(np.array(none, dtype=np.int64), met.at, [NO_ITEMS] * len(none))
        return met

    def reject_items(self, family: str, rows: NDArray[Any], reasons: Sequence[list[str | None] | None]) -> None:
        """Reject items of a family in some rows (indices): lists of reasons by position. Earlier reasons are kept, and
        so are lists without reasons, because they give the number of items."""
        held = self.items.setdefault(family, np.full(len(self.stage), None, object))
        fresh = np.empty(len(rows), object)
        fresh[:] = [None if found is None else list(found) for found in reasons]
        held[rows] = _both(held[rows], fresh)

    def reasons(self) -> str:
        """Digest of where and why rows and items left, which reports show; "" if all rows are absent."""
        present = self.reason != ABSENT
        if not present.any():
            return ""
        rows = [(int(stage), reason) for stage, reason in zip(self.stage[present], self.reason[present], strict=True)]
        items = [[name, [list(found or ()) for found in lists[present]]] for name, lists in sorted(self.items.items())]
        return digest([rows, items])

    def content(self) -> str:
        """Digest of the rows and items that are alive, and of the marks, but not of reasons; "" if no row is alive."""
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
    """Lists of reasons by row; the first argument's reason if both have one. Lists may differ in length."""
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
    """Columns of a point in a mask file; `names` are the stages by index in the DAG."""
    stage = pa.array([None if place == ALIVE else names[place] for place in fate.stage], pa.string())
    columns = {f"{point}.stage": stage, f"{point}.reason": pa.array(fate.reason, pa.string())}
    if fate.marked.any():
        columns[f"{point}.marked"] = pa.array(fate.marked)
    for family, lists in sorted(fate.items.items()):
        columns[f"{point}.items.{family}"] = pa.array(lists.tolist(), pa.list_(pa.string()))
    return columns


def fate_of(table: pa.Table, point: str, order: Mapping[str, int]) -> Fate:
    """The fate at a point, from the table of a mask file; `order` has each stage's index in the DAG."""
    stages = table.column(f"{point}.stage").combine_chunks().dictionary_encode()
    fate = Fate.all_alive(table.num_rows)
    fate.at = max(order.get(name, 0) for name in point.split("+"))
    places = np.array([order.get(name, 0) for name in stages.dictionary.to_pylist()] + [ALIVE], np.int32)
    fate.stage = places[pc.fill_null(stages.indices, len(places) - 1).to_numpy()]
    fate.reason = table.column(f"{point}.reason").to_numpy()
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
    """A list column with its rejected items set to null; `reasons` (n,) as in `Fate.items`."""
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
    lists = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), values, mask=null)
    return pa.chunked_array([lists.cast(array.type)])


def item_counts(reasons: NDArray[Any] | None, rows: NDArray[np.bool_]) -> tuple[int, Counter[str]]:
    """(items alive, items rejected by reason) in the selected rows (n,). Positions without an item do not count."""
    counts: Counter[str | None] = Counter()
    if reasons is not None:
        for row in np.flatnonzero(rows):
            counts.update(reasons[row] or ())
    alive = counts.pop(None, 0)
    counts.pop(NO_ITEM, 0)
    return alive, Counter({reason: count for reason, count in counts.items() if reason is not None})


def mask_file(chain: str, shard: str, numbers: Mapping[str, int], bases: tuple[str, ...]) -> str:
    """Path of a shard's mask, named by a digest of the tables (stage -> number) and masks (`bases`) it combines."""
    return f"{chain}/{shard}-{digest([dict(numbers), list(bases)])[:16]}.parquet"
