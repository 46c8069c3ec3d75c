"""Counts per minute, and whose address counts."""

from __future__ import annotations

import time

import pytest
from starlette.requests import Request

from curate.service.auth.limiting import Limiter, address
from curate.service.problems import TooManyProblem
from curate.service.settings import Limits

PROXIES = ("10.0.0.0/8", "192.0.2.1", "fd00::/8")


def came(peer: str | None, *forwarded: str, proxies: tuple[str, ...] = PROXIES) -> str:
    headers = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    client = (peer, 1234) if peer is not None else None
    return address(Request({"type": "http", "headers": headers, "client": client}), proxies)


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("203.0.113.5", [], "203.0.113.5"),
        ("203.0.113.5", ["198.51.100.7"], "203.0.113.5"),  # not a proxy of ours: it may claim anything
        ("192.0.2.1", ["198.51.100.7"], "198.51.100.7"),
        ("192.0.2.1", [], "192.0.2.1"),
        ("10.1.1.1", ["1.1.1.1, 198.51.100.7, 10.2.2.2"], "198.51.100.7"),  # what the client sent itself is on the left
        ("10.1.1.1", ["1.1.1.1", "198.51.100.7", "10.2.2.2"], "198.51.100.7"),
        ("10.1.1.1", ["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
        ("10.1.1.1", ["198.51.100.7, not an address"], "10.1.1.1"),
        ("10.1.1.1", ["198.51.100.7\r\nX: y"], "10.1.1.1"),
        ("10.1.1.1", [","], "10.1.1.1"),
        ("10.1.1.1", ["9.9.9.9," * 10_000 + "198.51.100.7"], "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", [], "2001:db8:1:2::/64"),
        ("fd00::1", ["[2001:db8:1:2::9]"], "2001:db8:1:2::/64"),
        ("::ffff:10.1.1.1", ["198.51.100.7"], "198.51.100.7"),
        (None, ["198.51.100.7"], "local"),
    ],
)
def test_the_address_is_the_nearest_that_is_not_a_proxy(peer: str | None, forwarded: list[str], found: str) -> None:
    assert came(peer, *forwarded) == found


def test_nothing_is_believed_without_proxies() -> None:
    assert came("10.1.1.1", "198.51.100.7", proxies=()) == "10.1.1.1"


def test_tokens_and_addresses_are_counted_each() -> None:
    limiter = Limiter(Limits(requests_per_minute=2, failures_per_minute=1))
    for name in ("one", "two"):
        limiter.request(name)
        limiter.request(name)
        limiter.failure(name)
        with pytest.raises(TooManyProblem, match="2 requests a minute of one token") as caught:
            limiter.request(name)
        assert 1 <= caught.value.retry_after <= 60
        with pytest.raises(TooManyProblem, match="1 failed logins a minute"):
            limiter.failure(name)


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_does_not_lock_users_out(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    limiter = Limiter(Limits(requests_per_minute=1))
    limiter.request("one")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    limiter.request("one")
    with pytest.raises(TooManyProblem) as caught:
        limiter.request("one")
    assert caught.value.retry_after <= 60
