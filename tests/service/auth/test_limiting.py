"""Counts per minute, and whose address counts."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from curate.service.auth.limiting import Limiter, Window, address
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


def test_users_and_addresses_are_counted_each() -> None:
    limiter = Limiter(Limits(requests_per_minute=2, failures_per_minute=1))
    for user in (1, 2):
        limiter.request(user)
        limiter.request(user)
        limiter.failure(str(user))
        with pytest.raises(TooManyProblem, match="2 requests a minute of one user") as caught:
            limiter.request(user)
        assert 1 <= caught.value.retry_after <= 60
        with pytest.raises(TooManyProblem, match="1 failed logins a minute"):
            limiter.failure(str(user))


def test_a_minute_begins_with_the_first_event_and_old_ones_are_forgotten() -> None:
    now = [5.0]
    window = Window(2, lambda: now[0])
    assert [window.count("a") for _ in range(3)] == [0.0, 0.0, 60.0]
    now[0] = 64.9
    assert window.count("a") == pytest.approx(0.1) and window.count("b") == 0.0
    now[0] = 65.0
    assert window.count("a") == 0.0
    for number in range(5000):
        now[0] += 60.0
        window.count(f"address {number}")
    assert len(window._minutes) <= 1001
