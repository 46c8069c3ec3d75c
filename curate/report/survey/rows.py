"""State of a pass over the pool: bounded counts of labels; and columns as arrays."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.kernels.meta import META, field_of

MAX_LABELS = 100_000
"""Distinct labels that are counted separately; a column with more has texts, not labels."""
LABEL_CHARACTERS = 80


class LabelCounts:
    """Rows per label before and after the selection; labels beyond MAX_LABELS are counted together."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._ids: dict[str, int] = {}
        self.before: NDArray[np.int64] = np.zeros(0, np.int64)
        self.after: NDArray[np.int64] = np.zeros(0, np.int64)
        self.unlabelled = [0, 0]
        self.others = [0, 0]

    def add(self, labels: pa.Array, copies: NDArray[np.int64]) -> None:
        """`labels`: strings or nulls (n,); `copies`: (n,), of the same rows."""
        encoded = labels.dictionary_encode()
        known = np.array([self._id(value) for value in encoded.dictionary.to_pylist()] + [-2], dtype=np.int64)
        ids = known[pc.fill_null(encoded.indices, len(known) - 1).to_numpy(zero_copy_only=False)]
        named = ids >= 0
        self.before = add_at(self.before, ids[named])
        self.after = add_at(self.after, ids[named], copies[named])
        for total, mark in ((self.unlabelled, -2), (self.others, -1)):
            total[0] += int((ids == mark).sum())
            total[1] += int(copies[ids == mark].sum())

    def _id(self, name: str) -> int:
        found = self._ids.get(name)
        if found is None:
            if len(self.names) >= MAX_LABELS:
                return -1
            found = self._ids[name] = len(self.names)
            self.names.append(name)
        return found

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(before, after), in the order of `names`."""
        size = len(self.names)
        return grown(self.before, size, 0)[:size], grown(self.after, size, 0)[:size]


def label_column(label: str) -> str:
    """Column to read for `label`, which is a column's name or `meta.<field>`."""
    return "meta" if label.startswith(META) else label


def label_values(table: pa.Table, label: str) -> pa.Array:
    """Labels (n,) as strings; null if a row has none, or if its meta is not a JSON object."""
    column = table.column(label_column(label)).combine_chunks()
    values = column.to_pylist()
    if label.startswith(META):
        values = [field_of(text, label) for text in values]
    return pa.array([_text(value) for value in values], type=pa.string())


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace").decode()[:LABEL_CHARACTERS]


def integers(table: pa.Table, name: str, default: int = 0) -> NDArray[np.int64]:
    """An integer column (n,) with `default` for nulls; only `default` if the table has no such column."""
    if name not in table.column_names:
        return np.full(table.num_rows, default, dtype=np.int64)
    column = pc.fill_null(table.column(name).cast(pa.int64()), default)
    return column.combine_chunks().to_numpy(zero_copy_only=False)


def texts(table: pa.Table, name: str) -> pa.Array:
    """A column as strings, decoded from a dictionary if needed; all null if the table has no such column."""
    if name not in table.column_names:
        return pa.nulls(table.num_rows, pa.string())
    column = table.column(name).combine_chunks()
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def add_at(
    totals: NDArray[np.int64], ids: NDArray[np.int64], amounts: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """`totals` (K,) with `amounts` (or 1 each) added at `ids` (n,) >= 0, grown by doubling to include the largest id.
    The cost is O(n), not O(K): K may be millions, n is a shard."""
    if len(ids) == 0:
        return totals
    totals = grown(totals, int(ids.max()) + 1, 0)
    np.add.at(totals, ids, 1 if amounts is None else amounts)
    return totals


def grown(values: NDArray[np.int64], size: int, fill: int) -> NDArray[np.int64]:
    """`values`, or a copy of at least `size` elements with `fill` for the new ones."""
    if size <= len(values):
        return values
    larger = np.full(max(size, 2 * len(values)), fill, dtype=np.int64)
    larger[: len(values)] = values
    return larger
