"""Results that take long, such as the storage of a workspace: computed in separate threads, once at a time, and
kept for a while. A request waits for at most `wait` seconds, so that slow storage cannot take every thread of the
server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from curate.service.problems import TooManyProblem, UnavailableProblem

T = TypeVar("T")
WAITING = 32
"""Most computations under way."""
RESULTS = 256
"""Most results that are kept."""
RETRY_SECONDS = 10.0


@dataclass
class _Entry:
    began: float
    seconds: float
    future: Future[Any] = field(default_factory=Future)
    ended: float = float("inf")


class Kept:
    """Thread-safe. The threads are daemons: none of them delays the end of the service."""

    def __init__(self, threads: int = 4, wait: float = 25.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait, self._clock = wait, clock
        self._slots = threading.Semaphore(threads)
        self._lock = threading.Lock()
        self._running: dict[Hashable, _Entry] = {}
        self._results: dict[Hashable, _Entry] = {}

    def get(self, key: Hashable, make: Callable[[], T], what: str, *, seconds: float = 600.0, fresh: bool = False) -> T:
        """The result of `make`, at most `seconds` old; with `fresh`, computed after this call began. Everybody who
        asks for a key waits for the same computation. Raises UnavailableProblem if it takes too long (it continues, so
        that asking again finds its result), and what `make` raises."""
        asked = self._clock()
        while True:
            with self._lock:
                entry = self._known(key, asked, seconds, fresh) or self._running.get(key)
                entry = entry or self._start(key, make, what, seconds)
            futures.wait([entry.future], self._wait)
            if not entry.future.done():
                raise UnavailableProblem(f"{what}: not known after {self._wait:g} s; ask again in a minute")
            found = entry.future.result()
            if entry.began >= asked or not fresh:
                return cast(T, found)

    def soon(
        self, key: Hashable, make: Callable[[], T], what: str, *, seconds: float = 600.0, wait: float = 0.0
    ) -> T | None:
        """The same, but None while it is being computed, after `wait` seconds."""
        with self._lock:
            entry = self._known(key, self._clock(), seconds) or self._running.get(key)
            entry = entry or self._start(key, make, what, seconds)
        futures.wait([entry.future], wait)
        return cast(T, entry.future.result()) if entry.future.done() else None

    def _known(self, key: Hashable, asked: float, seconds: float, fresh: bool = False) -> _Entry | None:
        known = self._results.get(key)
        if known is None or (fresh and known.began < asked) or asked - known.ended > min(seconds, known.seconds):
            return None
        return known

    def drop(self, key: Hashable) -> None:
        """Forget a result."""
        with self._lock:
            self._results.pop(key, None)

    def _start(self, key: Hashable, make: Callable[[], T], what: str, seconds: float) -> _Entry:
        if len(self._running) >= WAITING:
            raise TooManyProblem(f"{what}: too many other requests take long; ask again later", RETRY_SECONDS)
        entry = self._running[key] = _Entry(self._clock(), seconds)
        threading.Thread(target=self._compute, args=(key, entry, make), name="curate-kept", daemon=True).start()
        return entry

    def _compute(self, key: Hashable, entry: _Entry, make: Callable[[], Any]) -> None:
        try:
            with self._slots:
                found = make()
        except BaseException as error:  # noqa: BLE001 - raised again in every thread that waits for it
            with self._lock:
                del self._running[key]
                entry.future.set_exception(error)
            return
        with self._lock:
            del self._running[key]
            entry.ended = self._clock()
            held = {name: one for name, one in self._results.items() if entry.ended - one.ended <= one.seconds}
            self._results = held | {key: entry}
            while len(self._results) > RESULTS:
                self._results.pop(next(iter(self._results)))
            entry.future.set_result(found)
