"""Limits and budgets over several workers: pools with a limiter between them, as the endpoint sees their requests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any, cast

import pytest

from curate.core import shares
from curate.core.endpoints import Endpoint as Described
from curate.core.shares import LimiterGoneError
from curate.engine.requests import costs, share
from curate.engine.requests.asking import Asking, BudgetUsedUpError
from curate.engine.requests.client import Requester
from curate.engine.requests.deadline import Deadline
from curate.engine.requests.pool import Pool
from curate.engine.workers.limiter import Limiter
from tests.engine.asks import ask
from tests.engine.requests.test_pool import paced
from tests.servers.scripted import Endpoint, Scripted


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    with Limiter("127.0.0.1") as made:
        yield made


class Owner:
    waiting = ended = 0


Outcome = Any
"""The answer, or the exception."""


def work(
    script: Scripted,
    workers: int,
    requests: int,
    limiter: Mapping[str, Any] | None,
    in_flight: int = 8,
    long: int = 0,
    then: Callable[[list[Pool]], object] = lambda _: None,
    **described: Any,
) -> list[Outcome]:
    """Send requests from the pools of several workers at once. Each `long`-th has and gets many words. `then` is called
    in the loop once they are sent."""
    endpoint = Described(base_urls=(script.base_url,), model="scripted", **described)

    async def one(pool: Pool, number: int) -> Outcome:
        body = b'{"model": "scripted", "max_tokens": 400, "messages": [{"role": "user", "content": "%spicture %d"}]}'
        body = body % (b"word " * 300 if long and number % long == 0 else b"", number)
        asking = Asking(Owner(), "/chat/completions", body, {}, Deadline(30.0), 5, costs.guess(body))
        try:
            return await pool.post(asking)
        except (BudgetUsedUpError, LimiterGoneError) as error:
            return error

    async def all_of_them() -> list[Outcome]:
        pools = [Pool("local", endpoint, limiter, asyncio.get_running_loop()) for _ in range(workers)]
        for pool in pools:
            pool.join(in_flight)
        asked = [asyncio.ensure_future(one(pools[number % workers], number)) for number in range(requests)]
        then(pools)
        try:
            return await asyncio.gather(*asked)
        finally:
            for pool in pools:
                await pool.leave()
                if pool.share.client is not None:
                    pool.share.client.join(60.0)

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_requests_per_minute_of_all_workers(endpoint: Endpoint, limiter: Limiter, workers: int) -> None:
    """50 per second, and one more per worker."""
    script, began = endpoint.script(), time.monotonic()
    found = work(script, workers, 40, limiter.address, requests_per_minute=3000.0)
    assert not any(isinstance(outcome, Exception) for outcome in found)
    times = sorted(line["time"] for line in script.log())
    assert paced(times, began, 50.0, workers) and times[-1] - times[0] <= 20.0


def test_tokens_per_minute(endpoint: Endpoint, limiter: Limiter) -> None:
    """Requests take 2 tokens and their answers 3, which is learned from the first ones: 250 tokens and so 50 requests
    per second."""
    script = endpoint.script()
    work(script, 2, 60, limiter.address, tokens_per_minute=15_000.0)
    told, times = script.stats(), sorted(line["time"] for line in script.log())
    tokens = (told["prompt_tokens"] + told["completion_tokens"]) / 60
    assert 0.5 <= (times[-1] - times[20]) / (39 * tokens / 250.0) <= 10.0


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_budget_is_not_exceeded(endpoint: Endpoint, limiter: Limiter, workers: int) -> None:
    """Though a tenth of the requests cost a hundred times as much. The last ones are sent one at a time, and what is
    left is less than one more may cost."""
    script = endpoint.script(latency_seconds=0.01)
    told: list[str] = []
    limiter.on_over(lambda: told.append("over"))
    limiter.set(max_tokens=8000.0)
    found = work(script, workers, 400, limiter.address, long=10)
    denied = [outcome for outcome in found if isinstance(outcome, BudgetUsedUpError)]
    stats = script.stats()
    spent = stats["prompt_tokens"] + stats["completion_tokens"]
    assert 8000 - 800 <= spent <= 8000 and len(denied) + stats["requests"] == 400
    assert script.log()[-1]["active"] <= 2  # its answer may still be on its way
    assert told == ["over"]
    counted = limiter.spent()["local"]
    assert (counted.tokens, counted.requests, counted.estimated, counted.dollars) == (spent, stats["requests"], 0, None)


def test_a_budget_of_dollars(endpoint: Endpoint, limiter: Limiter) -> None:
    script = endpoint.script(latency_seconds=0.01)
    limiter.set(max_dollars=0.002)
    work(script, 2, 200, limiter.address, price={"input": 1.0, "output": 2.0})
    stats = script.stats()
    dollars = (stats["prompt_tokens"] + 2 * stats["completion_tokens"]) / 1e6
    assert limiter.spent()["local"].dollars == pytest.approx(dollars) and dollars <= 0.002
    assert stats["requests"] == 200 or dollars >= 0.002 - 0.00083


def test_a_run_within_its_budget_is_not_stopped(endpoint: Endpoint, limiter: Limiter) -> None:
    script, told = endpoint.script(), list[str]()
    limiter.on_over(lambda: told.append("over"))
    limiter.set(max_tokens=100_000.0)
    found = work(script, 2, 50, limiter.address)
    assert not any(isinstance(outcome, Exception) for outcome in found) and not told
    assert limiter.spent()["local"].requests == 50


def test_limits_change_while_a_run_runs(endpoint: Endpoint, limiter: Limiter) -> None:
    """One request in a thousand seconds, until the limit is lifted."""
    script = endpoint.script()

    def lift(pools: list[Pool]) -> None:
        asyncio.get_running_loop().call_later(0.3, lambda: limiter.set("endpoints/local", requests_per_minute=None))

    found = work(script, 2, 20, limiter.address, then=lift, requests_per_minute=0.06)
    assert not any(isinstance(outcome, Exception) for outcome in found)
    times = sorted(line["time"] for line in script.log())
    assert len(times) == 20 and times[-1] - times[2] < 100.0


def test_a_limit_that_was_changed_before_the_first_worker_came(endpoint: Endpoint, limiter: Limiter) -> None:
    script, began = endpoint.script(), time.monotonic()
    limiter.set("endpoints/local", requests_per_minute=1200.0)
    work(script, 1, 10, limiter.address)
    assert paced([line["time"] for line in script.log()], began, 20.0)


def test_without_its_limiter_a_worker_sends_nothing(
    endpoint: Endpoint, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has ended: after some attempts to reach it, requests fail."""
    monkeypatch.setattr(share, "RETRY_SECONDS", 0.5)
    script, address = endpoint.script(), limiter.address
    limiter.close()
    began = time.monotonic()
    found = work(script, 1, 5, address)
    assert all(isinstance(outcome, LimiterGoneError) for outcome in found) and time.monotonic() - began < 100.0
    assert script.stats()["requests"] == 0
    requester = Requester(ask(script.base_url), address)
    assert isinstance(requester.send("picture 1").result(timeout=60).fatal, LimiterGoneError)  # its unit is retried
    requester.close()


def test_after_a_lost_connection_nothing_begins(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limiter deals its rates to others, so nothing begins until there is a connection again."""
    monkeypatch.setattr(shares, "VALID_SECONDS", 600.0)
    limiter.set(max_tokens=1500.0)
    changed, cost = threading.Event(), costs.Cost(2.0, 3.0)
    described = Described(base_urls=("http://127.0.0.1:1/v1",), model="scripted")
    mine = share.EndpointShare("local", described, limiter.address, changed.set)
    mine.want(100)
    mine.join()
    while mine.wait(cost):
        assert changed.wait(timeout=60)
        changed.clear()
    limiter.close()
    deadline = time.monotonic() + 60.0  # less than an answer of the limiter is valid
    while not mine.wait(cost):
        assert time.monotonic() < deadline
        changed.wait(timeout=0.05)
    mine.close()


def test_a_lost_connection_is_restored(endpoint: Endpoint, limiter: Limiter) -> None:
    """Each request is counted once."""
    script = endpoint.script(latency_seconds=0.2)

    def cut(pools: list[Pool]) -> None:
        def now() -> None:
            for connected in list(limiter._open.values()):
                connected.shutdown(2)

        asyncio.get_running_loop().call_later(0.3, now)

    found = work(script, 1, 40, limiter.address, then=cut)
    assert not any(isinstance(outcome, Exception) for outcome in found)
    assert script.stats()["requests"] == 40
    assert limiter.spent()["local"].requests == 40


def asked_alone(base_url: str, address: Mapping[str, Any]) -> None:
    """Runs in a separate process."""
    work(cast(Scripted, SimpleNamespace(base_url=base_url)), 1, 3000, address, in_flight=16)


@pytest.mark.long
def test_limits_hold_when_one_of_three_workers_is_killed(endpoint: Endpoint, limiter: Limiter) -> None:
    """Both the rate and the ceiling are lowered meanwhile. The share of the dead worker counts as spent."""
    script, context = endpoint.script(latency_seconds=0.05), get_context("spawn")
    limiter.set(max_tokens=40_000.0)
    workers = [context.Process(target=asked_alone, args=(script.base_url, limiter.address)) for _ in range(3)]
    for worker in workers:
        worker.start()
    reached(script, 150)
    workers[0].kill()
    limiter.set(max_tokens=20_000.0)
    limiter.set("endpoints/local", requests_per_minute=1200.0)
    began = time.monotonic() + 0.5
    while time.monotonic() < began:  # it holds from then on
        reached(script, script.stats()["requests"] + 1)
    reached(script, script.stats()["requests"] + 40)
    ended = time.monotonic()
    limiter.set("endpoints/local", requests_per_minute=None)
    for worker in workers:
        worker.join(60.0)
    assert [worker.exitcode for worker in workers] == [-9, 0, 0]
    paced_ones = [line["time"] for line in script.log() if began < line["time"] < ended]
    assert len(paced_ones) <= 2 + 20.0 * (ended - began) + 2
    stats = script.stats()
    assert 5_000 < stats["prompt_tokens"] + stats["completion_tokens"] <= 20_000 - 400


def reached(script: Scripted, requests: int) -> None:
    until = time.monotonic() + 60.0
    while script.stats()["requests"] < requests:
        assert time.monotonic() < until
        time.sleep(0.02)
