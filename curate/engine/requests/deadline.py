"""How long an attempt may take, by the answers seen: a request that never answers holds its place in the window only
as long as the longest answers do, and not for the whole time-out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

ENOUGH = 32
"""Answers from which the limit follows."""
SEEN = 256
"""Answers that count: the last ones."""
TIMES = 2.0
"""The first two attempts may take this many times as long as the longest answer; each further attempt twice as long as
the attempt before."""
LEAST_SECONDS = 5.0
"""A server whose answers are fast may pause for some seconds; a request sent again is paid again."""
CHANGE = 1.25
"""A limit that changes by less stays."""


class Deadline:
    """For the requests that a stage sends to an endpoint; `most`: their time-out. The event loop's thread uses it."""

    def __init__(self, most: float) -> None:
        self.most = self.seconds = most
        self._seen: deque[float] = deque(maxlen=SEEN)
        self._open: dict[asyncio.Timeout, tuple[float, int]] = {}
        """Attempt -> when it began, and how many times the limit it may take."""

    @contextmanager
    def attempt(self, factor: int = 1) -> Iterator[asyncio.Timeout]:
        """Limit of an attempt that begins now, which enters it at once."""
        began = asyncio.get_running_loop().time()
        limit = asyncio.timeout_at(began + min(self.most, factor * self.seconds))
        self._open[limit] = began, factor
        try:
            yield limit
        finally:
            del self._open[limit]

    def answered(self, seconds: float) -> None:
        """An answer took so long; attempts in progress follow the new limit."""
        self._seen.append(seconds)
        wanted = min(self.most, max(LEAST_SECONDS, TIMES * max(self._seen)))
        if len(self._seen) < ENOUGH or 1 / CHANGE < wanted / self.seconds < CHANGE:
            return
        self.seconds = wanted
        for limit, (began, factor) in self._open.items():
            if not limit.expired():
                limit.reschedule(began + min(self.most, factor * wanted))
