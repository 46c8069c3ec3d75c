"""Grouped rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def position_in_group(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """groups (n,), with equal ones adjacent -> position (n,) of each row within its group, from 0."""
    index = np.arange(len(groups))
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]][: len(groups)])
    return index - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))
