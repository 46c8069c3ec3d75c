"""What a runner asks the run's limiter for and what it was granted. No threads, no clock; curate/core/limits.py has the
messages.

A runner asks for hosts in the order of its rows, and for no more than it can use soon, because other runners may be
waiting for those that it holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from curate.acquire.fetch.line import Host

READY_PER_THREAD = 4
"""Hosts with a row that may start soon, per thread, that a runner tries to hold."""
SOON_SECONDS = 1.0
ASKED = 1000
"""Hosts that it waits for at most."""


class Grants:
    """The hosts of one runner at the limiter."""

    def __init__(self, threads: int) -> None:
        self._ready = READY_PER_THREAD * threads
        self._held: dict[str, Host] = {}
        self._asked: dict[str, Host] = {}
        self._line: deque[Host] = deque()
        """Hosts to ask for."""
        self._parks: dict[str, float] = {}

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

    def park(self, name: str, seconds: float) -> None:
        self._parks[name] = max(seconds, self._parks.get(name, 0.0))

    def report(self, now: float, busy: bool) -> dict[str, Any]:
        """The next message."""
        left, held, ready = {}, {}, 0
        for name, host in list(self._held.items()):
            wait = host.pace.wait(now)
            if not host.active and not (host.limit and (host.rows or host.movers)):
                left[name] = wait
                self._release(host)
                continue
            if host.lowered:
                held[name] = [max(host.limit, host.active), wait]
                host.lowered = host.active > host.limit
            ready += bool(host.limit and host.rows and host.allows(now) < now + SOON_SECONDS)
        parks, self._parks = self._parks, {}
        return {"busy": busy, "want": self._want(self._ready - ready), "left": left, "held": held, "park": parks}

    def apply(self, grants: Mapping[str, Any], now: float) -> list[Host]:
        """Take the limiter's answer over; returns the hosts that it is about."""
        changed = []
        for name, (slots, rate, wait) in grants.items():
            host = self._asked.pop(name, None) or self._held[name]
            if not host.granted:
                host.asked, host.granted = False, True
                self._held[name] = host
            host.lowered |= slots < host.limit or (rate is not None and rate < (host.pace.rate or 0.0))
            host.limit = slots
            if slots:  # a host that is given back keeps its pace, which tells when the next request may start
                host.pace.change(rate, now)
                host.pace.delay(wait, now)
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
        host.granted = host.lowered = False
        host.limit = 0
        host.pace.change(None, 0.0)
        if host.rows or host.movers:
            host.listed = True
            self._line.appendleft(host)
