"""Entries of items: the concepts, words or tags that each text of a row has, as pairs of numbers.

A column of entries is, per row, a list per item of a list of strings, beside other per-item columns
(curate.core.items). What counts entries, balances by them or shows them reads them here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import CurateError
from curate.core.items import Items, items_of

TAIL_SHARE = 0.06
"""Of all matches, in the tail, where nothing else is said: what MetaCLIP's t of 20,000 for 400M texts comes to."""


@dataclass(frozen=True)
class Entries:
    """The items (m) of some rows that are there, by row, then place; and what they have, P pairs of item and entry."""

    row: NDArray[np.int64]
    """(m,): index of each item's row, ascending."""
    place: NDArray[np.int64]
    """(m,): place of each item in its row."""
    item: NDArray[np.int64]
    """(P,): index of the item, ascending."""
    entry: NDArray[np.int64]
    """(P,): number of an entry that it has, ascending within the item; none twice."""
    names: list[str]
    """Entry number -> entry, where the rows themselves have numbered them; empty where that was given."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def matched(self) -> NDArray[np.bool_]:
        """(m,): whether each item has an entry at all."""
        found = np.zeros(len(self), dtype=bool)
        found[self.item] = True
        return found


class Known:
    """Entries that are numbered already, 0 … len - 1, by their place in `names` (all different)."""

    def __init__(self, names: Iterable[str] | pa.Array) -> None:
        self.names = names if isinstance(names, pa.Array) else pa.array(names, pa.string())

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names.to_pylist())}

    def numbers(self, entries: pa.Array) -> NDArray[np.int64]:
        """Number (P,) of each of the strings; len(self) for all others. Arrow hashes all names at every call, which
        pays where there are as many strings as names."""
        if len(entries) > len(self):
            found = pc.index_in(entries, value_set=self.names)
            return pc.fill_null(found, len(self)).to_numpy(zero_copy_only=False).astype(np.int64)
        encoded = entries.dictionary_encode()
        numbers = [self._numbers.get(name, len(self)) for name in encoded.dictionary.to_pylist()]
        return np.array(numbers, dtype=np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]


def entries_of(table: pa.Table, columns: Sequence[str], known: Known | None = None) -> Entries:
    """What the items of the rows have in any of the columns; an entry in two of them counts once. Entries are numbered
    as `known` has it, or else by the rows themselves. Raises CurateError for columns of anything else."""
    found = [_items(table.column(name), name) for name in columns]
    row, place, owners = _united(found)
    lengths = [pc.list_value_length(items.values).to_numpy(zero_copy_only=False) for items in found]
    item = np.concatenate([np.repeat(own, length) for own, length in zip(owners, lengths, strict=True)])
    flat = pa.concat_arrays([items.values.flatten().cast(pa.string()) for items in found])
    if flat.null_count:
        there = pc.is_valid(flat)
        item, flat = item[there.to_numpy(zero_copy_only=False)], flat.filter(there)
    if known is None:
        encoded = flat.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        entry = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        names, entry = [], known.numbers(flat)
    size = len(known) + 1 if known is not None else max(1, len(names))
    item, entry = np.divmod(_distinct(item * size + entry), size)
    return Entries(row, place, item, entry, names)


def listed(found: Entries, numbers: NDArray[np.int64]) -> pa.Array:
    """A number for each pair of `found` -> list<int32> (m,): a list per item."""
    edges = np.searchsorted(found.item, np.arange(len(found) + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(edges, pa.array(numbers, pa.int32()))


def entries_of_lists(column: pa.ChunkedArray) -> Entries:
    """The entries of list<int32> (m,) that `listed` has made, null for no list: m rows of one item each."""
    lists = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    rows = np.arange(len(lists))
    entry = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    return Entries(rows, np.zeros_like(rows), np.repeat(rows, lengths), entry, [])


def _items(column: pa.ChunkedArray, name: str) -> Items:
    kind = column.type
    if not (_is_list(kind) and _is_list(kind.value_type) and not pa.types.is_nested(kind.value_type.value_type)):
        raise CurateError(
            f"column {name!r} is {kind}; name a column of entries, a list of strings for each item of a row, such as "
            "`concepts`"
        )
    return items_of(column, name)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _united(found: Sequence[Items]) -> tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[np.int64]]]:
    """(row, place) of the items that are in any column, and the index there of each column's items."""
    if len(found) == 1:
        return found[0].row, found[0].place, [np.arange(len(found[0]))]
    wide = 1 + max((int(items.place.max(initial=0)) for items in found), default=0)
    codes, places = np.unique(np.concatenate([items.row * wide + items.place for items in found]), return_inverse=True)
    edges = np.cumsum([len(items) for items in found])[:-1]
    return codes // wide, codes % wide, np.split(places, edges)


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted, each once: np.unique without its detours."""
    values = np.sort(values)
    keep = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=keep[1:])
    return values[keep]


def tail_count(counts: NDArray[np.int64], share: float) -> int:
    """The one of the counts (K,) such that entries with smaller ones, the tail, hold as close to `share` of all matches
    as can be, the smaller of two: the t of MetaCLIP (section 3.4). There is a tail wherever counts differ, though it
    may hold far more than `share` where even the smallest count does. 0 where nothing was counted."""
    values, times = np.unique(counts[counts > 0], return_counts=True)
    if len(values) < 2:
        return int(values.sum())
    held = values * times
    below = np.cumsum(held)[:-1]
    return int(values[1 + np.abs(below - share * held.sum()).argmin()])


def grouped(table: pa.Table, by: str | None) -> tuple[NDArray[np.int64], list[str]]:
    """Group (n,) of each row, and the groups' names; rows without a word are the group "". Raises CurateError."""
    if by is None:
        return np.zeros(table.num_rows, dtype=np.int64), [""]
    column = table.column(by)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise CurateError(f"by: column {by!r} is {column.type}; name a column of a word per row, such as `language`")
    encoded = pc.fill_null(column, "").combine_chunks().cast(pa.string()).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()
