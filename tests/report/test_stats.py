from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.report.stats import (
    add_at,
    biggest_and_tail,
    entropy_bits,
    fanouts,
    first_per_group,
    gini,
    rank_size,
    spread,
)

sizes = st.lists(st.integers(0, 10**6), max_size=60).map(lambda values: np.array(values, dtype=np.int64))


def test_equal_sizes_have_the_greatest_entropy_and_no_inequality():
    equal = np.full(8, 5)
    assert entropy_bits(equal) == pytest.approx(3.0)
    assert gini(equal) == pytest.approx(0.0)
    assert spread(equal).effective == pytest.approx(8.0)


def test_one_that_has_it_all_is_as_unequal_as_can_be():
    one = np.array([0, 0, 0, 12])
    assert entropy_bits(one) == 0.0
    assert gini(one) == pytest.approx(0.75)
    assert (spread(one).groups, spread(one).empty, spread(one).effective) == (1, 3, 1.0)


def test_gini_of_a_worked_example():
    # mean absolute difference of 1, 2, 3 is 8/9, twice the mean is 4
    assert gini(np.array([3, 1, 2])) == pytest.approx(8 / 9 / 4)


@given(sizes)
def test_spread_stays_in_its_bounds(values):
    found = spread(values)
    assert 0 <= found.gini <= 1
    assert found.groups + found.empty == len(values)
    assert found.total == values.sum()
    assert found.effective <= found.groups * (1 + 1e-9)


@given(sizes, st.integers(2, 30))
def test_rank_size_keeps_both_ends_and_falls(values, points):
    ranks, found = rank_size(values, points)
    held = np.sort(values[values > 0])[::-1]
    assert len(ranks) <= points
    assert (np.diff(found) <= 0).all()
    if len(held):
        assert (ranks[0], ranks[-1]) == (1, len(held))
        assert (found == held[ranks - 1]).all()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=50), st.integers(0, 4))
def test_first_per_group_is_what_sorting_each_group_gives(pairs, count):
    groups = np.array([group for group, _ in pairs], dtype=np.int64)
    order = np.array([value for _, value in pairs], dtype=np.int64)
    found = first_per_group(groups, order, count).tolist()
    expected = []
    for group in sorted(set(groups.tolist())):
        rows = [row for row in range(len(pairs)) if groups[row] == group]
        expected += sorted(rows, key=lambda row: (order[row], row))[:count]
    assert found == expected


@given(st.lists(st.lists(st.integers(0, 300), max_size=20), max_size=6))
def test_add_at_counts_as_bincount_does(parts):
    totals = np.zeros(0, np.int64)
    for part in parts:
        totals = add_at(totals, np.array(part, dtype=np.int64))
    everything = np.array([number for part in parts for number in part], dtype=np.int64)
    expected = np.bincount(everything, minlength=len(totals))
    assert (totals == expected).all()


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 20), st.integers(0, 9))
def test_biggest_and_tail_shows_each_once_and_the_biggest_first(values, count, seed):
    sizes = np.array(values, dtype=np.int64)
    ranks = np.random.default_rng(seed).permutation(len(values)).astype(np.uint64)
    biggest, tail = biggest_and_tail(sizes, ranks, count)
    shown = biggest + tail
    assert len(set(shown)) == len(shown) == min(count, len(values))
    assert [values[place] for place in shown] == sorted((values[place] for place in shown), reverse=True)
    rest = [size for place, size in enumerate(values) if place not in biggest]
    assert all(values[place] >= max(rest, default=0) for place in biggest)


@pytest.mark.parametrize(("levels", "expected"), [(1, [84]), (2, [12, 7]), (3, [12, 3, 3]), (4, [12, 2, 2, 2])])
def test_fanouts_reach_about_the_leaves_asked_for(levels, expected):
    assert fanouts(levels, top=12, leaves=84) == expected
