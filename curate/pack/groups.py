"""Groups of samples by aspect and duration, so that the samples of one tar fit into one batch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any, Literal

By = Literal["aspect", "duration"]
ASPECTS = ((9, 16), (2, 3), (3, 4), (1, 1), (4, 3), (3, 2), (16, 9))
SECONDS = (0, 2, 5, 10, 20, 40, 60)
"""From which each group of durations begins."""
NAMES: dict[By, tuple[str, ...]] = {
    "aspect": (*(f"{width}x{height}" for width, height in ASPECTS), "unknown"),
    "duration": ("still", *(f"{start}to{stop}s" for start, stop in pairwise(SECONDS)), f"{SECONDS[-1]}s"),
}


def groups(by: Sequence[By]) -> tuple[str, ...]:
    return tuple("-".join(names) for names in product(*(NAMES[one] for one in by))) if by else ()


def group_of(by: Sequence[By], row: Mapping[str, Any]) -> int:
    """Place in `groups` of a row with `width`, `height` and perhaps `duration_ms`."""
    place = 0
    for one in by:
        number = _aspect(row["width"], row["height"]) if one == "aspect" else _duration(row.get("duration_ms"))
        place = place * len(NAMES[one]) + number
    return place


def _aspect(width: int | None, height: int | None) -> int:
    """The nearest by ratio; wider and taller ones count to the last."""
    if not width or not height:
        return len(ASPECTS)
    ratio = math.log(width / height)
    return min(range(len(ASPECTS)), key=lambda place: abs(math.log(ASPECTS[place][0] / ASPECTS[place][1]) - ratio))


def _duration(duration_ms: int | None) -> int:
    return 0 if duration_ms is None else bisect_right(SECONDS, duration_ms / 1000)
