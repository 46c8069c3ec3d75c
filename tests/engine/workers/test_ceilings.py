"""How ceilings and limits per minute are dealt to the clients of endpoints. No real time, no connections."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.endpoints import Endpoint
from curate.core.spend import Spend
from curate.engine.requests.share import Cost, EndpointShare, Ticket
from curate.engine.workers.shares import Dealer

PRICE = {"input": 1.0, "output": 0.0}
ADDRESS = {"host": "", "port": 0, "key": ""}


@dataclass
class Worker:
    """A process that asks for as long as it may."""

    dealer: Dealer
    left: int
    """Requests that it has to make."""
    guess: int = 50
    described: dict[str, Any] = field(default_factory=dict)
    name: str = "local"

    def __post_init__(self) -> None:
        endpoint = Endpoint(base_urls=("http://127.0.0.1:1/v1",), model="any", **self.described)
        self.share = EndpointShare(self.name, endpoint, ADDRESS, lambda: None)
        assert self.share.client is not None
        self.share.client.valid = math.inf
        self.client, self.number = self.dealer.join(self.share.client.opening, 0.0)
        self.flying: list[Ticket] = []
        self.price = endpoint.price

    @property
    def over(self) -> bool:
        return self.share.over

    @property
    def in_flight(self) -> int:
        return len(self.flying)

    def exchange(self, window: int = 40) -> dict[str, Any]:
        self.share.want(min(self.left, max(0, window - self.in_flight)))
        self.share.wait(Cost(self.guess))
        answer = self.dealer.exchange(self.client, self.share._ask(), 0.0)
        self.share._heard(answer)
        return answer["shares"]

    def reconnect(self) -> None:
        self.share._heard(None)
        self.client, self.number = self.dealer.join(self.share.client.opening, 0.0)

    def start(self, window: int = 40) -> bool:
        cost = Cost(self.guess)
        if self.over or not self.left or self.in_flight >= window or self.share.wait(cost) == math.inf:
            return False
        self.flying.append(self.share.start(cost))
        self.left -= 1
        return True

    def settle(self, tokens: int) -> None:
        self.share.settle(self.flying.pop(0), Spend.priced(self.price, requests=1, prompt_tokens=tokens))

    @property
    def spent(self) -> int:
        return self.share._spent.prompt_tokens


def work(workers: list[Worker], draw: random.Random, cost: tuple[int, int], steps: int = 100_000) -> int:
    """Let workers exchange, start and settle in a random order, until all have ended. Returns the tokens spent. At any
    time, those and the most that requests in flight may cost fit into the budget."""
    for _ in range(steps):
        active = [worker for worker in workers if worker.in_flight or (worker.left and not worker.over)]
        if not active:
            break
        worker = draw.choice(active)
        tokens = worker.dealer.limits["", "max_tokens"].limit
        assert tokens is None or sum(one.spent + one.in_flight * one.guess for one in workers) <= tokens
        kind = draw.random()
        if kind < 0.2:
            worker.exchange()
        elif kind < 0.6:
            worker.start()
        elif worker.in_flight:
            worker.settle(draw.randint(*cost))
    else:
        raise AssertionError(f"no end after {steps} steps")
    assert not any(worker.in_flight for worker in workers)
    for worker in workers:
        worker.exchange(window=0)
    return sum(worker.spent for worker in workers)


def dealer_of(**ceilings: float) -> Dealer:
    dealer = Dealer()
    dealer.set(**ceilings)
    return dealer


@given(
    st.integers(1, 8),
    st.integers(500, 20_000),
    st.sampled_from([(50, 50), (1, 99), (10, 30), (40, 400)]),
    st.integers(),
)
def test_a_budget_is_used_up_and_never_exceeded(count: int, tokens: int, cost: tuple[int, int], seed: int) -> None:
    dealer = dealer_of(max_tokens=tokens)
    spent = work([Worker(dealer, 10_000, guess=cost[1]) for _ in range(count)], random.Random(seed), cost)
    assert tokens - cost[1] < spent <= tokens


@pytest.mark.parametrize("limit", ["max_tokens", "requests_per_minute"])
def test_a_limit_that_is_set_while_a_worker_has_no_connection_binds_it(limit: str) -> None:
    """Another worker has all of it, so the dealer has nothing to tell."""
    dealer = dealer_of()
    worker, other = (Worker(dealer, 10) for _ in range(2))
    worker.exchange()
    assert worker.start()
    worker.settle(50)
    dealer.leave(worker.client, worker.number, 0.0)
    dealer.set(**{limit: 60.0})
    for _ in range(2):
        other.exchange()
    worker.reconnect()
    worker.exchange()
    assert not worker.start()


def test_a_request_that_may_cost_much_leaves_no_more_than_that_unspent() -> None:
    """Near the ceiling one is in flight at a time; what its answer did not take is free for the next."""
    worker = Worker(dealer_of(max_tokens=10_000), 10_000, guess=2_000)
    assert 8_000 < work([worker], random.Random(0), (20, 20)) <= 10_000


def test_all_endpoints_share_the_ceiling() -> None:
    dealer = dealer_of(max_dollars=1.0)
    prices = {"dear": 100.0, "cheap": 1.0}
    described = {name: {"price": {"input": price, "output": 0.0}} for name, price in prices.items()}
    work([Worker(dealer, 10_000, 50, described[name], name) for name in prices], random.Random(0), (50, 50))
    dollars = [dealer.spent()[f"endpoints/{name}"].dollars or 0.0 for name in prices]
    assert 0.9 <= sum(dollars) <= 1.0 and min(dollars) > 0.0


def test_two_ceilings_leave_no_run_hanging() -> None:
    """One endpoint takes mostly dollars, the other mostly tokens."""
    described = {"price": {"input": 100.0, "output": 0.0}}
    for seed in range(8):
        draw = random.Random(seed)
        dealer = dealer_of(max_tokens=draw.uniform(3000, 9000), max_dollars=draw.uniform(0.05, 0.2))
        dear, cheap = Worker(dealer, 10_000, 50, described), Worker(dealer, 10_000, 400, {"price": PRICE}, "cheap")
        work([dear, cheap], draw, (10, 50))


def asked(dealer: Dealer, client: str, **asks: tuple[float, float, float, float]) -> tuple[dict[str, float], bool]:
    """(what a client holds after an exchange, whether a ceiling is used up). asks: holds, needs, used, least."""
    said = {name: dict(zip(("holds", "needs", "used", "least"), ask, strict=True)) for name, ask in asks.items()}
    answer = dealer.exchange(client, {"busy": True, "asks": said}, 0.0)
    held = {name: ask[0] for name, ask in asks.items()}
    return held | {name: share for name, (share, *_) in answer["shares"].items()}, answer["over"]


@pytest.mark.parametrize(("second_needs", "over"), [(40.0, False), (70.0, True)])
def test_no_client_keeps_from_others_a_share_that_it_cannot_use(second_needs: float, over: bool) -> None:
    """60 tokens and 60 dollars are left. The first client needs 50 and 80 for a request, the second 30 tokens."""
    dealer = dealer_of(max_tokens=100.0, max_dollars=100.0)
    for client in ("first", "second"):
        dealer.join({"client": client, "room": "one", "limits": {}}, 0.0)
        asked(dealer, client, max_tokens=(20.0, 0.0, 0.0, 0.0), max_dollars=(20.0, 0.0, 0.0, 0.0))
    first, second = {"max_tokens": 50.0, "max_dollars": 80.0}, {"max_tokens": 30.0, "max_dollars": second_needs}
    for used in (0.0, 20.0, 20.0):  # requests are in flight; they have settled; each client knows of it
        held, first_over = asked(dealer, "first", **{name: (20.0, need, used, need) for name, need in first.items()})
        assert held == {"max_tokens": 20.0, "max_dollars": 20.0}
        held, second_over = asked(dealer, "second", **{name: (20.0, need, used, need) for name, need in second.items()})
        assert held == {name: 20.0 + (0.0 if over else need) for name, need in second.items()}
    assert (first_over, second_over) == (over, over)


def test_a_run_that_needs_less_than_its_ceiling_is_never_over() -> None:
    dealer = dealer_of(max_tokens=10_000)
    workers = [Worker(dealer, 50, guess=100), Worker(dealer, 50, guess=100)]
    assert work(workers, random.Random(0), (100, 100)) == 10_000
    assert not any(worker.over for worker in workers)


def test_a_worker_that_dies_may_have_spent_all_that_it_was_dealt() -> None:
    """What it is known to have had in flight is an estimate of what it has spent."""
    dealer = dealer_of(max_tokens=1000)
    first, second = Worker(dealer, 100), Worker(dealer, 100)
    first.exchange(window=10)
    for _ in range(5):
        assert first.start()
    first.settle(50)
    first.exchange(window=10)
    started = 5
    while first.start(window=8):
        started += 1  # after its last message
    dealer.leave(first.client, first.number, 0.0)
    spent = dealer.spent()["endpoints/local"]
    assert (spent.requests, spent.estimated) == (5, 4)
    assert (spent.prompt_tokens, spent.estimated_prompt_tokens) == (50, 50 * 4)
    assert work([second], random.Random(0), (50, 50)) + 50 * started <= 1000
    dealer.join(first.share.client.opening, 0.0)  # it was only its connection
    while first.flying:
        first.settle(50)
    first.left = 0
    first.exchange()
    spent = dealer.spent()["endpoints/local"]
    assert (spent.estimated, spent.prompt_tokens) == (0, first.spent + second.spent)


def test_a_ceiling_can_be_raised_lowered_and_lifted() -> None:
    dealer = Dealer()
    worker = Worker(dealer, 1000)
    assert worker.exchange()["max_tokens"][0] is None
    while worker.start():
        pass
    dealer.set(max_tokens=500.0)
    worker.exchange()
    for _ in range(worker.in_flight):
        worker.settle(50)
    worker.exchange()
    assert worker.over and worker.spent == 2000
    dealer.set(max_tokens=4000.0)
    worker.exchange()
    assert not worker.over and worker.start()
    dealer.set(max_tokens=None)
    assert worker.exchange()["max_tokens"][0] is None


def test_a_first_ceiling_is_dealt_after_all_clients_have_heard_of_it() -> None:
    """Until then they begin requests without a limit."""
    dealer = Dealer()
    first, second = Worker(dealer, 1000), Worker(dealer, 1000)
    for worker in (first, second):
        worker.exchange()
    dealer.set(max_tokens=1000.0)
    for _ in range(3):
        second.exchange()
    for _ in range(15):
        assert first.start()
    assert not second.start()
    assert 950 < work([first, second], random.Random(0), (50, 50)) <= 1000


def test_a_client_that_is_gone_holds_up_no_first_ceiling() -> None:
    dealer = Dealer()
    first, second = Worker(dealer, 1000), Worker(dealer, 1000)
    for worker in (first, second):
        worker.exchange()
    dealer.leave(first.client, first.number, 0.0)
    dealer.set(max_tokens=1000.0)
    assert work([second], random.Random(0), (50, 50)) == 1000


def test_limits_per_minute_are_dealt_in_equal_shares() -> None:
    dealer, described = Dealer(), {"requests_per_minute": 600.0, "tokens_per_minute": 60_000.0}
    first, second = (Worker(dealer, 100, described=described) for _ in range(2))
    told = first.exchange()
    assert (told["requests_per_minute"][0], told["tokens_per_minute"][0]) == (600.0, 60_000.0)
    assert "requests_per_minute" not in second.exchange()  # the first has yet to hear of its lower share
    assert _settled(first, second) == (300.0, 300.0)
    second.left = 0
    assert _settled(first, second) == (600.0, 0.0)
    dealer.set("endpoints/local", requests_per_minute=None)
    second.left = 1
    assert _settled(first, second) == (None, None)


def _settled(*workers: Worker) -> tuple[float | None, ...]:
    """Shares of the requests per minute after a few exchanges."""
    for _ in range(3):
        for worker in workers:
            worker.exchange()
    return tuple(worker.share._shares["requests_per_minute"] for worker in workers)
