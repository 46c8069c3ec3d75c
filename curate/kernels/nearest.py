"""The nearest centroid of every point, exactly: the inner loop of everything in this folder.

A search in low precision says which centroids can be nearest: those whose score lies within the search's own rounding
error of the best. Where more than one can, they are compared in float64. So what comes out is what float64 brute force
gives, lowest id on ties, whatever backend has searched, and for any number of threads; the backend is a question of
speed alone, and is chosen by measuring (`curate.kernels.nearest_backends`).

Memory is bounded: BLOCK_ROWS rows a thread, and what the backend needs for a block of them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from curate.kernels.nearest_backends import Backend, Found, chosen, prepared, side_by_side, threads_of
from curate.kernels.vectors import Points

T = TypeVar("T")

BLOCK_ROWS = 1024
EXACT_PAIRS = 1 << 14
"""Pairs compared in float64 at a time: as many rows of points and of centroids are gathered."""


@dataclass
class Ambiguity:
    """How much the exact decision took; added up by `nearest` where one is given."""

    rows: int = 0
    compared: int = 0
    """Pairs compared in float64, of rows that had more than one candidate."""
    full: int = 0
    """Rows whose candidates were too many to be listed, so that all centroids were searched in float64."""


def nearest(
    points: Points,
    centroids: NDArray[np.float32],
    threads: int = 1,
    backend: str | None = None,
    ambiguity: Ambiguity | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """points (n, d), centroids (K, d), K >= 1, both finite -> ids (n,) and squared L2 distances (n,).

    ids are those of the least sum over d of (x - c)^2 in float64; equal distances go to the lowest id. Distances are
    that sum in float32, without cancellation. `backend`: see `nearest_backends`; None is the fastest here.
    """
    if len(centroids) == 0:
        raise ValueError("nearest: no centroids; give at least 1")
    centroids = rows_of(centroids)
    name = chosen(backend, len(points), centroids, threads)
    search = prepared(name, centroids)
    exact = _Exact(centroids)
    ids = np.empty(len(points), dtype=np.int64)
    distances = np.empty(len(points), dtype=np.float32)

    def one(start: int) -> Ambiguity:
        block = rows_of(points[start : start + BLOCK_ROWS])
        found, told = _decide(block, exact, search)
        ids[start : start + BLOCK_ROWS] = found
        difference = block - centroids[found]
        distances[start : start + BLOCK_ROWS] = np.einsum("nd,nd->n", difference, difference)
        return told

    with threads_of(name, threads):
        for told in each_block(one, len(points), side_by_side(name, threads)):
            if ambiguity is not None:
                ambiguity.rows += told.rows
                ambiguity.compared += told.compared
                ambiguity.full += told.full
    return ids, distances


def distances_to(
    points: Points, centroids: NDArray[np.float32], ids: NDArray[np.int64], threads: int = 1
) -> NDArray[np.float32]:
    """Squared L2 distance (n,) of each point (n, d) to the centroid (K, d) its id (n,) names."""
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
    """work(start) for the blocks of `size` rows, on `threads` threads; what they return, in order."""
    import faiss

    starts = range(0, rows, size)
    if threads == 1 or len(starts) == 1:
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            return [work(start) for start in starts]
        finally:
            faiss.omp_set_num_threads(before)
    # faiss takes its thread count from the thread that calls it: ours are told to stay on one core each
    with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(work, starts))


def rows_of(array: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, dtype=np.float32)


def _decide(block: NDArray[np.float32], exact: _Exact, search: Backend) -> tuple[NDArray[np.int64], Ambiguity]:
    """ids (n,) of a block: what the search is sure of, and exact comparison for the rest."""
    found: Found = search(block)
    ids = found.best
    told = Ambiguity(len(block), len(found.row), len(found.unsure))
    if len(found.row):
        exact.least(ids, block, found.row, found.id)
    if len(found.unsure):
        exact.search(ids, block, found.unsure)
    return ids, told


class _Exact:
    """Comparison in float64, for the rows that need it. Shared by the threads of one call."""

    def __init__(self, centroids: NDArray[np.float32]) -> None:
        self.centroids = centroids

    @cached_property
    def distinct(self) -> NDArray[np.int64]:
        """Ids of the centroids that differ from all before them: where many are equal, no row is near to all."""
        rows = self.centroids + np.float32(0)  # -0 becomes 0
        return np.sort(np.unique(rows.view(f"V{rows.shape[1] * 4}").ravel(), return_index=True)[1])

    def least(
        self, ids: NDArray[np.int64], block: NDArray[np.float32], row: NDArray[np.int64], id: NDArray[np.int64]
    ) -> None:
        """Of pairs (row, id), write each row's nearest id into `ids`."""
        distance = exact_distances(block, self.centroids, row, id)
        order = np.lexsort((id, distance, row))
        first = np.flatnonzero(np.r_[True, np.diff(row[order]) != 0])
        ids[row[order][first]] = id[order][first]

    def search(self, ids: NDArray[np.int64], block: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """All centroids for some rows: products in float64, then comparison of what they cannot tell apart."""
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
