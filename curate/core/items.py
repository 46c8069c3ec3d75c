"""Per-item columns: a row's texts (sentences; later clips) as a list, and what is known of each as a list beside it.

A row's item is named by its place in the list: item "2" of a row is element 2 of every per-item column of that row.
An element that is null is an item that is not there (a sentence that a filter has rejected), so that names never move.
A plain text column is a row of one item, "0". Fields of per-item columns carry the metadata `places_of(column)`: the
column whose places they follow, or their own name for a column that makes items. Columns that lead to the same root
form a family, and an item that a filter rejects is missing in all of them.
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
"""Field metadata of a list column that has a value for each item of its row."""


def places_of(column: str) -> dict[str, str]:
    """Field metadata of a list column with a value for each item of `column`."""
    return {**PER_ITEM, "places": column}


def family_of(column: str, fields: Mapping[str, pa.Field]) -> str:
    """Name of the column that first made the items that a column's places follow; the column itself if it follows
    none."""
    seen = {column}
    while column in fields:
        followed = (fields[column].metadata or {}).get(b"places", column.encode()).decode()
        if followed in seen:
            return column
        seen.add(followed)
        column = followed
    return column


def per_item(field: pa.Field) -> bool:
    """Whether a column holds a value per item rather than per row."""
    return (field.metadata or {}).get(b"per") == b"item"


@dataclass(frozen=True)
class Items:
    """The items of n rows that are there, in order of rows, then places."""

    values: pa.Array
    """(m,), without nulls."""
    row: NDArray[np.int64]
    """(m,): index of each item's row, ascending."""
    place: NDArray[np.int64]
    """(m,): place of each item in its row; its name is that number."""
    lengths: NDArray[np.int64]
    """(n,): elements of each row's list, those that are not there included; -1 where the row has no list."""

    def __len__(self) -> int:
        return len(self.row)

    def nest(self, values: Any, kind: pa.DataType) -> pa.Array:
        """A value per item (m,) -> list<kind> (n,): null at places that are not there, null rows where there is no
        list."""
        array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, kind)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        offsets = np.concatenate([[0], np.cumsum(np.maximum(self.lengths, 0))]).astype(np.int32)
        source = np.full(int(offsets[-1]), -1, dtype=np.int64)
        source[offsets[self.row] + self.place] = np.arange(len(self.row))
        flat = array.cast(kind).take(pa.array(source, mask=source < 0))
        return pa.ListArray.from_arrays(offsets, flat, mask=pa.array(self.lengths < 0))


def items_of(column: pa.ChunkedArray | pa.Array, name: str = "") -> Items:
    """Items of a plain column (one a row, none where it is null) or of a list column. Raises CurateError otherwise."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunk at all
        array = pa.concat_arrays(array.chunks) if array.chunks else pa.array([], column.type)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        lengths = pc.fill_null(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        row = np.repeat(np.arange(len(array)), np.maximum(lengths, 0))
        starts = np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0)
        place = np.arange(len(row)) - starts[row]
        flat = array.flatten()
    elif pa.types.is_nested(array.type):
        raise CurateError(f"column {name!r} is {array.type}; name a column of texts, or of a list of texts per row")
    else:
        lengths = np.where(np.asarray(pc.is_valid(array)), 1, -1).astype(np.int64)
        row, flat = np.arange(len(array)), array
        place = np.zeros(len(array), dtype=np.int64)
    if flat.null_count == 0:
        return Items(flat, row, place, lengths)
    there = np.asarray(pc.is_valid(flat))
    return Items(flat.filter(pa.array(there)), row[there], place[there], lengths)


def texts_of(op: str, column: pa.ChunkedArray, name: str, parameter: str = "column") -> Items:
    """The texts that are there. Raises CurateError, naming the parameter, for columns of anything else."""
    items = items_of(column, name)
    kind = items.values.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise CurateError(
            f"{op}.{parameter}: {name!r} holds {kind}; name a column of texts, or of a list of texts per row"
        )
    return items


def element(value: Any, item: str) -> Any:
    """The element of a per-item column's row value that belongs to an item; None where there is none."""
    place = int(item) if item.isdigit() else -1
    return value[place] if isinstance(value, Sequence) and 0 <= place < len(value) else None
