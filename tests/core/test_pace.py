"""How often something may start."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.pace import SLACK_SECONDS, Pace

EPSILON = 1e-9
waits = st.lists(st.floats(0.0, 2.0), min_size=2, max_size=40)
rates = st.floats(0.1, 100.0)


def starts_of(pace: Pace, late: list[float]) -> list[float]:
    """Start as soon as allowed, and then some seconds late."""
    now, starts = 0.0, []
    for seconds in late:
        now += pace.wait(now) + seconds
        pace.take(now)
        starts.append(now)
    return starts


@given(rates, waits)
def test_starts_are_as_far_apart_as_the_rate_says(rate: float, late: list[float]) -> None:
    starts = starts_of(Pace(rate), late)
    for first, start in enumerate(starts):
        for more, later in enumerate(starts[first:]):
            assert later - start >= more / rate - SLACK_SECONDS - EPSILON


@given(st.floats(0.1, 20.0))
def test_small_delays_do_not_lower_the_mean_rate(rate: float) -> None:
    late = SLACK_SECONDS * 0.9
    starts = starts_of(Pace(rate), [late if place % 3 == 1 else 0.0 for place in range(101)])
    assert starts[-1] - starts[0] <= 100 / rate + SLACK_SECONDS + EPSILON


@given(rates, rates, st.floats(0.0, 1.0))
def test_a_change_keeps_what_is_owed(before: float, after: float, part: float) -> None:
    pace = Pace(before)
    pace.take(1.0)
    now = 1.0 + part * pace.wait(1.0)
    owed = pace.wait(now) * before
    pace.change(after, now)
    assert pace.wait(now) * after == pytest.approx(owed, abs=1e-6)


def test_without_a_rate_any_may_start_and_at_zero_none() -> None:
    pace = Pace(None)
    pace.take(1.0)
    assert pace.wait(1.0) == 0.0
    pace.change(0.0, 1.0)
    assert pace.wait(1e9) == math.inf
    pace.change(2.0, 2.0)
    assert pace.wait(2.0) == 0.0


def test_resuming_and_correction() -> None:
    pace = Pace(2.0)
    pace.resume(3.0, 10.0)
    assert pace.wait(11.0) == pytest.approx(2.0)
    pace.resume(1.0, 11.0)
    assert pace.wait(11.0) == pytest.approx(2.0)
    pace.take(11.0, -4.0)
    assert pace.wait(11.0) == 0.0
