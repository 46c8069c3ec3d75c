"""Geometry of the charts, which the macros of kit.html draw as SVG. Units: SVG user units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 44, WIDTH - 10, 10, HEIGHT - 40
_MANY_ROWS = 32
"""A heatmap with more rows has flatter cells."""


@dataclass(frozen=True)
class LogAxis:
    """Maps the values 1 … `high` to `start` … `stop`."""

    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        share = math.log(max(value, 1.0)) / math.log(self.high)
        return round(self.start + share * (self.stop - self.start), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """(position, label): powers of ten, with 2 and 5 between them if there is room."""
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
    """(x, y, tooltip) of a few points."""


@dataclass(frozen=True)
class RankChart:
    """Sizes of groups by rank, on log axes."""

    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    curves: list[Curve]
    what: str
    """Name of a group: cluster, label, entry."""
    axis: str
    """Unit of a group's size."""
    total: str
    """Name of the sum of all sizes."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP
    bottom: int = BOTTOM


def rank_chart(
    series: Sequence[tuple[str, str, NDArray[np.int64]]],
    what: str = "cluster",
    axis: str = "images in it",
    total: str = "Images",
) -> RankChart:
    """`series`: (name, style, sizes (K,)). Each curve sorts groups by its own sizes: it shows shape, not identity."""
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


def rank_size(sizes: NDArray[np.int64], points: int = 120) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranks (from 1) and sizes of the non-empty groups, largest first, thinned to about `points` ranks evenly spaced
    on a log axis. The first and the last are always included."""
    ordered = np.sort(sizes[sizes > 0])[::-1]
    if len(ordered) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ranks = np.unique(np.round(np.geomspace(1, len(ordered), points)).astype(np.int64))
    return ranks, ordered[ranks - 1].astype(np.int64)


@dataclass(frozen=True)
class Heatmap:
    """Values 0 … 1 of many rows as the opacity of small cells."""

    width: int
    height: int
    cells: list[tuple[int, int, float, str]]
    """x, y, opacity, tooltip."""
    rows: list[tuple[int, str]]
    """y and name of the first row of each group."""
    columns: list[tuple[int, str]]
    """x of the middle, and name."""
    cell: tuple[int, int]
    """Width and height of a cell."""
    left: int = 52
    top: int = 8


def heatmap(rows: Sequence[tuple[str, str, Sequence[float | None]]], columns: Sequence[tuple[str, str]]) -> Heatmap:
    """`rows`: (group, name, values); a None leaves its cell empty. `columns`: (name, short name on the axis)."""
    width, height = 32, 7 if len(rows) > _MANY_ROWS else 14
    left, top = Heatmap.left, Heatmap.top
    cells, groups = [], []
    for line, (group, name, values) in enumerate(rows):
        y = top + line * height
        if line == 0 or rows[line - 1][0] != group:
            groups.append((y, group))
        for place, value in enumerate(values):
            if value is not None:
                tooltip = f"{name}, {columns[place][0]}: {value:.2f}"
                cells.append((left + place * width, y, round(min(max(value, 0.0), 1.0), 3), tooltip))
    heads = [(left + place * width + width // 2, axis) for place, (_, axis) in enumerate(columns)]
    return Heatmap(left + len(columns) * width, top + len(rows) * height + 18, cells, groups, heads, (width, height))
