"""Hierarchical k-means with resampling (Vo et al. 2024, Automatic Data Curation for Self-Supervised Learning, 3.2-3.3).

k-means puts its centroids where the data are dense. Each resampling round clusters anew the few points nearest to each
centroid, whose density is flatter, so that the centroids come to spread over the support of the data. Level 1 clusters
the points, level t the centroids of level t - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.cluster.kmeans import kmeans
from curate.cluster.nearest import nearest
from curate.cluster.sizes import entropy, gini


@dataclass(frozen=True)
class Level:
    """One level: centroids (K, d), the cluster (n,) of each of its inputs, and what the report says of it."""

    centroids: NDArray[np.float32]
    ids: NDArray[np.int64]
    inertia: float
    iterations: int
    resample: int
    rounds: int


@dataclass(frozen=True)
class Tree:
    """Levels, finest first. `centroids[t]` is (K_t, d); `parents[t]` (K_t,) names a cluster of level t + 1."""

    centroids: tuple[NDArray[np.float32], ...]
    parents: tuple[NDArray[np.int64], ...]
    levels: tuple[dict[str, Any], ...]


def closest_members(ids: NDArray[np.int64], distances: NDArray[np.floating], r: int) -> NDArray[np.int64]:
    """Indices, ascending, of the r members of each cluster that are nearest to its centroid (all, where it has fewer).

    ids, distances: (n,). Equal distances go to the lower index.
    """
    order = np.lexsort((distances, ids))
    return np.sort(order[position_in_group(ids[order]) < r])


def position_in_group(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """groups (n,), equal ones adjacent -> place (n,) of each within its group, from 0."""
    index = np.arange(len(groups))
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]][: len(groups)])
    return index - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))


def fit_level(
    points: NDArray[np.float32],
    clusters: int,
    seed: int,
    rounds: int = 10,
    r: int | None = None,
    iterations: int = 30,
    unit_norm: bool = False,
    threads: int = 1,
) -> Level:
    """k-means over points (n, d), then `rounds` rounds on the `r` nearest of each cluster alone.

    r None is half the mean cluster size, halves rounded up, as in the paper's web run (10, 5 and 3 for means of 20,
    10 and 5); r = 1 means no resampling. Every round ends with all points assigned.
    """
    r = max(1, (len(points) + clusters) // (2 * clusters)) if r is None else r
    rounds = rounds if r > 1 else 0
    seeds = np.random.SeedSequence(seed).generate_state(rounds + 1, np.uint64)
    found = kmeans(points, clusters, int(seeds[0]), iterations, unit_norm, threads)
    centroids, ids, distances, done = found.centroids, found.ids, found.distances, found.iterations
    for number in range(rounds):
        kept = closest_members(ids, distances, r)
        if len(kept) < clusters:  # most clusters are empty: there are hardly more distinct points than clusters
            break
        found = kmeans(points[kept], clusters, int(seeds[number + 1]), iterations, unit_norm, threads)
        centroids, done = found.centroids, done + found.iterations
        ids, distances = nearest(points, centroids, threads)
    return Level(centroids, ids, float(distances.sum(dtype=np.float64)), done, r, rounds)


def fit_tree(
    points: NDArray[np.float32],
    clusters: Sequence[int],
    seed: int,
    rounds: int = 10,
    r: Sequence[int | None] | None = None,
    iterations: int = 30,
    unit_norm: bool = False,
    threads: int = 1,
) -> Tree:
    """points (n, d) -> a tree with `clusters` per level, finest first; `r` per level, None for the default."""
    inputs, members = points, np.ones(len(points), dtype=np.int64)
    levels: list[Level] = []
    told: list[dict[str, Any]] = []
    seeds = np.random.SeedSequence(seed).generate_state(len(clusters), np.uint64)
    for number, (k, near) in enumerate(zip(clusters, r or [None] * len(clusters), strict=True)):
        level = fit_level(inputs, k, int(seeds[number]), rounds, near, iterations, unit_norm, threads)
        members = np.bincount(level.ids, weights=members, minlength=k).astype(np.int64)
        levels.append(level)
        told.append({"level": number + 1, "inputs": len(inputs), **_summary(level, members)})
        inputs = level.centroids
    return Tree(tuple(x.centroids for x in levels), tuple(x.ids for x in levels[1:]), tuple(told))


def _summary(level: Level, members: NDArray[np.int64]) -> dict[str, Any]:
    """What is told of a level; `members` (K,) counts the points under each cluster."""
    return {
        "clusters": len(members),
        "inertia": level.inertia,
        "iterations": level.iterations,
        "rounds": level.rounds,
        "resample": level.resample,
        "smallest": int(members.min()),
        "median": float(np.median(members)),
        "largest": int(members.max()),
        "empty": int((members == 0).sum()),
        "entropy": entropy(members),
        "gini": gini(members),
    }


def ancestors(parents: Sequence[NDArray[np.int64]], leaves: int) -> NDArray[np.int64]:
    """(leaves, L): the cluster of each leaf at levels 1 .. L, from `parents` of levels 1 .. L - 1."""
    path = [np.arange(leaves, dtype=np.int64)]
    for parent in parents:
        path.append(parent[path[-1]])
    return np.stack(path, axis=1)
