"""`project.place`: the two coordinates of each row on a map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Batch, Map
from curate.core.hashing import digest_bytes
from curate.core.vectors import same_encoder
from curate.kernels.embeddings import finite_rows, read_embeddings
from curate.project.neighbours import index_of

NEAREST, CANDIDATES = 15, 32
BLOCK_ROWS = 256
LEAST_SQUARE = 1e-6
"""Squared distance below which rows are equal: that of halves."""


class Place(Map):
    """Place each row on the map that `project.fit` fitted.

    Writes `<into>_x` and `<into>_y`: exactly by PCA; for `neighbours`, the mean of the nearest 15 rows of the sample,
    weighted by 1 / squared distance. Their metadata has the version of the map, the digest of what was fitted, which a
    region drawn on it names.
    Unusable: bad_embedding (null, zero, NaN or infinite).
    """

    op: ClassVar[str] = "project.place"
    ports: ClassVar[dict[str, str]] = {"projection": "projection"}
    batch_rows: ClassVar[int] = 4096

    embedding: str = Field("embedding", description="Column of vectors that the projection was fitted on.")
    into: str = Field("map", pattern="^[A-Za-z][A-Za-z0-9_]*$", description="Start of the new columns' names: map_x.")

    _held: Artifact = PrivateAttr()
    _index: Any = PrivateAttr(None)
    _version: str = PrivateAttr("")
    _encoder: dict[str, str] = PrivateAttr()

    def reads(self) -> tuple[str, ...]:
        return (self.embedding,)

    def schema(self) -> pa.Schema:
        metadata = {"map": self._version} if self._version else None
        return pa.schema([pa.field(f"{self.into}_{axis}", pa.float32(), metadata=metadata) for axis in "xy"])

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        held = artifacts["projection"]
        about = held["summary"]
        self._encoder = {**about["encoder"], "dim": str(about["dim"])}
        names = ("vectors", "points") if about["method"] == "neighbours" else ("mean", "axes")
        self._version = digest_bytes(np.ascontiguousarray(held[name]).tobytes() for name in names)[:16]
        self._held = {name: np.asarray(held[name]).astype(np.float32) for name in names}
        if about["method"] == "neighbours":
            vectors = self._held["vectors"]
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            self._index = index_of(vectors)

    def process(self, batch: Batch) -> dict[str, Any]:
        """Raises CurateError if the map was fitted on vectors of another encoder."""
        field = batch.table.schema.field(self.embedding)
        same_encoder(self.op, field, self._encoder, "projection", "place with the encoder that it was fitted on")
        vectors = read_embeddings(self.op, batch.table, self.embedding, True)
        bad = ~finite_rows(vectors)
        vectors[bad] = 0
        batch.unusable(np.flatnonzero(bad), "bad_embedding")
        points = self._by_axes(vectors) if self._index is None else self._by_neighbours(vectors)
        return {f"{self.into}_{axis}": points[:, place] for place, axis in enumerate("xy")}

    def _by_axes(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """In float64 and row by row: a point does not depend on the other rows of its batch."""
        centred = vectors.astype(np.float64) - self._held["mean"]
        columns = [(centred * axis).sum(axis=1) for axis in self._held["axes"].T]
        return np.stack(columns, axis=1).astype(np.float32)

    def _by_neighbours(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """faiss lists candidates, whose last bits may depend on the batch; their distances are computed again."""
        points = [self._near(vectors[start : start + BLOCK_ROWS]) for start in range(0, len(vectors), BLOCK_ROWS)]
        return np.concatenate([np.zeros((0, 2), np.float32), *points])

    def _near(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        known, points = self._held["vectors"], self._held["points"].astype(np.float64)
        ids = self._index.search(vectors, min(CANDIDATES, len(known)))[1]
        apart = (known[ids] - vectors[:, None]).astype(np.float64)
        square = np.where(ids < 0, np.inf, (apart * apart).sum(axis=2))
        order = np.lexsort((ids, square))[:, :NEAREST]
        weights = 1 / np.maximum(np.take_along_axis(square, order, 1), LEAST_SQUARE)
        near = points[np.take_along_axis(ids, order, 1)]
        return ((weights[:, :, None] * near).sum(axis=1) / weights.sum(axis=1, keepdims=True)).astype(np.float32)
