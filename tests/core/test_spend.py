"""Sums of what requests cost, and how they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.spend import Ceilings, RunSpend, Spend, combined, dollars, words

SPENDS = st.builds(
    Spend,
    st.integers(0, 10**9),
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.integers(0, 10**9),
    dollars=st.none() | st.integers(0, 10**6).map(float),
)


@given(SPENDS, SPENDS)
def test_what_is_added_can_be_taken_away(one: Spend, other: Spend) -> None:
    assert one + other == other + one and one + Spend() == one
    rest = (one + other) - other
    assert (rest.requests, rest.tokens, rest.estimated) == (one.requests, one.tokens, one.estimated)
    assert Spend.from_json(one.to_json()) == one
    assert not one - (one + other)


def test_a_missing_price_is_not_zero() -> None:
    assert (Spend(1, dollars=1.0) + Spend(1, dollars=None)).dollars is None
    assert (Spend(1, dollars=1.0) + Spend(1)).dollars == 1.0


def test_a_run_is_the_sum_of_its_stages() -> None:
    run = RunSpend({"a": {"x": Spend(1, 10, 5), "y": Spend(2, 20, 6)}, "b": {"x": Spend(3, 30, 7)}})
    assert run.endpoints == {"x": Spend(4, 40, 12), "y": Spend(2, 20, 6)} and run.total == Spend(6, 60, 18)
    assert RunSpend.from_json(run.to_json()) == run
    assert combined({"x": Spend(1)}, {"y": Spend(2)}) == {"x": Spend(1), "y": Spend(2)}


@pytest.mark.parametrize(
    ("amount", "said"),
    [(0.0, "$0.00"), (0.00042, "$0.0004"), (0.5, "$0.5000"), (1.266, "$1.27"), (3100.4, "$3,100")],
)
def test_dollars_as_text(amount: float, said: str) -> None:
    assert dollars(amount) == said


def test_spending_as_text() -> None:
    assert words(Spend(1, 3400, 560, dollars=0.0042)) == "1 request, 3,400 tokens in, 560 out, $0.0042"
    told = words(Spend(2, 10, 5, 1, None, 7, 3))
    said = "about 10 tokens more for 1 request whose tokens were not reported"
    assert told == f"2 requests, 10 tokens in, 5 out, no price given; {said}"
    assert ", $1.50; about 10 tokens, $0.2500 more for 1 request " in words(Spend(2, 10, 5, 1, 1.5, 7, 3, 0.25))


def test_the_ceiling_that_is_closest_is_named() -> None:
    spend = Spend(5, 800, 100, 1, 0.3, 90, 10, 0.1)  # the estimate counts
    assert Ceilings(1000, 2.0).words(spend) == "1,000 tokens are spent, --max-tokens is 1,000"
    assert Ceilings(10000, 0.4).words(spend) == "$0.4000 is spent, --max-dollars is 0.4"
    assert not Ceilings() and Ceilings(tokens=1)
