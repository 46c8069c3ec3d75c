"""How often something may happen."""

from __future__ import annotations

import math

SLACK_SECONDS = 0.05
"""A start that was late by this much may be made up for, so that the mean rate reaches the limit."""


class Pace:
    """At most `rate` per second: while the rate stays, the first and the last of k + 1 starts are at least
    k / rate - SLACK_SECONDS apart. None: no limit; 0: none may start.

    A leaky bucket: a start adds to the debt, which drains at the rate; the next start waits until nothing is owed.
    Times are seconds of one clock, which only rises.
    """

    __slots__ = ("_at", "_debt", "rate")

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._debt = 0.0
        self._at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next start."""
        if self.rate is None:
            return 0.0
        owed = self._debt - self.rate * (now - self._at)
        if self.rate == 0.0:
            return math.inf
        return owed / self.rate if owed > 0.0 else 0.0

    def take(self, now: float, amount: float = 1.0) -> None:
        """A start. A negative amount gives back what an earlier one took too much."""
        if self.rate is not None:
            self._drain(now)
            self._debt += amount

    def change(self, rate: float | None, now: float) -> None:
        """From now on another rate; what is owed stays."""
        if self.rate is None:
            self._debt = 0.0
        else:
            self._drain(now)
        self._at, self.rate = now, rate

    def resume(self, seconds: float, now: float) -> None:
        """After others have used the limit: the next start is due after these seconds."""
        if self.rate:
            self._at, self._debt = now, self.rate * max(seconds, self.wait(now))

    def _drain(self, now: float) -> None:
        assert self.rate is not None
        self._debt = max(self._debt - self.rate * (now - self._at), -self.rate * SLACK_SECONDS)
        self._at = now
