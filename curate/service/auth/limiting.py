"""Limits on requests per user, with all of their tokens, and on failed logins per address.

A valid token works from every address: otherwise one attacker would lock out all users of the same proxy. Each process
has separate counts.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections.abc import Callable, Sequence

from starlette.requests import HTTPConnection

from curate.service.auth.turns import Turns
from curate.service.policy.sandbox import AT_ONCE
from curate.service.problems import TooManyProblem
from curate.service.settings import Limits

MINUTE = 60.0
WAITING_CHECKS = 2
"""Most recipes of one user that wait to be checked."""
FORWARDED_HOPS = 20
"""Limit on addresses of X-Forwarded-For, from the right."""


class Limiter:
    def __init__(self, limits: Limits) -> None:
        self._requests = Window(limits.requests_per_minute)
        self._failures = Window(limits.failures_per_minute)
        self.turns = Turns(limits.requests_at_once)
        self.checks = Turns(1, overall=AT_ONCE, waiting=WAITING_CHECKS, seconds=limits.check_seconds)
        """Turns at the sandbox."""

    def request(self, user_id: int) -> None:
        """Raises TooManyProblem if the user has sent too many in this minute."""
        _check(self._requests.count(str(user_id)), f"{self._requests.most} requests a minute of one user")

    def failure(self, address: str) -> None:
        """Raises TooManyProblem if the address has failed too often to log in in this minute."""
        _check(self._failures.count(address), f"{self._failures.most} failed logins a minute")


class Window:
    """Counts by name. A name's minute begins with its first event. Thread-safe."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self._clock = most, clock
        self._lock = threading.Lock()
        self._minutes: dict[str, tuple[float, int]] = {}
        """Name -> when its minute ends, and its events so far."""
        self._full = 1000

    def count(self, name: str) -> float:
        """Count an event. Seconds until the name's next minute if it had too many, otherwise 0."""
        now = self._clock()
        with self._lock:
            ends, events = self._minutes.get(name, (0.0, 0))
            if now >= ends:
                ends, events = now + MINUTE, 0
            self._minutes[name] = ends, events + 1
            if len(self._minutes) > self._full:
                self._minutes = {name: one for name, one in self._minutes.items() if now < one[0]}
                self._full = max(1000, 2 * len(self._minutes))
        return ends - now if events >= self.most else 0.0


def _check(seconds: float, limit: str) -> None:
    if seconds:
        wait = math.ceil(seconds)
        raise TooManyProblem(f"more than {limit}; repeat in {wait} s", retry_after=wait)


def address(connection: HTTPConnection, proxies: Sequence[str]) -> str:
    """The client's address: the peer, or if that is one of `proxies`, the rightmost address of X-Forwarded-For that is
    not. For IPv6, its /64 network, since one client has all of it."""
    peer = connection.client.host if connection.client else "local"
    trusted = [ipaddress.ip_network(proxy, strict=False) for proxy in proxies]
    forwarded = ",".join(connection.headers.getlist("x-forwarded-for")).split(",")[-FORWARDED_HOPS:]
    while forwarded and _among(peer, trusted):
        last = forwarded.pop().strip()
        if _ip(last) is None:
            break
        peer = last
    ip = _ip(peer)
    return str(ipaddress.ip_network((ip, 64), strict=False)) if isinstance(ip, ipaddress.IPv6Address) else peer


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _among(text: str, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    ip = _ip(text)
    return ip is not None and any(ip in network for network in networks)
