"""How many requests are in flight, against simulated endpoints. No real time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.engine.requests.window import FIRST, Window

Latency = Callable[[random.Random, float], float]
"""Seconds that a slot needs, at a time."""


@dataclass
class Simulated:
    """An endpoint with some slots and a queue. More requests at once than `capacity` get 429 at once."""

    window: Window
    slots: int
    latency: Latency
    capacity: float = float("inf")
    seed: int = 0
    now: float = 0.0
    busy_seconds: float = 0.0
    limits: list[int] = field(default_factory=list)
    """The limit after each answer."""
    overloads: int = 0

    def run(self, answers: int) -> Simulated:
        """Ask as the window allows, until there are so many answers."""
        draw, free = random.Random(self.seed), [self.now] * self.slots
        under_way: list[tuple[float, int, float, bool]] = []
        goal, retry_at = len(self.limits) + answers, self.now
        while len(self.limits) < goal:
            while self.window.free and self.now >= retry_at:
                number = self.window.begin()
                if len(under_way) >= self.capacity:
                    self.overloads += 1
                    self.window.overloaded(number)
                    retry_at = self.now + 0.05
                    continue
                starts = max(self.now, heapq.heappop(free))
                seconds = self.latency(draw, starts)
                self.busy_seconds += seconds
                heapq.heappush(free, starts + seconds)
                heapq.heappush(under_way, (starts + seconds, number, self.now, True))
            if not under_way or (self.window.free and retry_at < under_way[0][0]):
                self.now = retry_at
                continue
            self.now, number, began, _ = heapq.heappop(under_way)
            self.window.answered(number, self.now - began)
            self.limits.append(self.window.limit)
        return self

    @property
    def busy(self) -> float:
        """Share of the slots in use."""
        return self.busy_seconds / (self.now * self.slots)


def steady(seconds: float) -> Latency:
    return lambda draw, now: seconds


def spread(seconds: float, sigma: float) -> Latency:
    """Log-normal: answers that differ in length."""
    return lambda draw, now: seconds * draw.lognormvariate(-sigma * sigma / 2, sigma)


def test_it_starts_small_and_doubles_per_round_trip() -> None:
    simulated = Simulated(Window(1000), 10_000, steady(0.2))
    assert simulated.window.limit == FIRST
    simulated.run(FIRST)
    assert simulated.window.limit == 2 * FIRST
    simulated.run(2 * FIRST)
    assert simulated.window.limit == 4 * FIRST


@pytest.mark.parametrize("most", [40, 200, 1000])
def test_it_settles_a_little_above_the_slots(most: int) -> None:
    """At least 90 % of the slots are busy over 2,000 rows, the start included."""
    simulated = Simulated(Window(most), 32, steady(0.2)).run(2000)
    assert simulated.busy >= 0.9
    assert min(simulated.limits[500:]) >= 36 and max(simulated.limits[500:]) <= 80


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("seed", range(5))
def test_answers_of_different_lengths_do_not_starve_it(sigma: float, seed: int) -> None:
    simulated = Simulated(Window(1000), 32, spread(0.2, sigma), seed=seed).run(4000)
    assert simulated.busy >= 0.9
    assert simulated.window.limit >= 36


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_it_fills_many_slots(sigma: float) -> None:
    simulated = Simulated(Window(1000), 500, spread(5.0, sigma)).run(20_000)
    assert simulated.busy >= 0.85 and simulated.window.limit >= 400


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_it_stays_near_the_capacity_of_an_endpoint_that_answers_429(sigma: float) -> None:
    simulated = Simulated(Window(1000), 1000, spread(0.2, sigma), capacity=20).run(3000)
    assert min(simulated.limits[500:]) >= 8 and max(simulated.limits[500:]) <= 21
    assert simulated.overloads < 0.1 * 3000


def test_it_returns_when_the_endpoint_has_more_slots_again() -> None:
    simulated = Simulated(Window(200), 100, steady(0.2), capacity=10).run(1000)
    assert simulated.window.limit <= 11
    simulated.capacity = float("inf")
    simulated.run(8000)
    assert simulated.window.limit >= 90


def test_answers_that_take_longer_from_some_time_on_do_not_hold_it_down() -> None:
    """The endpoint is asked for longer texts: every answer takes five times as long, however few are in flight."""
    simulated = Simulated(Window(200), 100, lambda draw, now: 0.2 if now < 10.0 else 1.0, capacity=16).run(1200)
    assert simulated.window.limit <= 17
    simulated.capacity = float("inf")
    simulated.run(12_000)
    assert simulated.window.limit >= 60


def test_requests_that_were_begun_before_it_was_halved_do_not_halve_it_again() -> None:
    window = Window(40)
    numbers = [window.begin() for _ in range(8)]
    window.overloaded(numbers[0])
    assert window.limit == 4
    for number in numbers[1:]:
        window.overloaded(number)
    assert (window.limit, window.in_flight) == (4, 0)
    window.overloaded(window.begin())
    assert window.limit == 2


def test_it_does_not_rise_while_it_is_not_used() -> None:
    window = Window(1000)
    for _ in range(100):
        window.answered(window.begin(), 0.2)
    assert window.limit == FIRST


@settings(max_examples=200)
@given(st.integers(1, 50), st.lists(st.tuples(st.sampled_from("baoe"), st.floats(0.001, 100.0)), max_size=300))
def test_it_stays_within_its_bounds(most: int, steps: list[tuple[str, float]]) -> None:
    """begin, answered, overloaded or ended, in any order."""
    window, begun = Window(most), list[int]()
    for what, seconds in steps:
        if what == "b" and window.free:
            begun.append(window.begin())
        elif what == "a" and begun:
            window.answered(begun.pop(0), seconds)
        elif what == "o" and begun:
            window.overloaded(begun.pop())
        elif what == "e" and begun:
            window.ended(begun.pop())
        assert 1 <= window.limit <= most and window.in_flight == len(begun)
