"""`cluster.assign`: clusters of every row, and its distance to its leaf's centroid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.cluster.divide.probe import PROBE, LeafIndex, nearest_leaf
from curate.cluster.tree.levels import LEAVES, ancestors
from curate.core.contracts import Artifact, Batch, Map, Resources, Runtime
from curate.core.errors import CurateError
from curate.core.vectors import same_encoder
from curate.kernels.embeddings import embedding_columns, finite_rows, read_embeddings
from curate.kernels.nearest.search import nearest
from curate.kernels.vectors import vectors_of


class Assign(Map):
    """Assign each embedding to its nearest leaf centroid, by exact search, and to the clusters above the leaf.

    In a tree fitted by cells, only the `probe` cells nearest to the row are searched.

    Writes `cluster_1` (leaf) .. `cluster_L` (coarsest) and `centroid_distance`, the squared L2 distance to the leaf's
    centroid. Unusable: bad_embedding (null, zero, NaN, infinite, or too long to be squared).
    """

    op: ClassVar[str] = "cluster.assign"
    version: ClassVar[int] = 2
    ports: ClassVar[dict[str, str]] = {"tree": "cluster_tree"}
    batch_rows: ClassVar[int] = 8192

    levels: int = Field(ge=1, description="Levels of the tree, each of which becomes a `cluster_` column.")
    embedding: str = Field("embedding", description="Column with the vectors; `<name>_norm` holds their norms.")
    unit_norm: bool = Field(True, description="Whether the tree was fitted on directions, as in its `cluster.fit`.")
    probe: int = Field(
        PROBE, ge=1, description="Cells to search per row in a tree fitted by cells; other trees are searched whole."
    )
    threads: Annotated[int, Runtime()] = Field(1, ge=1, description="Cores of one task.")
    gpus: Annotated[float | None, Runtime()] = Field(
        None, ge=0, description="GPUs of one task; null is one if the cluster has any."
    )

    _leaves: NDArray[np.float32] | LeafIndex = PrivateAttr()
    _encoder: dict[str, str] = PrivateAttr()
    """Encoder of the vectors that the tree was fitted on."""
    _path: NDArray[np.int64] = PrivateAttr()

    def reads(self) -> tuple[str, ...]:
        return embedding_columns(self.embedding, self.unit_norm)

    def schema(self) -> pa.Schema:
        clusters = [pa.field(f"cluster_{level}", pa.int64()) for level in range(1, self.levels + 1)]
        return pa.schema([*clusters, pa.field("centroid_distance", pa.float32(), metadata={"unit": "squared L2"})])

    def resources(self) -> Resources:
        return Resources(cpus=self.threads, gpus=self.gpus or 0)

    def placed(self, gpus: bool) -> Self:
        return self if self.gpus is not None else self.model_copy(update={"gpus": float(gpus)})

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if the tree has other levels or was fitted on another kind of vectors."""
        tree = artifacts["tree"]
        facts = tree["levels"]
        for name, given, fitted in (
            ("levels", self.levels, len(facts["levels"])),
            ("unit_norm", self.unit_norm, facts["unit_norm"]),
        ):
            if given != fitted:
                raise CurateError(f"{self.op}.{name}: {given}, but its `tree` was fitted with {fitted}; write {fitted}")
        self._encoder = {**facts.get("encoder", {}), "dim": str(facts["dim"])}
        self._leaves = leaf_centroids(tree)
        self._path = ancestors([tree[f"parents_{t}"] for t in range(1, self.levels)], facts["levels"][0]["clusters"])

    def process(self, batch: Batch) -> dict[str, Any]:
        """Raises CurateError if the tree was fitted on vectors of another encoder."""
        field = batch.table.schema.field(self.embedding)
        same_encoder(self.op, field, self._encoder, "tree", "assign with the encoder that the tree was fitted on")
        vectors = read_embeddings(self.op, batch.table, self.embedding, self.unit_norm)
        bad = ~finite_rows(vectors)
        vectors[bad] = 0
        if isinstance(self._leaves, LeafIndex):
            leaves, distances = nearest_leaf(vectors, self._leaves, self.probe, self.threads)
        else:
            leaves, distances = nearest(vectors, self._leaves, self.threads)
        batch.unusable(np.flatnonzero(bad), "bad_embedding")
        clusters = {f"cluster_{level}": self._path[leaves, level - 1] for level in range(1, self.levels + 1)}
        return {**clusters, "centroid_distance": distances}


def leaf_centroids(tree: Artifact) -> NDArray[np.float32] | LeafIndex:
    """Leaf centroids of a tree: an array (K, d), or an index of cells whose files are mapped on first use."""
    if "cells" not in tree:
        return np.asarray(tree["centroids_1"])
    stored: Any = tree
    return LeafIndex(
        np.asarray(tree["cells"]), np.asarray(tree["offsets"]), lambda cell: vectors_of(stored.part(LEAVES, cell))[:]
    )
