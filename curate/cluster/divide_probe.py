"""Assignment among millions of leaves: every point looks into the few cells nearest to it, and nowhere else.

Leaves lie by coarse cell, in files that are mapped. A block of points is regrouped by the cells it looks into, so that
each cell is one matrix product of the points that look into it with its leaves, by the kernel that serves everywhere
else. faiss's IVF answers the same question point by point, at the speed of memory: `tests.bench.bench_divide` has both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from curate.cluster.nearest import exact_distances, nearest, nearest_few, rows_of
from curate.cluster.vectors import Points

PROBE = 8
"""Cells that a point looks into by default: `tests.bench.bench_divide` has what each number finds and costs."""
LOOKS = 1 << 19
"""Pairs of point and cell held at once; with the points themselves, what bounds memory."""


@dataclass(frozen=True)
class Cells:
    """Leaves by coarse cell. `centroids` (C, d); cell c holds leaves offsets[c] .. offsets[c + 1] - 1, and
    `leaves(c)` are their centroids (K_c, d)."""

    centroids: NDArray[np.float32]
    offsets: NDArray[np.int64]
    leaves: Callable[[int], NDArray[np.float32]]


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
        looks = held[nearest_few(block, coarse, probe, threads)[0]]
        found, squared = _look(block, looks, cells, threads)
        kept = _least(block, found, squared, cells)
        ids[start : start + rows] = np.take_along_axis(found, kept[:, None], 1)[:, 0]
        distances[start : start + rows] = np.take_along_axis(squared, kept[:, None], 1)[:, 0]
    return ids, distances


def _look(
    block: NDArray[np.float32], looks: NDArray[np.int64], cells: Cells, threads: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """looks (n, P): cells that each point looks into -> the nearest leaf of each (n, P) and its squared distance."""
    found = np.empty(looks.size, dtype=np.int64)
    squared = np.empty(looks.size, dtype=np.float32)

    def one(job: tuple[int, NDArray[np.int64]]) -> None:
        cell, places = job
        ids, squared[places] = nearest(block[places // looks.shape[1]], rows_of(cells.leaves(cell)))
        found[places] = ids + cells.offsets[cell]

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(one, by_cell(looks.ravel())):
            pass
    return found.reshape(looks.shape), squared.reshape(looks.shape)


def by_cell(cells: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """cells (m,) -> each cell that occurs, ascending, and where it does, ascending."""
    order = np.argsort(cells, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(cells[order]) != 0]) if len(order) else order
    for start, stop in pairwise([*starts.tolist(), len(order)]):
        yield int(cells[order[start]]), order[start:stop]


def _least(
    block: NDArray[np.float32], found: NDArray[np.int64], squared: NDArray[np.float32], cells: Cells
) -> NDArray[np.int64]:
    """Place (n,) of each point's nearest among the leaves (n, P) that its cells found: those that float32 cannot tell
    apart are compared in float64."""
    best = squared.argmin(axis=1)
    # |x - c|^2 in float32: d squares of differences and their sum (Higham 2002, Accuracy and Stability, 3.5), twice
    width = 1 + 2 * (block.shape[1] + 4) * 2.0**-24
    close = squared <= np.take_along_axis(squared, best[:, None], 1) * np.float32(width)
    close[close.sum(axis=1) == 1] = False
    row, place = np.nonzero(close)
    if not len(row):
        return best
    id = found[row, place]
    exact = np.empty(len(row))
    for cell, pairs in by_cell(np.searchsorted(cells.offsets, id, side="right") - 1):
        leaves = rows_of(cells.leaves(cell))
        exact[pairs] = exact_distances(block, leaves, row[pairs], id[pairs] - cells.offsets[cell])
    order = np.lexsort((id, exact, row))
    first = order[np.flatnonzero(np.r_[True, np.diff(row[order]) != 0])]
    best[row[first]] = place[first]
    return best
