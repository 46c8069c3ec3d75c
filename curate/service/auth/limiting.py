"""Limits on requests per user, with all of their tokens, and on failed logins per address.

A valid token works from every address: otherwise one attacker would lock out all users of the same proxy. Each process
has separate counts.

Users take turns at what they share: the threads of the server, of which each request that is being answered occupies
one, and the processes that check recipes. A user who asks for slow things waits for their own requests, in the event
loop, and takes no thread from others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.requests import HTTPConnection

from curate.service.policy.sandbox import AT_ONCE
from curate.service.problems import TooManyProblem
from curate.service.settings import Limits

MINUTE = 60.0
WAITING_CHECKS = 2
"""Most recipes of one user that wait to be checked."""
WAITING = 100
"""Most requests of one user that wait."""
FORWARDED_HOPS = 20
"""Limit on addresses of X-Forwarded-For, from the right."""


class Limiter:
    def __init__(self, limits: Limits) -> None:
        self._requests = Window(limits.requests_per_minute)
        self._thumbnails = Window(limits.thumbnails_per_minute)
        self._failures = Window(limits.failures_per_minute)
        self.turns = Turns(limits.requests_at_once)
        self.checks = Turns(1, overall=AT_ONCE, waiting=WAITING_CHECKS, seconds=limits.check_seconds)
        """Turns at the sandbox."""

    def request(self, user_id: int) -> None:
        """Raises TooManyProblem if the user has sent too many in this minute."""
        _check(self._requests.count(str(user_id)), f"{self._requests.most} requests a minute of one user")

    def thumbnail(self, user_id: int) -> None:
        """Raises TooManyProblem if the user has asked for too many in this minute."""
        _check(self._thumbnails.count(str(user_id)), f"{self._thumbnails.most} thumbnails a minute of one user")

    def failure(self, address: str) -> None:
        """Raises TooManyProblem if the address has failed too often to log in in this minute."""
        _check(self._failures.count(address), f"{self._failures.most} failed logins a minute")


class Turns:
    """Used in one event loop. `most`: turns of one user at a time; `overall`: of all users; `waiting`: requests of one
    user that wait for one, each at most `seconds`."""

    def __init__(
        self, most: int, *, overall: int | None = None, waiting: int = WAITING, seconds: float | None = None
    ) -> None:
        self._most, self._waiting, self._seconds = most, waiting, seconds
        self._turns: dict[int, asyncio.Semaphore] = {}
        self._overall = asyncio.Semaphore(overall or 1 << 30)
        self.requests: Counter[int] = Counter()
        """User -> requests that have or await a turn."""
        self.waiting: Counter[int] = Counter()
        """User -> those that await one."""

    @asynccontextmanager
    async def turn(self, user_id: int) -> AsyncIterator[None]:
        """Wait for a turn of the user, and hold it. Raises TooManyProblem if too many wait already, or for too long."""
        own = self._turns.setdefault(user_id, asyncio.Semaphore(self._most))
        waiting = self.waiting[user_id]
        if waiting >= self._waiting and (own.locked() or self._overall.locked()):
            raise TooManyProblem(f"{waiting} of your requests are waiting already; send fewer at a time", 5.0)
        self.requests[user_id] += 1
        try:
            async with AsyncExitStack() as held:
                self.waiting[user_id] += 1
                try:
                    async with asyncio.timeout(self._seconds):
                        await held.enter_async_context(own)
                        await held.enter_async_context(self._overall)
                except TimeoutError:
                    raise TooManyProblem(f"no turn within {self._seconds:g} s; try again later", 5.0) from None
                finally:
                    self.waiting[user_id] -= 1
                yield
        finally:
            self.requests[user_id] -= 1
            if not self.requests[user_id]:
                del self.requests[user_id], self.waiting[user_id], self._turns[user_id]


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
