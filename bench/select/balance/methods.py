"""Ways to sample a pool: each gives, for some targets, the rows it takes."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.select.balance.pools import Pool
from curate.cluster.tree.levels import fit_tree, level_settings
from curate.core.group import MemoryGroup
from curate.core.hashing import ranks_of_words
from curate.kernels.nearest.search import nearest
from curate.select.clusters import copies_of
from curate.select.cover import CANDIDATES, MOST_ROWS, SKETCH_ROWS, cover, parts, sketches
from curate.select.sampling import leaf_quotas, level_rows

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


@dataclass(frozen=True)
class Fitted:
    clusters: Indices
    """(n,) leaf of each row."""
    distance: NDArray[np.float32]
    """(n,) squared distance to its centroid."""
    parents: list[Indices]
    leaves: int
    seconds: float


@dataclass(frozen=True)
class Clustered:
    """Quotas of the clusters of `level`, filled by hash, by nearness to the centroid, or by a cover."""

    rounds: int = 10
    published: bool = False
    flat: bool = False
    """One level of about sqrt(n) clusters."""
    level: int = 1
    inside: str = "random"
    even: float = 1.0
    """Share of the target that is distributed evenly down the tree; the rest by the sizes of the clusters."""
    fast: bool = False
    """A cover of sketches in small parts."""
    candidates: int = CANDIDATES
    """Random rows of which a cover takes the best."""
    covered: float = 1.0
    """Share of a cluster's quota that a cover takes; the rest by hash."""
    farthest: float = 0.0
    """Share of a cluster's rows, those farthest from its centroid, that a cover does not take."""

    def __call__(self, pool: Pool, targets: Sequence[int], seed: int) -> list[Indices]:
        clusters, distance, parents, rows = self._tree(pool, seed)
        keys = words(pool, seed)
        rank = ranks_of_words(seed, keys)
        found = []
        for target in targets:
            quotas = leaf_quotas(rows, parents, target, seed=seed, even=self.even)
            if self.inside == "cover":
                some = [(np.flatnonzero(clusters == number), quota) for number, quota in enumerate(quotas) if quota]
                found.append(
                    np.concatenate(
                        [self._cover(pool, keys, rows, int(quota), seed, distance, rank) for rows, quota in some]
                    )
                )
            else:
                order = distance if self.inside == "closest" else None
                found.append(np.flatnonzero(copies_of(clusters, quotas, rank, order)))
        return found

    def _cover(
        self,
        pool: Pool,
        keys: NDArray[np.uint64],
        rows: Indices,
        quota: int,
        seed: int,
        distance: NDArray[np.float32],
        rank: NDArray[Any],
    ) -> Indices:
        last = int(self.farthest * len(rows))
        near = np.sort(rows[np.argsort(distance[rows], kind="stable")[: len(rows) - last]])
        seen, most = (sketched(pool), SKETCH_ROWS) if self.fast else (pool.vectors, MOST_ROWS)
        count = min(len(near), round(self.covered * quota))
        first = covered(seen, keys, near, count, seed, self.candidates, most)
        rest = np.setdiff1d(near if len(near) >= quota else rows, first)
        return np.append(first, rest[np.argsort(rank[rest])[: quota - len(first)]])

    def fitted(self, pool: Pool, seed: int) -> Fitted:
        """The pool's tree, which all methods share."""
        kind = (self.flat, self.rounds, self.published)
        if kind not in pool.trees:
            began = time.process_time()
            found = self._fit(pool, seed)
            pool.trees[kind] = Fitted(*found, seconds=time.process_time() - began)
        return pool.trees[kind]

    def _fit(self, pool: Pool, seed: int) -> tuple[Indices, NDArray[np.float32], list[Indices], int]:
        count = len(pool.vectors)
        levels = [max(2, int(count**0.5))] if self.flat else [max(12, count // 10), max(12, count // 100), 12]
        passes = 20 if self.flat else 50 if self.published else 30
        rounds = 0 if self.flat else self.rounds
        resample = (None,) * len(levels)
        settings = level_settings(levels, seed, rounds, resample, passes, pool.unit, self.published)
        tree = fit_tree(MemoryGroup([{"vectors": pool.vectors}], THREADS), settings)
        clusters, distance = nearest(pool.vectors, tree.centroids[0], THREADS)
        return clusters, distance, [np.asarray(parent) for parent in tree.parents], len(tree.centroids[0])

    def _tree(self, pool: Pool, seed: int) -> tuple[Indices, NDArray[np.float32], list[Indices], Indices]:
        """(cluster of each row at the level, squared distance to its leaf, parents of the clusters, their rows)."""
        found = self.fitted(pool, seed)
        clusters, distance, parents = found.clusters, found.distance, found.parents
        rows = level_rows(np.bincount(clusters, minlength=found.leaves), parents)
        for parent in parents[: self.level - 1]:
            clusters = parent[clusters]
        return clusters, distance, parents[self.level - 1 :], rows[self.level - 1]


def sketched(pool: Pool) -> NDArray[np.float32]:
    if "sketches" not in pool.trees:
        pool.trees["sketches"] = sketches(pool.vectors).astype(np.float32)
    found: NDArray[np.float32] = pool.trees["sketches"]
    return found


def covered(
    vectors: NDArray[np.float32],
    keys: NDArray[np.uint64],
    rows: Indices,
    quota: int,
    seed: int,
    candidates: int = CANDIDATES,
    most: int = MOST_ROWS,
) -> Indices:
    """Rows of a cluster, of at most `quota`."""
    pieces = [
        rows[part][cover(vectors[rows[part]], keys[rows[part]], share, seed, candidates)]
        for part, share in parts(keys[rows], quota, seed, most)
        if share
    ]
    return np.concatenate([np.empty(0, np.int64), *pieces])


def parts_cover(pool: Pool, targets: Sequence[int], seed: int) -> list[Indices]:
    """A cover of parts of the pool at random, without clusters."""
    keys = words(pool, seed)
    return [covered(pool.vectors, keys, np.arange(len(keys)), target, seed) for target in targets]


def whole_cover(pool: Pool, targets: Sequence[int], seed: int) -> list[Indices]:
    """A cover of the whole pool, without clusters."""
    keys = words(pool, seed)
    order = np.argsort(ranks_of_words(seed, keys))
    return [order[cover(pool.vectors[order], keys[order], target, seed)] for target in targets]


def graph_cover(neighbours: int) -> Method:
    """A cover of the whole pool that sees each row's nearest neighbours only, by lazy greedy choice."""

    def sample(pool: Pool, targets: Sequence[int], seed: int) -> list[Indices]:
        import faiss

        distance, near = faiss.knn(pool.vectors, pool.vectors, neighbours)
        gain = distance[:, -1:] - distance  # what a row saves of a neighbour's distance to its furthest neighbour
        owner = np.repeat(np.arange(len(near)), neighbours)
        order = np.argsort(near.ravel(), kind="stable")
        edges = np.searchsorted(near.ravel()[order], np.arange(len(near) + 1))
        best, saved = np.zeros(len(near)), gain.ravel()[order]
        owner = owner[order]

        def more(row: int) -> float:
            some = slice(edges[row], edges[row + 1])
            return float(np.maximum(saved[some] - best[owner[some]], 0).sum())

        tie = np.argsort(np.argsort(ranks_of_words(seed, words(pool, seed)))).tolist()
        heap = [(-more(row), tie[row], row) for row in range(len(near))]
        heapq.heapify(heap)
        taken: list[int] = []
        while len(taken) < max(targets):
            known, number, row = heapq.heappop(heap)
            now = -more(row)
            if heap and (now, number) > heap[0][:2] and now > known:
                heapq.heappush(heap, (now, number, row))
                continue
            taken.append(row)
            some = slice(edges[row], edges[row + 1])
            best[owner[some]] = np.maximum(best[owner[some]], saved[some])
        return [np.array(taken[:target]) for target in targets]

    return sample


METHODS: dict[str, Method] = {
    "random again": lambda pool, targets, seed: random(pool, targets, 1000 * seed + 999),
    "short": Clustered(),
    "short, cover in leaves": Clustered(inside="cover"),
    "short, cover in level 2": Clustered(level=2, inside="cover"),
    "published": Clustered(published=True),
    "published, cover in level 2": Clustered(published=True, level=2, inside="cover"),
    "no resampling": Clustered(rounds=0),
    "no resampling, cover in level 2": Clustered(rounds=0, level=2, inside="cover"),
    "flat, random": Clustered(flat=True),
    "flat, random, half by size": Clustered(flat=True, even=0.5),
    "flat, closest": Clustered(flat=True, inside="closest"),
    "flat, cover": Clustered(flat=True, inside="cover"),
    "flat, cover, half by size": Clustered(flat=True, inside="cover", even=0.5),
    "flat, cover, by size": Clustered(flat=True, inside="cover", even=0.0),
    "flat, cover of 3, half by size": Clustered(flat=True, inside="cover", even=0.5, candidates=3),
    "flat, cover of 2, half by size": Clustered(flat=True, inside="cover", even=0.5, candidates=2),
    "flat, fast cover": Clustered(flat=True, inside="cover", fast=True),
    "flat, fast cover, half by size": Clustered(flat=True, inside="cover", even=0.5, fast=True),
    "flat, fast cover, by size": Clustered(flat=True, inside="cover", even=0.0, fast=True),
    "flat, half cover, half by size": Clustered(flat=True, inside="cover", even=0.5, covered=0.5),
    "flat, cover without the farthest 1 %, half by size": Clustered(flat=True, inside="cover", even=0.5, farthest=0.01),
    "flat, cover without the farthest 5 %, half by size": Clustered(flat=True, inside="cover", even=0.5, farthest=0.05),
    "parts, cover": parts_cover,
    "whole, cover": whole_cover,
    "whole, cover of 64 neighbours": graph_cover(64),
}
