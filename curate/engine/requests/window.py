"""How many requests may be in flight to an endpoint. No threads, no clock.

The number starts small and doubles with each round trip, until the endpoint is overloaded (429, 503, a time-out, no
connection) or answers clearly later than it did with fewer requests in flight. From then on it is halved when the
endpoint is overloaded, at most once per round trip, and otherwise rises by one per round trip while answers are not
later. Answers that differ in length take different times by themselves, so the means of some consecutive requests
are compared, and only a difference beyond their errors counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST = 8
"""Requests in flight at first."""
LATER = 1.5
"""The mean latency of a round is flat up to this multiple of the best round's."""
ERRORS = 2.0
"""Standard errors by which it must exceed that."""
ROOM = 1.25
"""Requests in flight per slot of the endpoint: more than slots, so that each finds its next request at once."""
PATIENCE = 2
"""The doubling ends after this many rounds in a row whose latency is not flat."""
LOOKS = 20
"""After this many rounds in a row whose latency is not flat, a round with fewer requests in flight shows why."""
FEWER = 0.75
LEAST = 8
"""Requests that a round measures at least."""
SMOOTH = 64
"""Latencies that the best mean is taken over, about."""
SHARE = 0.8
"""A round ends when this share of its requests is answered, without waiting for the longest answers."""


@dataclass(slots=True)
class Round:
    """Latencies of `size` consecutive requests, from request number `first` on."""

    first: int = 0
    size: int = 0
    peak: int = 0
    """Most requests in flight meanwhile."""
    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.squares += seconds * seconds

    def joined(self, other: Round) -> Round:
        sums = (self.count + other.count, self.total + other.total, self.squares + other.squares)
        return Round(0, 0, 0, *sums)

    def faded(self, count: int) -> Round:
        """With the weight of at most `count` latencies."""
        share = min(1.0, count / max(1.0, self.count))
        return Round(0, 0, 0, self.count * share, self.total * share, self.squares * share)

    @property
    def over(self) -> bool:
        return self.count >= SHARE * self.size

    @property
    def mean(self) -> float:
        return self.total / max(1.0, self.count)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        variance = max(0.0, self.squares / self.count - self.mean**2)
        return math.sqrt(variance / max(1.0, self.count - 1))

    def exceeds(self, other: Round, factor: float) -> bool:
        """Whether its mean is more than `factor` times the other's, beyond the errors of both."""
        excess = self.mean - factor * other.mean
        return excess > 0.0 and excess > ERRORS * math.hypot(self.error, factor * other.error)


class Window:
    """Call `begin` when a request starts, and once for each `answered`, `overloaded` or `ended` with the number that
    `begin` returned. `most`: upper bound of `limit`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.in_flight = 0
        self._limit = float(FIRST)
        self._doubling = True
        self._begun = 0
        self._halved = 0
        """Number of the first request after the limit was halved."""
        self._peak = 0
        """Most in flight in the round before: a limit that is not reached says nothing about more."""
        self._best: Round | None = None
        self._recent = Round()
        """Latencies of the last rounds that were flat."""
        self._held = Round()
        self._rounds_held = 0
        """Rounds in a row whose latency was not flat, and their latencies."""
        self._before_look = 0.0
        """The limit before a round with fewer requests in flight; 0: there is none now."""
        self._round = Round(0, max(LEAST, self.limit // 2))

    @property
    def limit(self) -> int:
        return int(min(self._limit, self.most))

    @property
    def free(self) -> bool:
        return self.in_flight < self.limit

    def begin(self) -> int:
        self.in_flight += 1
        self._round.peak = max(self._round.peak, self.in_flight)
        self._begun += 1
        return self._begun - 1

    def ended(self, number: int) -> None:
        """A request ended in a way that says nothing about the endpoint's load."""
        self.in_flight -= 1
        if self._measures(number):
            self._round.size -= 1
            self._judge_if_over()

    def overloaded(self, number: int) -> None:
        """The endpoint could not take a request."""
        if number < self._halved:  # it was begun before the limit was halved
            self.ended(number)
            return
        self.in_flight -= 1
        self._limit = max(1.0, (self._before_look or self._limit) / 2)
        self._doubling, self._before_look, self._best, self._recent = False, 0.0, None, Round()
        self._held, self._rounds_held, self._halved = Round(), 0, self._begun
        self._next()

    def answered(self, number: int, seconds: float) -> None:
        self.in_flight -= 1
        used = max(self._round.peak, self._peak)
        if not (self._rounds_held or self._before_look) and used * (2 if self._doubling else 1) >= self.limit:
            self._limit = min(self._limit + (1.0 if self._doubling else 1.0 / self._limit), float(self.most))
        if self._measures(number):
            self._round.add(seconds)
            self._judge_if_over()

    def _measures(self, number: int) -> bool:
        return self._round.first <= number < self._round.first + self._round.size

    def _next(self) -> None:
        self._peak = self._round.peak
        self._round = Round(self._begun, max(LEAST, self.limit // 2), self.in_flight)

    def _judge_if_over(self) -> None:
        if self._round.over:
            if self._round.count:
                self._judge(self._round)
            self._next()

    def _judge(self, found: Round) -> None:
        """Change the limit after a round."""
        if self._before_look:
            self._end_look(found)
        elif self._best is None or not found.exceeds(self._best, LATER):
            self._recent = self._recent.faded(SMOOTH).joined(found)
            if self._best is None or self._best.count < SMOOTH or self._recent.mean < self._best.mean:
                self._best = self._recent
            self._held, self._rounds_held = Round(), 0
        else:
            self._held, self._rounds_held = self._held.joined(found), self._rounds_held + 1
            if self._doubling and self._rounds_held >= PATIENCE:
                self._doubling = False
                slots = self._limit * self._best.mean / self._held.mean
                self._limit = max(1.0, min(self._limit, ROOM * slots))
                self._held, self._rounds_held = Round(), 0
            elif self._rounds_held >= LOOKS and self.limit > 1:
                self._before_look, self._limit = self._limit, max(1.0, FEWER * self._limit)

    def _end_look(self, found: Round) -> None:
        """After a round with fewer requests in flight. If it was as slow, there is another reason why answers take
        longer than in the best round. If it was faster, but not flat, fewer requests keep the endpoint busy too."""
        assert self._best is not None
        if found.mean > self._held.mean * (1 + FEWER) / 2:
            self._best = self._recent = found
            self._limit = self._before_look
        elif not found.exceeds(self._best, LATER):
            self._limit = self._before_look
        self._before_look = 0.0
        self._held, self._rounds_held = Round(), 0
