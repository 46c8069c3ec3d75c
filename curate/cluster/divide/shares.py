"""Number of leaves of each cell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shares(
    weights: NDArray[np.floating], distinct: NDArray[np.int64], rows: NDArray[np.int64], leaves: int
) -> NDArray[np.int64]:
    """Leaves per cell (C,), proportional to `weights` (C,) by the largest-remainder method; they sum to `leaves`.

    A cell with rows gets at least 1 leaf. No cell gets more leaves than `distinct` rows until all cells have that many;
    the remaining leaves then go to cells with more `rows`, and stay empty. On equal remainders the lower cell wins.
    Raises ValueError if there are more leaves than rows, or fewer leaves than cells with rows.
    """
    least = (rows > 0).astype(np.int64)
    if not least.sum() <= leaves <= rows.sum():
        raise ValueError(f"shares: {leaves} leaves for {rows.sum()} rows in {least.sum()} cells; give one to each cell")
    distinct = np.clip(distinct, least, rows)
    if leaves <= distinct.sum():
        return _apportion(weights, least, distinct, leaves)
    return distinct + _apportion(weights, np.zeros_like(rows), rows - distinct, leaves - int(distinct.sum()))


def _apportion(
    weights: NDArray[np.floating], least: NDArray[np.int64], most: NDArray[np.int64], total: int
) -> NDArray[np.int64]:
    """Integers between `least` and `most` that sum to `total`, as close as possible to a multiple of `weights`."""
    if not total:
        return np.zeros_like(least)
    # a lower bound on weights, so that any cell can still be filled when all others are full
    weights = np.maximum(weights / weights.max(initial=1e-300), 1e-9)
    low, high = 0.0, 1e10 * float(most.max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(middle * weights, least, most).sum() <= total else (low, middle)
    ideal = np.clip(low * weights, least, most)
    given = np.floor(ideal).astype(np.int64)
    while missing := total - int(given.sum()):
        order = np.lexsort((np.arange(len(given)), given - ideal))
        order = order[given[order] < most[order]][:missing]
        given[order] += 1
    return given
