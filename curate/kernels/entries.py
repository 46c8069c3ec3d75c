"""Entries of items: the concepts, words or tags of each text of a row, as pairs of numbers.

A column of entries has, per row, a list per item of lists of strings; see curate.core.items for per-item columns. In a
per-item column of strings, each item is its own entry (a hashtag). Both are read here by the stages that count entries,
balance by them or show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import CurateError
from curate.core.items import Items, items_of, per_item

TAIL_SHARE = 0.06
"""Default share of all matches in the tail, which corresponds to MetaCLIP's t of 20,000 for 400M texts."""


@dataclass(frozen=True)
class Entries:
    """The m existing items of some rows, by row, then position, and their P pairs of item and entry."""

    row: NDArray[np.int64]
    """(m,): index of each item's row, ascending."""
    place: NDArray[np.int64]
    """(m,): position of each item in its row."""
    item: NDArray[np.int64]
    """(P,): index of the item, ascending."""
    entry: NDArray[np.int64]
    """(P,): number of the entry, ascending and distinct within the item."""
    names: list[str]
    """Entry number -> entry, if numbered by the rows themselves; empty if the numbers were given."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def matched(self) -> NDArray[np.bool_]:
        """(m,): whether each item has an entry."""
        found = np.zeros(len(self), dtype=bool)
        found[self.item] = True
        return found


class EntryIndex:
    """Numbers 0 … len - 1 of entries, by their position in `names`, which are distinct."""

    def __init__(self, names: Iterable[str] | pa.Array) -> None:
        self.names = names if isinstance(names, pa.Array) else pa.array(names, pa.string())

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names.to_pylist())}

    def numbers(self, entries: pa.Array) -> NDArray[np.int64]:
        """Number (P,) of each string; len(self) for unknown ones. Arrow's lookup hashes all names in every call, so it
        is used only for more strings than names."""
        if len(entries) > len(self):
            found = pc.index_in(entries, value_set=self.names)
            return pc.fill_null(found, len(self)).to_numpy(zero_copy_only=False).astype(np.int64)
        encoded = entries.dictionary_encode()
        numbers = [self._numbers.get(name, len(self)) for name in encoded.dictionary.to_pylist()]
        return np.array(numbers, dtype=np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]


def entries_of(table: pa.Table, columns: Sequence[str], index: EntryIndex | None = None) -> Entries:
    """Entries of the rows' items in any of the columns; an entry in two columns counts once. Entries have the numbers
    of `index`, or are numbered in order of occurrence. Raises CurateError for columns of another type."""
    found = [_items(table.column(name), table.schema.field(name)) for name in columns]
    row, place, owners = _union(found)
    lengths = [pc.list_value_length(items.values).to_numpy(zero_copy_only=False) for items in found]
    item = np.concatenate([np.repeat(own, length) for own, length in zip(owners, lengths, strict=True)])
    flat = pa.concat_arrays([items.values.flatten().cast(pa.string()) for items in found])
    if flat.null_count:
        valid = pc.is_valid(flat)
        item, flat = item[valid.to_numpy(zero_copy_only=False)], flat.filter(valid)
    if index is None:
        encoded = flat.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        entry = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        names, entry = [], index.numbers(flat)
    size = len(index) + 1 if index is not None else max(1, len(names))
    item, entry = np.divmod(_distinct(item * size + entry), size)
    return Entries(row, place, item, entry, names)


def lists_of_entries(found: Entries, numbers: NDArray[np.int64]) -> pa.Array:
    """Numbers (P,) of the pairs of `found` -> list<int32> (m,): a list per item."""
    edges = np.searchsorted(found.item, np.arange(len(found) + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(edges, pa.array(numbers, pa.int32()))


def entries_of_lists(column: pa.ChunkedArray) -> Entries:
    """The entries of list<int32> (m,) made by `lists_of_entries`, with null for no list: m rows of one item each."""
    lists = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    rows = np.arange(len(lists))
    entry = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    return Entries(rows, np.zeros_like(rows), np.repeat(rows, lengths), entry, [])


def _items(column: pa.ChunkedArray, field: pa.Field) -> Items:
    kind, items = column.type, items_of(column, field.name) if _is_list(column.type) else None
    if items is not None and per_item(field) and not pa.types.is_nested(kind.value_type):
        lists = pa.ListArray.from_arrays(np.arange(len(items) + 1, dtype=np.int32), items.values)
        return replace(items, values=lists)
    if items is None or not _is_list(kind.value_type) or pa.types.is_nested(kind.value_type.value_type):
        raise CurateError(
            f"column {field.name!r} is {kind}; give a column of entries, a list of strings per item of a row, such as "
            "`concepts`"
        )
    return items


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _union(found: Sequence[Items]) -> tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[np.int64]]]:
    """(row, place) of the items of any column, and the index among them of each column's items."""
    if len(found) == 1:
        return found[0].row, found[0].place, [np.arange(len(found[0]))]
    wide = 1 + max((int(items.place.max(initial=0)) for items in found), default=0)
    codes, places = np.unique(np.concatenate([items.row * wide + items.place for items in found]), return_inverse=True)
    edges = np.cumsum([len(items) for items in found])[:-1]
    return codes // wide, codes % wide, np.split(places, edges)


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorted distinct values; faster than np.unique."""
    values = np.sort(values)
    keep = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=keep[1:])
    return values[keep]


def tail_count(counts: NDArray[np.int64], share: float) -> int:
    """The threshold t of MetaCLIP (section 3.4): the count among counts (K,) for which the tail, the entries with
    smaller counts, has as close as possible to `share` of all matches; the smaller of two such counts. If counts
    differ, the tail is not empty, even if the smallest count alone has far more than `share`. 0 if all counts are 0."""
    values, times = np.unique(counts[counts > 0], return_counts=True)
    if len(values) < 2:
        return int(values.sum())
    held = values * times
    below = np.cumsum(held)[:-1]
    return int(values[1 + np.abs(below - share * held.sum()).argmin()])


def grouped(table: pa.Table, by: str | None) -> tuple[NDArray[np.int64], list[str]]:
    """Group (n,) of each row by the column `by`, and names of the groups; null is the group "". Raises CurateError."""
    if by is None:
        return np.zeros(table.num_rows, dtype=np.int64), [""]
    column = table.column(by)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise CurateError(f"by: column {by!r} is {column.type}; give a column of one word per row, such as `language`")
    encoded = pc.fill_null(column, "").combine_chunks().cast(pa.string()).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()
