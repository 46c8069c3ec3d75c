"""A process's share of an endpoint's limits and of the run's ceilings.

The event loop asks before each request whether it may begin. With a limiter, a thread exchanges messages with it
(curate/core/shares.py): nothing may begin before its first answer, nor when it was silent for too long. Without one,
the process is alone and keeps the endpoint's limits by itself.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from curate.core.endpoints import Endpoint
from curate.core.pace import Pace
from curate.core.shares import ENDPOINTS, ShareClient
from curate.core.spend import ESTIMATES, Spend

RATES = ("requests_per_minute", "tokens_per_minute")
CEILINGS = ("max_tokens", "max_dollars")
LOOK_SECONDS = 1.0
"""Until a request looks again whether there is a connection to the limiter."""
RETRY_SECONDS = 10.0
"""How long a lost connection to the limiter is tried again."""


class Cost(NamedTuple):
    """Tokens that a request is expected to take, by its length."""

    prompt: float = 0.0
    completion: float = 0.0

    @property
    def tokens(self) -> float:
        return self.prompt + self.completion

    def plus(self, other: Cost, sign: int = 1) -> Cost:
        return Cost(self.prompt + sign * other.prompt, self.completion + sign * other.completion)

    def times(self, factor: Cost) -> Cost:
        return Cost(self.prompt * factor.prompt, self.completion * factor.completion)

    def covering(self, other: Cost) -> Cost:
        """The smallest cost that is enough for both."""
        return Cost(max(self.prompt, other.prompt), max(self.completion, other.completion))


class Ticket(NamedTuple):
    """A request that has begun."""

    expected: float
    guess: Cost


class EndpointShare:
    """The event loop calls `wait`, `start` and `settle`; the thread of its client changes the state too. `wake` is
    called in that thread when something may begin that had to wait."""

    def __init__(
        self, name: str, endpoint: Endpoint, limiter: Mapping[str, Any] | None, wake: Callable[[], None]
    ) -> None:
        self._price, self._wake = endpoint.price, wake
        self._lock = threading.Lock()
        limits = {rate: getattr(endpoint, rate) for rate in RATES}
        self._shares: dict[str, float | None] = {**limits, **dict.fromkeys(CEILINGS)}
        """Rates are per minute. Ceilings are for all requests of this process. None: no limit."""
        self._requests, self._tokens = self._paces = Pace(None), Pace(None)
        self.client: ShareClient | None = None
        if limiter is not None:
            self._shares = dict.fromkeys(self._shares, 0.0)
            described = {rate: {"limit": limit} for rate, limit in limits.items()}
            self.client = ShareClient(limiter, ENDPOINTS + name, described, self._ask, self._heard, RETRY_SECONDS)
        self._keep_rates()
        self.over = False
        """No further request may begin in this run."""
        self._guess = self._expected = 1.0
        """Tokens of the settled requests as expected by their lengths, and as they were."""
        self._excess = Cost(1.0, 1.0)
        """The most by which the tokens of an answer exceeded what was expected, as a factor."""
        self._settled = self._asked = self._reported = 0
        """Requests that have ended, also as of the last message, and as of the last that was answered."""
        self._spent = Spend()
        """What they cost."""
        self._in_flight, self._flying = 0, Cost()
        """How many requests are in flight, and what they are expected to take."""
        self._wanted = 0
        self._first = self._largest = Cost()
        """The most that the first request in line may take, and any request."""

    @property
    def error(self) -> Exception | None:
        """Why no request may begin in this process: the limiter is gone."""
        return self.client.error if self.client is not None else None

    # --- in the event loop's thread ---

    def join(self) -> None:
        """Connect to the limiter, if there is one and no connection."""
        if self.client is not None and not self.client.alive:
            self.over = False
            self.client.start()

    def close(self) -> None:
        """End the connection, without waiting for it."""
        if self.client is not None:
            self.client.close()

    def report(self, seconds: float = 2.0) -> None:
        """Wait, in any thread, until the limiter knows what has settled."""
        settled, until = self._settled, time.monotonic() + seconds
        while self.client is not None and self._reported < settled and time.monotonic() < until:
            self.client.hurry()
            time.sleep(0.005)

    def want(self, requests: int) -> None:
        """How many requests would begin now."""
        self._wanted = requests

    def wait(self, guess: Cost) -> float:
        """Seconds until a request may begin; infinite: until `wake` is called."""
        with self._lock:
            now = time.monotonic()
            self._first = guess.times(self._excess)
            self._largest = self._largest.covering(self._first)
            if self.client is not None and now >= self.client.valid:
                self.join()
                self.client.hurry()
                return LOOK_SECONDS  # a thread that is about to end cannot be joined yet
            seconds = max(self._requests.wait(now), self._tokens.wait(now)) if self._fits(self._first) else math.inf
            if seconds == math.inf and self.client is not None:
                self.client.hurry()
            return seconds

    def start(self, guess: Cost) -> Ticket:
        """A request begins."""
        with self._lock:
            now = time.monotonic()
            expected = guess.tokens * self._expected / self._guess
            self._requests.take(now)
            self._tokens.take(now, expected)
            self._in_flight += 1
            self._flying = self._flying.plus(guess)
            return Ticket(expected, guess)

    def settle(self, ticket: Ticket, spend: Spend) -> None:
        """A request has ended."""
        with self._lock:
            self._tokens.take(time.monotonic(), spend.most_tokens - ticket.expected)
            if spend.most_tokens:
                self._guess += ticket.guess.tokens
                self._expected += spend.most_tokens
            if spend.tokens:
                prompt, completion = max(1.0, ticket.guess.prompt), max(1.0, ticket.guess.completion)
                found = Cost(spend.prompt_tokens / prompt, spend.completion_tokens / completion)
                self._excess = self._excess.covering(found)
            self._settled += 1
            self._spent += spend
            self._in_flight -= 1
            self._flying = self._flying.plus(ticket.guess, -1) if self._in_flight else Cost()

    def _keep_rates(self) -> None:
        for rate, pace in zip(RATES, self._paces, strict=True):
            share = self._shares[rate]
            pace.change(None if share is None else share / 60.0, time.monotonic())

    # --- ceilings ---

    def _amounts(self, cost: Cost) -> dict[str, float]:
        """What a cost takes of each ceiling."""
        dollars = self._price.of(cost.prompt, cost.completion) if self._price else 0.0
        return {"max_tokens": cost.tokens, "max_dollars": dollars}

    def _used(self) -> dict[str, float]:
        return {"max_tokens": self._spent.most_tokens, "max_dollars": self._spent.most_dollars}

    def _reserved(self) -> dict[str, float]:
        """With the most that requests in flight may cost."""
        flying = self._amounts(self._flying.times(self._excess))
        return {name: used + flying[name] for name, used in self._used().items()}

    def _fits(self, cost: Cost) -> bool:
        """Whether the ceilings allow one more request of this cost."""
        shares = {name: share for name in CEILINGS if (share := self._shares[name]) is not None}
        if not shares:
            return True
        reserved, amounts = self._reserved(), self._amounts(cost)
        return all(reserved[name] + amounts[name] <= share for name, share in shares.items())

    # --- in the client's thread ---

    def _ask(self) -> dict[str, Any]:
        with self._lock:
            self._asked = self._settled
            busy = bool(self._wanted or self._in_flight)
            rates = {rate: {"holds": self._shares[rate] or 0.0, "needs": int(busy)} for rate in RATES}
            lost = {"requests": self._in_flight, "estimated": self._in_flight}
            lost |= zip(ESTIMATES, (round(self._flying.prompt), round(self._flying.completion)), strict=True)
            return {
                "busy": busy,
                "asks": rates | self._ask_for_ceilings(),
                "spent": self._spent.to_json(),
                "lost": Spend.priced(self._price, **lost).to_json(),
            }

    def _ask_for_ceilings(self) -> dict[str, dict[str, float]]:
        """Gives back what the waiting requests do not need, or everything if that is too little for the first one."""
        asks, fits = {}, self._fits(self._first)
        used, reserved = self._used(), self._reserved()
        first, largest = self._amounts(self._first), self._amounts(self._largest)
        for name in CEILINGS:
            share = self._shares[name]
            needs = self._wanted * largest[name]
            kept = 0.0 if share is None or not fits else min(needs, share - reserved[name])
            holds = reserved[name] + kept
            if share is not None:
                self._shares[name] = holds
            asks[name] = {"holds": holds, "needs": needs - kept, "used": used[name], "least": first[name]}
        return asks

    def _heard(self, answer: dict[str, Any] | None) -> None:
        with self._lock:
            if answer is None:  # the connection is gone, and with it its shares of rates and what it heard of limits
                gone = [name for name, share in self._shares.items() if name in RATES or share is None]
                self._shares.update(dict.fromkeys(gone, 0.0))
            else:
                self._reported, self.over = self._asked, answer["over"]
                self._shares.update({name: share for name, (share, *_) in answer["shares"].items()})
            self._keep_rates()
        self._wake()
