"""Per-item columns: a row's items (sentences; later clips) as a list, and facts about each in parallel lists.

The name of an item is its position in the list: item "2" of a row is element 2 of every per-item column of that row.
A null element is a missing item (a sentence that a filter has rejected), so that names never change. A plain text
column has one item per row, "0". Fields of per-item columns have the metadata `places_of(column)`: the column whose
positions they follow, or their own name for a column that makes items. Columns with the same root form a family; an
item that a filter rejects is missing in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import CurateError

PER_ITEM = {"per": "item"}
"""Field metadata of a list column with a value for each item of its row."""


def places_of(column: str) -> dict[str, str]:
    """Field metadata of a list column with a value for each item of `column`."""
    return {**PER_ITEM, "places": column}


def family_of(column: str, fields: Mapping[str, pa.Field]) -> str:
    """Name of the column that made the items of a per-item column: the root of its family."""
    seen = {column}
    while column in fields:
        followed = (fields[column].metadata or {}).get(b"places", column.encode()).decode()
        if followed in seen:
            return column
        seen.add(followed)
        column = followed
    return column


def per_item(field: pa.Field) -> bool:
    """Whether a column has a value per item rather than per row."""
    return (field.metadata or {}).get(b"per") == b"item"


@dataclass(frozen=True)
class Items:
    """The existing items of n rows, ordered by row, then position."""

    values: pa.Array
    """(m,), without nulls."""
    row: NDArray[np.int64]
    """(m,): index of each item's row, ascending."""
    place: NDArray[np.int64]
    """(m,): position of each item in its row, which is its name."""
    lengths: NDArray[np.int64]
    """(n,): length of each row's list, missing items included; -1 if the row has no list."""

    def __len__(self) -> int:
        return len(self.row)

    def nest(self, values: Any, kind: pa.DataType) -> pa.Array:
        """A value per item (m,) -> list<kind> (n,), with nulls for missing items and for rows without a list."""
        array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, kind)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        offsets = np.concatenate([[0], np.cumsum(np.maximum(self.lengths, 0))]).astype(np.int32)
        source = np.full(int(offsets[-1]), -1, dtype=np.int64)
        source[offsets[self.row] + self.place] = np.arange(len(self.row))
        flat = array.cast(kind).take(pa.array(source, mask=source < 0))
        return pa.ListArray.from_arrays(offsets, flat, mask=pa.array(self.lengths < 0))


def items_of(column: pa.ChunkedArray | pa.Array, name: str = "") -> Items:
    """Items of a plain column (one per row, none if null) or of a list column. Raises CurateError for other types."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # without chunks
        array = pa.concat_arrays(array.chunks) if array.chunks else pa.array([], column.type)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        row = np.repeat(np.arange(len(array)), np.maximum(lengths, 0))
        starts = np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0)
        place = np.arange(len(row)) - starts[row]
        flat = array.flatten()
    elif pa.types.is_nested(array.type):
        raise CurateError(f"column {name!r} is {array.type}; give a column of texts or of lists of texts")
    else:
        lengths = np.where(np.asarray(pc.is_valid(array)), 1, -1).astype(np.int64)
        row, flat = np.arange(len(array)), array
        place = np.zeros(len(array), dtype=np.int64)
    if flat.null_count == 0:
        return Items(flat, row, place, lengths)
    valid = np.asarray(pc.is_valid(flat))
    return Items(flat.filter(pa.array(valid)), row[valid], place[valid], lengths)


def texts_of(op: str, column: pa.ChunkedArray, name: str, parameter: str = "column") -> Items:
    """The existing texts of a column. Raises CurateError, which names the parameter, for other columns."""
    items = items_of(column, name)
    kind = items.values.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise CurateError(f"{op}.{parameter}: {name!r} holds {kind}; give a column of texts or of lists of texts")
    return items


def element(value: Any, item: str) -> Any:
    """The element of a row's list for an item; None if the list has no such element."""
    place = int(item) if item.isdigit() else -1
    return value[place] if isinstance(value, Sequence) and 0 <= place < len(value) else None
