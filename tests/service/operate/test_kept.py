"""Results that take long: once at a time, kept for a while, and no request waits indefinitely."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from curate.core.errors import InputError
from curate.service import kept
from curate.service.kept import Kept
from curate.service.problems import TooManyProblem, UnavailableProblem


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
    assert results.get("a", made, "a", seconds=600) == 1
    clock.now += 600
    assert results.get("a", made, "a", seconds=600) == 1
    clock.now += 1
    assert results.get("a", made, "a", seconds=600) == 2
    assert results.get("b", made, "b", seconds=600) == 3


def test_a_result_that_was_made_for_a_short_while_is_not_kept_longer() -> None:
    clock, made = Clock(), Made()
    results = Kept(clock=clock)
    assert results.get("a", made, "a", seconds=15) == 1
    clock.now += 16
    assert results.get("a", made, "a", seconds=600) == 2


def test_memory_of_old_results_is_freed() -> None:
    clock, freed = Clock(), list[str]()
    results = Kept(clock=clock)
    weakref.finalize(results.get("a", Made, "a", seconds=30), freed.append, "a")
    weakref.finalize(results.get("b", Made, "b", seconds=60), freed.append, "b")
    clock.now += 31
    results.get("c", Made, "c")
    assert freed == ["a"]


def test_fresh_is_computed_after_it_was_asked_for() -> None:
    clock, made = Clock(), Made()
    results = Kept(clock=clock)
    assert results.get("a", made, "a") == 1
    clock.now += 1
    assert results.get("a", made, "a", fresh=True) == 2
    results.drop("a")
    assert results.get("a", made, "a") == 3


def test_a_fresh_result_is_not_one_that_had_begun_before() -> None:
    clock, made = Clock(), Made()
    results = Kept(clock=clock)
    made.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(results.get, "a", made, "a")
        assert made.begun.wait(60)
        clock.now += 1
        second = pool.submit(results.get, "a", made, "a", fresh=True)
        made.gate.set()
        assert (first.result(60), second.result(60)) == (1, 2)


def test_callers_at_the_same_time_wait_for_one_computation() -> None:
    made = Made()
    results = Kept()
    made.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(results.get, "a", made, "a") for _ in range(8)]
        assert made.begun.wait(60)
        made.gate.set()
        assert [one.result(60) for one in asked] == [1] * 8


def test_a_request_stops_waiting_but_the_computation_continues() -> None:
    made = Made()
    made.gate.clear()
    results = Kept(wait=0.01)
    with pytest.raises(UnavailableProblem, match=r"storage of main: not known after 0.01 s; ask again"):
        results.get("a", made, "storage of main")
    made.gate.set()
    entry = results._running.get("a")
    if entry is not None:
        assert entry.future.result(60) == 1
    assert results.get("a", made, "storage of main") == 1


def test_an_error_reaches_everybody_and_is_not_kept() -> None:
    results, count = Kept(), [0]

    def fails() -> int:
        count[0] += 1
        raise InputError("no such run")

    for _ in range(2):
        with pytest.raises(InputError, match="no such run"):
            results.get("a", fails, "a")
    assert count == [2]


def test_computations_under_way_are_bounded() -> None:
    made = Made()
    made.gate.clear()
    results = Kept(wait=0.0)
    for key in range(kept.WAITING):
        with pytest.raises(UnavailableProblem):
            results.get(key, made, "a")
    with pytest.raises(TooManyProblem):
        results.get("one more", made, "a")
    made.gate.set()


def test_results_are_bounded() -> None:
    results = Kept()
    for key in range(kept.RESULTS + 5):
        results.get(key, int, "a")
    assert len(results._results) == kept.RESULTS


def test_soon_does_not_wait() -> None:
    made = Made()
    made.gate.clear()
    results = Kept()
    assert results.soon("a", made, "a") is None and results.soon("a", made, "a") is None
    made.gate.set()
    assert results.get("a", made, "a") == 1 == results.soon("a", made, "a")
    assert made.count == 1
