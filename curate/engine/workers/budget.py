"""What the clients of endpoints may spend. No threads, no clock; curate/core/limits.py has the messages.

Each endpoint has a room, whose clients share its limits per minute in equal parts. The budget is the run's. It is dealt
as a number of requests that a client may start. Each that may start or is not settled reserves the most that one of
this client may cost, its prompt and the longest answer, so that all together fit into what is left; its answer frees
what it did not take. Near a ceiling, fewer requests are therefore in flight, and none is sent that might exceed it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from curate.core.endpoints import Price
from curate.core.limits import EndpointLimits
from curate.core.spend import COUNTS, ESTIMATES, Spend
from curate.engine.workers.shares import EXCHANGE_SECONDS, EXCHANGES_PER_SECOND, Deal


@dataclass
class Budget:
    """Ceilings of a run over all endpoints. None: no ceiling."""

    tokens: float | None = None
    dollars: float | None = None
    rooms: dict[str, EndpointRoom] = field(default_factory=dict)

    @property
    def ceilings(self) -> dict[str, float]:
        given = {"tokens": self.tokens, "dollars": self.dollars}
        return {kind: ceiling for kind, ceiling in given.items() if ceiling is not None}

    def affordable(self, cost: Mapping[str, float]) -> float:
        """How many more requests of this cost fit into what is left; infinite without a ceiling, negative if what was
        dealt is too much: a ceiling was lowered."""
        several = [math.inf]
        for kind, ceiling in self.ceilings.items():
            left = ceiling - sum(room.total[kind] + room.reserved[kind] for room in self.rooms.values())
            several.append(left / cost[kind] if cost[kind] > 0.0 else math.inf)
        return min(several)

    @property
    def unsettled(self) -> int:
        return sum(room.unsettled for room in self.rooms.values())

    def told(self) -> str:
        """What was spent of what, for people."""
        spent = {kind: sum(room.total[kind] for room in self.rooms.values()) for kind in ("tokens", "dollars")}
        told = []
        if self.tokens is not None:
            told.append(f"{spent['tokens']:,.0f} of {self.tokens:,.0f} tokens")
        if self.dollars is not None:
            told.append(f"${spent['dollars']:,.4g} of ${self.dollars:,.4g}")
        return f"the budget is used up: {' and '.join(told)}"


@dataclass(slots=True)
class Asker:
    """A client of an endpoint."""

    busy: bool = False
    started: int = 0
    settled: int = 0
    ceiling: int = 0
    """Requests that it may begin in all."""
    guess: tuple[float, float] = (0.0, 0.0)
    """Most tokens in and out of one of its requests."""
    spent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    @property
    def unsettled(self) -> int:
        return max(self.ceiling, self.started) - self.settled


class EndpointRoom:
    """The clients of one endpoint."""

    def __init__(self, limits: EndpointLimits, budget: Budget, exchange_seconds: float = EXCHANGE_SECONDS) -> None:
        given = limits.input is not None or limits.output is not None
        self._price = Price(input=limits.input or 0.0, output=limits.output or 0.0) if given else None
        self._budget = budget
        self._requests, self._tokens = Deal(None), Deal(None)
        self.set(requests_per_minute=limits.requests_per_minute, tokens_per_minute=limits.tokens_per_minute)
        self._exchange_seconds = exchange_seconds
        self._clients: dict[int, Asker] = {}
        self._joined = 0
        self._spent = dict.fromkeys(COUNTS, 0)

    def set(self, **limits: float | None) -> None:
        """Change limits; a missing one stays."""
        for name, deal in (("requests_per_minute", self._requests), ("tokens_per_minute", self._tokens)):
            if name in limits:
                limit = limits[name]
                deal.limit = None if limit is None else limit / 60.0

    def join(self) -> int:
        self._joined += 1
        self._clients[self._joined] = Asker()
        return self._joined

    def leave(self, client: int, now: float) -> None:
        """A client is gone. The endpoint may have answered what it had in flight."""
        me = self._clients.pop(client)
        self._requests.leave(client)
        self._tokens.leave(client)
        lost = me.started - me.settled
        if lost > 0:
            for name, tokens in zip(ESTIMATES, me.guess, strict=True):
                self._spent[name] += round(lost * tokens)
            self._spent["requests"] += lost
            self._spent["estimated"] += lost

    def exchange(self, client: int, message: Mapping[str, Any], now: float) -> dict[str, Any]:
        """The answer to a client's message."""
        me = self._clients[client]
        self._take_over(me, message)
        busy = max(1, sum(other.busy for other in self._clients.values()))
        answer = {
            "requests": self._requests.part(client, me.busy, busy),
            "tokens": self._tokens.part(client, me.busy, busy),
            "ceiling": None,
            "over": "",
            "seconds": max(self._exchange_seconds, len(self._clients) / EXCHANGES_PER_SECOND),
        }
        if self._budget.ceilings:
            answer |= {"over": self._deal(me, message["want"], busy), "ceiling": me.ceiling}
        return answer

    def _take_over(self, me: Asker, message: Mapping[str, Any]) -> None:
        """A client's message about itself."""
        me.busy = message["busy"]
        me.started = message["started"]
        me.ceiling = me.started if message["ceiling"] is None else message["ceiling"]
        me.settled = message["settled"]
        me.guess = (message["guess"][0], message["guess"][1])
        for name, count in message["spent"].items():
            self._spent[name] += count - me.spent[name]
            me.spent[name] = count

    def _deal(self, me: Asker, want: int, busy: int) -> str:
        """Raise a client's ceiling as far as the budget allows; returns why no further request may begin, if so."""
        affordable = self._budget.affordable(self._costs(*me.guess))
        if affordable < 0.0:
            me.ceiling = max(me.started, me.ceiling - math.ceil(-affordable))
        if want <= 0:
            return ""
        if affordable >= 1.0:
            me.ceiling = max(me.ceiling, me.started) + int(min(want, max(1.0, affordable / busy)))
            return ""
        return "" if self._budget.unsettled else self._budget.told()

    # --- costs ---

    @property
    def unsettled(self) -> int:
        """Requests that may begin or are in flight."""
        return sum(client.unsettled for client in self._clients.values())

    @property
    def reserved(self) -> dict[str, float]:
        """Most `tokens` and `dollars` of the requests that may begin or are in flight."""
        clients = self._clients.values()
        prompt, completion = (sum(client.unsettled * client.guess[place] for client in clients) for place in (0, 1))
        return self._costs(prompt, completion)

    @property
    def total(self) -> dict[str, float]:
        """What was spent, with the estimate."""
        found = self.spent()
        return {"tokens": found.most_tokens, "dollars": found.most_dollars}

    def _costs(self, prompt: float, completion: float) -> dict[str, float]:
        dollars = self._price.of(prompt, completion) if self._price else 0.0
        return {"tokens": prompt + completion, "dollars": dollars}

    def spent(self) -> Spend:
        return Spend.priced(self._price, **self._spent)
