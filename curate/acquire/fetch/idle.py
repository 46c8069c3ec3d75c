"""Open connections that wait for their host's next request."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from curate.acquire.fetch.connection import Connection

Place = tuple[str, str, int]
"""Scheme, host, port."""

LONGEST_IDLE_SECONDS = 20.0
UNKNOWN_SECONDS, KNOWN_SECONDS = 0.1, 0.01
"""How long a connection that is used again must be silent after a response: the first time at its place, and later."""
MOST_PLACES = 50_000


class Idle:
    """Any thread may call. `most`: connections in all."""

    def __init__(self, most: int, most_per_place: int) -> None:
        self._most = most
        self._most_per_place = most_per_place
        self._waiting: OrderedDict[Place, list[tuple[float, Connection]]] = OrderedDict()
        self._count = 0
        self._quiet: dict[Place, bool] = {}
        """Whether the place sent what was asked for and no more, as far as is known. If not, no connection is kept."""
        self._lock = threading.Lock()

    def take(self, place: Place) -> Connection | None:
        """The connection that was used last, if it is still open."""
        while True:
            with self._lock:
                waiting = self._waiting.get(place)
                if not waiting:
                    return None
                since, connection = waiting.pop()
                if not waiting:
                    del self._waiting[place]
                self._count -= 1
            if time.monotonic() - since < LONGEST_IDLE_SECONDS and connection.is_quiet():
                return connection
            connection.close()

    def put(self, place: Place, connection: Connection) -> None:
        surplus: list[Connection] = [connection]
        with self._lock:
            waiting = self._waiting.get(place, [])
            if len(waiting) < self._most_per_place and self._quiet.get(place, True):
                waiting.append((time.monotonic(), connection))
                self._waiting[place] = waiting
                self._waiting.move_to_end(place)
                self._count += 1
                surplus = self._drop() if self._count > self._most else []
        for one in surplus:
            one.close()

    def patience(self, place: Place) -> float:
        """Seconds in which nothing may follow the response to a request on a connection that was used before."""
        return KNOWN_SECONDS if self._quiet.get(place) else UNKNOWN_SECONDS

    def learn(self, place: Place, quiet: bool) -> bool:
        """Remember whether something followed a response; returns `quiet`."""
        if self._quiet.get(place) is not quiet:
            with self._lock:
                while len(self._quiet) >= MOST_PLACES:
                    del self._quiet[next(iter(self._quiet))]
                self._quiet[place] = quiet and self._quiet.get(place, True)
        return quiet

    def close(self) -> None:
        with self._lock:
            dropped = [connection for waiting in self._waiting.values() for _, connection in waiting]
            self._waiting.clear()
            self._count = 0
        for connection in dropped:
            connection.close()

    def _drop(self) -> list[Connection]:
        """The connections of the place whose last use is longest ago."""
        _, waiting = self._waiting.popitem(last=False)
        self._count -= len(waiting)
        return [connection for _, connection in waiting]
