"""Flattens rows into one table with a row per item, and back, so that an expression over rows can judge items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.contracts import Table
from curate.core.errors import CurateError
from curate.core.items import per_item


@dataclass(frozen=True)
class Flat:
    """The m items of n rows, ordered by row, then position."""

    table: pa.Table
    """(m,): values of each item, with the values of its row repeated."""
    exists: NDArray[np.bool_]
    """(m,): whether the item exists: at least one of its values is not null."""
    lengths: NDArray[np.int64]
    """(n,): length of each row's list; -1 if the row has no list."""

    def nested(self, values: pa.Array) -> pa.ListArray:
        """A value per item (m,) -> a list per row (n,), null if the row has no list."""
        offsets = np.concatenate([[0], np.cumsum(np.maximum(self.lengths, 0))]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(self.lengths < 0))


def flattened(table: Table, columns: Iterable[str], places: str) -> Flat:
    """`columns` of the table by item. Columns with a value per item have the items of the column `places`; a row's list
    may be null. Raises CurateError if a list differs in length from that of `places`."""
    lengths = _lengths(_array(table, places))
    row = np.repeat(np.arange(len(lengths)), np.maximum(lengths, 0))
    exists = np.zeros(len(row), dtype=bool)
    found = {}
    for name in columns:
        array = _array(table, name)
        if name == places or per_item(table.schema.field(name)):
            found[name] = _items(array, lengths, name, places)
            exists |= np.asarray(pc.is_valid(found[name]))
        else:
            found[name] = array.take(pa.array(row))
    return Flat(pa.table(found), exists, lengths)


def _items(array: pa.Array, lengths: NDArray[np.int64], name: str, places: str) -> pa.Array:
    own, wanted = _lengths(array), np.maximum(lengths, 0)
    if np.array_equal(own, wanted):
        return array.flatten()
    wrong = np.flatnonzero((own >= 0) & (own != wanted))
    if len(wrong):
        at = int(wrong[0])
        text = f"row {at} has {own[at]} values of {name!r} and {wanted[at]} of {places!r}"
        raise CurateError(f"items: {text}, expected equal numbers; name a column whose items {name!r} describes")
    listed = np.repeat(own >= 0, wanted)
    return array.flatten().take(pa.array(np.cumsum(listed) - 1, mask=~listed))


def _lengths(array: pa.Array) -> NDArray[np.int64]:
    lengths = pc.fill_null(pc.list_value_length(array), -1)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def _array(table: Table, name: str) -> pa.Array:
    column = table.column(name)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
