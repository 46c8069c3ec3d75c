"""Arithmetic of image-text scores: arrays in, arrays out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import CurateError
from curate.core.items import Items, items_of

_PAIRS = 4096
"""Pairs per multiplication, in float64."""


def is_list(column: pa.ChunkedArray | pa.Array) -> bool:
    return pa.types.is_list(column.type) or pa.types.is_large_list(column.type)


def numbers_of(op: str, column: pa.ChunkedArray, name: str, parameter: str) -> Items:
    """The existing values of a column as float32. Raises CurateError if they are not numbers."""
    items = items_of(column, name)
    kind = items.values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise CurateError(f"{op}.{parameter}: {name!r} holds {kind}; name a column of numbers or of lists of numbers")
    return Items(items.values.cast(pa.float32(), safe=False), items.row, items.place, items.lengths)


def cosines(
    images: NDArray[np.floating], texts: NDArray[np.floating], row: NDArray[np.int64], text: NDArray[np.int64]
) -> NDArray[np.float32]:
    """images (n, d) and texts (t, d) -> cosine (m,) of images[row] and texts[text]; NaN if either has no direction."""
    found = np.empty(len(row), dtype=np.float32)
    for start in range(0, len(row), _PAIRS):
        part = slice(start, start + _PAIRS)
        a, b = (side[at[part]].astype(np.float64) for side, at in ((images, row), (texts, text)))
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            dots = np.einsum("md,md->m", a, b)
            lengths = np.sqrt(np.einsum("md,md->m", a, a) * np.einsum("md,md->m", b, b))
            found[part] = np.clip(dots / lengths, -1, 1)
    return found
