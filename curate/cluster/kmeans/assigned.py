"""Steps over a part's vectors: who is assigned where, and what the driver needs to know of it.

A step keeps its result in the part's memo, under a token that names it (a digest of the centroids). The next step over
the same centroids finds it there; a new worker computes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from curate.core.group import Part
from curate.core.hashing import digest_bytes
from curate.kernels.groups import position_in_group
from curate.kernels.nearest.search import nearest
from curate.kernels.vectors import Vectors, vectors_of

QUANTILES = 1024
"""Order statistics of its distances that a part reports at most."""


@dataclass(frozen=True)
class Thin:
    """About `share` of the rows, drawn under (seed, part)."""

    share: float
    seed: int

    @property
    def token(self) -> str:
        return f"thin {self.share} {self.seed}"

    def rows(self, part: Part) -> NDArray[np.int64]:
        return np.flatnonzero(np.random.default_rng([self.seed, part.index]).random(part.rows) < self.share)


@dataclass(frozen=True)
class Kept:
    """The r rows nearest to each centroid, over all parts: what a resampling round clusters.

    Cluster k keeps the rows whose (distance, part, place) is at most (distance[k], part[k], place[k]). The place counts
    the rows that take part: all of the part, or the thin ones.
    """

    centroids: NDArray[np.float32]
    distance: NDArray[np.float32]
    part: NDArray[np.int64]
    place: NDArray[np.int64]
    among: Thin | None = None

    @property
    def token(self) -> str:
        among = self.among.token if self.among else ""
        return token_of(self.centroids, self.distance, self.part, self.place) + among

    def rows(self, part: Part) -> NDArray[np.int64]:
        shared = {"centroids": self.centroids, "kept": self.among}
        ids, distances = assigned(part, shared)
        at, here = self.distance[ids], self.part[ids]
        place = np.arange(len(ids))
        earlier = (part.index < here) | ((part.index == here) & (place <= self.place[ids]))
        kept = np.flatnonzero((distances < at) | ((distances == at) & earlier))
        chosen = chosen_rows(part, self.among)
        return kept if chosen is None else chosen[kept]


Some: TypeAlias = "Kept | Thin | None"
"""Which rows of the parts are meant; None is all."""


def token_of(*arrays: NDArray[Any]) -> str:
    return digest_bytes(np.ascontiguousarray(array).data.cast("B") for array in arrays)


def remembered(part: Part, name: str, token: str, compute: Any) -> Any:
    """What the memo holds under `name` if it belongs to `token`, else `compute()`, which takes its place."""
    held = part.memo.get(name)
    if held is None or held[0] != token:
        held = part.memo[name] = (token, compute())
    return held[1]


def chosen_rows(part: Part, some: Some) -> NDArray[np.int64] | None:
    if some is None:
        return None
    return remembered(part, f"rows of {type(some).__name__}", some.token, lambda: some.rows(part))


def vectors(part: Part, shared: Mapping[str, Any]) -> Vectors:
    """The vectors that `shared` selects: all of the part, or the `kept` ones."""
    return vectors_of(part.arrays).only(chosen_rows(part, shared.get("kept")))


def assigned(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """ids and squared distances (n,) of the rows that `shared` selects, under its `centroids`."""
    some: Some = shared.get("kept")
    token = token_of(shared["centroids"]) + (some.token if some else "")
    return remembered(
        part, f"assigned of {type(some).__name__}", token,
        lambda: nearest(vectors(part, shared), shared["centroids"], part.threads),
    )  # fmt: skip


# --- steps ------------------------------------------------------------------------------------------------------------


def count_rows(part: Part, shared: Mapping[str, Any]) -> int:
    return len(vectors(part, shared))


def draw(part: Part, shared: Mapping[str, Any]) -> NDArray[np.float32]:
    """`numbers[part]` rows, drawn uniformly under (seed, part), in row order."""
    x = vectors(part, shared)
    rng = np.random.default_rng([shared["seed"], part.index])
    return x[np.sort(rng.choice(len(x), shared["numbers"][part.index], replace=False))]


def sums(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    """Sum (K, d) and number (K,) of each cluster's rows, and the inertia."""
    ids, distances = assigned(part, shared)
    clusters = len(shared["centroids"])
    counts = np.bincount(ids, minlength=clusters)
    return cluster_sums(vectors(part, shared), ids, clusters), counts, float(distances.sum(dtype=np.float64))


def farthest(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The `number` rows that lie farthest from their centroids: distances, descending, and places."""
    _, distances = assigned(part, shared)
    places = np.lexsort((np.arange(len(distances)), -distances))[: shared["number"]]
    return distances[places], places


def taken(part: Part, shared: Mapping[str, Any]) -> NDArray[np.float32]:
    """The vectors of this part at `places` (m, 2) of (part, place), in that order."""
    places = shared["places"]
    return vectors(part, shared)[places[places[:, 0] == part.index, 1]]


def closest(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """(cluster, distance, row) of the r rows of each cluster that lie nearest to its centroid."""
    ids, distances = assigned(part, shared)
    rows = closest_members(ids, distances, shared["r"])
    return ids[rows], distances[rows], rows


def members(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], float, NDArray[np.float32], int]:
    """Rows per cluster (K,), inertia, order statistics of the distances (at most QUANTILES), and how many rows."""
    ids, distances = assigned(part, shared)
    ordered = np.sort(distances)
    if len(ordered) > QUANTILES:
        ordered = ordered[np.linspace(0, len(ordered) - 1, QUANTILES).round().astype(np.int64)]
    sizes = np.bincount(ids, minlength=len(shared["centroids"]))
    return sizes, float(distances.sum(dtype=np.float64)), ordered, len(ids)


def ids_of(part: Part, shared: Mapping[str, Any]) -> NDArray[np.int64]:
    return assigned(part, shared)[0]


# --- arrays -----------------------------------------------------------------------------------------------------------


def cluster_sums(points: NDArray[np.float32] | Vectors, ids: NDArray[np.int64], clusters: int) -> NDArray[np.float64]:
    """Sum (K, d) of the points (n, d) of each cluster, in float64 and in row order."""
    from scipy import sparse

    total = np.zeros((clusters, points.shape[1]))
    for start in range(0, len(points), 4 * clusters + 4096):
        block = ids[start : start + 4 * clusters + 4096]
        one = sparse.csr_array((np.ones(len(block)), (block, np.arange(len(block)))), (clusters, len(block)))
        total += one @ points[start : start + len(block)].astype(np.float64)
    return total


def means_of(
    total: NDArray[np.float64], counts: NDArray[np.int64], centroids: NDArray[np.float32], unit_norm: bool
) -> NDArray[np.float32]:
    """Means (K, d), of unit length if requested; a cluster without rows or direction keeps its centroid."""
    means = np.where(counts[:, None] > 0, total / np.maximum(counts, 1)[:, None], centroids)
    if unit_norm:
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        means = np.where(lengths > 0, means / np.maximum(lengths, np.finfo(np.float64).tiny), centroids)
    return means.astype(np.float32)


def closest_members(ids: NDArray[np.int64], distances: NDArray[np.floating], r: int) -> NDArray[np.int64]:
    """Indices, ascending, of the r members of each cluster that are nearest to its centroid (all, where it has fewer).

    ids, distances: (n,). Equal distances go to the lower index.
    """
    order = np.lexsort((distances, ids))
    return np.sort(order[position_in_group(ids[order]) < r])
