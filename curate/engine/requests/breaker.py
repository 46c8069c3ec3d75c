"""Whether a URL is worth a request. No threads, no clock."""

from __future__ import annotations

from collections.abc import Hashable

OPENS_AFTER = 3
"""Failures in a row, of as many requests, after which a URL gets none: one request that always fails is not enough."""
FIRST_PAUSE = 0.5
"""Seconds until one request tries again; the pause doubles with each that fails."""
LONGEST_PAUSE = 10.0


class Breaker:
    """Closed: the URL gets requests. Open: it gets none until a pause is over, then one at a time, as a probe, until it
    answers. Times are seconds of one clock."""

    def __init__(self) -> None:
        self.answered = 0
        """Answers of the URL so far."""
        self._failed: set[Hashable] = set()
        """Requests that have failed since it answered last."""
        self._unreached = 0
        """Failures to connect since then. No request can cause these, so each retry of the same one counts."""
        self._pause = 0.0
        self._until = 0.0
        self._probe: Hashable | None = None

    @property
    def open(self) -> bool:
        return self._pause > 0.0

    def wait(self, now: float) -> float | None:
        """Seconds until it may get a request; None: until its probe has ended."""
        if self._probe is not None:
            return None
        return max(0.0, self._until - now) if self.open else 0.0

    def started(self, request: Hashable) -> None:
        if self.open:
            self._probe = request

    def succeeded(self) -> None:
        self.answered += 1
        self.alive()

    def alive(self) -> None:
        """It answers, if not what was asked for."""
        self._failed.clear()
        self._unreached, self._pause, self._probe = 0, 0.0, None

    def failed(self, request: Hashable, now: float, unreached: bool = False) -> bool:
        """A request got no answer; `unreached`: no connection. Returns whether the breaker has opened now."""
        self._failed.add(request)
        self._unreached += unreached
        if self.open:
            if request == self._probe:
                self._probe = None
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
                self._until = now + self._pause
            return False
        if max(len(self._failed), self._unreached) < OPENS_AFTER:
            return False
        self._pause, self._until = FIRST_PAUSE, now + FIRST_PAUSE
        return True

    def left(self, request: Hashable) -> None:
        """A request ended without saying anything about the URL."""
        if request == self._probe:
            self._probe = None

    def only(self, request: Hashable) -> bool:
        """Whether it answers other requests: it has answered, and since then no other request has failed."""
        return self.answered > 0 and self._failed <= {request}
