"""Which rows of a unit are taken, and how often, once its quota is known."""

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
    """Copies (n,) of all rows of some units; `units` (n,) index `quotas` (U,), which count copies.

    Within a unit the rows with the smallest `rank` come first; with `distance`, those with the smallest distance, and
    rank breaks ties. A quota above the unit's size is spread over all its rows, the rest going to the first ones.
    """
    order = np.lexsort((rank, units) if distance is None else (rank, distance, units))
    group = units[order]
    _, place, count = np.unique(group, return_inverse=True, return_counts=True)  # U may be far more than n
    size = count[place]
    each, rest = np.divmod(quotas[group], size)
    copies = np.empty(len(units), dtype=np.int64)
    copies[order] = each + (position_in_group(group) < rest)
    return copies
