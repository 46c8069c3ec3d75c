from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from curate.report.charts import HEIGHT, LEFT, RIGHT, TOP, LogAxis, rank_chart, short
from curate.report.format import duration, number, percent, printable, size
from curate.report.page import keeper_of, label_table, level_title
from curate.report.rows import LabelCounts


def test_bars_of_labels_are_shares_of_the_greatest_on_show():
    labels = LabelCounts()
    labels.add(pa.array(["a"] * 6 + ["b"] * 4), np.array([0] * 6 + [1] * 4))
    table = label_table(labels, selected=True)
    assert table is not None
    assert [(bar.name, bar.before, bar.after) for bar in table.bars] == [("a", 6, 0), ("b", 4, 4)]
    assert [bar.before_width for bar in table.bars] == pytest.approx([60, 40])
    assert [bar.after_width for bar in table.bars] == pytest.approx([0, 100])


def test_labels_that_are_not_shown_are_added_up():
    labels = LabelCounts()
    labels.add(pa.array([f"{n:02}" for n in range(40)]), np.full(40, 2))
    table = label_table(labels, selected=True)
    assert table is not None
    assert (len(table.bars), table.rest, table.total) == (15, (25, 25, 50), (40, 80))


def test_no_labels_make_no_table():
    assert label_table(LabelCounts(), selected=True) is None


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


def test_nothing_makes_an_empty_chart():
    assert [curve.path for curve in rank_chart([("before", "before", np.zeros(3, np.int64))]).curves] == [""]


def test_ticks_are_powers_of_ten_with_steps_between_where_there_is_room():
    assert [label for _, label in LogAxis(30, 0, 1).ticks()] == ["1", "2", "5", "10", "20"]
    assert [label for _, label in LogAxis(25_000, 0, 1).ticks()] == ["1", "10", "100", "1k", "10k"]
    assert short(20_000_000) == "20M"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(1234567), "1,234,567"),
        (number(0.5), "0.50"),
        (number(2.5, 1), "2.5"),
        (number(12.34), "12.3"),
        (number(1234.6), "1,235"),
        (percent(1, 8), "12 %"),
        (percent(1, 10_000), "<0.1 %"),
        (percent(999, 1000), "99.9 %"),
        (percent(0, 0), "–"),
        (size(999), "999 bytes"),
        (size(1_234_567), "1.23 MB"),
        (size(3_500_000_000_000_000), "3.50 PB"),
        (duration(0.01), "under 0.1 s"),
        (duration(59.94), "59.9 s"),
        (duration(61), "1 min 01 s"),
        (duration(7290), "2 h 01 min"),
        (printable("a\x00b\nc"), "a\ufffdb\nc"),
        (printable(3), 3),
        (level_title(1, 1), "Clusters"),
        (level_title(2, 3), "Level 2"),
    ],
)
def test_numbers_for_people(shown, expected):
    assert shown == expected


def test_the_keeper_of_a_refused_picture():
    row = {"key": "a", "duplicate_of": None, "semantic_of": None, "reject_reason": None}
    assert keeper_of(row) is None
    assert keeper_of(row | {"duplicate_of": "b", "reject_reason": "near_duplicate"}) == "b"
    both = {"duplicate_of": "b", "semantic_of": "c"}
    assert keeper_of(row | both | {"reject_reason": "semantic_duplicate"}) == "c"
    assert keeper_of(row | {"duplicate_of": "b", "reject_reason": "semantic_duplicate"}) == "b"
    assert keeper_of(row | both | {"reject_reason": "too_small"}) is None
