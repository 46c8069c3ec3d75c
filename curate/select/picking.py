"""Copies of each row of a unit, given its quota."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from curate.kernels.groups import position_in_group


def copies_of(
    units: NDArray[np.int64],
    quotas: NDArray[np.int64],
    rank: NDArray[np.uint64],
    distance: NDArray[np.floating] | None = None,
) -> NDArray[np.int64]:
    """Copies (n,) of all rows of some units; `units` (n,) index `quotas` (U,), in copies.

    Rows of a unit are taken in order of `rank`, or of `distance` if given, with ties by rank. A quota above the unit's
    size is spread evenly over its rows; the first rows get the remainder.
    """
    order = np.lexsort((rank, units) if distance is None else (rank, distance, units))
    group = units[order]
    _, place, count = np.unique(group, return_inverse=True, return_counts=True)  # U may be far more than n
    size = count[place]
    each, rest = np.divmod(quotas[group], size)
    copies = np.empty(len(units), dtype=np.int64)
    copies[order] = each + (position_in_group(group) < rest)
    return copies
