"""A process's part of an endpoint's limits and of the run's budget.

The event loop asks before each request whether it may begin. With a limiter, a thread exchanges messages with it
(curate/core/limits.py): nothing may begin before its first answer, nor when it was silent for too long. Without one,
the process is alone and keeps the endpoint's limits by itself.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from curate.core.endpoints import Endpoint
from curate.core.limits import VALID_SECONDS, EndpointLimits, LimiterGoneError, Limits
from curate.core.pace import Pace
from curate.core.spend import COUNTS, Spend

LOOK_SECONDS = 1.0
"""Until a request looks again whether there is a connection to the limiter."""
IDLE_SECONDS = 1.0
"""Between two exchanges while there is nothing to request."""
HURRY = 0.2
"""Share of the usual time between two exchanges after which one may follow if requests wait for it."""
RECONNECT_SECONDS = 10.0
"""How long a lost connection to the limiter is tried again."""
log = logging.getLogger("curate")


@dataclass(frozen=True)
class Cost:
    """Tokens that a request is expected to take, by its length."""

    prompt: float
    completion: float

    @property
    def tokens(self) -> float:
        return self.prompt + self.completion

    def times(self, factor: Cost) -> Cost:
        return Cost(self.prompt * factor.prompt, self.completion * factor.completion)

    def covering(self, other: Cost) -> Cost:
        """The smallest cost that is enough for both."""
        return Cost(max(self.prompt, other.prompt), max(self.completion, other.completion))


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that has begun. `connection`: number of the connection that counts it."""

    expected: float
    guess: Cost
    connection: int


class Allowance:
    """The event loop calls `wait`, `start` and `settle`; a thread of this class changes the state too. `wake` is called
    in that thread when something may begin that had to wait."""

    def __init__(
        self, name: str, endpoint: Endpoint, limiter: Mapping[str, Any] | None, wake: Callable[[], None]
    ) -> None:
        self.name, self._limiter, self._wake = name, limiter, wake
        per_minute = (endpoint.requests_per_minute, endpoint.tokens_per_minute)
        price = endpoint.price
        self._settings = EndpointLimits(*per_minute, *((price.input, price.output) if price else (None, None)))
        self._lock = threading.Lock()
        alone = [None if limit is None else limit / 60.0 for limit in per_minute]
        self._requests, self._tokens = (Pace(limit if limiter is None else 0.0) for limit in alone)
        self._valid = math.inf if limiter is None else 0.0
        """No request may begin after this time."""
        self.over = ""
        """Why no further request may begin in this run."""
        self.error: Exception | None = None
        """Why none may begin in this process: the limiter is gone."""
        self._guess = self._expected = 1.0
        """Tokens of the settled requests as expected by their lengths, and as they were."""
        self._excess = Cost(1.0, 1.0)
        """The most by which the tokens of an answer exceeded what was expected, as a factor."""
        self._connection = self._started = self._settled = 0
        self._spent = dict.fromkeys(COUNTS, 0)
        self._reported: dict[str, int] = {}
        """The counts of the last message."""
        self._reset()
        self._wanted = 0
        self._in_flight = 0
        self._largest = Cost(0.0, 0.0)
        """The most that one request may take."""
        self._hurry, self._closed = threading.Event(), False
        self._thread: threading.Thread | None = None

    def _reset(self) -> None:
        """A new connection: to the limiter this is a new client. It has counted what it knew to be in flight, so some
        requests count twice."""
        self._connection += 1
        self._spent = {name: count - self._reported.get(name, 0) for name, count in self._spent.items()}
        self._started = self._settled = self._settled - self._reported.get("settled", 0)
        self._in_flight = 0
        self._ceiling: int | None = 0
        self._reported = {}
        self._reserved = Cost(0.0, 0.0)
        """What the limiter reserves for each request."""

    # --- in the event loop's thread ---

    def join(self) -> None:
        """Connect to the limiter, if there is one and no connection."""
        if self._limiter is not None and (self._thread is None or not self._thread.is_alive()):
            self._closed, self.error, self.over = False, None, ""
            self._thread = threading.Thread(target=self._talk, daemon=True, name=f"limits of {self.name}")
            self._thread.start()

    def close(self) -> None:
        """End the connection, without waiting for it."""
        self._closed = True
        self._hurry.set()

    def report(self, seconds: float = 2.0) -> None:
        """Wait, in any thread, until the limiter knows what has settled."""
        settled, until = self._settled, time.monotonic() + seconds
        while self._thread is not None and self._reported.get("settled", 0) < settled and time.monotonic() < until:
            self._hurry.set()
            time.sleep(0.005)

    def want(self, requests: int) -> None:
        """How many requests would begin now."""
        self._wanted = requests

    def wait(self, guess: Cost) -> float:
        """Seconds until a request may begin; infinite: until `wake` is called."""
        with self._lock:
            now = time.monotonic()
            most = guess.times(self._excess)
            self._largest = self._largest.covering(most)
            if now >= self._valid:
                self.join()
                self._hurry.set()
                return LOOK_SECONDS  # a thread that is about to end cannot be joined yet
            more = self._reserved.covering(most) != self._reserved
            used_up = self._ceiling is not None and (more or self._started >= self._ceiling)
            seconds = max(self._requests.wait(now), self._tokens.wait(now))
            if self._limiter is not None and used_up:
                seconds = math.inf
            if seconds == math.inf:
                self._hurry.set()
            return seconds

    def start(self, guess: Cost) -> Ticket:
        """A request begins."""
        with self._lock:
            now = time.monotonic()
            expected = guess.tokens * self._expected / self._guess
            self._requests.take(now)
            self._tokens.take(now, expected)
            self._started += 1
            self._in_flight += 1
            return Ticket(expected, guess, self._connection)

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
            before = ticket.connection != self._connection
            self._started += before
            self._settled += 1
            self._in_flight -= not before
            for name in COUNTS:
                self._spent[name] += getattr(spend, name)

    # --- in the thread that talks to the limiter ---

    def _talk(self) -> None:
        assert self._limiter is not None
        failing: float | None = None
        while not self._closed:
            try:
                with Limits({**self._limiter, "room": self.name}, self._settings) as limits:
                    failing = None
                    with self._lock:
                        self._reset()
                    while not self._closed:
                        self._exchange(limits)
                    self._exchange(limits)  # what the last requests cost
            except LimiterGoneError as error:
                failing = failing or time.monotonic()
                with self._lock:  # the limiter gives what is left of it to others
                    self._ceiling = None if self._ceiling is None else min(self._ceiling, self._started)
                if not (self._wanted or self._in_flight):
                    break  # the run is over; if not, the next request connects again
                if time.monotonic() - failing > RECONNECT_SECONDS:
                    self.error = error
                    break
                self._hurry.clear()
                self._hurry.wait(0.5)
            except Exception as error:  # requests would wait forever for a thread that has ended
                log.exception("the thread of limits ends")
                self.error = error
                break
        self._valid = 0.0
        self._wake()

    def _exchange(self, limits: Limits) -> None:
        self._hurry.clear()
        began = time.monotonic()
        with self._lock:
            message = self._message()
        answer = limits.exchange(message)
        with self._lock:
            self._reported = {**message["spent"], "settled": message["settled"]}
            self._reserved = Cost(*message["guess"])
            now, self._valid = time.monotonic(), began + VALID_SECONDS
            self._requests.change(answer["requests"], now)
            self._tokens.change(answer["tokens"], now)
            self._ceiling, self.over = answer["ceiling"], answer["over"]
        self._wake()
        seconds = answer["seconds"] if message["busy"] else IDLE_SECONDS
        if not self._closed:
            time.sleep(HURRY * answer["seconds"])
            self._hurry.wait(seconds)

    def _message(self) -> dict[str, Any]:
        wanted = self._wanted if self._largest.tokens else 0
        if self._ceiling is not None:
            self._ceiling = max(self._started, min(self._ceiling, self._started + wanted))  # give the rest back
        unused = 0 if self._ceiling is None else self._ceiling - self._started
        return {
            "busy": bool(wanted or self._in_flight),
            "started": self._started,
            "settled": self._settled,
            "ceiling": self._ceiling,
            "want": max(0, wanted - unused),
            "guess": [self._largest.prompt, self._largest.completion],
            "spent": dict(self._spent),
        }
