from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.html.charts import (
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    LogAxis,
    heatmap,
    linear_ticks,
    rank_chart,
    rank_size,
    share_chart,
    short,
    time_chart,
)

sizes = st.lists(st.integers(0, 10**6), max_size=60).map(lambda values: np.array(values, dtype=np.int64))


def test_curves_stay_inside_the_chart():
    chart = rank_chart([("before", "before", np.array([1000, 10, 1])), ("after", "after", np.array([3, 3, 0]))])
    for curve in chart.curves:
        points = [tuple(map(float, point.split(","))) for point in curve.path.split()]
        assert all(LEFT <= x <= RIGHT and TOP <= y <= HEIGHT for x, y in points)
    assert chart.curves[0].path.startswith(f"{float(LEFT)},")
    assert "rank 3 holds 1" in chart.curves[0].dots[-1][2]


def test_a_flat_curve_is_flat():
    (curve,) = rank_chart([("after", "after", np.full(9, 4))]).curves
    assert len({point.split(",")[1] for point in curve.path.split()}) == 1


def test_empty_groups_give_an_empty_chart():
    assert [curve.path for curve in rank_chart([("before", "before", np.zeros(3, np.int64))]).curves] == [""]


def test_ticks_are_powers_of_ten_with_steps_between_if_there_is_room():
    assert [label for _, label in LogAxis(30, 0, 1).ticks()] == ["1", "2", "5", "10", "20"]
    assert [label for _, label in LogAxis(25_000, 0, 1).ticks()] == ["1", "10", "100", "1k", "10k"]
    assert short(20_000_000) == "20M"


@given(sizes, st.integers(2, 30))
def test_rank_size_keeps_both_ends_and_falls(values, points):
    ranks, found = rank_size(values, points)
    held = np.sort(values[values > 0])[::-1]
    assert len(ranks) <= points
    assert (np.diff(found) <= 0).all()
    if len(held):
        assert (ranks[0], ranks[-1]) == (1, len(held))
        assert (found == held[ranks - 1]).all()


def test_a_heatmap_has_a_cell_per_value_and_a_name_per_group():
    rows = [
        ("layer 1", "expert 1.0", [0.5, None]),
        ("layer 1", "expert 1.1", [-0.1, 1.2]),
        ("layer 2", "expert 2.0", [0.0, 1.0]),
    ]
    chart = heatmap(rows, [("layer 1", "1"), ("output", "out")])
    assert [name for _, name in chart.rows] == ["layer 1", "layer 2"]
    assert [share for _, _, share, _ in chart.cells] == [0.5, 0.0, 1.0, 0.0, 1.0]
    assert chart.cells[-1][3] == "expert 2.0, output: 1.00"
    assert all(x + chart.cell[0] <= chart.width and y + chart.cell[1] <= chart.height for x, y, _, _ in chart.cells)


def test_rates_over_time_are_steps():
    chart = time_chart([("URLs", "before", [4.0, 2.0]), ("Images", "after", [2.0, 0.0])], 10, "per second")
    assert (chart.x_axis, chart.y_axis) == ("seconds", "per second")
    assert chart.x_ticks == [(44.0, "0"), (135.5, "5"), (227.0, "10"), (318.5, "15"), (410.0, "20")]
    assert [text for _, text in chart.y_ticks] == ["0", "1", "2", "3", "4"]
    urls, images = chart.curves
    assert urls.path == "44.0,19.5 227.0,19.5 227.0,114.8 410.0,114.8"
    assert images.path.split()[-1] == "410.0,210.0" and images.dots[0][2] == "Images: 2 per second after 0 seconds"


@pytest.mark.parametrize(
    ("periods", "period", "unit", "last"),
    [(1, 10, "seconds", "10"), (240, 10, "minutes", "40"), (100, 5120, "days", "5")],
)
def test_the_unit_of_time_fits_the_span(periods, period, unit, last):
    chart = time_chart([("MB", "after", [1.0] * periods)], period, "MB per second")
    assert (chart.x_axis, chart.x_ticks[-1][1]) == (unit, last)
    assert len(chart.curves[0].dots) <= 48


@given(st.floats(1e-9, 1e12))
def test_ticks_are_round_and_few(high):
    ticks = linear_ticks(high)
    assert 2 <= len(ticks) <= 7 and ticks[0] == (0, "0") and ticks[-1][0] <= high * (1 + 1e-6)


def test_a_distribution_is_in_shares_of_the_texts_it_has():
    chart = share_chart([("a", "before", np.array([0, 1, 1, 3])), ("b", "after", np.array([3]))], "words")
    assert (chart.x_axis, chart.y_axis) == ("words", "% of texts")
    assert [text for _, _, text in chart.curves[0].dots] == [
        "a: 25 % with 0 words", "a: 50 % with 1 words", "a: 0 % with 2 words", "a: 25 % with 3 or more words",
    ]  # fmt: skip
    assert chart.curves[1].dots[-1][2] == "b: 100 % with 3 or more words"


@given(st.lists(st.integers(0, 20), min_size=1, max_size=200))
def test_the_shares_of_a_distribution_add_up(counts):
    chart = share_chart([("a", "after", np.array(counts))], "words")
    assert sum(float(text.split()[1]) for _, _, text in chart.curves[0].dots) == pytest.approx(100, abs=1)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200))
def test_a_distribution_has_few_steps_inside_the_chart(counts):
    chart = share_chart([("a", "after", np.array(counts))], "words")
    points = [tuple(map(float, point.split(","))) for point in chart.curves[0].path.split()]
    assert len(points) <= 80
    assert all(LEFT <= x <= RIGHT and TOP <= y <= HEIGHT for x, y in points)


def test_a_chart_of_nothing():
    assert share_chart([("a", "after", np.zeros(0, np.int64))], "words").curves[0].dots == [
        (227.0, 210.0, "a: 0 % with 0 or more words")
    ]
    chart = time_chart([("MB", "after", [])], 10, "MB per second")
    assert chart.curves[0].path == "" and chart.curves[0].dots == []
