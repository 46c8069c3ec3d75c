"""Hosts that cannot be reached: after several failures in a row, they are not tried for a while.

A list has thousands of URLs of hosts that no longer exist. Without this, each would take its tries and its time-outs.
"""

from __future__ import annotations

import math
import threading
import time

from curate.acquire.fetch.codes import Failure

TRIES = 8
"""Failures in a row after which a host counts as dead."""
DEAD_SECONDS = 60.0
"""How long it does; then one more failure is enough."""
MOST_HOSTS = 50_000


class Dead:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[tuple[str, int], tuple[int, float]] = {}
        """Host and port -> failures in a row, and the time of the last one."""

    def check(self, host: str, port: int) -> None:
        """Raises Failure: connect, without a further try, if the host is dead."""
        count, last = self._failures.get((host, port), (0, 0.0))
        if count >= TRIES and time.monotonic() - last < DEAD_SECONDS:
            raise Failure("connect", f"{host}: {count} connections in a row failed", wait_seconds=math.inf)

    def failed(self, host: str, port: int) -> None:
        with self._lock:
            count, _ = self._failures.pop((host, port), (0, 0.0))
            while len(self._failures) >= MOST_HOSTS:
                del self._failures[next(iter(self._failures))]
            self._failures[host, port] = count + 1, time.monotonic()

    def reached(self, host: str, port: int) -> None:
        if (host, port) in self._failures:
            with self._lock:
                self._failures.pop((host, port), None)
