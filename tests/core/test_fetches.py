"""Summaries of fetches: sums, rankings of hosts, rates over time."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from curate.core.contracts import Fetch
from curate.core.fetches import FETCHED, LEAST_FETCHES, PERIODS, RANKED, Fetches, Host, opt_outs

CODES = [FETCHED, ("error", "dns"), ("unusable", "http_404")]
some = st.tuples(
    st.sampled_from(CODES),
    st.sampled_from(["a.org", "b.org", ""]),
    st.integers(1, 5),
    st.integers(0, 1000),
    st.floats(0, 1e6),
)


def counted(fetches: list[tuple[Any, ...]]) -> Fetches:
    found = Fetches()
    for code, host, tries, size, now in fetches:
        found.count(Fetch(host, tries, 0.5, size), code, now)
    return found


def plain(found: Fetches) -> tuple[Any, ...]:
    per_period = sum((Counter(dict(enumerate(counts))) for counts in found.periods.values()), Counter[int]())
    return found.codes, found.tries, found.bytes, found.hosts, per_period


@given(st.lists(some), st.lists(some))
def test_parts_add_up_to_the_whole(one: list[Any], other: list[Any]) -> None:
    whole, sum_of = counted([*one, *other]), Fetches()
    for part in (one, other):
        sum_of.add(counted(part).to_json())
    assert plain(sum_of) == plain(whole)
    assert Fetches.from_json(whole.to_json()).to_json() == whole.to_json()
    assert whole.total == len(one) + len(other) and bool(whole) == bool(one or other)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=600))
def test_rates_have_bounded_memory_and_lose_nothing(times: list[float]) -> None:
    found = counted([(FETCHED, "a.org", 1, 7, now) for now in times])
    assert len(found.periods) <= PERIODS
    assert [sum(column) for column in zip(*found.periods.values(), strict=True)] == [
        len(times), len(times), 7 * len(times)
    ]  # fmt: skip


def test_a_pause_between_two_runs_does_not_make_periods_longer() -> None:
    found = counted([(FETCHED, "a.org", 1, 7, now) for now in (0, 5, 15, 7e7, 7e7 + 10)])
    assert found.period == 10 and len(found.periods) == 4


def test_a_fetch_counts_when_it_ended_and_time_without_one_counts_too() -> None:
    """A portion took 65 s: 100 images in its first 9 s, then a host that drips."""
    portion = Fetches()
    for number in range(100):
        portion.count(Fetch("a.org", ended=1000.0 + number / 11), FETCHED)
    portion.count(Fetch("drips.org", seconds=60.0, ended=1062.0), ("error", "deadline"))
    portion.cover(1000.0, 1065.0)
    assert {place: counts[0] for place, counts in portion.periods.items()} == {
        100: 100, 101: 0, 102: 0, 103: 0, 104: 0, 105: 0, 106: 1
    }  # fmt: skip
    whole = Fetches()
    for began in (1000.0, 9e8):  # in two runs: the pause between them does not count
        portion = Fetches()
        portion.count(Fetch("a.org", ended=began), FETCHED)
        portion.cover(began, began + 35)
        whole.add(portion.to_json())
    assert len(whole.periods) == 8 and whole.total == 2


@given(st.floats(0, 1e9), st.floats(0, 1e5))
def test_a_long_time_has_bounded_memory(began: float, seconds: float) -> None:
    found = counted([(FETCHED, "a.org", 1, 7, began), (FETCHED, "a.org", 1, 7, began + seconds)])
    found.cover(began, began + seconds)
    places = sorted(found.periods)
    assert places == list(range(places[0], places[0] + len(places))) and len(places) <= PERIODS
    assert places[0] == began // found.period and places[-1] == (began + seconds) // found.period


def test_rankings_of_hosts() -> None:
    found = Fetches()
    found.hosts = {f"{n:03d}.org": Host(done=100 - n, failed=n, seconds=float(n)) for n in range(100)}
    found.hosts |= {"rare.org": Host(done=LEAST_FETCHES - 1, seconds=1e6), "often.org": Host(done=9999)}
    assert list(found.failing())[:2] == ["099.org", "098.org"] and len(found.failing()) == RANKED
    assert list(found.slowest(1)) == ["099.org"], "a mean of few fetches is chance"
    assert list(found.busiest(1)) == ["often.org"]
    kept = found.to_json(hosts=1)["hosts"]
    assert set(kept) == {"often.org", *found.failing(), *found.slowest()}
    assert not Fetches().slowest() and not Fetches().failing()


def test_opt_outs_are_counted_by_how_hosts_say_so() -> None:
    codes = {FETCHED: 5, ("unusable", "opt_out_content_usage"): 2, ("unusable", "robots_txt"): 1, ("error", "dns"): 3}
    assert opt_outs(codes) == {"opt_out_content_usage": 2, "robots_txt": 1}
