"""What the clients of endpoints may spend. No threads, no clock; curate/core/limits.py has the messages.

Each endpoint has a room, whose clients share its limits per minute in equal parts. The budget is the run's. It is dealt
as a number of requests that a client may begin: those that may be begun or are not settled count with the mean cost of
a request so far, so that all together fit into what is left. A run therefore exceeds its budget by at most what the
requests in flight cost more than the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from curate.core.limits import EndpointLimits
from curate.core.spend import COUNTS
from curate.engine.workers.shares import EXCHANGE_SECONDS, EXCHANGES_PER_SECOND, Deal

TOKENS_PER_PRICE = 1e6


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
            left = ceiling - sum(room.total[kind] + room.unsettled * room.mean[kind] for room in self.rooms.values())
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
    spent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    @property
    def unsettled(self) -> int:
        return max(self.ceiling, self.started) - self.settled


class EndpointRoom:
    """The clients of one endpoint."""

    def __init__(self, limits: EndpointLimits, budget: Budget, exchange_seconds: float = EXCHANGE_SECONDS) -> None:
        self._price = {"prompt": limits.input or 0.0, "completion": limits.output or 0.0}
        self._has_price = limits.input is not None or limits.output is not None
        self._budget = budget
        self._requests, self._tokens = Deal(None), Deal(None)
        self.set(requests_per_minute=limits.requests_per_minute, tokens_per_minute=limits.tokens_per_minute)
        self._exchange_seconds = exchange_seconds
        self._clients: dict[int, Asker] = {}
        self._joined = 0
        self._spent = dict.fromkeys(COUNTS, 0)
        self._settled = 0
        self._guess = (0.0, 0.0)
        """Tokens in and out of a request, before any is settled."""

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
            mean = self.mean
            for name, cost in (("prompt_tokens", mean["prompt"]), ("completion_tokens", mean["completion"])):
                self._spent[name] += round(lost * cost)
            self._spent["requests"] += lost
            self._spent["estimated"] += lost
            self._settled += lost

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
        self._settled += message["settled"] - me.settled
        me.settled = message["settled"]
        for name, count in message["spent"].items():
            self._spent[name] += count - me.spent[name]
            me.spent[name] = count
        if message["want"] and not self._settled:
            self._guess = (message["guess"][0], message["guess"][1])

    def _deal(self, me: Asker, want: int, busy: int) -> str:
        """Raise a client's ceiling as far as the budget allows; returns why no further request may begin, if so."""
        affordable = self._budget.affordable(self.mean)
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
    def mean(self) -> dict[str, float]:
        """Cost of a request: `prompt` and `completion` tokens, `tokens` and `dollars`."""
        share = 1.0 / (1 + self._settled)
        prompt = (self._guess[0] + self._spent["prompt_tokens"]) * share
        completion = (self._guess[1] + self._spent["completion_tokens"]) * share
        return self._costs(prompt, completion)

    @property
    def total(self) -> dict[str, float]:
        """What was spent: the same."""
        return self._costs(self._spent["prompt_tokens"], self._spent["completion_tokens"])

    def _costs(self, prompt: float, completion: float) -> dict[str, float]:
        dollars = (prompt * self._price["prompt"] + completion * self._price["completion"]) / TOKENS_PER_PRICE
        return {"prompt": prompt, "completion": completion, "tokens": prompt + completion, "dollars": dollars}

    def spent(self) -> dict[str, Any]:
        return {**self._spent, "dollars": self.total["dollars"] if self._has_price else None}
