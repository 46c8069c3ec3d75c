"""The limiter as its clients see it, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from curate.core import shares
from curate.core.shares import LimiterConnection, LimiterGoneError
from curate.engine.workers.limiter import Limiter


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    with Limiter("127.0.0.1") as made:
        yield made


def client(limiter: Limiter, name: str, room: str = "stages/download", seats: int = 1) -> LimiterConnection:
    limits = {"host": {"limit": seats, "seats": seats}, "bytes_per_second": {"limit": 1000.0}}
    return LimiterConnection(limiter.address, {"client": name, "room": room, "limits": limits})


def ask(connection: LimiterConnection, **asks: tuple[float, float]) -> dict[str, Any]:
    """Limit -> share, of what there is to tell. asks: what is held and wanted."""
    said = {name.replace("__", "/"): {"holds": holds, "needs": wants} for name, (holds, wants) in asks.items()}
    answer = connection.exchange({"busy": True, "asks": said})
    return {name: share for name, (share, *_) in answer["shares"].items()}


def granted(connection: LimiterConnection, name: str) -> float:
    """Exchange until there is a share."""
    end = time.monotonic() + 60.0
    while name not in (shares := ask(connection)):
        assert time.monotonic() < end
    return shares[name]


def test_a_connection_that_ends_frees_its_hosts(limiter: Limiter) -> None:
    first, second = client(limiter, "a"), client(limiter, "b")
    assert ask(first, host__a=(0, 1)) == {"host/a": 1}
    assert ask(second, host__a=(0, 1)) == {}
    first.close()
    assert granted(second, "host/a") == 1
    second.close()


def test_each_room_has_its_own_limits(limiter: Limiter) -> None:
    with client(limiter, "a", "stages/one") as first, client(limiter, "b", "stages/two", seats=2) as second:
        assert ask(first, host__a=(0, 1)) == {"host/a": 1}
        assert ask(second, host__a=(0, 1)) == {"host/a": 2}


def test_limits_of_the_run_can_be_changed(limiter: Limiter) -> None:
    with client(limiter, "a", "stages/one") as first:
        assert ask(first, bytes_per_second=(0, 1)) == {"bytes_per_second": 1000.0}
        limiter.set(bytes_per_second=7.0)
        assert ask(first, bytes_per_second=(1000.0, 1)) == {"bytes_per_second": 7.0}
        limiter.set("stages/one", bytes_per_second=None)
        assert ask(first, bytes_per_second=(7.0, 1)) == {"bytes_per_second": None}
        limiter.set("stages/two", bytes_per_second=5.0)
        assert ask(first, bytes_per_second=(0.0, 1)) == {}
    for name, limit in (("stages/two", 5.0), ("stages/three", 7.0)):
        with client(limiter, name, name) as other:
            assert ask(other, bytes_per_second=(0, 1)) == {"bytes_per_second": limit}


def test_strangers_do_not_block_clients(limiter: Limiter) -> None:
    address = (limiter.address["host"], limiter.address["port"])
    with socket.create_connection(address) as silent, socket.create_connection(address) as loud:
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
        with pytest.raises(LimiterGoneError):
            LimiterConnection({**limiter.address, "key": "00" * 32}, {})
        with client(limiter, "a") as known:
            assert ask(known, host__a=(0, 1))
        assert silent.recv(4)  # the challenge


def test_a_client_that_is_silent_for_too_long_has_lost_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "SILENT_SECONDS", 1)
    with Limiter("127.0.0.1") as limiter, client(limiter, "a") as first:
        ask(first, host__a=(0, 1))
        with client(limiter, "b") as second:
            ask(second, host__a=(0, 1))
            assert granted(second, "host/a")
        with pytest.raises(LimiterGoneError):
            ask(first)


def test_closing_ends_every_connection_and_thread() -> None:
    before = set(threading.enumerate())
    with Limiter("127.0.0.1") as limiter:
        first = client(limiter, "a")
    with pytest.raises(LimiterGoneError):
        ask(first)
    first.close()
    assert set(threading.enumerate()) == before
