"""Where k-means starts: centroids spread over a sample of the rows.

k-means++ (Arthur & Vassilvitskii 2007, section 2) draws one centroid at a time, in proportion to the squared distance
to those drawn before, and so reads all rows once per centroid. Batches that grow with what is there, as in k-means||
(Bahmani et al. 2012, algorithm 2), on a sample, cost about one assignment of that sample. Against a uniform draw it
never leaves a far group of rows without a centroid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from curate.cluster.kmeans import assigned
from curate.cluster.kmeans.assigned import Some
from curate.core.group import Group
from curate.kernels.nearest import nearest

ROWS_PER_CENTROID, LEAST_ROWS = 4, 1 << 16
"""The sample has so many rows per centroid, and at least so many (all, where there are fewer)."""
GROWTH = 1.0
"""Centroids drawn at once, as a share of those already there."""


def start(group: Group, clusters: int, seed: int, kept: Some = None) -> NDArray[np.float32]:
    """Centroids (clusters, d), drawn from a uniform sample over all parts."""
    rows = np.array(list(group.each(assigned.count_rows, kept=kept)))
    size = min(int(rows.sum()), max(LEAST_ROWS, ROWS_PER_CENTROID * clusters))
    # each part's share, the rest to the first ones: a function of the parts' sizes
    numbers = np.diff(np.floor(np.cumsum(np.r_[0, rows]) * (size / max(1, rows.sum()))).astype(np.int64))
    numbers[: size - int(numbers.sum())] += 1
    numbers = np.minimum(numbers, rows)
    drawn = list(group.each(assigned.draw, kept=kept, seed=seed, numbers=numbers))
    return spread(np.concatenate(drawn), clusters, seed, group.threads)


def spread(points: NDArray[np.float32], clusters: int, seed: int, threads: int = 1) -> NDArray[np.float32]:
    """Start (clusters, d) among points (n, d): drawn in proportion to the squared distance to those drawn before."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(points), size=1)
    distances = np.full(len(points), np.inf, dtype=np.float32)
    fresh = chosen
    while len(chosen) < clusters:
        distances = np.minimum(distances, nearest(points, points[fresh], threads)[1])
        distances[fresh] = 0
        batch = min(clusters - len(chosen), max(1, int(GROWTH * len(chosen))))
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
