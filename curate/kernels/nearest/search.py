"""Exact nearest centroid of every point: the inner loop of clustering and of semantic duplicates.

A search in low precision returns the candidates of each point: the centroids whose score is within the search's own
rounding error of the best. If there are several, they are compared in float64. The result therefore equals brute force
in float64, with ties going to the lowest id, for every backend and any number of threads. The backend affects speed
only and is chosen by measurement.

Memory is bounded: BLOCK_ROWS rows per thread, and what the backend needs for a block of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import CurateError
from curate.kernels.nearest.backends import (
    NAMES,
    Backend,
    fast_bfloat16,
    has_cuda,
    parallel_blocks,
    prepare,
    torch_threads,
)
from curate.kernels.vectors import Points

T = TypeVar("T")

BLOCK_ROWS = 1024
EXACT_PAIRS = 1 << 14
"""Pairs compared in float64 at a time."""
WORTH_MEASURING = 1 << 27
"""Multiplications of a call below which faiss is used without measuring: it has no start-up cost."""
MEASURED_ROWS = 2048
"""Rows per thread of a measurement."""


@dataclass
class Ambiguity:
    """Work of the exact comparison; `nearest` adds to it."""

    rows: int = 0
    compared: int = 0
    """Pairs compared in float64, for rows with more than one candidate."""
    full: int = 0
    """Rows with too many candidates to list, for which all centroids were searched in float64."""


def nearest(
    points: Points,
    centroids: NDArray[np.float32],
    threads: int = 1,
    backend: str | None = None,
    ambiguity: Ambiguity | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """points (n, d), centroids (K, d), K >= 1, both finite -> ids (n,) and squared L2 distances (n,).

    ids minimise the sum over d of (x - c)^2 in float64; ties go to the lowest id. Distances are that sum in float32,
    without cancellation. `backend`: see `curate.kernels.nearest.backends`; None: the fastest on this machine.
    """
    if len(centroids) == 0:
        raise ValueError("nearest: no centroids; give at least 1")
    centroids = rows_of(centroids)
    name = choose(backend, len(points), centroids, threads)
    search = prepare(name, centroids)
    exact = _Exact(centroids)
    ids = np.empty(len(points), dtype=np.int64)
    distances = np.empty(len(points), dtype=np.float32)

    def one(start: int) -> Ambiguity:
        block = rows_of(points[start : start + BLOCK_ROWS])
        found, work = _decide(block, exact, search)
        ids[start : start + BLOCK_ROWS] = found
        difference = block - centroids[found]
        distances[start : start + BLOCK_ROWS] = np.einsum("nd,nd->n", difference, difference)
        return work

    with torch_threads(name, threads):
        for work in each_block(one, len(points), parallel_blocks(name, threads)):
            if ambiguity is not None:
                ambiguity.rows += work.rows
                ambiguity.compared += work.compared
                ambiguity.full += work.full
    return ids, distances


def distances_to(
    points: Points, centroids: NDArray[np.float32], ids: NDArray[np.int64], threads: int = 1
) -> NDArray[np.float32]:
    """Squared L2 distances (n,) of points (n, d) to the centroids (K, d) with their ids (n,)."""
    distances = np.empty(len(points), dtype=np.float32)

    def measure(start: int) -> None:
        block = slice(start, start + BLOCK_ROWS)
        difference = points[block] - centroids[ids[block]]
        distances[block] = np.einsum("nd,nd->n", difference, difference)

    for _ in each_block(measure, len(points), threads):
        pass
    return distances


def exact_distances(
    points: NDArray[np.float32], centroids: NDArray[np.float32], row: NDArray[np.int64], id: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Squared L2 distance (m,) in float64 of pairs: points[row] to centroids[id]."""
    out = np.empty(len(row))
    for start in range(0, len(row), EXACT_PAIRS):
        pairs = slice(start, start + EXACT_PAIRS)
        difference = points[row[pairs]].astype(np.float64) - centroids[id[pairs]]
        out[pairs] = np.einsum("nd,nd->n", difference, difference)
    return out


def each_block(work: Callable[[int], T], rows: int, threads: int, size: int = BLOCK_ROWS) -> list[T]:
    """Results of work(start) for every block of `size` rows, in order, computed on `threads` threads."""
    import faiss

    starts = range(0, rows, size)
    if threads == 1 or len(starts) == 1:
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            return [work(start) for start in starts]
        finally:
            faiss.omp_set_num_threads(before)
    # faiss has a thread count per calling thread: one core each
    with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(work, starts))


def rows_of(array: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, dtype=np.float32)


def _decide(block: NDArray[np.float32], exact: _Exact, search: Backend) -> tuple[NDArray[np.int64], Ambiguity]:
    """ids (n,) of a block: the search's where it has one candidate, the exact comparison's otherwise."""
    found = search(block)
    ids = found.best
    work = Ambiguity(len(block), len(found.row), len(found.unlisted))
    if len(found.row):
        exact.least(ids, block, found.row, found.id)
    if len(found.unlisted):
        exact.search(ids, block, found.unlisted)
    return ids, work


class _Exact:
    """Comparison in float64, for rows with several candidates. Shared by the threads of one call."""

    def __init__(self, centroids: NDArray[np.float32]) -> None:
        self.centroids = centroids

    @cached_property
    def distinct(self) -> NDArray[np.int64]:
        """Ids of the first of equal centroids, so that duplicates cost nothing."""
        rows = self.centroids + np.float32(0)  # -0 becomes 0
        return np.sort(np.unique(rows.view(f"V{rows.shape[1] * 4}").ravel(), return_index=True)[1])

    def least(
        self, ids: NDArray[np.int64], block: NDArray[np.float32], row: NDArray[np.int64], id: NDArray[np.int64]
    ) -> None:
        """Write the nearest id of each row among pairs (row, id) into `ids`."""
        distance = exact_distances(block, self.centroids, row, id)
        order = np.lexsort((id, distance, row))
        first = np.flatnonzero(np.r_[True, np.diff(row[order]) != 0])
        ids[row[order][first]] = id[order][first]

    def search(self, ids: NDArray[np.int64], block: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """Search all centroids for some rows: products in float64, then exact comparison of near ties."""
        x = block[rows].astype(np.float64)
        size = np.sqrt(np.einsum("nd,nd->n", x, x))
        best, slack = np.full(len(rows), np.inf), np.zeros(len(rows))
        pairs: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        for start in range(0, len(self.distinct), BLOCK_ROWS):
            some = self.distinct[start : start + BLOCK_ROWS]
            c = self.centroids[some].astype(np.float64)
            square = np.einsum("kd,kd->k", c, c)
            score = square - 2 * (x @ c.T)
            # error of a product of d terms and two sums: Higham 2002, Accuracy and Stability, (3.5)
            width = (x.shape[1] + 4) * 2.0**-52 * (size + np.sqrt(square.max())) ** 2
            best = np.minimum(best, score.min(axis=1) + width)
            slack = np.maximum(slack, width)
            near, place = np.nonzero(score <= (best + width)[:, None])
            pairs.append((near, some[place], score[near, place]))
        near, id, score = (np.concatenate(part) for part in zip(*pairs, strict=True))
        left = score - slack[near] <= best[near]
        self.least(ids, block, rows[near[left]], id[left])


def choose(name: str | None, rows: int, centroids: NDArray[np.float32], threads: int) -> str:
    """The named backend, or for None the fastest on this machine. Raises CurateError for an unknown name."""
    if name is None:
        small = rows * centroids.size < WORTH_MEASURING
        return "faiss" if small else fastest(centroids.shape[1], _rounded(len(centroids)), threads)
    if name not in NAMES:
        raise CurateError(f"backend: expected one of {', '.join(NAMES)}, not {name!r}")
    return name


@lru_cache(maxsize=64)
def fastest(dim: int, clusters: int, threads: int) -> str:
    """The fastest backend on random rows; measured once per shape and process."""
    import faiss

    names = [
        "faiss",
        *(["torch"] if fast_bfloat16() else []),
        *(["torch:cuda"] if has_cuda() else []),
        *(["faiss:gpu"] if has_cuda() and hasattr(faiss, "StandardGpuResources") else []),
    ]
    if len(names) == 1:
        return names[0]
    rng = np.random.default_rng(0)
    centroids = rng.standard_normal((clusters, dim), dtype=np.float32)
    rows = centroids[rng.integers(clusters, size=MEASURED_ROWS * threads)]
    rows += 0.1 * rng.standard_normal(rows.shape, dtype=np.float32)
    return min(names, key=lambda name: _seconds(name, centroids, rows, threads))


def _seconds(name: str, centroids: NDArray[np.float32], rows: NDArray[np.float32], threads: int) -> float:
    """The shorter of two searches by `nearest`, after a first one to warm up."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        nearest(rows, centroids, threads, name)
        took.append(time.perf_counter() - began)
    return min(took[1:])


def _rounded(clusters: int) -> int:
    """The next power of two, so that few sizes are measured."""
    return min(1 << (clusters - 1).bit_length(), 1 << 14)
