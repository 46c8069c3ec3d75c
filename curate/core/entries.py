"""Entries of items: the concepts, words or tags that each text of a row has, as pairs of numbers.

A column of entries is, per row, a list per item of a list of strings, beside other per-item columns
(curate.core.items). What counts entries, balances by them or shows them reads them here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import CurateError
from curate.core.items import Items, items_of


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


def entries_of(table: pa.Table, columns: Sequence[str], known: Mapping[str, int] | None = None) -> Entries:
    """What the items of the rows have in any of the columns; an entry in two of them counts once. Entries are numbered
    by `known`, 0 … len(known) - 1; those that it lacks are all len(known). Raises CurateError for other columns."""
    found = [_items(table.column(name), name) for name in columns]
    row, place, owners = _united(found)
    lengths = [pc.list_value_length(items.values).to_numpy(zero_copy_only=False) for items in found]
    item = np.concatenate([np.repeat(own, length) for own, length in zip(owners, lengths, strict=True)])
    flat = pa.concat_arrays([items.values.flatten().cast(pa.string()) for items in found])
    if flat.null_count:
        there = pc.is_valid(flat)
        item, flat = item[there.to_numpy(zero_copy_only=False)], flat.filter(there)
    encoded = flat.dictionary_encode()
    entry = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    names = encoded.dictionary.to_pylist()
    if known is not None:
        entry = np.array([known.get(name, len(known)) for name in names], dtype=np.int64)[entry]
    size = max(1, len(names) if known is None else len(known) + 1)
    item, entry = np.divmod(_distinct(item * size + entry), size)
    return Entries(row, place, item, entry, names if known is None else [])


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
    """The largest of the counts (K,) such that the entries with smaller ones hold at most `share` of all matches: the t
    of MetaCLIP (section 3.4), of which the tail is what lies below. 0 where nothing was counted."""
    values, times = np.unique(counts[counts > 0], return_counts=True)
    held = values * times
    below = np.cumsum(held) - held
    return int(values[below <= share * held.sum()].max(initial=0))
