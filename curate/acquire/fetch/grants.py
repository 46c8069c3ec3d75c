"""The seats that a runner holds at hosts, and asks for. No threads, no clock; curate/core/shares.py has the messages.

A runner asks for hosts in the order of its rows, and for no more than it can use soon, because other runners may be
waiting for those that it holds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from curate.acquire.fetch.line import Host

READY_PER_THREAD = 4
"""Hosts with a row that may start soon, per thread, that a runner tries to hold."""
SOON_SECONDS = 1.0
ASKED = 1000
"""Hosts that it waits for at most."""
PREFIX = "host/"


class Grants:
    """The hosts of one runner at the limiter."""

    def __init__(self, threads: int) -> None:
        self._ready = READY_PER_THREAD * threads
        self._held: dict[str, Host] = {}
        self._asked: dict[str, Host] = {}
        self._line: deque[Host] = deque()
        """Hosts to ask for."""

    @property
    def holds(self) -> bool:
        """Whether there is anything to return."""
        return bool(self._held or self._asked)

    @property
    def waits(self) -> bool:
        """Whether an exchange could grant more hosts."""
        return bool(self._line) and len(self._asked) < ASKED

    def add(self, host: Host, urgent: bool = False) -> None:
        """There is a row for a host; urgent: a thread waits for it."""
        if host.granted or host.asked or (host.listed and not urgent):
            return
        host.listed = True
        if urgent:
            self._line.appendleft(host)
        else:
            self._line.append(host)

    def asks(self, now: float) -> dict[str, Any]:
        """What the next message says about hosts."""
        asks: dict[str, Any] = {}
        released: list[Host] = []
        ready = 0
        for host in list(self._held.values()):
            ends = bool(host.limit) and (host.until <= now or host.unused)
            host.limit = 0 if ends else host.limit
            using = max(host.limit, host.active)
            parked = host.parked > host.rests
            if ends or using < host.told or parked:
                wait = max(host.pace.wait(now) if ends else 0.0, host.parked - now if parked else 0.0)
                asks[PREFIX + host.name] = {"holds": using, "needs": int(host.limit > 0), "wait": wait}
                host.told, host.rests = using, host.parked
            if not using:
                released.append(host)
            ready += bool(host.limit and host.rows and host.allows(now) < now + SOON_SECONDS)
        asks |= {PREFIX + name: {"holds": 0, "needs": 1} for name in self._want(self._ready - ready)}
        for host in released:
            self._release(host)  # only now: this message gives the seat back, and the next one may ask for it again
        return asks

    def heard(self, shares: Mapping[str, Any], now: float) -> list[Host]:
        """Take the limiter's answer over; returns the hosts that it is about."""
        changed = []
        for name, (seats, seconds, rest) in shares.items():
            host = self._asked.get(name) or self._held.get(name)
            if host is None:
                continue  # just given back
            if host.asked and seats:
                del self._asked[name]
                self._held[name] = host
                host.asked, host.granted = False, True
                host.pace.resume(rest, now)
            host.limit, host.told = seats, max(host.told, seats)
            host.until = math.inf if seconds is None else now + seconds
            host.rests = max(host.rests, now + rest)
            host.parked = max(host.parked, host.rests)
            changed.append(host)
        return changed

    def _want(self, count: int) -> list[str]:
        want: list[str] = []
        while self._line and (self._line[0].movers or (len(want) < count and len(self._asked) < ASKED)):
            host = self._line.popleft()
            host.listed = False
            if host.asked or host.granted or not (host.rows or host.movers):
                continue
            host.asked = True
            self._asked[host.name] = host
            want.append(host.name)
        return want

    def _release(self, host: Host) -> None:
        del self._held[host.name]
        host.granted = False
        if host.rows or host.movers:
            host.listed = True
            self._line.appendleft(host)
