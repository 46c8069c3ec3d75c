"""Which points are inside a polygon."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MOST_CORNERS = 200
MOST = 1e30
"""Beyond it, the sides cannot be computed with."""


def inside(polygon: Sequence[Sequence[float]], x: NDArray[np.floating], y: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Mask (n,) of the points x, y (n,) inside a polygon (corners, 2): a line from the point crosses its sides an odd
    number of times (the even-odd rule). NaN is outside."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    found = np.zeros(len(x), bool)
    corners = [(float(a), float(b)) for a, b in polygon]
    for (x1, y1), (x2, y2) in pairwise([*corners, corners[0]]):
        if y1 != y2:
            crosses = (y1 > y) != (y2 > y)
            found ^= crosses & (x < x1 + (y - y1) * (x2 - x1) / (y2 - y1))
    return found


def corners_of(polygon: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """The corners. Raises ValueError unless there are 3 to MOST_CORNERS pairs of finite numbers."""
    good = 3 <= len(polygon) <= MOST_CORNERS and all(
        len(one) == 2 and all(abs(part) < MOST for part in one) for one in polygon
    )
    if not good:
        given = f"{len(polygon)} corners" if len(polygon) < 3 or len(polygon) > MOST_CORNERS else "a corner"
        raise ValueError(f"{given}; expected 3 to {MOST_CORNERS} corners, each of two numbers below {MOST:g}")
    return [(float(x), float(y)) for x, y in polygon]
