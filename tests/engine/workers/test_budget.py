"""How budgets and limits per minute are dealt to the clients of endpoints. No real time, no connections."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from curate.core.limits import EndpointLimits
from curate.core.spend import COUNTS
from curate.engine.workers.budget import Budget, EndpointRoom


@dataclass
class Worker:
    """A client that asks for as long as it may, like `Allowance`."""

    room: EndpointRoom
    left: int
    """Requests that it has to make."""
    guess: int = 50
    started: int = 0
    settled: int = 0
    ceiling: int | None = 0
    over: str = ""
    spent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    number: int = field(init=False)

    def __post_init__(self) -> None:
        self.number = self.room.join()

    @property
    def in_flight(self) -> int:
        return self.started - self.settled

    def exchange(self, window: int = 40) -> dict[str, Any]:
        want = min(self.left, max(0, window - self.in_flight))
        if self.ceiling is not None:
            self.ceiling = max(self.started, min(self.ceiling, self.started + want))
        unused = 0 if self.ceiling is None else self.ceiling - self.started
        message = {
            "busy": bool(want or self.in_flight),
            "started": self.started,
            "settled": self.settled,
            "ceiling": self.ceiling,
            "want": max(0, want - unused),
            "guess": [self.guess, 0],
            "spent": dict(self.spent),
        }
        answer = self.room.exchange(self.number, message, 0.0)
        self.ceiling, self.over = answer["ceiling"], answer["over"]
        return answer

    def start(self, window: int = 40) -> bool:
        allowed = self.ceiling is None or self.started < self.ceiling
        if self.over or not self.left or not allowed or self.in_flight >= window:
            return False
        self.started += 1
        self.left -= 1
        return True

    def settle(self, tokens: int) -> None:
        self.settled += 1
        self.spent["requests"] += 1
        self.spent["prompt_tokens"] += tokens


def work(workers: list[Worker], draw: random.Random, cost: tuple[int, int], steps: int = 100_000) -> int:
    """Let workers exchange, start and settle in a random order, until all have ended. Returns the tokens spent. At any
    time, those and the most that requests in flight may cost fit into the budget."""
    for _ in range(steps):
        active = [worker for worker in workers if worker.in_flight or (worker.left and not worker.over)]
        if not active:
            break
        worker = draw.choice(active)
        spent = sum(one.spent["prompt_tokens"] + one.in_flight * one.guess for one in workers)
        assert worker.room._budget.tokens is None or spent <= worker.room._budget.tokens
        kind = draw.random()
        if kind < 0.2:
            worker.exchange()
        elif kind < 0.6:
            worker.start()
        elif worker.in_flight:
            worker.settle(draw.randint(*cost))
    assert not any(worker.in_flight for worker in workers)
    for worker in workers:
        worker.exchange(window=0)
    return sum(worker.spent["prompt_tokens"] for worker in workers)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(500, 20_000),
    st.sampled_from([(50, 50), (1, 99), (10, 30), (40, 400)]),
    st.integers(),
)
def test_a_budget_is_used_up_and_never_exceeded(count: int, tokens: int, cost: tuple[int, int], seed: int) -> None:
    budget = Budget(tokens=tokens)
    room = budget.rooms["local"] = EndpointRoom(EndpointLimits(), budget)
    spent = work([Worker(room, 10_000, guess=cost[1]) for _ in range(count)], random.Random(seed), cost)
    assert tokens - cost[1] < spent <= tokens


def test_a_request_that_may_cost_much_leaves_no_more_than_that_unspent() -> None:
    """Near the ceiling one is in flight at a time; what its answer did not take is free for the next."""
    budget = Budget(tokens=10_000)
    room = budget.rooms["local"] = EndpointRoom(EndpointLimits(), budget)
    assert 8_000 < work([Worker(room, 10_000, guess=2_000)], random.Random(0), (20, 20)) <= 10_000


def test_all_endpoints_share_the_budget() -> None:
    budget = Budget(dollars=1.0)
    dear = budget.rooms["dear"] = EndpointRoom(EndpointLimits(input=100.0), budget)
    cheap = budget.rooms["cheap"] = EndpointRoom(EndpointLimits(input=1.0), budget)
    work([Worker(dear, 10_000), Worker(cheap, 10_000)], random.Random(0), (50, 50))
    dollars = [room.spent().dollars or 0.0 for room in (dear, cheap)]
    assert 0.9 <= sum(dollars) <= 1.0 and min(dollars) > 0.0


def test_a_run_that_needs_less_than_its_budget_is_never_over() -> None:
    budget = Budget(tokens=10_000)
    room = budget.rooms["local"] = EndpointRoom(EndpointLimits(), budget)
    workers = [Worker(room, 50, guess=100), Worker(room, 50, guess=100)]
    assert work(workers, random.Random(0), (100, 100)) == 10_000
    assert not any(worker.over for worker in workers)


def test_a_worker_that_dies_has_spent_what_it_had_in_flight() -> None:
    budget = Budget(tokens=1000)
    room = budget.rooms["local"] = EndpointRoom(EndpointLimits(), budget)
    first, second = Worker(room, 100), Worker(room, 100)
    first.exchange()
    while first.start():
        pass
    first.settle(50)
    first.exchange()
    room.leave(first.number, 0.0)
    spent = room.spent()
    assert spent.requests == spent.estimated + 1 == first.started
    assert (spent.prompt_tokens, spent.estimated_prompt_tokens) == (50, 50 * spent.estimated)
    second.exchange()
    assert (second.ceiling or 0) <= (1000 - spent.most_tokens) // 50


def test_a_budget_can_be_raised_lowered_and_lifted() -> None:
    budget = Budget()
    room = budget.rooms["local"] = EndpointRoom(EndpointLimits(), budget)
    worker = Worker(room, 1000)
    assert worker.exchange()["ceiling"] is None
    while worker.start():
        pass
    budget.tokens = 500.0
    worker.exchange()
    for _ in range(worker.in_flight):
        worker.settle(50)
    assert worker.exchange()["over"] == "the budget is used up: 2,000 of 500 tokens"
    budget.tokens = 4000.0
    assert not worker.exchange()["over"] and worker.start()
    budget.tokens = None
    assert worker.exchange()["ceiling"] is None


def test_limits_per_minute_are_dealt_in_equal_parts() -> None:
    room = EndpointRoom(EndpointLimits(requests_per_minute=600.0, tokens_per_minute=60_000.0), Budget())
    first, second = Worker(room, 100), Worker(room, 100)
    assert (told := first.exchange())["requests"] == 10.0 and told["tokens"] == 1000.0
    assert second.exchange()["requests"] == 0.0  # the first has yet to hear of its lower part
    assert _settled(first, second) == (5.0, 5.0)
    second.left = 0
    assert _settled(first, second) == (10.0, 0.0)
    room.set(requests_per_minute=None)
    assert _settled(first, second) == (None, None)


def _settled(*workers: Worker) -> tuple[float | None, ...]:
    """Parts of the requests per second after a few exchanges."""
    return [tuple(worker.exchange()["requests"] for worker in workers) for _ in range(3)][-1]
