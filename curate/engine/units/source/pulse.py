"""Reports of a task that reads a portion to its beat."""

from __future__ import annotations

import time
from collections import Counter

from curate.core.fetches import Code
from curate.engine.tasks import beat

BEAT_ROWS, BEAT_SECONDS = 64, 1.0
"""Samples, or time, between two reports to the beat."""


class Pulse:
    """Tells the beat how many rows are known: those that the source has yielded, or has received to yield later."""

    def __init__(self, name: str) -> None:
        self.name, self.beat = name, beat.current()
        self._since = time.monotonic()
        self._yielded = self._received = self._told = 0
        self._bytes = 0
        self._codes: Counter[Code] = Counter()

    def stopped(self) -> bool:
        self.beat.moved = time.monotonic()  # who asks is not hung
        return self.beat.stopping

    def received(self, rows: int, status: str, code: str, size: int) -> None:
        self._received += rows
        self._bytes += size
        self._codes[status, code] += 1
        self._tell_in_time()

    def yielded(self, size: int) -> None:
        self._yielded += 1
        self._bytes += 0 if self._received else size
        self._tell_in_time()

    def _tell_in_time(self) -> None:
        rows = max(self._yielded, self._received) - self._told
        if rows >= BEAT_ROWS or (rows and time.monotonic() - self._since > BEAT_SECONDS):
            self.tell()

    def tell(self) -> None:
        now, rows = time.monotonic(), max(self._yielded, self._received)
        self.beat.done(self.name, rows - self._told, now - self._since, self._bytes, self._codes)
        self._since, self._told, self._bytes, self._codes = now, rows, 0, Counter()
