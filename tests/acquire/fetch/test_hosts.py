"""Which row starts when, in one runner."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from curate.acquire.fetch import hosts as hosts_file
from curate.acquire.fetch.hosts import Hosts
from curate.core.pace import SLACK_SECONDS
from curate.core.shares import LimiterGoneError
from curate.engine.workers.limiter import Limiter

DAY = 86400.0


def made(rows: dict[str, str], **settings: Any) -> Hosts:
    """rows: row -> host."""
    hosts = Hosts({"host_connections": 1, "thread_count": 8, **settings})
    for row, host in rows.items():
        hosts.add(row, host)
    return hosts


def fetch_all(
    hosts: Hosts, threads: int = 8, size: int = 0, during: Callable[[str], None] = lambda row: None
) -> list[str]:
    """Rows in the order in which they started."""
    order: list[str] = []

    def work() -> None:
        while (row := hosts.next()) is not None:
            order.append(row)
            during(row)
            hosts.done(row, size)

    with ThreadPoolExecutor(threads) as pool:
        for one in [pool.submit(work) for _ in range(threads)]:
            one.result(60)
    return order


def waits(pool: ThreadPoolExecutor, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """A call in another thread that is known to have begun, and not to end by itself."""
    begun = threading.Event()

    def work() -> Any:
        begun.set()
        return call(*arguments)

    future = pool.submit(work)
    assert begun.wait(60)
    return future


def test_rows_go_in_list_order_past_busy_hosts() -> None:
    hosts = made({"a1": "a", "a2": "a", "b1": "b", "a3": "a", "c1": "c"})
    assert [hosts.next() for _ in range(3)] == ["a1", "b1", "c1"]
    hosts.done("a1")
    hosts.done("c1")
    assert hosts.next() == "a2"
    hosts.done("a2")
    assert hosts.next() == "a3"
    assert hosts.next() is None


def test_a_waiting_thread_gets_the_row_that_becomes_free() -> None:
    hosts = made({"a1": "a", "a2": "a"})
    assert hosts.next() == "a1"
    with ThreadPoolExecutor(3) as pool:
        waiting = [waits(pool, hosts.next) for _ in range(3)]
        hosts.done("a1")
        assert sorted(str(one.result(60)) for one in waiting) == ["None", "None", "a2"]


def test_a_host_has_at_most_its_requests_at_once() -> None:
    hosts = made({f"{host}{number}": host for number in range(100) for host in "ab"}, host_connections=3)
    lock, active, most = threading.Lock(), {"a": 0, "b": 0}, {"a": 0, "b": 0}

    def during(row: str) -> None:
        host = row[0]
        with lock:
            active[host] += 1
            most[host] = max(most[host], active[host])
        time.sleep(0.0005)  # a request
        with lock:
            active[host] -= 1

    assert len(fetch_all(hosts, threads=16, during=during)) == 200
    assert max(most.values()) <= 3


def test_starts_keep_the_rate_of_their_host() -> None:
    hosts = made({f"{host}{number}": host for number in range(11) for host in "ab"}, host_rate=50.0, host_connections=8)
    began = time.monotonic()
    assert len(fetch_all(hosts)) == 22
    assert time.monotonic() - began >= 10 / 50.0 - SLACK_SECONDS


def test_requests_of_the_run_keep_their_rate() -> None:
    hosts = made({f"{number}": f"host {number}" for number in range(21)}, requests_per_second=100.0)
    began = time.monotonic()
    fetch_all(hosts)
    assert time.monotonic() - began >= 20 / 100.0 - SLACK_SECONDS


def test_bytes_of_the_run_keep_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_file, "FIRST_BYTES", 1000)
    hosts = made({f"{number}": f"host {number}" for number in range(41)}, bytes_per_second=100_000.0)
    began = time.monotonic()
    fetch_all(hosts, threads=4, size=1000)
    assert time.monotonic() - began >= 40 * 1000 / 100_000.0 - SLACK_SECONDS


def test_a_parked_host_waits_while_others_go() -> None:
    hosts = made({"a1": "a", "a2": "a", "b1": "b"})
    began = time.monotonic()
    assert hosts.next() == "a1"
    hosts.park("a", 0.2)
    hosts.done("a1")
    assert hosts.next() == "b1"
    assert hosts.next() == "a2"
    assert time.monotonic() - began >= 0.2
    assert hosts.parked("a2") == 0.0


def test_rows_of_a_host_that_is_parked_for_long_come_out_at_once() -> None:
    hosts = made({f"a{number}": "a" for number in range(5)})
    hosts.park("a", DAY)
    assert [hosts.next() for _ in range(5)] == [f"a{number}" for number in range(5)]
    assert hosts.parked("a0") > 60.0
    hosts.done("a0")
    assert hosts.next() is None


def test_a_retry_keeps_its_slot_and_the_rate() -> None:
    hosts = made({"a1": "a", "a2": "a"}, host_rate=4.0)
    began = time.monotonic()
    assert hosts.next() == "a1"
    assert not hosts.move("a1", "a", 0.0)
    assert hosts.move("a1", "a", 10.0)
    assert time.monotonic() - began >= 1 / 4.0 - SLACK_SECONDS
    hosts.done("a1")
    assert hosts.next() == "a2"


def test_a_redirect_waits_for_a_slot_before_the_rows_of_that_host() -> None:
    hosts = made({"b1": "b", "a1": "a", "b2": "b", "a2": "a"})
    assert [hosts.next(), hosts.next()] == ["b1", "a1"]
    assert not hosts.move("a1", "b", 0.01)
    with ThreadPoolExecutor(1) as pool:
        moving = waits(pool, hosts.move, "a1", "b", 30.0)
        while not hosts._hosts["b"].movers:
            time.sleep(0.001)
        hosts.done("b1")
        assert moving.result(60) is True
    assert hosts.next() == "a2"  # its slot is free again, that of b is not
    hosts.done("a1")
    assert hosts.next() == "b2"


def test_a_redirect_to_a_parked_host_gives_up_at_once() -> None:
    hosts = made({"a1": "a"})
    hosts.park("b", 1000.0)
    assert hosts.next() == "a1"
    assert not hosts.move("a1", "b", 100.0)


def test_hosts_of_earlier_portions_are_forgotten() -> None:
    hosts = made({})
    for portion in range(3):
        for number in range(100):
            hosts.add(number, f"{portion} {number}")
        assert len(fetch_all(hosts)) == 100
    assert len(hosts._hosts) <= 100


@pytest.fixture
def limited() -> Iterator[tuple[Limiter, Hosts]]:
    with Limiter("127.0.0.1") as limiter:
        hosts = Hosts({"thread_count": 4}, {**limiter.address, "room": "download"})
        yield limiter, hosts
        hosts.close()


def test_portions_of_a_runner_with_a_limiter(limited: tuple[Limiter, Hosts]) -> None:
    _, hosts = limited
    for _ in range(2):
        for number in range(200):
            hosts.add(str(number), f"host {number % 150}")
        assert len(fetch_all(hosts)) == 200


def test_threads_end_when_the_limiter_is_gone(limited: tuple[Limiter, Hosts]) -> None:
    limiter, hosts = limited
    for row in ("a1", "a2", "a3", "a4", "a5"):
        hosts.add(row, "a")
    assert [hosts.next() for _ in range(4)] == ["a1", "a2", "a3", "a4"]
    with ThreadPoolExecutor(3) as pool:
        waiting = [waits(pool, hosts.next) for _ in range(3)]
        limiter.close()
        for one in waiting:
            with pytest.raises(LimiterGoneError, match=r"limiter at 127.0.0.1:\d+ does not answer"):
                one.result(60)
    with pytest.raises(LimiterGoneError):
        hosts.move("a1", "b")
