"""Embedding columns as the clustering stages read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import CurateError, InputError
from curate.core.vectors import from_binary, halves_of, vector_dim

IDENTITY = ("encoder", "weights", "preprocessing")
"""Field metadata of a column of `image.embed` that must be equal for vectors to be comparable."""
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
        raise _no_vectors(op, embedding, error) from error
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
        raise _no_vectors(op, embedding, error) from error
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


def identity_of(op: str, field: pa.Field) -> dict[str, str]:
    """What made a column of vectors, as far as it says; `dim` always. Raises InputError for other columns."""
    try:
        dim = vector_dim(field.type)
    except TypeError as error:
        raise _no_vectors(op, field.name, error) from error
    metadata = field.metadata or {}
    known = {name: metadata[name.encode()].decode() for name in IDENTITY if name.encode() in metadata}
    return {**known, "dim": str(dim)}


def made_by(op: str, schema: pa.Schema, embedding: str) -> dict[str, str]:
    """What `IDENTITY` a column of vectors has; its dimension is told by the arrays."""
    found = identity_of(op, schema.field(embedding))
    return {name: found[name] for name in IDENTITY if name in found}


def same_encoder(op: str, field: pa.Field, other: Mapping[str, str], whose: str, remedy: str) -> None:
    """Raises CurateError where a column and `other`, `whose` vectors it is held against, name different encoders."""
    mine = identity_of(op, field)
    for name in (*IDENTITY, "dim"):
        if name in mine and name in other and mine[name] != other[name]:
            said = "{} dimensions" if name == "dim" else f"{name} {{}}"
            a, b = said.format(mine[name]), said.format(other[name])
            raise CurateError(f"{op}.embedding: {field.name!r} has {a}, but its `{whose}` has {b}; {remedy}")


def _no_vectors(op: str, embedding: str, error: TypeError) -> InputError:
    return InputError(f"{op}.embedding: column {embedding!r}: {error}; name a column of `image.embed`")


def finite_rows(vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mask (n,) of rows (n, d) without NaN or infinity, and short enough for squared distances."""
    return (np.abs(vectors) <= MOST_NORM).all(axis=1)
