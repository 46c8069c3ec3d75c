"""Arrays whose rows belong to groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def position_in_group(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """groups (n,), equal ones adjacent -> place (n,) of each within its group, from 0."""
    index = np.arange(len(groups))
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]][: len(groups)])
    return index - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))
