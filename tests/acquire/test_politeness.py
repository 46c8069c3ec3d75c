"""How polite a cluster is, by the log of the server that it asks.

Each simulated worker has what a runner has: a connection to the limiter, its `Hosts` and a few threads, which only make
requests. Each loopback address counts as a host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import pairwise
from typing import Any

import pytest

from curate.acquire.fetch.hosts import Hosts
from curate.core.pace import SLACK_SECONDS
from curate.engine.workers import shares
from curate.engine.workers.limiter import Limiter
from curate.engine.workers.shares import Dealer
from tests.acquire.server.server import FaultServer, hosts

ADDRESSES = hosts(4)
FIRST, SECOND = ADDRESSES[:2]
WORKERS = (1, 2, 50)
THREADS = {1: 8, 2: 6, 50: 2}
EXCHANGE_SECONDS = 0.04
JITTER_SECONDS = 0.1
"""How much later than its start the server may see a request, on a machine with other work."""
END_SECONDS = 240.0


class Worker:
    """rows: URLs' targets and hosts, in list order."""

    def __init__(self, server: FaultServer, limiter: Limiter, rows: Sequence[tuple[str, str]], **settings: Any) -> None:
        self._port = server.port
        self._rows = rows
        self.done = 0
        self.hosts = Hosts({"thread_count": 8, **settings}, {**limiter.address, "room": "download"})
        for number, (_, host) in enumerate(rows):
            self.hosts.add(number, host)

    def work(self) -> None:
        with ExitStack() as stack:
            connections: dict[str, HTTPConnection] = {}
            while (row := self.hosts.next()) is not None:
                target, host = self._rows[row]
                if host not in connections:
                    connections[host] = HTTPConnection(host, self._port, timeout=END_SECONDS)
                    stack.callback(connections[host].close)
                connections[host].request("GET", target)
                response = connections[host].getresponse()
                size = len(response.read())
                if seconds := response.getheader("Retry-After"):
                    self.hosts.park(host, float(seconds))
                self.hosts.done(row, size)
                self.done += 1


@contextmanager
def running(workers: Sequence[Worker], threads: int) -> Iterator[None]:
    """While they work; at the end each has done all of its rows."""
    started = [threading.Thread(target=one.work, daemon=True) for one in workers for _ in range(threads)]
    for thread in started:
        thread.start()
    yield
    end = time.monotonic() + END_SECONDS
    for thread in started:
        thread.join(max(0.0, end - time.monotonic()))
    for one in workers:
        one.hosts.close()
    assert [one.done for one in workers] == [len(one._rows) for one in workers]


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer(mounted={"a.jpg": b"x" * 2000}, addresses=ADDRESSES) as made:
        yield made


@pytest.fixture
def limiter(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Limiter]:
    monkeypatch.setattr(shares, "EXCHANGES_PER_SECOND", 50 / EXCHANGE_SECONDS)
    server.log.clear()
    server.delay = 0.0
    with Limiter("127.0.0.1", Dealer(hold=1.0, exchange_seconds=EXCHANGE_SECONDS)) as made:
        yield made


def throughput(starts: Sequence[float]) -> float:
    return (len(starts) - 1) / (starts[-1] - starts[0])


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.long
def test_requests_at_once(server: FaultServer, limiter: Limiter, workers: int, connections: int) -> None:
    """Two hosts that every worker has rows of, and two that some have."""
    server.delay = 0.02 * connections
    rows = [("/images/a.jpg", ADDRESSES[place % 2]) for place in range(max(2, 100 // workers))]
    cluster = [
        Worker(server, limiter, [*rows, ("/images/a.jpg", ADDRESSES[2 + number % 2])], host_connections=connections)
        for number in range(workers)
    ]
    with running(cluster, THREADS[workers]):
        pass
    most = server.log.most_at_once()
    assert max(most.values()) <= connections
    assert most[FIRST] == connections  # what is allowed is used


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.long
def test_rate_of_a_host(server: FaultServer, limiter: Limiter, workers: int) -> None:
    """In any T seconds at most 1 + rate * (T + SLACK_SECONDS) starts."""
    rate, count = 40.0, 50
    cluster = [
        Worker(server, limiter, [("/images/a.jpg", FIRST)] * (count // workers), host_connections=2, host_rate=rate)
        for _ in range(workers)
    ]
    with running(cluster, THREADS[workers]):
        pass
    starts = server.log.starts()[FIRST]
    assert len(starts) == count
    for first, start in enumerate(starts):
        for number, last in enumerate(starts[first:], 1):
            assert number <= 1 + rate * (last - start + SLACK_SECONDS + JITTER_SECONDS)


@pytest.mark.long
def test_a_host_with_fewer_slots_than_workers_is_used_well(server: FaultServer, limiter: Limiter) -> None:
    """Fifty workers, one request at once: two hosts that belong to one worker at a time."""
    server.delay = 0.01
    rate = 25.0
    cluster = [
        Worker(server, limiter, [("/images/a.jpg", FIRST)] * 15, host_connections=1, host_rate=rate) for _ in range(4)
    ]
    cluster += [
        Worker(server, limiter, [("/images/a.jpg", SECOND)], host_connections=1, host_rate=rate) for _ in range(46)
    ]
    with running(cluster, 2):
        pass
    assert throughput(server.log.starts()[FIRST]) >= 0.3 * rate  # an equal split among four workers gives 0.25
    assert max(server.log.most_at_once().values()) == 1


def test_retry_after_parks_a_host_for_all_workers(server: FaultServer, limiter: Limiter) -> None:
    rows = [("/images/a.jpg", FIRST), ("/images/a.jpg", SECOND)] * 20
    server.delay = 0.02
    cluster = [Worker(server, limiter, [("/429-seconds?seconds=1", FIRST), *rows], host_connections=2)]
    cluster += [Worker(server, limiter, rows, host_connections=2) for _ in range(4)]
    with running(cluster, 4):
        pass
    rejected = server.log.of("/429-seconds")[0]
    heard = rejected.start + server.delay + 0.5  # exchanges of the worker that was rejected, and of the others
    later = [start - rejected.start for start in server.log.starts()[FIRST] if start > heard]
    assert min(later) >= 1.0
    asked = [start - rejected.start for start in server.log.starts()[SECOND]]
    assert [start for start in asked if server.delay < start < 1.0]  # the other host, while the first is parked


def test_limits_of_the_run_are_changed_while_it_runs(server: FaultServer, limiter: Limiter) -> None:
    """40 requests per second, then 25 times 2,000 bytes, then no limit."""
    rows = [("/images/a.jpg", address) for address in ADDRESSES * 25]
    cluster = [Worker(server, limiter, rows, requests_per_second=40.0) for _ in range(5)]
    reached = []
    with running(cluster, 4):
        wait_for(server, 50)
        limiter.set(requests_per_second=None, bytes_per_second=25 * 2000.0)
        reached.append(len(server.log))
        wait_for(server, 120)
        limiter.set(bytes_per_second=None)
        reached.append(len(server.log))
    first, second, third = split([visit.start for visit in server.log], reached)
    assert len(first) <= len(cluster) + 40.0 * (first[-1] - first[0] + SLACK_SECONDS + JITTER_SECONDS)
    assert 5.0 < throughput(second[20:]) < 40.0
    assert throughput(third) > 40.0


def wait_for(server: FaultServer, requests: int) -> None:
    end = time.monotonic() + END_SECONDS
    while len(server.log) < requests:
        assert time.monotonic() < end
        time.sleep(0.01)


def split(starts: list[float], places: list[int]) -> list[list[float]]:
    return [starts[first:last] for first, last in pairwise([0, *places, len(starts)])]
