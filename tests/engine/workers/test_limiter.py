"""The limiter as its clients see it, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from curate.core import limits as limits_file
from curate.core.limits import LimiterGoneError, Limits, LimitSettings
from curate.engine.workers.limiter import Limiter
from tests.engine.workers.test_shares import NOTHING


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    with Limiter("127.0.0.1") as made:
        yield made


def client(limiter: Limiter, room: str = "download", **settings: Any) -> Limits:
    return Limits({**limiter.address, "room": room}, LimitSettings(**settings))


def granted(limits: Limits, host: str) -> list[float]:
    """Exchange until a host is granted."""
    end = time.monotonic() + 10.0
    while host not in (grants := limits.exchange(NOTHING)["grant"]):
        assert time.monotonic() < end
    return grants[host]


def test_a_connection_that_ends_frees_its_hosts(limiter: Limiter) -> None:
    first, second = client(limiter, host_connections=1), client(limiter, host_connections=1)
    assert first.exchange(NOTHING | {"want": ["a"]})["grant"] == {"a": [1, None, 0.0]}
    assert second.exchange(NOTHING | {"want": ["a"]})["grant"] == {}
    first.close()
    assert granted(second, "a") == [1, None, 0.0]
    second.close()


def test_each_room_has_its_own_limits(limiter: Limiter) -> None:
    with client(limiter, "one", host_connections=1) as first, client(limiter, "two", host_connections=2) as second:
        assert first.exchange(NOTHING | {"want": ["a"]})["grant"] == {"a": [1, None, 0.0]}
        assert second.exchange(NOTHING | {"want": ["a"]})["grant"] == {"a": [2, None, 0.0]}


def test_limits_of_the_run_can_be_changed(limiter: Limiter) -> None:
    def parts(limits: Limits) -> tuple[float | None, float | None]:
        answer = limits.exchange(NOTHING)
        return answer["requests"], answer["bytes"]

    with client(limiter, "one", bytes_per_second=1000.0) as first:
        assert parts(first) == (None, 1000.0)
        limiter.set(requests_per_second=7.0)
        assert parts(first) == (7.0, 1000.0)
        limiter.set("one", bytes_per_second=None)
        assert parts(first) == (7.0, None)
        limiter.set("two", bytes_per_second=5.0)
        assert parts(first) == (7.0, None)
    with client(limiter, "two") as second:
        assert parts(second) == (7.0, 5.0)
    with client(limiter, "three", requests_per_second=1.0) as third:
        assert parts(third) == (7.0, None)


def test_strangers_do_not_block_clients(limiter: Limiter) -> None:
    address = (limiter.address["host"], limiter.address["port"])
    with socket.create_connection(address) as silent, socket.create_connection(address) as loud:
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
        with pytest.raises(LimiterGoneError):
            Limits({**limiter.address, "key": "00" * 32, "room": "download"}, LimitSettings())
        with client(limiter) as known:
            assert known.exchange(NOTHING | {"want": ["a"]})["grant"]
        assert silent.recv(4)  # the challenge


def test_a_client_that_is_silent_for_too_long_has_lost_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_file, "SILENT_SECONDS", 1)
    with Limiter("127.0.0.1") as limiter, client(limiter, host_connections=1) as first:
        first.exchange(NOTHING | {"want": ["a"]})
        with client(limiter, host_connections=1) as second:
            second.exchange(NOTHING | {"want": ["a"]})
            assert granted(second, "a")
        with pytest.raises(LimiterGoneError):
            first.exchange(NOTHING)


def test_closing_ends_every_connection_and_thread() -> None:
    before = set(threading.enumerate())
    with Limiter("127.0.0.1") as limiter:
        first = client(limiter)
    with pytest.raises(LimiterGoneError):
        first.exchange(NOTHING)
    first.close()
    assert set(threading.enumerate()) == before
