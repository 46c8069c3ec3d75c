"""Steps over a part's vectors: assignments to centroids, and the statistics of them that the driver needs.

A part's memo caches an assignment under a token (a digest of the centroids), and the next step over the same centroids
reuses it. A new worker recomputes it.
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
"""Maximum number of order statistics of the distances that a part reports."""


@dataclass(frozen=True)
class RowSample:
    """Random sample of the rows: each with probability `share`, drawn with the seed (seed, part)."""

    share: float
    seed: int

    @property
    def token(self) -> str:
        return f"thin {self.share} {self.seed}"

    def rows(self, part: Part) -> NDArray[np.int64]:
        return np.flatnonzero(np.random.default_rng([self.seed, part.index]).random(part.rows) < self.share)


@dataclass(frozen=True)
class NearestRows:
    """The r rows nearest to each centroid over all parts, which a resampling round clusters.

    Cluster k has the rows whose (distance, part, place) is at most (distance[k], part[k], place[k]). The place is the
    row's index in its part, or in the part's sample if `among` is set.
    """

    centroids: NDArray[np.float32]
    distance: NDArray[np.float32]
    part: NDArray[np.int64]
    place: NDArray[np.int64]
    among: RowSample | None = None

    @property
    def token(self) -> str:
        among = self.among.token if self.among else ""
        return token_of(self.centroids, self.distance, self.part, self.place) + among

    def rows(self, part: Part) -> NDArray[np.int64]:
        shared = {"centroids": self.centroids, "subset": self.among}
        ids, distances = assigned(part, shared)
        at, here = self.distance[ids], self.part[ids]
        place = np.arange(len(ids))
        earlier = (part.index < here) | ((part.index == here) & (place <= self.place[ids]))
        kept = np.flatnonzero((distances < at) | ((distances == at) & earlier))
        chosen = subset_rows(part, self.among)
        return kept if chosen is None else chosen[kept]


Subset: TypeAlias = "NearestRows | RowSample | None"
"""Rows that a step reads; None means all."""


def token_of(*arrays: NDArray[Any]) -> str:
    return digest_bytes(np.ascontiguousarray(array).data.cast("B") for array in arrays)


def memoized(part: Part, name: str, token: str, compute: Any) -> Any:
    """Return the memo's value under `name` if its token is `token`; otherwise compute and store it."""
    held = part.memo.get(name)
    if held is None or held[0] != token:
        held = part.memo[name] = (token, compute())
    return held[1]


def subset_rows(part: Part, subset: Subset) -> NDArray[np.int64] | None:
    if subset is None:
        return None
    return memoized(part, f"rows of {type(subset).__name__}", subset.token, lambda: subset.rows(part))


def vectors(part: Part, shared: Mapping[str, Any]) -> Vectors:
    """Vectors of the part, or of the `subset` in `shared`."""
    return vectors_of(part.arrays).only(subset_rows(part, shared.get("subset")))


def assigned(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Nearest of the `centroids` and squared distance (n,) of each row that `shared` selects."""
    subset: Subset = shared.get("subset")
    token = token_of(shared["centroids"]) + (subset.token if subset else "")
    return memoized(
        part, f"assigned of {type(subset).__name__}", token,
        lambda: nearest(vectors(part, shared), shared["centroids"], part.threads),
    )  # fmt: skip


# --- steps ------------------------------------------------------------------------------------------------------------


def count_rows(part: Part, shared: Mapping[str, Any]) -> int:
    return len(vectors(part, shared))


def draw(part: Part, shared: Mapping[str, Any]) -> NDArray[np.float32]:
    """Draw `numbers[part]` rows uniformly with the seed (seed, part); return them in row order."""
    x = vectors(part, shared)
    rng = np.random.default_rng([shared["seed"], part.index])
    return x[np.sort(rng.choice(len(x), shared["numbers"][part.index], replace=False))]


def sums(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    """Sum (K, d) and number (K,) of the rows of each cluster, and the inertia."""
    ids, distances = assigned(part, shared)
    clusters = len(shared["centroids"])
    counts = np.bincount(ids, minlength=clusters)
    return cluster_sums(vectors(part, shared), ids, clusters), counts, float(distances.sum(dtype=np.float64))


def farthest(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The `number` rows farthest from their centroids: squared distances in descending order, and places."""
    _, distances = assigned(part, shared)
    places = np.lexsort((np.arange(len(distances)), -distances))[: shared["number"]]
    return distances[places], places


def rows_at(part: Part, shared: Mapping[str, Any]) -> NDArray[np.float32]:
    """Vectors of this part among `places` (m, 2) of (part, place), in the order of `places`."""
    places = shared["places"]
    return vectors(part, shared)[places[places[:, 0] == part.index, 1]]


def closest(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """The r rows of each cluster nearest to its centroid: (cluster, distance, row)."""
    ids, distances = assigned(part, shared)
    rows = closest_members(ids, distances, shared["r"])
    return ids[rows], distances[rows], rows


def members(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], float, NDArray[np.float32], int]:
    """Rows per cluster (K,), inertia, at most QUANTILES order statistics of the distances, and the number of rows."""
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
    """Sum (K, d) of the points (n, d) of each cluster, added in float64 and in row order."""
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
    """Means (K, d), normalised if `unit_norm`. A cluster without rows, or whose sum is zero, keeps its centroid."""
    means = np.where(counts[:, None] > 0, total / np.maximum(counts, 1)[:, None], centroids)
    if unit_norm:
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        means = np.where(lengths > 0, means / np.maximum(lengths, np.finfo(np.float64).tiny), centroids)
    return means.astype(np.float32)


def closest_members(ids: NDArray[np.int64], distances: NDArray[np.floating], r: int) -> NDArray[np.int64]:
    """Ascending indices of the r members of each cluster nearest to its centroid; all members if it has fewer.

    ids, distances: (n,). On equal distances the lower index wins.
    """
    order = np.lexsort((distances, ids))
    return np.sort(order[position_in_group(ids[order]) < r])
