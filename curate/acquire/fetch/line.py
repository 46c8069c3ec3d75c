"""Rows in line for their hosts: which one may start at a given time. No threads, no clock.

A host is in one of three states: free (in the heap of the free ones, by the place of its first row), waiting for the
clock (in the other heap, by time) or waiting for an event (a slot, a grant: in neither, until `update` is called).
Taking a row costs O(log hosts).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from threading import Condition

from curate.core.pace import Pace


class Host:
    """The rows and the requests of one host."""

    __slots__ = (
        "active",
        "asked",
        "granted",
        "limit",
        "listed",
        "movers",
        "name",
        "pace",
        "parked",
        "rests",
        "rows",
        "stamp",
        "told",
        "until",
    )

    def __init__(self, name: str, limit: int, rate: float | None) -> None:
        self.name, self.limit, self.pace = name, limit, Pace(rate)
        self.active = 0
        """Requests in progress."""
        self.rows: deque[tuple[int, Hashable]] = deque()
        """(place in the list, row), not yet started."""
        self.movers: deque[Condition] = deque()
        """Threads whose rows move here; the first goes next, and before any row in line."""
        self.parked = 0.0
        """No start before this time."""
        self.stamp = 0
        """Stamp of its entry in one of the heaps; others are stale. Even: it has none."""
        self.listed = self.asked = self.granted = False
        """State at the limiter: to be asked for, asked for, held."""
        self.told, self.rests = 0, 0.0
        """What the limiter knows: how many requests at once this runner may make, and `parked`."""
        self.until = math.inf
        """When the runner gives it back."""

    @property
    def unused(self) -> bool:
        return not (self.active or self.rows or self.movers)

    def allows(self, now: float) -> float:
        """The time from which its pace and its park allow a start."""
        return max(self.parked, now + self.pace.wait(now))


class Line:
    """`patience`: rows of a host that is parked for longer than these seconds leave the line at once."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.rows = 0
        self._free: list[tuple[int, int, Host]] = []
        """(place of the first row, stamp, host)"""
        self._timed: list[tuple[float, int, int, Host]] = []
        """(when, place of the first row, stamp, host)"""

    def add(self, host: Host, place: int, row: Hashable, now: float) -> None:
        """A row joins, after those of the host that are earlier in the list."""
        host.rows.append((place, row))
        self.rows += 1
        self.update(host, now)

    def update(self, host: Host, now: float, moved: bool = False) -> None:
        """Put a host where it belongs. moved: it may be in the wrong place."""
        if moved:
            host.stamp += host.stamp % 2
        if host.stamp % 2 or not host.rows:
            return
        when = self._when(host, now)
        if when == math.inf:
            return
        host.stamp += 1
        place = host.rows[0][0]
        if when <= now:
            heappush(self._free, (place, host.stamp, host))
        else:
            heappush(self._timed, (when, place, host.stamp, host))

    def pop(self, now: float) -> tuple[Host, Hashable] | None:
        """The first row that may start, and its host."""
        while self.free(now):
            _, stamp, host = heappop(self._free)
            if stamp != host.stamp:
                continue
            host.stamp += 1
            if self._when(host, now) <= now:
                self.rows -= 1
                return host, host.rows.popleft()[1]
            self.update(host, now)
        return None

    def free(self, now: float) -> bool:
        """Whether some host seems to be free."""
        while self._timed and self._timed[0][0] <= now:
            _, place, stamp, host = heappop(self._timed)
            if stamp == host.stamp:
                heappush(self._free, (place, stamp, host))
        return bool(self._free)

    def soonest(self) -> float:
        """When the clock may free a host; infinite: never."""
        return self._timed[0][0] if self._timed else math.inf

    def given_up(self, host: Host, now: float) -> bool:
        return host.parked - now > self.patience

    def _when(self, host: Host, now: float) -> float:
        """From when its first row may start; infinite: an event decides."""
        if self.given_up(host, now):
            return now
        if host.movers or host.active >= host.limit:
            return math.inf
        return host.allows(now)
