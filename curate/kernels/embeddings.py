"""Embedding columns as the clustering stages read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.core.vectors import IDENTITY, from_binary, halves_of, identity_of, no_vectors

MOST_NORM = 1e15
"""Longest raw vector: the squares of longer ones run over in float32."""
LEAST_SPREAD = 1e-15
"""Mean distance of raw vectors from zero below which their squares vanish in float32."""


def embedding_columns(embedding: str, unit_norm: bool) -> tuple[str, ...]:
    """What to read: raw vectors need their norms too."""
    return (embedding,) if unit_norm else (embedding, f"{embedding}_norm")


def read_embeddings(op: str, table: pa.Table, embedding: str, unit_norm: bool) -> NDArray[np.float32]:
    """float32 (n, d): unit to float32 precision, or raw. Rows without a direction, or null, are NaN."""
    columns = [table.column(name) for name in embedding_columns(embedding, unit_norm)]
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = from_binary(*columns)
    except TypeError as error:
        raise no_vectors(op, embedding, error) from error
    if unit_norm:
        with np.errstate(invalid="ignore"):
            lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
            vectors /= np.where(lengths > 0, lengths, np.nan)
    else:
        vectors[~np.any(vectors, axis=1)] = np.nan
    return vectors


def held_embeddings(op: str, table: pa.Table, embedding: str, unit_norm: bool) -> dict[str, NDArray[Any]]:
    """What a worker holds of the rows: `vectors` (n, d) in halves and, for raw vectors, `norms` (n,).

    Raises InputError where a row has no direction, naming the first.
    """
    columns = [table.column(name) for name in embedding_columns(embedding, unit_norm)]
    try:
        held = {"vectors": halves_of(columns[0])}
    except TypeError as error:
        raise no_vectors(op, embedding, error) from error
    good = np.isfinite(held["vectors"]).all(axis=1) & np.asarray(columns[0].is_valid())
    good &= np.any(held["vectors"] != 0, axis=1)
    if not unit_norm:
        held["norms"] = columns[1].to_numpy().astype(np.float32)
        good &= np.isfinite(held["norms"])
        _refuse_long(op, table, embedding, good & (held["norms"] > MOST_NORM))
    if not good.all():
        first = table.column("key")[int(np.argmin(good))].as_py()
        raise InputError(
            f"{op}.embedding: {int((~good).sum())} rows of {embedding!r} are null, zero, NaN or "
            f"infinite (first key {first}); reject them in the stage that writes the column"
        )
    return held


def _refuse_long(op: str, table: pa.Table, embedding: str, long: NDArray[np.bool_]) -> None:
    if long.any():
        first = table.column("key")[int(np.argmax(long))].as_py()
        raise InputError(
            f"{op}.embedding: {int(long.sum())} rows of {embedding!r} are longer than {MOST_NORM:g} (first key "
            f"{first}): their squares run over in float32; write unit_norm: true, or reject them in the stage that "
            "writes the column"
        )


def made_by(op: str, schema: pa.Schema, embedding: str) -> dict[str, str]:
    """What `IDENTITY` a column of vectors has; its dimension is told by the arrays."""
    found = identity_of(op, schema.field(embedding))
    return {name: found[name] for name in IDENTITY if name in found}


def finite_rows(vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mask (n,) of rows (n, d) without NaN or infinity, and short enough for squared distances."""
    return (np.abs(vectors) <= MOST_NORM).all(axis=1)
