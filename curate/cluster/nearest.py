"""The nearest centroid of every point, by exact search: the inner loop of everything in this folder.

faiss multiplies blocks of points with blocks of centroids (BLAS) and keeps the best of each row, so memory stays
bounded: BLOCK_ROWS x 1024 floats a thread. Given all rows at once, faiss splits them by its number of threads, and the
last bits of a product depend on the split. Here every thread takes blocks of BLOCK_ROWS rows, cut by row index, and
multiplies each on one core: the result is the same for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 1024


def nearest(
    points: NDArray[np.float32], centroids: NDArray[np.float32], threads: int = 1, direct: bool = True
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """points (n, d), centroids (K, d), K >= 1 -> ids (n,) and squared L2 distances (n,).

    Equal distances go to the lowest id, identical centroids too. Distances are |x|^2 - 2xc + |c|^2 in float32 during
    the search; `direct` computes them again as |x - c|^2, without cancellation, where their order matters.
    """
    import faiss

    if len(centroids) == 0:
        raise ValueError("nearest: no centroids; give at least 1")
    points, centroids = _rows(points), _rows(centroids)
    ids = np.empty(len(points), dtype=np.int64)
    distances = np.empty(len(points), dtype=np.float32)

    def search(start: int) -> None:
        block = slice(start, start + BLOCK_ROWS)
        found_distances, found = faiss.knn(points[block], centroids, 1)
        ids[block] = found[:, 0]
        distances[block] = np.maximum(found_distances[:, 0], 0)

    _each_block(search, len(points), threads)
    ids = _first_of_equals(centroids)[ids]
    return ids, distances_to(points, centroids, ids, threads) if direct else distances


def distances_to(
    points: NDArray[np.float32], centroids: NDArray[np.float32], ids: NDArray[np.int64], threads: int = 1
) -> NDArray[np.float32]:
    """Squared L2 distance (n,) of each point (n, d) to the centroid (K, d) its id (n,) names."""
    distances = np.empty(len(points), dtype=np.float32)

    def measure(start: int) -> None:
        block = slice(start, start + BLOCK_ROWS)
        difference = points[block] - centroids[ids[block]]
        distances[block] = np.einsum("nd,nd->n", difference, difference)

    _each_block(measure, len(points), threads)
    return distances


def _each_block(work: Callable[[int], None], rows: int, threads: int) -> None:
    import faiss

    # faiss takes its thread count from the thread that calls it: ours are told to stay on one core each
    with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        for _ in pool.map(work, range(0, rows, BLOCK_ROWS)):
            pass


def _first_of_equals(centroids: NDArray[np.float32]) -> NDArray[np.int64]:
    """(K,): id of the first centroid identical to each.

    Products of equal rows may differ in their last bit, by their place in a block, so that faiss takes either.
    """
    rows = np.ascontiguousarray(centroids + np.float32(0))  # -0 becomes 0
    _, first, inverse = np.unique(rows.view(f"V{rows.shape[1] * 4}").ravel(), return_index=True, return_inverse=True)
    return first[inverse]


def _rows(array: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(array, dtype=np.float32)
