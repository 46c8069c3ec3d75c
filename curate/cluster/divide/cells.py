"""The coarse cells of divide: clusters of a sample, similar in size.

The cost of a cell is its rows times its leaves, so a single huge cell would dominate the fit. In many dimensions
k-means produces such cells. A row is much longer than a mean of rows, so among initial rows the few shortest are
nearest to almost all rows, and the longest attract only themselves. The initial rows are therefore shrunk towards the
mean of all rows, by the factor with the lowest inertia. The rows of `cifar_pca256.npy` form hardly any clusters: with
64 cells, each cell then has 0.5 % to 4 % of the rows. With k-means++, cells have 0.002 % (one row) to 16 %, at a higher
inertia (`bench.cluster.divide`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.cluster.kmeans import assigned
from curate.cluster.kmeans.lloyd import Settings, State, kmeans
from curate.core.group import Group, Part, part_rows_for

SHRINK = (1.0, 0.7, 0.5, 0.35, 0.25, 0.125)
"""Factors to try."""
ITERATIONS = 10


def coarse_cells(sample: Group, cells: int, settings: Settings) -> NDArray[np.float32]:
    """Cluster the sample's rows into cells; return their centroids (cells, d)."""
    settings = replace(settings, clusters=cells, exchange=False, iterations=ITERATIONS)
    return kmeans(sample, settings, begin=State(shrunk_start(sample, settings))).centroids


def shrunk_start(group: Group, settings: Settings) -> NDArray[np.float32]:
    """Initial centroids (K, d): uniformly drawn rows, shrunk towards the mean by the best factor in SHRINK."""
    rows = np.array(group.rows, dtype=np.int64)
    edges = np.concatenate([[0], np.cumsum(rows)]) * settings.clusters // rows.sum()
    drawn = np.concatenate(list(group.each(assigned.draw, seed=settings.seed, numbers=np.diff(edges))))
    total = np.zeros(drawn.shape[1])
    for part_total, *_ in group.each(assigned.sums, centroids=np.zeros((1, drawn.shape[1]), np.float32)):
        total += part_total[0]
    mean = total / rows.sum()
    best, least = drawn, np.inf
    for factor in SHRINK:
        start = mean + factor * (drawn - mean)
        if settings.unit_norm:
            start /= np.maximum(np.linalg.norm(start, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        start = start.astype(np.float32)
        inertia = sum(found for *_, found in group.each(assigned.sums, centroids=start))
        if inertia < least:
            best, least = start, inertia
    return best


def sample_of(group: Group, rows: int, seed: int, name: str) -> Group:
    """Draw `rows` rows of the group uniformly; the group itself if that is all of them."""
    have = np.array(group.rows, dtype=np.int64)
    total = int(have.sum())
    if rows == total:
        return group
    edges = (
        np.concatenate([[0], np.cumsum(have)]) * rows // total
    )  # rows drawn from each part depend on the parts' sizes only
    parts = max(1, rows // part_rows_for(rows))
    return group.partition(name, to_sample, parts, edges=edges, parts=parts, seed=seed)


def to_sample(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    """Draw rows with the seed (seed, part), and deal them to parts of nearly equal size."""
    first, stop = (int(edge) for edge in shared["edges"][part.index : part.index + 2])
    rng = np.random.default_rng([shared["seed"], part.index])
    rows = np.sort(rng.choice(part.rows, stop - first, replace=False))
    cell = np.arange(first, stop) * shared["parts"] // shared["edges"][-1]
    return cell, {name: array[rows] for name, array in part.arrays.items()}
