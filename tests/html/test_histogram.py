"""Bars of a histogram on both sides of a threshold."""

from __future__ import annotations

import pytest

from curate.html.histogram import HistogramChart, histogram_chart

EDGES = [0.0, 1.0, 2.0, 3.0, 4.0]


def area(chart: HistogramChart, style: str) -> float:
    return sum(width * height for _, _, width, height, kind, _ in chart.bars if kind == style)


@pytest.mark.parametrize(("keeps_above", "kept"), [(True, 2), (False, 2)])
def test_bars_are_kept_or_lost(keeps_above: bool, kept: int) -> None:
    chart = histogram_chart(EDGES, [10, 20, 30, 40], 2.0, keeps_above, 1.0, "score")
    styles = [style for *_, style, _ in chart.bars]
    assert styles == (["lost", "lost", "kept", "kept"] if keeps_above else ["kept", "kept", "lost", "lost"])
    tops = [y for _, y, *_ in chart.bars]
    assert tops == sorted(tops, reverse=True) and all(
        y + height == pytest.approx(chart.bottom) for _, y, _, height, *_ in chart.bars
    )
    assert chart.at == pytest.approx((chart.left + chart.right) / 2) and chart.present is not None


def test_a_bin_with_the_threshold_is_drawn_in_two_parts() -> None:
    chart = histogram_chart(EDGES, [0, 0, 10, 0], 2.25, True, None, "score")
    (first, second) = chart.bars
    assert (first[4], second[4]) == ("lost", "kept") and second[2] == pytest.approx(3 * first[2], rel=0.05)
    assert first[5] == second[5] == "2 to 3: 10 rows"


def test_nothing_to_draw() -> None:
    chart = histogram_chart([0.0, 1.0], [0], 5.0, True, None, "score")
    assert chart.bars == [] and chart.at == chart.right and chart.x_ticks
