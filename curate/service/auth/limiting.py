"""Limits on requests per token, and on failed logins per address.

A valid token works from every address: otherwise one attacker would lock out all users of the same proxy. Each process
has separate counts.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Sequence

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from starlette.requests import HTTPConnection

from curate.service.problems import TooManyProblem
from curate.service.settings import Limits

JUMP_SECONDS = 5.0
FORWARDED_HOPS = 20
"""Limit on addresses of X-Forwarded-For, from the right."""


class Limiter:
    def __init__(self, limits: Limits) -> None:
        self._storage = MemoryStorage()
        self._windows = FixedWindowRateLimiter(self._storage)
        self._requests = RateLimitItemPerMinute(limits.requests_per_minute)
        self._failures = RateLimitItemPerMinute(limits.failures_per_minute)
        self._offset = _offset()

    def request(self, token_id: str) -> None:
        """Raises TooManyProblem if the token has sent too many in this minute."""
        self._count(self._requests, "token", token_id, f"{self._requests.amount} requests a minute of one token")

    def failure(self, address: str) -> None:
        """Raises TooManyProblem if the address has failed too often to log in in this minute."""
        self._count(self._failures, "address", address, f"{self._failures.amount} failed logins a minute")

    def _count(self, item: RateLimitItemPerMinute, kind: str, name: str, limit: str) -> None:
        if abs(_offset() - self._offset) > JUMP_SECONDS:  # the library's windows end by the wall clock
            self._storage.reset()
            self._offset = _offset()
        if not self._windows.hit(item, kind, name):
            left = self._windows.get_window_stats(item, kind, name).reset_time - time.time()
            wait = min(max(math.ceil(left), 1), 60)
            raise TooManyProblem(f"more than {limit}; repeat in {wait} s", retry_after=wait)


def _offset() -> float:
    return time.time() - time.monotonic()


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
