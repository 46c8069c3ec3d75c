"""How many leaves each cell gets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shares(
    weights: NDArray[np.floating], distinct: NDArray[np.int64], rows: NDArray[np.int64], leaves: int
) -> NDArray[np.int64]:
    """(C,) leaves per cell, in proportion to `weights` (C,) by largest remainder; they sum to `leaves`.

    A cell that has rows gets at least 1, and no cell more than its `distinct` rows, until all have as many; what is
    then left over goes to cells that have more `rows` than that, where it stays without members. Equal remainders go to
    the lower cell. Raises ValueError for more leaves than rows, or fewer leaves than cells with rows.
    """
    least = (rows > 0).astype(np.int64)
    if not least.sum() <= leaves <= rows.sum():
        raise ValueError(f"shares: {leaves} leaves for {rows.sum()} rows in {least.sum()} cells; give one to each cell")
    distinct = np.clip(distinct, least, rows)
    if leaves <= distinct.sum():
        return _apportioned(weights, least, distinct, leaves)
    return distinct + _apportioned(weights, np.zeros_like(rows), rows - distinct, leaves - int(distinct.sum()))


def _apportioned(
    weights: NDArray[np.floating], least: NDArray[np.int64], most: NDArray[np.int64], total: int
) -> NDArray[np.int64]:
    """Whole numbers between `least` and `most` that sum to `total`, as near to one multiple of `weights` as can be."""
    if not total:
        return np.zeros_like(least)
    # no weight is so small that a cell could not be filled where all others are full
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
