"""Many runners, one limiter: what the hosts would see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.acquire.fetch.grants import Grants
from curate.acquire.fetch.line import Host
from curate.core.pace import SLACK_SECONDS
from curate.engine.workers.shares import EXCHANGE_SECONDS
from tests.acquire.fetch.simulation import PATIENCE, World

EPSILON = 1e-6


def assert_polite(world: World) -> None:
    assert max(world.most.values(), default=0) <= world.connections
    if world.rate is None:
        return
    for host, starts in world.starts.items():
        for first, start in enumerate(starts):
            for count, last in enumerate(starts[first:], 1):
                allowed = 1 + world.rate * (last - start + SLACK_SECONDS)
                assert count <= allowed + EPSILON, (host, start, last, count)


hosts = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30)


@given(
    rows=st.lists(hosts, min_size=1, max_size=12),
    connections=st.integers(1, 6),
    rate=st.one_of(st.none(), st.floats(0.4, 30.0)),
    deaths=st.integers(0, 3),
    seed=st.integers(0, 2**16),
)
def test_limits_hold_and_every_row_is_done(
    rows: list[list[str]], connections: int, rate: float | None, deaths: int, seed: int
) -> None:
    world = World(connections, rate, rows, seed=seed, deaths=deaths).run()
    assert_polite(world)
    for runner in world.runners:
        assert runner.done == len(runner.rows) or not runner.alive
    assert not any(world.active.values())


def parking(seconds: float, runners: int) -> tuple[World, float, float]:
    """(world at the end, when its first runner heard that a host is parked, when all others had)."""
    world = World(4, None, [["a", "b"] * 30] * runners, request_seconds=(0.1, 0.2))
    world.runners[0].parks["a"] = seconds
    parked: list[float] = []
    world.runners[0].when_parked = lambda: parked.append(world.now)
    world.run()
    # One exchange of the runner that parks, and one of theirs.
    return world, parked[0], parked[0] + 2 * (EXCHANGE_SECONDS + 2 * world.latency_seconds[1])


def test_a_park_holds_for_every_runner() -> None:
    world, parked, heard = parking(20.0, 6)
    assert not [start for start in world.starts["a"] if heard < start < parked + 20.0]
    assert [start for start in world.starts["b"] if heard < start < parked + 20.0]
    assert all(runner.done == 60 for runner in world.runners)


def test_rows_of_a_host_that_is_parked_for_long_are_answered_in_every_runner() -> None:
    world, _, heard = parking(10 * PATIENCE, 6)
    assert not [start for start in world.starts["a"] if heard < start]
    assert all(runner.done == 60 for runner in world.runners)
    assert world.now < PATIENCE


@pytest.mark.long
def test_two_runners_share_a_host_and_fifty_take_turns() -> None:
    for runners, connections in ((2, 4), (50, 4), (50, 1)):
        world = World(connections, None, [["a"] * 60] * runners, request_seconds=(0.1, 0.1)).run()
        assert_polite(world)
        starts = world.starts["a"]
        assert len(starts) == 60 * runners
        rate = (len(starts) - 1) / (starts[-1] - starts[0])
        assert rate > 0.6 * connections / 0.1


def test_a_rate_holds_from_owner_to_owner() -> None:
    world = World(1, 2.0, [["a"] * 4] * 50, request_seconds=(0.01, 0.02)).run()
    assert_polite(world)
    starts = world.starts["a"]
    assert (len(starts) - 1) / (starts[-1] - starts[0]) > 0.6 * 2.0


def test_a_seat_passes_on_although_its_owner_needs_it_again() -> None:
    """Between two requests nothing is in flight, so the owner gives the seat back and asks for it again."""
    world = World(1, 1.0, [["a"] * 100] * 3, request_seconds=(0.001, 0.002)).run(60.0)
    assert_polite(world)
    assert min(runner.done for runner in world.runners) > 10


def test_a_seat_is_given_back_with_the_park_of_its_host() -> None:
    grants, host = Grants(1), Host("a", 0, 1.0)
    host.rows.append((0, 0))
    grants.add(host)
    assert grants.asks(0.0) == {"host/a": {"holds": 0, "needs": 1}}
    grants.heard({"a": (1, 1.0, 0.0)}, 0.0)
    host.parked = 61.0
    assert grants.asks(1.0) == {"host/a": {"holds": 0, "needs": 0, "wait": 60.0}}
    assert grants.asks(1.1) == {"host/a": {"holds": 0, "needs": 1}}
