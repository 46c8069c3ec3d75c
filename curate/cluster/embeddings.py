"""Embedding columns as the clustering stages read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.core.vectors import from_binary, halves_of


def embedding_columns(embedding: str, unit_norm: bool) -> tuple[str, ...]:
    """What to read: raw vectors need their norms too."""
    return (embedding,) if unit_norm else (embedding, f"{embedding}_norm")


def read_embeddings(op: str, table: pa.Table, embedding: str, unit_norm: bool) -> NDArray[np.float32]:
    """float32 (n, d): unit to float32 precision, or raw. Rows without a direction, or null, are NaN."""
    columns = [table.column(name) for name in embedding_columns(embedding, unit_norm)]
    try:
        vectors = from_binary(*columns)
    except TypeError as error:
        raise _no_vectors(op, embedding, error) from error
    if unit_norm:
        with np.errstate(invalid="ignore"):
            lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
            vectors /= np.where(lengths > 0, lengths, np.nan)
    return vectors


def held_embeddings(op: str, table: pa.Table, embedding: str, unit_norm: bool) -> dict[str, NDArray[Any]]:
    """What a worker holds of the rows: `vectors` (n, d) in halves and, for raw vectors, `norms` (n,).

    Raises InputError where a row has no direction, naming the first.
    """
    columns = [table.column(name) for name in embedding_columns(embedding, unit_norm)]
    try:
        held = {"vectors": halves_of(columns[0])}
    except TypeError as error:
        raise _no_vectors(op, embedding, error) from error
    good = np.isfinite(held["vectors"]).all(axis=1) & np.asarray(columns[0].is_valid())
    good &= np.any(held["vectors"] != 0, axis=1)
    if not unit_norm:
        held["norms"] = columns[1].to_numpy().astype(np.float32)
        good &= np.isfinite(held["norms"])
    if not good.all():
        first = table.column("key")[int(np.argmin(good))].as_py()
        raise InputError(
            f"{op}.embedding: {int((~good).sum())} rows of {embedding!r} are null, zero, NaN or "
            f"infinite (first key {first}); reject them in the stage that writes the column"
        )
    return held


def _no_vectors(op: str, embedding: str, error: TypeError) -> InputError:
    return InputError(f"{op}.embedding: column {embedding!r}: {error}; name a column of `image.embed`")


def finite_rows(vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mask (n,) of rows (n, d) without NaN or infinity."""
    return np.isfinite(vectors).all(axis=1)
