"""Results that take long: once at a time, kept for a while, and no request waits indefinitely."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.core.errors import InputError
from curate.service import kept
from curate.service.auth.roles import Principal
from curate.service.kept import PAGE, QUESTION, Kept, Slots
from curate.service.problems import TooManyProblem, UnavailableProblem

ANNE, BORIS = Principal(1, "anne", "t-1"), Principal(2, "boris", "t-2")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Made:
    """Counts how often it is computed; waits while `gate` is closed."""

    def __init__(self) -> None:
        self.count = 0
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self) -> int:
        self.count += 1
        self.begun.set()
        assert self.gate.wait(60)
        return self.count


def test_a_result_is_kept_for_a_while() -> None:
    clock, made = Clock(), Made()
    results = Kept(clock=clock)
    assert results.get(ANNE, "a", made, "a", seconds=600) == 1
    clock.now += 600
    assert results.get(ANNE, "a", made, "a", seconds=600) == 1
    clock.now += 1
    assert results.get(ANNE, "a", made, "a", seconds=600) == 2
    assert results.get(ANNE, "b", made, "b", seconds=600) == 3


def test_a_result_that_was_made_for_a_short_while_is_not_kept_longer() -> None:
    clock, made = Clock(), Made()
    results = Kept(clock=clock)
    assert results.get(ANNE, "a", made, "a", seconds=15) == 1
    clock.now += 16
    assert results.get(ANNE, "a", made, "a", seconds=600) == 2


def test_memory_of_old_results_is_freed() -> None:
    clock, freed = Clock(), list[str]()
    results = Kept(clock=clock)
    weakref.finalize(results.get(ANNE, "a", Made, "a", seconds=30), freed.append, "a")
    weakref.finalize(results.get(ANNE, "b", Made, "b", seconds=60), freed.append, "b")
    clock.now += 31
    results.get(ANNE, "c", Made, "c")
    assert freed == ["a"]


def test_fresh_is_computed_after_it_was_asked_for() -> None:
    clock, made = Clock(), Made()
    results = Kept(clock=clock)
    assert results.get(ANNE, "a", made, "a") == 1
    clock.now += 1
    assert results.get(ANNE, "a", made, "a", fresh=True) == 2
    results.drop("a")
    assert results.get(ANNE, "a", made, "a") == 3


def test_a_fresh_result_is_not_one_that_had_begun_before() -> None:
    clock, made = Clock(), Made()
    results = Kept(clock=clock)
    made.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(results.get, ANNE, "a", made, "a")
        assert made.begun.wait(60)
        clock.now += 1
        second = pool.submit(results.get, ANNE, "a", made, "a", fresh=True)
        made.gate.set()
        assert (first.result(60), second.result(60)) == (1, 2)


def test_callers_at_the_same_time_wait_for_one_computation() -> None:
    made = Made()
    results = Kept()
    made.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(results.get, ANNE, "a", made, "a") for _ in range(8)]
        assert made.begun.wait(60)
        made.gate.set()
        assert [one.result(60) for one in asked] == [1] * 8


def test_a_request_stops_waiting_but_the_computation_continues() -> None:
    made = Made()
    made.gate.clear()
    results = Kept(wait=0.01)
    with pytest.raises(UnavailableProblem, match=r"storage of main: not known after 0.01 s; ask again"):
        results.get(ANNE, "a", made, "storage of main")
    made.gate.set()
    entry = results._running.get("a")
    if entry is not None:
        assert entry.future.result(60) == 1
    assert results.get(ANNE, "a", made, "storage of main") == 1


def test_an_error_reaches_everybody_and_is_not_kept() -> None:
    results, count = Kept(), [0]

    def fails() -> int:
        count[0] += 1
        raise InputError("no such run")

    for _ in range(2):
        with pytest.raises(InputError, match="no such run"):
            results.get(ANNE, "a", fails, "a")
    assert count == [2]


def test_computations_of_a_user_are_bounded() -> None:
    made = Made()
    made.gate.clear()
    results = Kept()
    for key in range(kept.RUNNING // 4):
        assert results.soon(ANNE, key, made, "a", kind=PAGE) is None
    with pytest.raises(TooManyProblem):
        results.get(ANNE, "one more", made, "a")
    made.gate.set()
    assert results.get(BORIS, "another", int, "a") == 0


def test_a_user_leaves_slots_to_others() -> None:
    """And questions leave those of pages alone."""
    slow, quick = Made(), Made()
    slow.gate.clear()
    results = Kept(wait=60.0)
    for key in range(10):
        assert results.soon(ANNE, key, slow, "a", kind=QUESTION) is None
    assert results.get(BORIS, "his", quick, "b", kind=QUESTION) == 1
    assert results.get(ANNE, "page", quick, "b", kind=PAGE) == 2
    assert slow.count <= kept.SLOTS[QUESTION] // 2
    slow.gate.set()


def test_requests_that_wait_leave_threads_to_others() -> None:
    """A user has a quarter of the places."""
    slow, own = Made(), kept.WAITING[QUESTION] // 4
    slow.gate.clear()
    results = Kept(wait=60.0)
    with ThreadPoolExecutor(own + 1) as pool:
        waiting = [pool.submit(results.get, ANNE, "a", slow, "a", kind=QUESTION) for _ in range(own)]
        while len(results._waiting[QUESTION]) < own:
            slow.begun.wait(0.01)
        with pytest.raises(TooManyProblem, match="too many other requests take long"):
            results.get(ANNE, "b", slow, "a", kind=QUESTION)
        with pytest.raises(TooManyProblem), results.turn(ANNE, QUESTION, "export"):
            pass
        assert results.get(ANNE, "page", int, "a") == 0 == results.get(BORIS, "his", int, "a", kind=QUESTION)
        slow.gate.set()
        assert {one.result(60) for one in waiting} == {1}


def test_a_question_without_a_request_that_waits_is_not_computed() -> None:
    slow, made = Made(), Made()
    slow.gate.clear()
    results = Kept(wait=0.01)
    for key in range(kept.SLOTS[QUESTION] // 2):
        assert results.soon(ANNE, key, slow, "a", kind=QUESTION) is None
    with pytest.raises(UnavailableProblem):
        results.get(ANNE, "mine", made, "a", kind=QUESTION)
    began = results._running["mine"].began
    while time.monotonic() - began < 0.02:
        slow.begun.wait(0.01)
    slow.gate.set()
    while results._running:
        slow.begun.wait(0.01)
    assert not made.count


def test_fresh_is_answered_when_it_is_asked_for_again() -> None:
    """Also if it takes longer than a request waits."""
    clock, made = Clock(), Made()
    made.gate.clear()
    results = Kept(wait=0.01, clock=clock)
    with pytest.raises(UnavailableProblem):
        results.get(ANNE, "a", made, "a", fresh=True)
    clock.now += 60
    made.gate.set()
    while results._running:
        made.begun.wait(0.01)
    assert results.get(ANNE, "a", made, "a", fresh=True) == 1
    assert results.get(BORIS, "a", made, "a", fresh=True) == 2


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
)
@settings(max_examples=20, deadline=None)
def test_slots_are_shared(users: list[int], most: int, each: int) -> None:
    """No user has more than theirs, and everybody has a turn."""
    slots, lock, held, peak = Slots(most, each), threading.Lock(), Counter[int](), Counter[int]()

    def work(user: int) -> None:
        with slots.taken(user):
            with lock:
                held[user] += 1
                peak[user], peak[-1] = max(peak[user], held[user]), max(peak[-1], held.total())
            with lock:
                held[user] -= 1

    with ThreadPoolExecutor(len(users)) as pool:
        list(pool.map(work, users))
    assert peak[-1] <= most and all(count <= each for user, count in peak.items() if user >= 0)
    assert set(peak) - {-1} == set(users)


def test_results_are_bounded() -> None:
    results = Kept()
    for key in range(kept.RESULTS + 5):
        results.get(ANNE, key, int, "a")
    assert len(results._results) == kept.RESULTS


def test_soon_does_not_wait() -> None:
    made = Made()
    made.gate.clear()
    results = Kept()
    assert results.soon(ANNE, "a", made, "a") is None and results.soon(ANNE, "a", made, "a") is None
    made.gate.set()
    assert results.get(ANNE, "a", made, "a") == 1 == results.soon(ANNE, "a", made, "a")
    assert made.count == 1
