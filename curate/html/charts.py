"""Geometry of the charts, which the macros of kit.html draw as SVG. Units: SVG user units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


@dataclass(frozen=True, kw_only=True)
class CurveChart:
    """Curves in a frame with ticks, and the frame's place in the image (pixels)."""

    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    curves: list[Curve]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP
    bottom: int = BOTTOM


@dataclass(frozen=True, kw_only=True)
class RankChart(CurveChart):
    """Sizes of groups by rank, on log axes."""

    what: str
    """Name of a group: cluster, label, entry."""
    axis: str
    """Unit of a group's size."""
    total: str
    """Name of the sum of all sizes."""


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
    curves = [_curve(*one, x, y, what) for one in series]
    return RankChart(x_ticks=x.ticks(), y_ticks=y.ticks(), curves=curves, what=what, axis=axis, total=total)


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


@dataclass(frozen=True, kw_only=True)
class StepChart(CurveChart):
    """Values over equal steps, on linear axes."""

    x_axis: str
    y_axis: str


UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def time_chart(series: Sequence[tuple[str, str, Sequence[float]]], period: float, axis: str) -> StepChart:
    """Rates over time. `series`: (name, style, a value for each period of `period` seconds)."""
    periods = max((len(values) for _, _, values in series), default=0)
    size, unit = next(((size, unit) for size, unit in UNITS if periods * period >= 3 * size), UNITS[-1])

    def tooltip(name: str, place: int, value: float) -> str:
        return f"{name}: {value:,.3g} {axis} after {place * period / size:.3g} {unit}"

    return _step_chart(series, period / size, (unit, axis), tooltip)


def share_chart(series: Sequence[tuple[str, str, NDArray[np.int64]]], unit: str, bins: int = 40) -> StepChart:
    """Distributions of counts. `series`: (name, style, counts (n,)). The last step also has all larger counts, up to 1
    in 200."""
    counts = np.concatenate([values for _, _, values in series]) if series else np.zeros(0, np.int64)
    high = int(np.quantile(counts, 0.995)) + 1 if len(counts) else 1
    power = 10 ** max(0, math.floor(math.log10(high / bins))) if high > bins else 1
    step = next(step * power for step in (1, 2, 5, 10, 20) if high <= bins * step * power)
    steps = -(-high // step)
    shares = []
    for name, style, values in series:
        found = np.bincount(np.minimum(values // step, steps - 1), minlength=steps)
        shares.append((name, style, (100 * found / max(1, len(values))).tolist()))

    def tooltip(name: str, place: int, value: float) -> str:
        last = f" to {(place + 1) * step - 1:,}" if step > 1 else ""
        return f"{name}: {value:.3g} % with {place * step:,}{' or more' if place == steps - 1 else last} {unit}"

    return _step_chart(shares, step, (unit, "% of texts"), tooltip)


def line_chart(name: str, points: Sequence[tuple[int, float]], axes: tuple[str, str]) -> StepChart:
    """A share (0 … 1) as it changed with the steps of `points`, in percent."""
    span = max(step for step, _ in points)
    top = max(share for _, share in points) * 105 or 1.0
    places = [
        (round(LEFT + (RIGHT - LEFT) * step / span, 1), round(BOTTOM - (BOTTOM - TOP) * 100 * share / top, 1))
        for step, share in points
    ]
    thinned = range(0, len(points), max(1, len(points) // 24))
    dots = [(*places[n], f"{name}: {100 * points[n][1]:.3g} % after {points[n][0]:,} {axes[0]}") for n in thinned]
    x_ticks = [(round(LEFT + (RIGHT - LEFT) * tick / span, 1), text) for tick, text in linear_ticks(span)]
    y_ticks = [(round(BOTTOM - (BOTTOM - TOP) * tick / top, 1), text) for tick, text in linear_ticks(top)]
    curve = Curve(name, "after", " ".join(f"{x},{y}" for x, y in places), dots)
    return StepChart(x_ticks=x_ticks, y_ticks=y_ticks, curves=[curve], x_axis=axes[0], y_axis=axes[1])


def _step_chart(
    series: Sequence[tuple[str, str, Sequence[float]]],
    step: float,
    axes: tuple[str, str],
    tooltip: Callable[[str, int, float], str],
) -> StepChart:
    """`step`: width of a step in units of the x axis; `axes`: names of x and y; `tooltip(name, place, value)`."""
    span = max(max((len(values) for _, _, values in series), default=0) * step, 1e-9)
    top = max((max(values, default=0.0) for _, _, values in series), default=0.0) * 1.05 or 1.0

    def x(place: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * place * step / span, 1)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * value / top, 1)

    curves = []
    for name, style, values in series:
        steps = (f"{x(place)},{y(value)} {x(place + 1)},{y(value)}" for place, value in enumerate(values))
        thinned = range(0, len(values), max(1, len(values) // 24))
        dots = [(x(place + 0.5), y(values[place]), tooltip(name, place, values[place])) for place in thinned]
        curves.append(Curve(name, style, " ".join(steps), dots))
    x_ticks = [(round(LEFT + (RIGHT - LEFT) * tick / span, 1), text) for tick, text in linear_ticks(span)]
    y_ticks = [(y(tick), text) for tick, text in linear_ticks(top)]
    return StepChart(x_ticks=x_ticks, y_ticks=y_ticks, curves=curves, x_axis=axes[0], y_axis=axes[1])


def linear_ticks(high: float, most: int = 6) -> list[tuple[float, str]]:
    """(value, label): up to about `most` round values from 0 to `high`."""
    step = round_step(high, most)
    count = int(high / step + 1e-9)
    return [(place * step, f"{place * step:,.10g}") for place in range(count + 1)]


def round_step(span: float, most: int) -> float:
    """1, 2 or 5 times a power of ten, of which at most `most` fit into `span`."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(step * power for step in (1, 2, 5, 10) if span / (step * power) <= most)
