"""How the limits of a run are dealt to its clients. No threads, no clock; curate/core/shares.py has the messages.

The shares of a limit never add up to more than the limit. The dealer raises a client's share only by what the limit has
left, after other clients have confirmed that they use less.

The dealer divides a rate equally among all clients that need some. It divides seats, the requests at once to a host,
equally among as many clients as there are seats. Further clients wait in line. While some wait, a client that has held
its seats for HOLD_SECONDS gives them back and goes to the end of the line. A host with a rate has one seat: the client
that has it keeps to the rate. When this client gives the host back, it says when the next request may start. So in any
T seconds such a host gets at most 1 + rate * (T + SLACK_SECONDS) requests (curate/core/pace.py).

The dealer divides what is left of a ceiling. A client reserves in its share the most that a request may cost, and only
then sends the request. What the request did not cost is free for later ones. A client that is gone may have spent its
whole share. A client for whose next request one ceiling is not enough gets nothing of the others, so that other clients
can use it. A ceiling that is set during a run is dealt once all clients have confirmed that they know of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from curate.core.spend import Spend

HOLD_SECONDS = 3.0
"""How long a client may keep a seat that others wait for."""
HOLD_EXCHANGES = 10
"""It keeps the seat for at least this many exchanges: going to another client takes one or two."""
REST_SECONDS = 86400.0
"""A host rests for no longer."""
EXCHANGE_SECONDS = 0.1
"""Between two exchanges of a client that is busy."""
EXCHANGES_PER_SECOND = 500.0
"""Most that all clients make together: more clients exchange less often."""
CEILINGS = ("max_tokens", "max_dollars")
"""Limits of the run, in every room."""
KEPT = 1000
"""The dealer forgets unused hosts when their number exceeds this one and twice that of the hosts in use before."""


@dataclass(slots=True)
class Claim:
    """What a client holds of a limit, and what more it needs."""

    needs: float = 0.0
    holds: float = 0.0
    """The most that it may use, by its last message."""
    used: float = 0.0
    """The part of `holds` that is spent."""
    least: float = 0.0
    """The smallest share that it can use. Infinite: no share is of use to it, because another ceiling is not enough."""
    share: float | None = 0.0
    """By the last answer. None: no limit."""
    since: float = math.inf
    until: float = math.inf
    """The time in which it has a seat, by the last answer."""
    rests: float = 0.0
    """`rests` of the limit, by the last answer."""
    unbound: bool = False
    """It may use more than it holds, because it has not yet confirmed that there is a ceiling."""

    @property
    def using(self) -> float:
        return max(self.holds, self.share or 0.0)


class Limit:
    """A rate, or seats."""

    def __init__(self, limit: float | None = None, seats: int | None = None, pause: float = 0.0) -> None:
        self.limit, self.seats, self.pause = limit, seats, pause
        self.claims: dict[str, Claim] = {}
        """Client -> its claim. Claims with needs are in the order in which the clients first asked."""
        self.rests = 0.0
        """No client uses it before this time."""

    def ask(self, client: str, ask: Mapping[str, float], now: float) -> None:
        claim = self.claims.setdefault(client, Claim())
        before, claim.needs, claim.holds = claim.needs, ask["needs"], ask["holds"]
        if claim.share is not None:
            claim.share = min(claim.share, claim.holds)
        if wait := min(ask.get("wait", 0.0), REST_SECONDS):
            claim.rests = now + wait
            self.rests = max(self.rests, claim.rests)
        if claim.needs and not before:
            self.claims[client] = self.claims.pop(client)
            claim.since = claim.until = math.inf
        elif not (claim.needs or claim.holds or claim.share is None):
            del self.claims[client]

    def leave(self, client: str, now: float) -> None:
        """A client is gone, and its requests with it. When it made the last one is not known."""
        if self.claims.pop(client).using:
            self.rests = max(self.rests, now + self.pause)

    def deal(self, client: str, now: float, hold: float) -> list[float | None] | None:
        """A client's entry in `shares` of the answer; None if nothing has changed."""
        if (claim := self.claims.get(client)) is None:
            return None
        before = (claim.share, claim.until, claim.rests)
        claim.holds = claim.using  # until it confirms a lower share
        claim.share, claim.rests = self._share(client), max(claim.rests, self.rests)
        if claim.share and claim.since == math.inf:
            claim.since = max(now, self.rests)
        if claim.until == math.inf and client in self._leaving():
            claim.until = max(now, claim.since + hold)
        if (claim.share, claim.until, claim.rests) == before:
            return None
        return [claim.share, None if claim.until == math.inf else claim.until - now, max(0.0, self.rests - now)]

    def seated(self, turns: int = 1) -> list[str]:
        """The clients that share it, as many as there are seats; or those and the next in line."""
        needing = (client for client, claim in self.claims.items() if claim.needs)
        return list(islice(needing, self.seats and turns * self.seats))

    def _leaving(self) -> list[str]:
        """The clients whose seats others wait for."""
        if self.seats is None:
            return []
        waiting = len(self.seated(2)) - self.seats
        return [client for client in self.seated() if self.claims[client].share][: max(0, waiting)]

    def _share(self, client: str) -> float | None:
        seated = self.seated()
        if self.limit is None or client not in seated:
            return None if self.limit is None else 0.0
        place, count = seated.index(client), len(seated)
        whole = self.seats is not None
        part = self.limit // count + (place < self.limit % count) if whole else self.limit / count
        others = sum(claim.using for other, claim in self.claims.items() if other != client)
        return max(0.0, min(part, self.limit - others))


class Ceiling(Limit):
    """A limit of what is spent in all."""

    def ask(self, client: str, ask: Mapping[str, float], now: float) -> None:
        claim = self.claims.setdefault(client, Claim())
        claim.needs, claim.holds, claim.used, claim.least = (ask[name] for name in ("needs", "holds", "used", "least"))
        claim.unbound = claim.share is None
        claim.share = None if claim.unbound else claim.holds

    def leave(self, client: str, now: float) -> None:
        """A client is gone. It may have spent its share; if it connects again, it says what it spent."""
        claim = self.claims[client]
        claim.needs, claim.used, claim.unbound = 0.0, claim.using, False
        claim.share = claim.using

    def short(self, client: str) -> bool:
        """Whether the ceiling is not enough for a client to begin anything now."""
        claim = self.claims[client]
        return self.limit is not None and claim.needs > 0 and self._left() < claim.least

    def over(self, client: str) -> bool:
        """Whether it is not enough either after all requests in flight have ended."""
        return self.short(client) and all(one.using <= one.used for one in self.claims.values())

    def _left(self) -> float:
        """Negative after the ceiling was lowered below the sum of the shares."""
        assert self.limit is not None
        return self.limit - sum(claim.using for claim in self.claims.values())

    def _share(self, client: str) -> float | None:
        claim = self.claims[client]
        if self.limit is None:
            claim.unbound = True
            return None
        left = self._left()
        if not claim.needs or left < claim.least or any(one.unbound for one in self.claims.values()):
            return max(0.0, claim.holds + min(0.0, left))
        return claim.holds + min(claim.needs, max(claim.least, left / len(self.seated())))


@dataclass
class Holder:
    """A client of a room."""

    room: str
    connection: int = 0
    """The number of its connection; 0: the client is gone."""
    changed: set[str] = field(default_factory=set)
    """Limits of which its share may have changed."""
    spent: Spend = field(default_factory=Spend)
    lost: Spend = field(default_factory=Spend)


class Dealer:
    """The limits of a run, and their clients. `hold` and `exchange_seconds`: shorter in tests."""

    def __init__(self, hold: float = HOLD_SECONDS, exchange_seconds: float = EXCHANGE_SECONDS) -> None:
        self._hold, self._exchange_seconds = hold, exchange_seconds
        self._ceilings = {name: Ceiling() for name in CEILINGS}
        self.limits: dict[tuple[str, str], Limit] = {("", name): one for name, one in self._ceilings.items()}
        """(room, name) -> limit. Ceilings have no room."""
        self._kept = 0
        self._described: dict[tuple[str, str], Mapping[str, Any]] = {}
        """(room, name) -> limit, as the first client of the room described it."""
        self._set: dict[tuple[str | None, str], float | None] = {}
        """(room, name) -> limit that was changed; room None: in every room."""
        self._holders: dict[str, Holder] = {}
        self._connections = 0

    def join(self, opening: Mapping[str, Any], now: float) -> tuple[str, int]:
        """The first message of a client; returns its name and the number of its connection. The client no longer has
        what it held through an earlier one."""
        self._connections += 1
        client, room = opening["client"], opening["room"]
        if client in self._holders:
            self.leave(client, self._holders[client].connection, now)
        self._holders.setdefault(client, Holder(room)).connection = self._connections
        for name, limit in opening["limits"].items():
            self._described.setdefault((room, name), limit)
        return client, self._connections

    def leave(self, client: str, connection: int, now: float) -> None:
        me = self._holders.get(client)
        if me is None or me.connection != connection:
            return  # it has connected again, and may have left again
        me.connection = 0
        for name, limit in [(name, limit) for (_, name), limit in self.limits.items() if client in limit.claims]:
            limit.leave(client, now)
            self._mark(name, limit, now)
        if not me.spent and not me.lost:
            del self._holders[client]

    def exchange(self, client: str, message: Mapping[str, Any], now: float) -> dict[str, Any]:
        """The answer to a client's message."""
        me, asks = self._holders[client], message["asks"]
        self._forget(now)
        for name, ask in asks.items():
            limit = self._limit(me.room, name)
            limit.ask(client, ask, now)
            self._mark(name, limit, now)
        if "spent" in message:
            me.spent, me.lost = Spend.from_json(message["spent"]), Spend.from_json(message["lost"])
        ceilings = [ceiling for name, ceiling in self._ceilings.items() if name in asks]
        over = any(ceiling.over(client) for ceiling in ceilings)
        if any(ceiling.short(client) for ceiling in ceilings):
            for ceiling in ceilings:
                ceiling.claims[client].least = math.inf
        hold = max(self._hold, HOLD_EXCHANGES * self._interval)
        names = [*asks, *sorted(me.changed - asks.keys())]
        shares = {name: self._limit(me.room, name).deal(client, now, hold) for name in names}
        me.changed = set()
        return {
            "shares": {name: share for name, share in shares.items() if share is not None},
            "over": over,
            "seconds": self._interval,
        }

    def set(self, room: str | None = None, **limits: float | None) -> None:
        """Change limits (None: no limit), in one room or in every room, now and for clients to come."""
        for name, limit in limits.items():
            if (room, name) in self._set and self._set[room, name] == limit:
                continue
            self._set[room, name] = limit
            for (where, known), one in self.limits.items():
                if known == name and room in (None, where):
                    one.limit = limit

    def spent(self) -> dict[str, Spend]:
        """By room, as far as clients have reported it. Requests in flight of a client that is gone are an estimate."""
        found: dict[str, Spend] = {}
        for one in self._holders.values():
            if one.spent or one.lost:
                spent = one.spent if one.connection else one.spent + one.lost
                found[one.room] = found.get(one.room, Spend()) + spent
        return found

    @property
    def _interval(self) -> float:
        connected = sum(1 for one in self._holders.values() if one.connection)
        return max(self._exchange_seconds, connected / EXCHANGES_PER_SECOND)

    def _limit(self, room: str, name: str) -> Limit:
        place = ("" if name in CEILINGS else room, name)
        if place not in self.limits:
            made = self.limits[place] = Limit(**self._described[room, name.partition("/")[0]])
            made.limit = self._set.get(place, self._set.get((None, name), made.limit))
        return self.limits[place]

    def _mark(self, name: str, limit: Limit, now: float) -> None:
        """Seats have changed: the next exchange of each other client looks at its share again."""
        if limit.seats is not None:
            for client in limit.claims if limit.rests > now else limit.seated():
                self._holders[client].changed.add(name)

    def _forget(self, now: float) -> None:
        """Drop hosts that no client asks for."""
        if len(self.limits) > 2 * self._kept + KEPT:
            limits = self.limits.items()
            self.limits = {place: one for place, one in limits if one.claims or one.rests > now or not one.seats}
            self._kept = len(self.limits)
