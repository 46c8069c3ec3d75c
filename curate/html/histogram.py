"""Geometry of a histogram with a threshold, which the macro of kit.html draws as SVG. Units: SVG user units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from curate.html.charts import linear_ticks, round_step


@dataclass(frozen=True)
class HistogramChart:
    """Bars of rows by value, on both sides of a threshold."""

    bars: list[tuple[float, float, float, float, str, str]]
    """x, y, width, height, CSS class (`kept` or `lost`), tooltip."""
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    x_axis: str
    at: float
    """x of the threshold."""
    present: float | None
    """x of the one before."""
    width: int = 760
    height: int = 240
    left: int = 56
    right: int = 750
    top: int = 12
    bottom: int = 200


def histogram_chart(
    edges: Sequence[float], counts: Sequence[float], at: float, keeps_above: bool, present: float | None, axis: str
) -> HistogramChart:
    """edges (k + 1,) and counts (k,) of bins of one width; `keeps_above`: whether rows above `at` are kept. A bin that
    holds the threshold is drawn in two parts."""
    left, right, top, bottom = (getattr(HistogramChart, name) for name in ("left", "right", "top", "bottom"))
    low, span = edges[0], max(edges[-1] - edges[0], 1e-300)
    high = max([*counts, 0.0]) * 1.05 or 1.0

    def x(value: float) -> float:
        return round(left + (right - left) * min(max((value - low) / span, 0.0), 1.0), 1)

    def y(value: float) -> float:
        return round(bottom - (bottom - top) * value / high, 1)

    bars = []
    for place, value in enumerate(counts):
        first, last = edges[place], edges[place + 1]
        text = f"{first:.10g} to {last:.10g}: {value:,.0f} rows"
        for start, stop in ((first, min(last, at)), (max(first, at), last)):
            if start < stop and value:
                style = "kept" if (start >= at) == keeps_above else "lost"
                bars.append(
                    (
                        x(start),
                        y(value),
                        round(max(x(stop) - x(start) - 1, 0.6), 1),
                        round(bottom - y(value), 1),
                        style,
                        text,
                    )
                )
    step = round_step(span, 8)
    first_tick = math.ceil(low / step - 1e-9)
    ticks = [place * step for place in range(first_tick, math.floor(edges[-1] / step + 1e-9) + 1)]
    return HistogramChart(
        bars, [(x(tick), f"{tick:,.10g}") for tick in ticks],
        [(y(tick), _few(tick)) for tick, _ in linear_ticks(high, 4)],
        axis, x(at), None if present is None else x(present),
    )  # fmt: skip


def _few(value: float) -> str:
    """12,500,000 as 12.5M, for axes only."""
    size, unit = next(
        ((size, unit) for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= 10 * size), (1, "")
    )
    return f"{value / size:,.10g}{unit}"
