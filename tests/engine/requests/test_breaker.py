"""When a URL gets no more requests, and when it is tried again. No real time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.engine.requests.breaker import FIRST_PAUSE, LONGEST_PAUSE, OPENS_AFTER, Breaker


def opened() -> Breaker:
    breaker = Breaker()
    assert [breaker.failed(request, 0.0) for request in range(OPENS_AFTER)] == [False] * (OPENS_AFTER - 1) + [True]
    return breaker


def test_one_request_that_always_fails_does_not_open_it() -> None:
    breaker = Breaker()
    assert not any(breaker.failed("bad image", float(time)) for time in range(100))
    assert not breaker.open and breaker.wait(100.0) == 0.0


def test_no_connection_opens_it_even_for_one_request() -> None:
    breaker = Breaker()
    assert [breaker.failed("request", 0.0, unreached=True) for _ in range(3)] == [False, False, True]


def test_an_answer_in_between_keeps_it_closed() -> None:
    breaker = Breaker()
    for request in range(100):
        assert not breaker.failed(f"bad {request}", 0.0) and not breaker.failed(f"worse {request}", 0.0)
        breaker.succeeded()


def test_one_probe_at_a_time_and_growing_pauses() -> None:
    breaker, now, pause = opened(), 0.0, FIRST_PAUSE
    for request in range(10):
        assert breaker.wait(now) == pytest.approx(pause)
        now += pause
        assert breaker.wait(now) == 0.0
        breaker.started(request)
        assert breaker.wait(now) is None
        assert not breaker.failed("begun before it opened", now) and breaker.wait(now) is None
        assert not breaker.failed(request, now)
        pause = min(2 * pause, LONGEST_PAUSE)
    assert pause == LONGEST_PAUSE


def test_a_probe_that_is_answered_closes_it() -> None:
    breaker = opened()
    breaker.started("probe")
    breaker.succeeded()
    assert not breaker.open and breaker.wait(0.0) == 0.0
    assert not breaker.failed("one", 0.0)


def test_a_probe_that_is_cancelled_leaves_its_place() -> None:
    breaker = opened()
    breaker.started("probe")
    breaker.left("probe")
    assert breaker.open and breaker.wait(FIRST_PAUSE) == 0.0


def test_a_probe_that_gets_another_status_closes_it_too() -> None:
    """429: the server is there. It is not to say that it answers others."""
    breaker = opened()
    breaker.started("probe")
    breaker.alive()
    assert not breaker.open and not breaker.only("probe")


def test_a_request_is_at_fault_if_others_are_answered() -> None:
    breaker = Breaker()
    breaker.failed("bad image", 0.0)
    assert not breaker.only("bad image")  # it has answered nothing yet
    breaker.succeeded()
    breaker.failed("bad image", 0.0)
    assert breaker.only("bad image")
    breaker.failed("another", 0.0)
    assert not breaker.only("bad image")


@given(st.lists(st.tuples(st.sampled_from("sfuln"), st.integers(0, 5)), max_size=200))
def test_it_never_locks_up(steps: list[tuple[str, int]]) -> None:
    """With no probe on its way, a request may start after a pause at most; and it opens only after
    failures of several requests or of connections, without an answer in between."""
    breaker, now, begun, failed, unreached = Breaker(), 0.0, set[int](), set[int](), 0
    for what, request in steps:
        now += 0.1
        if what == "n" and breaker.wait(now) == 0.0:
            breaker.started(request)
            begun.add(request)
        elif what in "fu" and request in begun:
            begun.discard(request)
            failed.add(request)
            unreached += what == "u"
            breaker.failed(request, now, unreached=what == "u")
        elif what == "s" and request in begun:
            begun.discard(request)
            failed, unreached = set(), 0
            breaker.succeeded()
        elif what == "l" and request in begun:
            begun.discard(request)
            breaker.left(request)
        if breaker.open:
            assert len(failed) >= OPENS_AFTER or unreached >= OPENS_AFTER
        wait = breaker.wait(now)
        assert (wait is None and begun) or (wait is not None and wait <= LONGEST_PAUSE)
