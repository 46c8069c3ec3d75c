from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from curate.caption.compare.statistics import Interval, Wins, mean_interval, paired, wilson


@given(st.integers(1, 3000).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_wilson_equals_scipy(pair: tuple[int, int]) -> None:
    wins, trials = pair
    found = wilson(wins, trials)
    expected = binomtest(wins, trials).proportion_ci(0.95, "wilson")
    assert found is not None and found.value == wins / trials
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_no_trials_have_no_share() -> None:
    assert wilson(0, 0) is None
    assert Wins(0, 0, 4, 2).rate is None


def test_ties_and_inconsistent_verdicts_have_no_winner() -> None:
    wins = Wins(a=20, b=60, ties=15, inconsistent=5)
    assert wins.judged == 100
    assert wins.rate == wilson(60, 80)
    assert wins.rate is not None and wins.rate.excludes(0.5)


def test_the_interval_of_a_mean_covers_it_in_95_percent_of_cases() -> None:
    """The count of 400 samples of which 95 % cover is within 5 standard deviations of 380."""
    random = np.random.default_rng(1)
    samples = random.exponential(1.0, (400, 60))
    found = [mean_interval(sample) for sample in samples]
    covered = sum(one.low <= 1 <= one.high for one in found if one is not None)
    assert 358 <= covered <= 400


def test_an_interval_of_a_mean_does_not_depend_on_chance() -> None:
    values = np.random.default_rng(2).normal(0, 1, 300)
    one = mean_interval(values, seed=3)
    assert one == mean_interval(values, seed=3) and one != mean_interval(values, seed=4)
    assert one is not None and one.low < one.value < one.high
    half = 1.96 * values.std() / np.sqrt(300)
    assert (one.low, one.high) == pytest.approx((one.value - half, one.value + half), abs=0.02)
    assert mean_interval(np.zeros(0)) is None
    assert mean_interval(np.full(5, 2.0)) == Interval(2, 2, 2)


def test_differences_are_paired() -> None:
    """The samples vary far more than the difference does."""
    a = np.random.default_rng(5).normal(0, 100, 200)
    found = paired(a, a + np.random.default_rng(6).normal(1, 0.1, 200))
    assert found is not None and found.difference.excludes(0)
    assert found.difference.value == pytest.approx(found.b - found.a)


def test_pairs_with_a_missing_value_are_left_out() -> None:
    found = paired(np.array([1.0, np.nan, 3.0]), np.array([2.0, 5.0, np.nan]))
    assert found is not None and (found.pairs, found.a, found.b, found.difference.value) == (1, 1, 2, 1)
    assert paired(np.array([np.nan]), np.array([1.0])) is None
