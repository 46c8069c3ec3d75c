"""Embedding columns as the clustering stages read them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.core.vectors import from_binary


def embedding_columns(embedding: str, unit_norm: bool) -> tuple[str, ...]:
    """What to read: raw vectors need their norms too."""
    return (embedding,) if unit_norm else (embedding, f"{embedding}_norm")


def read_embeddings(op: str, table: pa.Table, embedding: str, unit_norm: bool) -> NDArray[np.float32]:
    """float32 (n, d): unit to float32 precision, or raw. Rows without a direction, or null, are NaN."""
    columns = [table.column(name) for name in embedding_columns(embedding, unit_norm)]
    try:
        vectors = from_binary(*columns)
    except TypeError as error:
        raise InputError(f"{op}.embedding: column {embedding!r}: {error}; name a column of `image.embed`") from error
    if unit_norm:
        with np.errstate(invalid="ignore"):
            lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
            vectors /= np.where(lengths > 0, lengths, np.nan)
    return vectors


def finite_rows(vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mask (n,) of rows (n, d) without NaN or infinity."""
    return np.isfinite(vectors).all(axis=1)
