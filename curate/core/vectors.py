"""Vector columns: half-precision unit vectors in FixedSizeBinary, with their norms in a float32 column.

Fixed-size binary is read 20-30 times faster than a list of halves, and Parquet has no half-precision tensors. The norm
(column `<name>_norm`) restores raw vectors: raw = unit * norm, to the relative precision 2**-11 of a half.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import CurateError, InputError

_HALF = np.dtype("<f2")
IDENTITY = ("encoder", "weights", "preprocessing")
"""Field metadata that must be equal for vectors to be comparable."""


def vector_type(dim: int) -> pa.DataType:
    """Arrow type of a column of `dim` halves."""
    return pa.binary(dim * _HALF.itemsize)


def vector_dim(column: pa.DataType) -> int:
    """Dimension of a vector column. Raises TypeError for any other type."""
    if not pa.types.is_fixed_size_binary(column) or column.byte_width % _HALF.itemsize:
        raise TypeError(f"expected fixed_size_binary of 2 bytes per dimension, not {column}")
    return int(column.byte_width) // _HALF.itemsize


def to_binary(vectors: NDArray[np.floating]) -> tuple[pa.Array, NDArray[np.float32]]:
    """vectors (n, d) of any float type -> (column of n unit vectors, norms (n,)).

    A row without a direction (zero, NaN, infinite) keeps its zeros or becomes NaN. `has_direction(norms)` is then
    False, and the stage that computed the row rejects it.
    """
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    with np.errstate(invalid="ignore"):
        unit = vectors / np.where(norms > 0, norms, 1)[:, None]
    halves = np.ascontiguousarray(unit, dtype=_HALF)
    column = pa.Array.from_buffers(vector_type(vectors.shape[1]), len(vectors), [None, pa.py_buffer(halves)])
    with np.errstate(over="ignore"):
        return column, norms.astype(np.float32)


def has_direction(norms: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Mask (n,) of the rows whose norm is finite and positive."""
    return np.isfinite(norms) & (norms > 0)


def halves_of(column: pa.Array | pa.ChunkedArray) -> NDArray[np.float16]:
    """A vector column -> its halves (n, d). Null rows have undefined content. Raises TypeError for any other type."""
    dim = vector_dim(column.type)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [np.empty((0, dim), dtype=_HALF)]
    for chunk in chunks:
        if len(chunk):
            halves = np.frombuffer(chunk.buffers()[1], dtype=_HALF)
            parts.append(halves[chunk.offset * dim : (chunk.offset + len(chunk)) * dim].reshape(-1, dim))
    return parts[-1] if len(parts) == 2 else np.concatenate(parts)


def from_binary(
    column: pa.Array | pa.ChunkedArray, norms: pa.Array | pa.ChunkedArray | NDArray[np.floating] | None = None
) -> NDArray[np.float32]:
    """A vector column -> float32 (n, d), unit or, with `norms` (n,), raw. Null rows become NaN."""
    dim = vector_dim(column.type)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    vectors = np.empty((len(column), dim), dtype=np.float32)
    start = 0
    for chunk in chunks:
        rows = vectors[start : start + len(chunk)]
        if len(chunk):
            halves = np.frombuffer(chunk.buffers()[1], dtype=_HALF)
            rows[:] = halves[chunk.offset * dim : (chunk.offset + len(chunk)) * dim].reshape(-1, dim)
        if chunk.null_count:
            rows[np.asarray(chunk.is_null())] = np.nan
        start += len(chunk)
    if norms is not None:
        vectors *= np.asarray(norms, dtype=np.float32)[:, None]
    return vectors


def identity_of(op: str, field: pa.Field) -> dict[str, str]:
    """Provenance of a vector column as recorded in its metadata, and `dim`. Raises InputError for other columns."""
    try:
        dim = vector_dim(field.type)
    except TypeError as error:
        raise vector_error(op, field.name, error) from error
    metadata = field.metadata or {}
    known = {name: metadata[name.encode()].decode() for name in IDENTITY if name.encode() in metadata}
    return {**known, "dim": str(dim)}


def same_encoder(op: str, field: pa.Field, other: Mapping[str, str], whose: str, remedy: str) -> None:
    """Raises CurateError if a column has another encoder than `other`, the identity of the vectors of `whose`, with
    which it is compared."""
    mine = identity_of(op, field)
    for name in (*IDENTITY, "dim"):
        if name in mine and name in other and mine[name] != other[name]:
            form = "{} dimensions" if name == "dim" else f"{name} {{}}"
            a, b = form.format(mine[name]), form.format(other[name])
            raise CurateError(f"{op}.embedding: {field.name!r} has {a}, but its `{whose}` has {b}; {remedy}")


def vector_error(op: str, embedding: str, error: TypeError) -> InputError:
    return InputError(f"{op}.embedding: column {embedding!r}: {error}; give a column of `image.embed`")
