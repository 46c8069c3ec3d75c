"""k-means that is the same for the same seed, points and order of rows, for any number of threads.

faiss brings a k-means of its own; its sums are float32 and split by thread, it starts from random points, and it runs a
fixed number of iterations. Here faiss does the search, sums are float64 in row order, the start is spread like
k-means++, and iterations end when they no longer pay. What comes out depends on the seed, the points in their order,
the settings, and the BLAS kernels of the machine's class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curate.cluster.nearest import nearest

INIT_POINTS_PER_CENTROID = 64
"""The start is drawn from at most this many points per centroid; more do not make it better."""
INIT_GROWTH = 0.1
"""Centroids drawn at once, as a share of those already there."""
TOLERANCE = 1e-3
"""Iterations end when one lowers the inertia by less than this share of it."""


@dataclass(frozen=True)
class Clustering:
    """`ids` and `distances` (n,) belong to these very `centroids` (K, d); `inertia` is the sum of squared distances."""

    centroids: NDArray[np.float32]
    ids: NDArray[np.int64]
    distances: NDArray[np.float32]
    inertia: float
    iterations: int


def kmeans(
    points: NDArray[np.float32],
    clusters: int,
    seed: int,
    iterations: int = 30,
    unit_norm: bool = False,
    threads: int = 1,
    tolerance: float = TOLERANCE,
) -> Clustering:
    """Lloyd's iterations over points (n, d), n >= clusters >= 1.

    `unit_norm` keeps centroids at unit length (spherical k-means) for points that have it. A cluster left empty starts
    anew at the point farthest from its centroid; it stays empty only where there are fewer distinct points than
    clusters. Raises ValueError for more clusters than points.
    """
    if not 1 <= clusters <= len(points):
        raise ValueError(f"kmeans: {clusters} clusters of {len(points)} points; give 1 to {len(points)}")
    centroids = spread(points, clusters, seed, threads)
    previous, done = np.inf, 0
    for done in range(iterations + 1):
        ids, distances = nearest(points, centroids, threads, direct=False)
        inertia = float(distances.sum(dtype=np.float64))
        settled = np.isfinite(previous) and previous - inertia <= tolerance * previous
        if settled or done == iterations:
            break
        centroids, reseeded = updated(points, ids, distances, centroids, unit_norm)
        previous = np.inf if reseeded else inertia
    ids, distances = nearest(points, centroids, threads)
    return Clustering(centroids, ids, distances, float(distances.sum(dtype=np.float64)), done)


def spread(points: NDArray[np.float32], clusters: int, seed: int, threads: int = 1) -> NDArray[np.float32]:
    """Start (clusters, d): points drawn with probability in proportion to the squared distance to those drawn before.

    k-means++ (Arthur & Vassilvitskii 2007, section 2) draws one at a time and so reads all points once per cluster.
    Batches that grow with what is there, as in k-means|| (Bahmani et al. 2012, algorithm 2), read them some dozens of
    times; together they cost about one assignment.
    """
    rng = np.random.default_rng(seed)
    limit = clusters * INIT_POINTS_PER_CENTROID
    if len(points) > limit:
        points = points[np.sort(rng.choice(len(points), limit, replace=False))]
    chosen = rng.integers(len(points), size=1)
    distances = np.full(len(points), np.inf, dtype=np.float32)
    fresh = chosen
    while len(chosen) < clusters:
        distances = np.minimum(distances, nearest(points, points[fresh], threads)[1])
        distances[fresh] = 0
        batch = min(clusters - len(chosen), max(1, int(INIT_GROWTH * len(chosen))))
        fresh = _draw(distances, chosen, batch, rng)
        chosen = np.concatenate([chosen, fresh])
    return points[chosen]


def _draw(
    weights: NDArray[np.float32], taken: NDArray[np.int64], number: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Weighted draw without replacement (Efraimidis & Spirakis 2006): the smallest of Exp(1) / weight.

    Points of weight 0 (they coincide with chosen ones) come last, those already taken never.
    """
    with np.errstate(divide="ignore"):
        order = rng.exponential(size=len(weights)) / weights
    order[taken] = np.nan  # sorts behind infinity
    best = np.argpartition(order, number - 1)[:number]
    return best[np.lexsort((best, order[best]))]


def updated(
    points: NDArray[np.float32],
    ids: NDArray[np.int64],
    distances: NDArray[np.float32],
    centroids: NDArray[np.float32],
    unit_norm: bool = False,
) -> tuple[NDArray[np.float32], int]:
    """Means (K, d) of the points of each cluster, and how many empty clusters were started anew."""
    counts = np.bincount(ids, minlength=len(centroids))
    sums = cluster_sums(points, ids, len(centroids))
    means = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centroids)
    if unit_norm:
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        means = np.where(lengths > 0, means / np.maximum(lengths, np.finfo(np.float64).tiny), centroids)
    empty = np.flatnonzero(counts == 0)
    farthest = np.lexsort((np.arange(len(points)), -distances))[: len(empty)] if len(empty) else empty
    farthest = farthest[distances[farthest] > 0]
    means[empty[: len(farthest)]] = points[farthest]
    return means.astype(np.float32), len(farthest)


def cluster_sums(points: NDArray[np.float32], ids: NDArray[np.int64], clusters: int) -> NDArray[np.float64]:
    """Sum (K, d) of the points (n, d) of each cluster, in float64 and in row order."""
    from scipy import sparse

    sums = np.zeros((clusters, points.shape[1]))
    for start in range(0, len(points), 4 * clusters + 4096):
        block = ids[start : start + 4 * clusters + 4096]
        members = sparse.csr_array((np.ones(len(block)), (block, np.arange(len(block)))), (clusters, len(block)))
        sums += members @ points[start : start + len(block)].astype(np.float64)
    return sums
