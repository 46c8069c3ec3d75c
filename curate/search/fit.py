"""`search.fit`: rows sorted by leaf, with their vectors beside them, for `curate search`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Fit, Resources, Runtime, Table
from curate.core.errors import CurateError
from curate.core.group import Group, Part
from curate.core.hashing import key_words
from curate.core.vectors import same_encoder
from curate.kernels.draw import drawn
from curate.kernels.embeddings import embedding_arrays, encoder_identity
from curate.kernels.nearest.search import nearest
from curate.kernels.tree import leaves_of
from curate.kernels.vectors import vectors_of

KIND, ROWS = "search_index", "rows"
FILE_ROWS = 1 << 16
"""Least rows of a file, except the last. A leaf is in one file."""
CELL_ROWS, MOST_SAMPLED = 64, 1 << 18
"""Rows per cell, and at most, that cells are fitted on: the driver holds them."""
ITERATIONS = 8


class FitSearch(Fit):
    """Sort the rows of a pool by leaf, so that `curate search` compares a query with the rows of the nearest leaves.

    The leaves are those of `tree`, which `cluster` names for each row; without a tree, its own cells. The artifact
    contains `edges` (K + 1,), the first row of each leaf, then the number of all rows; `first_leaves` (F + 1,), the
    first leaf of each file of `rows`, then K; `centroids` (K, d) if the cells are its own; and `summary`. These files
    hold `vectors` (n, d) in half precision and `key` (n, 2 words), sorted by leaf, in the order of the pool within a
    leaf. It does not depend on the number of workers and threads.
    """

    op: ClassVar[str] = "search.fit"
    kind: ClassVar[str] = KIND
    ports: ClassVar[dict[str, str]] = {"tree": "cluster_tree"}
    optional_ports: ClassVar[tuple[str, ...]] = ("tree",)

    embedding: str = Field("embedding", description="Column of vectors, written by `image.embed`.")
    cluster: str | None = Field(
        None,
        description="Column with each row's leaf of `tree`: `cluster_1` of `cluster.assign`. A search takes as long as "
        "the largest leaves have rows; leave this and `tree` out if they have many thousands.",
    )
    cells: int | None = Field(
        None, ge=1, description="Its own cells, without a tree; null: twice the square root of the rows."
    )
    seed: int = Field(0, ge=0, description="Seed of the cells.")
    threads: Annotated[int, Runtime()] = Field(2, ge=1, description="Cores of one worker.")

    _tree: Artifact | None = PrivateAttr(None)

    def reads(self) -> tuple[str, ...]:
        return (self.embedding, *([self.cluster] if self.cluster else []))

    def resources(self) -> Resources:
        return Resources(cpus=self.threads)

    def provenance(self, schema: pa.Schema) -> dict[str, str]:
        return encoder_identity(self.op, schema, self.embedding)

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if only one of `tree` and `cluster` is given."""
        self._tree = artifacts.get("tree")
        if (self._tree is None) != (self.cluster is None):
            what = "without" if self._tree is None else "with"
            remedy = "give both, as in tree: tree, cluster: cluster_1, or neither"
            raise CurateError(f"{self.op}.cluster: {self.cluster!r} {what} a `tree`; {remedy}")
        if self.cluster is not None and not self.cluster.endswith("_1"):
            raise CurateError(f"{self.op}.cluster: {self.cluster!r} is not the level of the leaves; give cluster_1")

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        """`vectors` (n, d) in halves, `key` (n, 2) words and, with a tree, `leaf` (n,). Raises InputError for a vector
        without a direction, CurateError if the rows were assigned to another tree."""
        held = embedding_arrays(self.op, table, self.embedding, True)
        held["key"] = key_words(table.column("key").to_pylist())
        if self._tree is not None and self.cluster is not None:
            levels = self._tree["levels"]
            known = {**levels.get("encoder", {}), "dim": str(levels["dim"])}
            remedy = "name the column that the tree was fitted on"
            same_encoder(self.op, table.schema.field(self.embedding), known, "tree", remedy)
            held["leaf"] = leaves_of(self.op, table, levels["levels"][0]["clusters"], self.cluster)
        return held

    def fit(self, group: Group) -> Artifact:
        """Raises CurateError if there are no rows."""
        rows = sum(group.rows)
        if not rows:
            why = "every row was rejected upstream; `curate status RUN` shows where and why"
            raise CurateError(f"{self.op}: no rows to search: {why}")
        own: dict[str, Any] = {}
        if self._tree is None:
            own["centroids"] = fit_cells(group, min(rows, self.cells or round(2 * rows**0.5)), self.seed)
        leaves = len(own["centroids"]) if own else int(self._tree["levels"]["levels"][0]["clusters"])  # type: ignore[index]
        counts = np.zeros(leaves, np.int64)
        for found, count in group.each(count_rows, **own):
            counts[found] += count
        edges = np.concatenate([[0], np.cumsum(counts)])
        firsts = first_leaves(edges)
        placed = group.partition("by-file", to_file, len(firsts) - 1, firsts=firsts, **own)
        for _ in placed.each(sort_rows):
            pass
        about = {"embedding": self.embedding, "encoder": dict(group.provenance), "rows": rows, "leaves": leaves}
        return {"edges": edges, "first_leaves": firsts, "summary": about, **own}


def fit_cells(group: Group, cells: int, seed: int) -> NDArray[np.float32]:
    """Centroids (cells, d) of unit length, by k-means on a sample of the rows."""
    sample = drawn(group, min(CELL_ROWS * cells, MOST_SAMPLED), seed)
    cells = min(cells, len(sample))
    centroids = sample[np.sort(np.random.default_rng(seed).choice(len(sample), cells, replace=False))]
    for done in range(ITERATIONS):
        group.progress(done / ITERATIONS, f"{cells:,} cells")
        cell, _ = nearest(sample, centroids, group.threads)
        order = np.argsort(cell, kind="stable")
        held, starts = np.unique(cell[order], return_index=True)
        means = np.add.reduceat(sample[order], starts)
        centroids[held] = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return centroids


def first_leaves(edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """First leaf of each file (F + 1,), then the number of leaves: a file ends with the leaf that fills it."""
    firsts, last = [0], len(edges) - 1
    while firsts[-1] < last:
        full = int(np.searchsorted(edges, edges[firsts[-1]] + FILE_ROWS))
        firsts.append(min(last, full) if edges[-1] - edges[min(last, full)] else last)
    return np.array(firsts, np.int64)


# --- steps ------------------------------------------------------------------------------------------------------------


def leaf_of(part: Part, shared: Mapping[str, Any]) -> NDArray[np.int64]:
    """Leaf (n,) of each row."""
    if "leaf" in part.arrays:
        return part.arrays["leaf"]
    if "leaf" not in part.memo:
        part.memo["leaf"] = nearest(vectors_of(part.arrays), shared["centroids"], part.threads)[0]
    found: NDArray[np.int64] = part.memo["leaf"]
    return found


def count_rows(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The part's leaves, and the rows of each."""
    return np.unique(leaf_of(part, shared), return_counts=True)


def to_file(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    leaf = leaf_of(part, shared)
    arrays = {"vectors": part.arrays["vectors"], "key": part.arrays["key"], "leaf": leaf}
    return np.searchsorted(shared["firsts"], leaf, side="right") - 1, arrays


def sort_rows(part: Part, shared: Mapping[str, Any]) -> None:
    order = np.argsort(part.arrays["leaf"], kind="stable")
    part.store(ROWS, {name: part.arrays[name][order] for name in ("vectors", "key")})
