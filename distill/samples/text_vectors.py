"""Vectors of the samples' texts, from a column that the datasets carry: a frozen model has computed them (LLM2CLIP)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import InputError, Reject
from distill.samples.sources.mixture import Mixture

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


class TextVectors:
    """A vector of each row, in memory: 4 bytes for each number, in each process."""

    def __init__(self, mixture: Mixture, column: str, width: int) -> None:
        """Raises InputError for a source without the column, and for values that are not lists of `width` numbers."""
        self._column = column
        self._vectors = np.full((len(mixture), width), np.nan, dtype=np.float32)
        start = 0
        for number, source in enumerate(mixture.sources):
            place = f"data.sources.{number}: {source.url}"
            if not source.has(column):
                raise InputError(
                    f"{place} has no column {column!r}, which student.text.column names; add it to `carry` "
                    f"of pack.webdataset"
                )
            for part in source.read(column):
                self._vectors[start + np.flatnonzero(part.is_valid())] = _rows(part, width, f"{place}: {column!r}")
                start += len(part)

    def of_row(self, row: int) -> NDArray[np.float32]:
        """(width,). Raises Reject for a sample without a vector."""
        vector = self._vectors[row]
        if np.isnan(vector[0]):
            raise Reject("no_text", f"row {row}: the sample has no vector in the column {self._column!r}")
        return vector


def _rows(part: pa.Array, width: int, place: str) -> NDArray[np.float32]:
    """The vectors that are not null (n, width): lists of numbers, or bytes of half-precision numbers, as `text.embed`
    writes them."""
    given, kind = part.drop_null(), part.type
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        lengths = [length / 2 for length in pc.unique(pc.binary_length(given)).to_pylist()]
    elif any(is_list(kind) for is_list in _LISTS) and pa.types.is_floating(kind.value_type):
        lengths = pc.unique(pc.list_value_length(given)).to_pylist()
    else:
        raise InputError(f"{place} is of type {kind}; expected vectors of `text.embed`, or lists of numbers")
    if wrong := [length for length in lengths if length != width]:
        raise InputError(
            f"{place} has vectors of {wrong[0]:g} numbers, but student.text.width is {width}; set it to that"
        )
    if any(is_list(kind) for is_list in _LISTS):
        values = given.flatten().to_numpy(zero_copy_only=False)
    else:
        values = np.frombuffer(b"".join(given.to_pylist()), "<f2")
    return values.astype(np.float32).reshape(-1, width)
