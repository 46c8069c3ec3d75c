"""How the limits of a stage are dealt to its clients. No threads, no clock; curate/core/limits.py has the messages.

A host belongs to those who want it. If its limits are enough for all of them (one request at once and one per second
for each), each has an equal part. Otherwise as many hold it as the limits are enough for, and the others wait in line;
one who has held it for HOLD_SECONDS while others wait gives it back. A part is raised only by what others have
confirmed to have given up, so at no time do the parts add up to more than the limit.

In any T seconds a host gets at most k + rate * (T + SLACK_SECONDS) requests, where at most k clients hold it at once;
SLACK_SECONDS is in curate/core/pace.py. This also holds while a host goes from one client to the next, because
a client returns it with the time of the next start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from curate.core.limits import LimitSettings

HOLD_SECONDS = 3.0
"""How long a client may keep a host that others wait for."""
HOLD_EXCHANGES = 10
"""A host is held for at least this many exchanges: going to another client takes one or two."""
PARK_SECONDS = 86400.0
"""A host is parked for no longer."""
EXCHANGE_SECONDS = 0.1
"""Between two exchanges of a client that is busy."""
EXCHANGES_PER_SECOND = 500.0
"""Most that the clients of a room make together: more clients exchange less often."""


class Deal:
    """A limit of the run, per second, dealt in equal parts to the clients that are busy. When it is lowered, a client
    uses its earlier part until its next exchange."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self._told: dict[int, float] = {}
        self._used: dict[int, float] = {}
        """What each may be using: the greater of its last two parts, until its next exchange."""

    def part(self, client: int, wants: bool, busy: int) -> float | None:
        """What a client may use from now on, of `busy` that want some."""
        before = self._told.get(client, 0.0)
        self.leave(client)
        if self.limit is None:
            return None
        part = max(0.0, min(self.limit / busy, self.limit - sum(self._used.values()))) if wants else 0.0
        self._told[client] = part
        self._used[client] = max(before, part)
        return part

    def leave(self, client: int) -> None:
        self._told.pop(client, None)
        self._used.pop(client, None)


@dataclass(slots=True)
class Part:
    """What a client holds of a host. Rates may be infinite."""

    since: float
    slots: int
    rate: float
    used_slots: int
    """What it may be using: more than `slots` until it confirms that number."""
    used_rate: float
    leaving: bool = False


@dataclass(slots=True)
class HostState:
    parts: dict[int, Part] = field(default_factory=dict)
    """In order of grant."""
    line: dict[int, None] = field(default_factory=dict)
    """Clients that wait for it, in order."""
    due: float = 0.0
    """When the client that gets it next may start."""
    resting: list[tuple[float, float]] = field(default_factory=list)
    """(until, rate): rates that clients have returned, but not before these times."""
    parked: float = 0.0
    review: float = math.inf
    """When to look at it again."""


@dataclass(slots=True)
class Client:
    busy: bool = False
    hosts: set[str] = field(default_factory=set)
    """That it holds or waits for."""
    changed: set[str] = field(default_factory=set)
    """Hosts about which there may be something new for it."""
    parks: set[str] = field(default_factory=set)


class Room:
    """The clients of one stage. `hold` and `exchange_seconds`: shorter in tests."""

    def __init__(
        self, settings: LimitSettings, hold: float = HOLD_SECONDS, exchange_seconds: float = EXCHANGE_SECONDS
    ) -> None:
        self._slots = settings.host_connections
        self._rate = settings.host_rate or math.inf
        self._seats = self._slots if self._rate == math.inf else min(self._slots, max(1, int(self._rate)))
        """How many clients can hold a host."""
        self._least_rate = self._rate / self._seats * (1.0 - 1e-9)
        self._hold = hold
        self._exchange_seconds = exchange_seconds
        self.requests = Deal(settings.requests_per_second)
        self.bytes = Deal(settings.bytes_per_second)
        self._clients: dict[int, Client] = {}
        self._busy = 0
        self._hosts: dict[str, HostState] = {}
        self._reviews: list[tuple[float, str]] = []
        self._joined = 0

    def join(self) -> int:
        self._joined += 1
        self._clients[self._joined] = Client()
        return self._joined

    def leave(self, client: int, now: float) -> None:
        """A client is gone, and its requests with it; when it made the last ones is not known."""
        me = self._clients.pop(client)
        self._busy -= me.busy
        self.requests.leave(client)
        self.bytes.leave(client)
        for name in me.hosts:
            host = self._hosts[name]
            host.line.pop(client, None)
            if (part := host.parts.get(client)) is not None:
                self._rest(name, host, part.used_rate, 1.0 / part.used_rate if part.used_rate else 0.0, now)
                del host.parts[client]
            self._deal(name, host, now)

    def exchange(self, client: int, message: Mapping[str, Any], now: float) -> dict[str, Any]:
        """The answer to a client's message."""
        while self._reviews and self._reviews[0][0] <= now:
            self._review(heappop(self._reviews)[1], now)
        me = self._clients[client]
        self._busy += message["busy"] - me.busy
        me.busy = message["busy"]
        for name, wait in message["left"].items():
            self._returned(client, name, wait, now)
        for name, (slots, wait) in message["held"].items():
            self._confirmed(client, name, slots, wait, now)
        for name, seconds in message["park"].items():
            self._park(client, name, seconds, now)
        for name in message["want"]:
            self._wanted(client, name, now)
        grants = {name: told for name in sorted(me.changed) if (told := self._tell(client, name, now))}
        parks = {name: self._hosts[name].parked - now for name in me.parks if name in self._hosts}
        me.changed, me.parks = set(), set()
        return {
            "grant": grants,
            "park": parks,
            "requests": self.requests.part(client, me.busy, max(1, self._busy)),
            "bytes": self.bytes.part(client, me.busy, max(1, self._busy)),
            "seconds": self._interval,
        }

    @property
    def _interval(self) -> float:
        return max(self._exchange_seconds, len(self._clients) / EXCHANGES_PER_SECOND)

    def set(self, **limits: float | None) -> None:
        """Change limits of the run; a missing one stays."""
        self.requests.limit = limits.get("requests_per_second", self.requests.limit)
        self.bytes.limit = limits.get("bytes_per_second", self.bytes.limit)

    @property
    def known_hosts(self) -> int:
        return len(self._hosts)

    def _wanted(self, client: int, name: str, now: float) -> None:
        host = self._hosts.setdefault(name, HostState())
        host.line[client] = None
        me = self._clients[client]
        me.hosts.add(name)
        if host.parked > now:
            me.parks.add(name)
        self._deal(name, host, now)

    def _returned(self, client: int, name: str, wait: float, now: float) -> None:
        host = self._hosts[name]
        self._rest(name, host, host.parts[client].used_rate, wait, now)
        del host.parts[client]
        self._clients[client].hosts.discard(name)
        self._deal(name, host, now)

    def _confirmed(self, client: int, name: str, slots: int, wait: float, now: float) -> None:
        """A client uses no more than `slots`, and no higher rate than it was last given."""
        host = self._hosts[name]
        part = host.parts[client]
        if not part.rate:
            self._rest(name, host, part.used_rate, wait, now)
        part.used_slots, part.used_rate = slots, part.rate
        self._deal(name, host, now)

    def _rest(self, name: str, host: HostState, rate: float, wait: float, now: float) -> None:
        """A client that holds a host starts no more requests; its next one would have come after `wait` seconds. Until
        then no client gets its rate."""
        if wait and rate and len(host.parts) > 1:
            host.resting.append((now + wait, rate))
        else:
            host.due = max(host.due, now + wait)

    def _park(self, client: int, name: str, seconds: float, now: float) -> None:
        host = self._hosts.setdefault(name, HostState())
        host.parked = max(host.parked, now + min(seconds, PARK_SECONDS))
        for other in (*host.parts, *host.line):
            if other != client:
                self._clients[other].parks.add(name)
        self._deal(name, host, now)

    def _coming(self, host: HostState) -> list[int]:
        """Clients in line for whom there is room."""
        staying = sum(not part.leaving for part in host.parts.values())
        return list(islice(host.line, max(0, self._seats - staying)))

    def _deal(self, name: str, host: HostState, now: float) -> None:
        """Decide who leaves, and whom to tell."""
        coming = self._coming(host)
        waiting = len(host.line) - len(coming)
        hold = max(self._hold, HOLD_EXCHANGES * self._interval)
        if waiting:
            staying = [part for part in host.parts.values() if not part.leaving]
            for part in staying[:waiting]:
                part.leaving = part.since + hold <= now
            coming = self._coming(host)
            longest = min((part.since for part in staying if not part.leaving), default=math.inf)
            self._look_again(name, host, longest + hold)
        for client in (*host.parts, *coming):
            self._clients[client].changed.add(name)
        host.resting = [one for one in host.resting if one[0] > now]
        self._look_again(name, host, min((until for until, _ in host.resting), default=math.inf))
        if not host.parts and not host.line:
            self._look_again(name, host, max(host.due, host.parked, now))

    def _look_again(self, name: str, host: HostState, when: float) -> None:
        if when < host.review:
            host.review = when
            heappush(self._reviews, (when, name))

    def _review(self, name: str, now: float) -> None:
        host = self._hosts.get(name)
        if host is None or host.review > now:
            return
        host.review = math.inf
        if host.parts or host.line or max(host.due, host.parked) > now:
            self._deal(name, host, now)
        else:
            del self._hosts[name]

    def _tell(self, client: int, name: str, now: float) -> list[float | None] | None:
        """What a client has to know about a host, if anything: a grant, or a new part."""
        host = self._hosts[name]
        part = host.parts.get(client)
        slots, rate = self._part(host, client)
        if part is None:
            if not slots or rate < self._least_rate:  # the others have yet to confirm lower parts
                return None
            del host.line[client]
            wait = max(0.0, host.due - now)
            host.parts[client] = Part(now + wait, slots, rate, slots, rate)
        else:
            if slots == part.slots and math.isclose(rate, part.rate):
                return None
            part.slots, part.used_slots = slots, max(slots, part.used_slots)
            part.rate, part.used_rate = rate, max(rate, part.used_rate)
            wait = 0.0
        return [slots, None if rate == math.inf else rate, wait]

    def _part(self, host: HostState, client: int) -> tuple[int, float]:
        """A client's part of a host: an equal one, as far as the others use no more than theirs."""
        holders = [one for one, part in host.parts.items() if not part.leaving] + self._coming(host)
        if client not in holders:
            return 0, 0.0
        place, count = holders.index(client), len(holders)
        others = [part for one, part in host.parts.items() if one != client]
        free = self._slots - sum(part.used_slots for part in others)
        slots = min(self._slots // count + (place < self._slots % count), free)
        if self._rate == math.inf:
            return slots, math.inf
        used = sum(part.used_rate for part in others) + sum(rate for _, rate in host.resting)
        return slots, max(0.0, min(self._rate / count, self._rate - used))
