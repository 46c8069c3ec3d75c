"""Reading embedding columns for clustering and semantic duplicates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.core.vectors import IDENTITY, from_binary, halves_of, identity_of, vector_error

MOST_NORM = 1e15
"""Largest norm of a raw vector: the squares of longer vectors overflow float32."""
LEAST_SPREAD = 1e-15
"""Mean norm of raw vectors below which their squares underflow in float32."""


def embedding_columns(embedding: str, unit_norm: bool) -> tuple[str, ...]:
    """Columns to read: raw vectors need their norms too."""
    return (embedding,) if unit_norm else (embedding, f"{embedding}_norm")


def read_embeddings(op: str, table: pa.Table, embedding: str, unit_norm: bool) -> NDArray[np.float32]:
    """float32 (n, d): of unit length in float32 precision, or raw. Null rows and rows without a direction are NaN."""
    columns = [table.column(name) for name in embedding_columns(embedding, unit_norm)]
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = from_binary(*columns)
    except TypeError as error:
        raise vector_error(op, embedding, error) from error
    if unit_norm:
        with np.errstate(invalid="ignore"):
            lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
            vectors /= np.where(lengths > 0, lengths, np.nan)
    else:
        vectors[~np.any(vectors, axis=1)] = np.nan
    return vectors


def embedding_arrays(op: str, table: pa.Table, embedding: str, unit_norm: bool) -> dict[str, NDArray[Any]]:
    """Arrays for a worker to hold: `vectors` (n, d) in halves and, for raw vectors, `norms` (n,).

    Raises InputError, which names the first such row, if a row has no direction.
    """
    columns = [table.column(name) for name in embedding_columns(embedding, unit_norm)]
    try:
        held = {"vectors": halves_of(columns[0])}
    except TypeError as error:
        raise vector_error(op, embedding, error) from error
    good = np.isfinite(held["vectors"]).all(axis=1) & np.asarray(columns[0].is_valid())
    good &= np.any(held["vectors"] != 0, axis=1)
    if not unit_norm:
        held["norms"] = columns[1].to_numpy().astype(np.float32)
        good &= np.isfinite(held["norms"])
        _check_lengths(op, table, embedding, good & (held["norms"] > MOST_NORM))
    if not good.all():
        first = table.column("key")[int(np.argmin(good))].as_py()
        raise InputError(
            f"{op}.embedding: {int((~good).sum())} rows of {embedding!r} are null, zero, NaN or "
            f"infinite (first key {first}); reject them in the stage that writes the column"
        )
    return held


def _check_lengths(op: str, table: pa.Table, embedding: str, long: NDArray[np.bool_]) -> None:
    if long.any():
        first = table.column("key")[int(np.argmax(long))].as_py()
        raise InputError(
            f"{op}.embedding: {int(long.sum())} rows of {embedding!r} are longer than {MOST_NORM:g} (first key "
            f"{first}): their squares overflow float32; set unit_norm: true, or reject them in the stage that "
            "writes the column"
        )


def encoder_identity(op: str, schema: pa.Schema, embedding: str) -> dict[str, str]:
    """The `IDENTITY` of a vector column, without its dimension."""
    found = identity_of(op, schema.field(embedding))
    return {name: found[name] for name in IDENTITY if name in found}


def finite_rows(vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mask (n,) of the rows (n, d) that are finite and short enough for squared distances in float32."""
    return np.asarray((np.abs(vectors) <= MOST_NORM).all(axis=1))
