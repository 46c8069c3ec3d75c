"""Approximate nearest-leaf search among millions of leaves: every point is compared with the leaves of a few cells.

The leaves of each coarse cell are in a memory-mapped file. A block of points is regrouped by the cells it probes, so
that the search of a cell is one matrix product (faiss, float32) of its points with its leaves. Then, once per point,
float64 decides among the leaves that float32 cannot distinguish. faiss's IVF searches point by point and is limited by
memory bandwidth; `bench.cluster.divide` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from curate.kernels.nearest.search import BLOCK_ROWS, distances_to, each_block, exact_distances, nearest, rows_of
from curate.kernels.vectors import Points

T = TypeVar("T")

PROBE = 8
"""Default number of cells to probe per point; `bench.cluster.divide` has recall and cost of each number."""
HELD_PAIRS = 1 << 19
"""Pairs of point and cell in memory at once. They and the points bound the memory."""
CANDIDATES = 2
"""Candidate leaves per probed cell; if more leaves of a cell may be the nearest, the point is searched exactly."""


@dataclass(frozen=True)
class LeafIndex:
    """Inverted lists of the leaves of each coarse cell. `centroids` (C, d) are the cells'. Cell c has the leaves
    offsets[c] .. offsets[c + 1] - 1, and `leaves(c)` returns their centroids (K_c, d)."""

    centroids: NDArray[np.float32]
    offsets: NDArray[np.int64]
    leaves: Callable[[int], NDArray[np.float32]]

    def cells_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cell (n,) of each leaf id (n,)."""
        return np.searchsorted(self.offsets, ids, side="right") - 1


def nearest_leaf(
    points: Points, index: LeafIndex, probe: int = PROBE, threads: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Nearest leaf of each point (n, d) in the `probe` nearest non-empty cells: ids (n,) and squared L2 distances (n,).

    Within these cells the search is as exact as `nearest`: float64 decides, and on equal distances the lowest id wins.
    With a probe of all cells the two agree. Memory: HELD_PAIRS pairs of point and cell, and in float32 the leaves of
    one cell per thread.
    """
    held = np.flatnonzero(np.diff(index.offsets))
    if not len(held):
        raise ValueError("nearest_leaf: no cell holds a leaf; give at least one")
    probe = min(probe, len(held))
    coarse = rows_of(index.centroids[held])
    ids = np.empty(len(points), dtype=np.int64)
    distances = np.empty(len(points), dtype=np.float32)
    rows = max(1, HELD_PAIRS // probe)
    for start in range(0, len(points), rows):
        block = rows_of(points[start : start + rows])
        probed = held[_nearest_cells(block, coarse, probe, threads)]
        found = ids[start : start + rows]
        found[:] = _search(block, probed, index, threads)
        distances[start : start + rows] = _distances_to(block, index, found, threads)
    return ids, distances


def _nearest_cells(
    block: NDArray[np.float32], coarse: NDArray[np.float32], probe: int, threads: int
) -> NDArray[np.int64]:
    """Nearest cells (n, probe) among coarse (C, d), in float32. Blocks do not depend on `threads`."""
    import faiss

    probed = np.empty((len(block), probe), dtype=np.int64)

    def one(start: int) -> None:
        probed[start : start + BLOCK_ROWS] = faiss.knn(block[start : start + BLOCK_ROWS], coarse, probe)[1]

    each_block(one, len(block), threads)
    return probed


def _search(block: NDArray[np.float32], probed: NDArray[np.int64], index: LeafIndex, threads: int) -> NDArray[np.int64]:
    """Nearest leaf (n,) of each point in its `probed` cells (n, P)."""
    squared, found, largest = _candidates(block, probed, index, threads)
    best = squared.argmin(axis=1)
    ids = np.take_along_axis(found, best[:, None], 1)[:, 0]
    # error of |x|^2 - 2xc + |c|^2 in float32: three sums of d terms, and their sum (Higham 2002, Accuracy and
    # Stability, 3.5), for each of two distances
    length = np.sqrt(np.einsum("nd,nd->n", block, block, dtype=np.float64))
    width = 2 * (block.shape[1] + 4) * 2.0**-24 * (length + largest) ** 2
    open_ = squared <= (np.take_along_axis(squared, best[:, None], 1)[:, 0] + width)[:, None]
    sizes = np.diff(index.offsets)[probed]
    unsure = (open_.reshape(*probed.shape, CANDIDATES)[:, :, -1] & (sizes > CANDIDATES)).any(axis=1)
    open_[(open_.sum(axis=1) == 1) | unsure] = False
    row, place = np.nonzero(open_)
    _keep_nearest(ids, row, found[row, place], _distances(block, index, row, found[row, place], threads))
    if unsure.any():
        ids[unsure] = _search_exactly(block[unsure], probed[unsure], index, threads)
    return ids


def _candidates(
    block: NDArray[np.float32], probed: NDArray[np.int64], index: LeafIndex, threads: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], float]:
    """The CANDIDATES nearest leaves of each probed cell: squared distances and ids (n, P * CANDIDATES), infinite and -1
    if the cell has fewer; and the length of the longest of these cells' leaves."""
    squared = np.full((probed.size, CANDIDATES), np.inf, dtype=np.float32)
    found = np.full((probed.size, CANDIDATES), -1, dtype=np.int64)

    def one(cell: int, places: NDArray[np.int64]) -> float:
        import faiss

        leaves = rows_of(index.leaves(cell))
        number = min(CANDIDATES, len(leaves))
        squared[places, :number], near = faiss.knn(block[places // probed.shape[1]], leaves, number)
        found[places, :number] = near + index.offsets[cell]
        return float(np.einsum("kd,kd->k", leaves, leaves, dtype=np.float64).max())

    longest = _each_cell(one, probed.ravel(), threads)
    shape = (len(probed), probed.shape[1] * CANDIDATES)
    return squared.reshape(shape), found.reshape(shape), max(longest, default=0.0) ** 0.5


def _search_exactly(
    block: NDArray[np.float32], probed: NDArray[np.int64], index: LeafIndex, threads: int
) -> NDArray[np.int64]:
    """Same result as `_search`: search each cell exactly, then compare the cells' results in float64."""
    found = np.empty(probed.size, dtype=np.int64)

    def one(cell: int, places: NDArray[np.int64]) -> None:
        ids, _ = nearest(block[places // probed.shape[1]], rows_of(index.leaves(cell)))
        found[places] = ids + index.offsets[cell]

    _each_cell(one, probed.ravel(), threads)
    row = np.repeat(np.arange(len(probed)), probed.shape[1])
    ids = np.empty(len(probed), dtype=np.int64)
    _keep_nearest(ids, row, found, _distances(block, index, row, found, threads))
    return ids


def _keep_nearest(
    ids: NDArray[np.int64], row: NDArray[np.int64], id: NDArray[np.int64], distance: NDArray[np.float64]
) -> None:
    """Set `ids` to the nearest id of each row among the pairs (row, id)."""
    order = np.lexsort((id, distance, row))
    first = order[np.flatnonzero(np.r_[True, np.diff(row[order]) != 0][: len(order)])]
    ids[row[first]] = id[first]


def _distances(
    block: NDArray[np.float32], index: LeafIndex, row: NDArray[np.int64], id: NDArray[np.int64], threads: int
) -> NDArray[np.float64]:
    """Squared distances (m,) in float64 between the points and leaves of pairs (row, id)."""
    exact = np.empty(len(row))

    def one(cell: int, pairs: NDArray[np.int64]) -> None:
        exact[pairs] = exact_distances(block, rows_of(index.leaves(cell)), row[pairs], id[pairs] - index.offsets[cell])

    _each_cell(one, index.cells_of(id), threads)
    return exact


def _distances_to(
    block: NDArray[np.float32], index: LeafIndex, ids: NDArray[np.int64], threads: int
) -> NDArray[np.float32]:
    """Squared distance (n,) of each point to the leaf in `ids`."""
    out = np.empty(len(ids), dtype=np.float32)

    def one(cell: int, places: NDArray[np.int64]) -> None:
        out[places] = distances_to(block[places], rows_of(index.leaves(cell)), ids[places] - index.offsets[cell])

    _each_cell(one, index.cells_of(ids), threads)
    return out


def _each_cell(work: Callable[[int, NDArray[np.int64]], T], cells: NDArray[np.int64], threads: int) -> list[T]:
    """Call work(cell, places) for each cell that occurs in `cells` (m,), on threads of one core each."""
    import faiss

    with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(lambda job: work(*job), by_cell(cells)))


def by_cell(cells: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each cell that occurs in `cells` (m,), and its places; both ascend."""
    order = np.argsort(cells, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(cells[order]) != 0]) if len(order) else order
    for start, stop in pairwise([*starts.tolist(), len(order)]):
        yield int(cells[order[start]]), order[start:stop]
