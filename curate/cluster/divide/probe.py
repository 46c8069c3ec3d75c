"""Assignment among millions of leaves: every point looks into the few cells nearest to it, and nowhere else.

Leaves lie by coarse cell, in files that are mapped. A block of points is regrouped by the cells it looks into, so that
each cell is one matrix product (faiss, float32) of the points that look into it with its leaves. Only then, once per
point, float64 decides among the leaves that float32 cannot tell apart. faiss's IVF answers the same question point by
point, at the speed of memory: `bench.cluster.divide` has both.
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
"""Cells that a point looks into by default: `bench.cluster.divide` has what each number finds and costs."""
LOOKS = 1 << 19
"""Pairs of point and cell held at once; with the points themselves, what bounds memory."""
FEW = 2
"""Leaves of each cell that the search lists; where more may be the nearest, the point is searched exactly."""


@dataclass(frozen=True)
class Cells:
    """Leaves by coarse cell. `centroids` (C, d); cell c holds leaves offsets[c] .. offsets[c + 1] - 1, and
    `leaves(c)` are their centroids (K_c, d)."""

    centroids: NDArray[np.float32]
    offsets: NDArray[np.int64]
    leaves: Callable[[int], NDArray[np.float32]]

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cells (n,) of leaves (n,)."""
        return np.searchsorted(self.offsets, ids, side="right") - 1


def nearest_leaf(
    points: Points, cells: Cells, probe: int = PROBE, threads: int = 1
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """points (n, d) -> ids (n,) of the nearest leaf among those of the `probe` nearest cells that hold any, and its
    squared L2 distance (n,).

    Exact like `nearest`: float64 decides, equal distances go to the lowest id; with a probe of all cells it is the same
    thing. Holds LOOKS pairs of point and cell, and the leaves of one cell a thread, in float32.
    """
    held = np.flatnonzero(np.diff(cells.offsets))
    if not len(held):
        raise ValueError("nearest_leaf: no cell holds a leaf; give at least one")
    probe = min(probe, len(held))
    coarse = rows_of(cells.centroids[held])
    ids = np.empty(len(points), dtype=np.int64)
    distances = np.empty(len(points), dtype=np.float32)
    rows = max(1, LOOKS // probe)
    for start in range(0, len(points), rows):
        block = rows_of(points[start : start + rows])
        looks = held[_nearest_cells(block, coarse, probe, threads)]
        found = ids[start : start + rows]
        found[:] = _search(block, looks, cells, threads)
        distances[start : start + rows] = _distances_to(block, cells, found, threads)
    return ids, distances


def _nearest_cells(
    block: NDArray[np.float32], coarse: NDArray[np.float32], probe: int, threads: int
) -> NDArray[np.int64]:
    """(n, probe): the nearest of coarse (C, d) as float32 sees them; rows are cut by index, whatever `threads` is."""
    import faiss

    looks = np.empty((len(block), probe), dtype=np.int64)

    def one(start: int) -> None:
        looks[start : start + BLOCK_ROWS] = faiss.knn(block[start : start + BLOCK_ROWS], coarse, probe)[1]

    each_block(one, len(block), threads)
    return looks


def _search(block: NDArray[np.float32], looks: NDArray[np.int64], cells: Cells, threads: int) -> NDArray[np.int64]:
    """looks (n, P): cells that each point looks into -> its nearest leaf (n,) among theirs."""
    squared, found, largest = _listed(block, looks, cells, threads)
    best = squared.argmin(axis=1)
    ids = np.take_along_axis(found, best[:, None], 1)[:, 0]
    # |x|^2 - 2xc + |c|^2 in float32: three sums of d terms and their sum (Higham 2002, Accuracy and Stability, 3.5),
    # for each of two distances
    length = np.sqrt(np.einsum("nd,nd->n", block, block, dtype=np.float64))
    width = 2 * (block.shape[1] + 4) * 2.0**-24 * (length + largest) ** 2
    open_ = squared <= (np.take_along_axis(squared, best[:, None], 1)[:, 0] + width)[:, None]
    sizes = np.diff(cells.offsets)[looks]
    unsure = (open_.reshape(*looks.shape, FEW)[:, :, -1] & (sizes > FEW)).any(axis=1)
    open_[(open_.sum(axis=1) == 1) | unsure] = False
    row, place = np.nonzero(open_)
    _least(ids, row, found[row, place], _distances(block, cells, row, found[row, place], threads))
    if unsure.any():
        ids[unsure] = _search_exactly(block[unsure], looks[unsure], cells, threads)
    return ids


def _listed(
    block: NDArray[np.float32], looks: NDArray[np.int64], cells: Cells, threads: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], float]:
    """The FEW nearest leaves of each cell looked into: squared distances and ids (n, P * FEW), infinite where a cell
    has fewer, and the length of the longest leaf looked at."""
    squared = np.full((looks.size, FEW), np.inf, dtype=np.float32)
    found = np.full((looks.size, FEW), -1, dtype=np.int64)

    def one(cell: int, places: NDArray[np.int64]) -> float:
        import faiss

        leaves = rows_of(cells.leaves(cell))
        few = min(FEW, len(leaves))
        squared[places, :few], near = faiss.knn(block[places // looks.shape[1]], leaves, few)
        found[places, :few] = near + cells.offsets[cell]
        return float(np.einsum("kd,kd->k", leaves, leaves, dtype=np.float64).max())

    longest = _each_cell(one, looks.ravel(), threads)
    shape = (len(looks), looks.shape[1] * FEW)
    return squared.reshape(shape), found.reshape(shape), max(longest, default=0.0) ** 0.5


def _search_exactly(
    block: NDArray[np.float32], looks: NDArray[np.int64], cells: Cells, threads: int
) -> NDArray[np.int64]:
    """What `_search` answers, by the exact search of each cell and float64 among what they find."""
    found = np.empty(looks.size, dtype=np.int64)

    def one(cell: int, places: NDArray[np.int64]) -> None:
        ids, _ = nearest(block[places // looks.shape[1]], rows_of(cells.leaves(cell)))
        found[places] = ids + cells.offsets[cell]

    _each_cell(one, looks.ravel(), threads)
    row = np.repeat(np.arange(len(looks)), looks.shape[1])
    ids = np.empty(len(looks), dtype=np.int64)
    _least(ids, row, found, _distances(block, cells, row, found, threads))
    return ids


def _least(
    ids: NDArray[np.int64], row: NDArray[np.int64], id: NDArray[np.int64], distance: NDArray[np.float64]
) -> None:
    """Write the nearest id of each row, out of pairs (row, id), into `ids`."""
    order = np.lexsort((id, distance, row))
    first = order[np.flatnonzero(np.r_[True, np.diff(row[order]) != 0][: len(order)])]
    ids[row[first]] = id[first]


def _distances(
    block: NDArray[np.float32], cells: Cells, row: NDArray[np.int64], id: NDArray[np.int64], threads: int
) -> NDArray[np.float64]:
    """Squared distance (m,) in float64 of pairs of a point and a leaf."""
    exact = np.empty(len(row))

    def one(cell: int, pairs: NDArray[np.int64]) -> None:
        exact[pairs] = exact_distances(block, rows_of(cells.leaves(cell)), row[pairs], id[pairs] - cells.offsets[cell])

    _each_cell(one, cells.of(id), threads)
    return exact


def _distances_to(
    block: NDArray[np.float32], cells: Cells, ids: NDArray[np.int64], threads: int
) -> NDArray[np.float32]:
    """Squared distance (n,) of each point to its leaf."""
    out = np.empty(len(ids), dtype=np.float32)

    def one(cell: int, places: NDArray[np.int64]) -> None:
        out[places] = distances_to(block[places], rows_of(cells.leaves(cell)), ids[places] - cells.offsets[cell])

    _each_cell(one, cells.of(ids), threads)
    return out


def _each_cell(work: Callable[[int, NDArray[np.int64]], T], cells: NDArray[np.int64], threads: int) -> list[T]:
    """work(cell, where) for each cell that occurs in `cells` (m,), on threads of one core each."""
    import faiss

    with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(lambda job: work(*job), by_cell(cells)))


def by_cell(cells: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """cells (m,) -> each cell that occurs, ascending, and where it does, ascending."""
    order = np.argsort(cells, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(cells[order]) != 0]) if len(order) else order
    for start, stop in pairwise([*starts.tolist(), len(order)]):
        yield int(cells[order[start]]), order[start:stop]
