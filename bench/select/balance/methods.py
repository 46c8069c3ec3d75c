"""Ways to sample a pool: each gives, for some targets, the rows it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.select.balance.cover import cover
from bench.select.balance.pools import Pool
from curate.cluster.tree.levels import fit_tree, level_settings
from curate.core.group import MemoryGroup
from curate.core.hashing import ranks_of_words
from curate.kernels.nearest.search import nearest
from curate.select.clusters import copies_of
from curate.select.sampling import level_quotas, level_rows

THREADS = 1
Indices = NDArray[np.int64]
Method = Callable[[Pool, Sequence[int], int], list[Indices]]


def words(pool: Pool, seed: int) -> NDArray[np.uint64]:
    """Keys of the rows."""
    index = np.arange(len(pool.vectors), dtype=np.uint64)
    return np.stack([np.full(len(index), seed, dtype=np.uint64), index], axis=1)


def random(pool: Pool, targets: Sequence[int], seed: int) -> list[Indices]:
    order = np.argsort(ranks_of_words(seed, words(pool, seed)))
    return [order[:target] for target in targets]


def tree(
    rounds: int = 10,
    published: bool = False,
    flat: bool = False,
    level: int = 1,
    covered: bool = False,
    closest: bool = False,
) -> Method:
    """Quotas down to `level` of a tree; within its clusters at random, or by a cover."""

    def sample(pool: Pool, targets: Sequence[int], seed: int) -> list[Indices]:
        count = len(pool.vectors)
        levels = [max(2, int(count**0.5))] if flat else [max(12, count // 10), max(12, count // 100), 12]
        passes = 20 if flat else 50 if published else 30
        settings = level_settings(
            levels, seed, 0 if flat else rounds, (None,) * len(levels), passes, pool.unit, published
        )
        fitted = fit_tree(MemoryGroup([{"vectors": pool.vectors}], THREADS), settings)
        clusters, distance = nearest(pool.vectors, fitted.centroids[0], THREADS)
        parents = [np.asarray(parent) for parent in fitted.parents]
        rows = level_rows(np.bincount(clusters, minlength=len(fitted.centroids[0])), parents)
        for parent in parents[: level - 1]:
            clusters = parent[clusters]
        keys, found = words(pool, seed), []
        rank = ranks_of_words(seed, keys)
        for target in targets:
            quotas = level_quotas(rows[level - 1], parents[level - 1 :], target, seed=seed)[0]
            if covered:
                taken = [
                    some[cover(pool.vectors[some], keys[some], int(quotas[cluster]), seed)]
                    for cluster in np.flatnonzero(quotas)
                    for some in [np.flatnonzero(clusters == cluster)]
                ]
                found.append(np.concatenate(taken))
            else:
                found.append(np.flatnonzero(copies_of(clusters, quotas, rank, distance if closest else None)))
        return found

    return sample


def whole_cover(pool: Pool, targets: Sequence[int], seed: int) -> list[Indices]:
    """A cover of the whole pool, without clusters."""
    keys, every = words(pool, seed), len(pool.vectors)
    largest = cover(pool.vectors, keys, max(targets), seed, every)
    return [largest[:target] for target in targets]


METHODS: dict[str, Method] = {
    "short": tree(),
    "short, cover in leaves": tree(covered=True),
    "short, cover in level 2": tree(level=2, covered=True),
    "published": tree(published=True),
    "published, cover in level 2": tree(published=True, level=2, covered=True),
    "no resampling": tree(rounds=0),
    "no resampling, cover in level 2": tree(rounds=0, level=2, covered=True),
    "flat, random": tree(flat=True),
    "flat, closest": tree(flat=True, closest=True),
    "flat, cover": tree(flat=True, covered=True),
    "whole, cover": whole_cover,
}
