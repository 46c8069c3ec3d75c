"""Geometry of the report's curves: sizes by rank on log axes, as points the template draws. Units: SVG user units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curate.report.stats import rank_size

WIDTH, HEIGHT = 340, 236
LEFT, RIGHT, TOP, BOTTOM = 44, WIDTH - 10, 10, HEIGHT - 40


@dataclass(frozen=True)
class LogAxis:
    """Values 1 … `high` onto `start` … `stop`."""

    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        share = math.log(max(value, 1.0)) / math.log(self.high)
        return round(self.start + share * (self.stop - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """(place, label): powers of ten, with 2 and 5 between them where there is room."""
        steps: Sequence[int] = (1, 2, 5) if self.high < 100 else (1,)
        values = [step * 10**power for power in range(10) for step in steps]
        return [(self.at(value), short(value)) for value in values if value <= self.high]


def short(value: int) -> str:
    """1,000 as `1k`, for axes only."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return str(value)


@dataclass(frozen=True)
class Curve:
    name: str
    style: str
    """CSS class: `before` or `after`."""
    path: str
    dots: list[tuple[float, float, str]]
    """(x, y, what it says), thinned for pointing at."""


@dataclass(frozen=True)
class RankChart:
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    curves: list[Curve]
    what: str
    """What a group is called: cluster, label, entry."""
    axis: str
    """What its size counts."""
    total: str
    """What all sizes add up to."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP
    bottom: int = BOTTOM


def rank_chart(
    series: Sequence[tuple[str, str, NDArray[np.int64]]],
    what: str = "cluster",
    axis: str = "pictures in it",
    total: str = "Pictures",
) -> RankChart:
    """`series`: (name, style, sizes (K,)) each; groups sorted by their own size, so curves show shape, not identity."""
    groups = max((int((sizes > 0).sum()) for _, _, sizes in series), default=0)
    largest = max((int(sizes.max(initial=0)) for _, _, sizes in series), default=0)
    x = LogAxis(max(groups, 2), LEFT, RIGHT)
    y = LogAxis(max(largest * 1.15, 2), BOTTOM, TOP)
    return RankChart(x.ticks(), y.ticks(), [_curve(*one, x, y, what) for one in series], what, axis, total)


def _curve(name: str, style: str, sizes: NDArray[np.int64], x: LogAxis, y: LogAxis, what: str) -> Curve:
    ranks, values = rank_size(sizes)
    path = " ".join(f"{x.at(rank)},{y.at(value)}" for rank, value in zip(ranks.tolist(), values.tolist(), strict=True))
    dots = []
    for rank, value in zip(*(part.tolist() for part in rank_size(sizes, 24)), strict=True):
        dots.append((x.at(rank), y.at(value), f"{name}: the {what} of rank {rank:,} holds {value:,}"))
    return Curve(name, style, path, dots)
