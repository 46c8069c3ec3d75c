from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curate.html.charts import HEIGHT, LEFT, RIGHT, TOP, LogAxis, heatmap, rank_chart, rank_size, short

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
