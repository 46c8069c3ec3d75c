"""Results that take long, such as the storage of a workspace: computed in separate threads, once at a time, and
kept for a while. A request waits for at most `wait` seconds, so that slow storage cannot take every thread of the
server.

Users share what computes them: pages, questions that cost more than a page, counts that pages show later, and
work such as releases have separate slots, of which a user has at most half."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from curate.core.bounded import bounded
from curate.service.auth.roles import Principal
from curate.service.problems import TooManyProblem, UnavailableProblem

T = TypeVar("T")
PAGE, QUESTION, COUNT, WORK = "page", "question", "count", "work"
CORES = max(4, os.cpu_count() or 4)
SLOTS = {PAGE: 2 * CORES, QUESTION: CORES, COUNT: CORES, WORK: CORES}
"""Kind -> computations at a time. One user has half of them at most."""
WAITING = {PAGE: 32, QUESTION: 24, COUNT: 12, WORK: 12}
"""Kind -> most requests that wait, fewer in all than threads of the server. One user has a quarter at most."""
THREADS = 120
"""Number in the server."""
RUNNING = 48
"""Most computations of a kind under way, with those that wait for a slot. One user has a quarter of them at most."""
EXPRESSION_SECONDS = 5.0
"""How long the patterns of an expression may take for the rows of a shard."""
RESULTS = 256
"""Most results that are kept."""
RETRY_SECONDS = 10.0


@dataclass
class _Entry:
    user: int
    kind: str
    began: float
    seconds: float
    future: Future[Any] = field(default_factory=Future)
    waiters: int = 0
    told: set[int] = field(default_factory=set)
    """Users that a problem has asked to come back."""
    ended: float = float("inf")


class Slots:
    """The next user is one that has the fewest slots. Thread-safe."""

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._changed = threading.Condition()
        self._taken, self._queue = Counter[Hashable](), list[tuple[Hashable, object]]()

    @contextmanager
    def taken(self, user: Hashable, what: str = "", seconds: float | None = None) -> Iterator[None]:
        """Raises TooManyProblem if there is none within `seconds`."""
        with self._changed:
            self._queue.append(mine := (user, object()))
            try:
                if not self._changed.wait_for(lambda: self._next() is mine, seconds):
                    raise _too_many(what)
            finally:
                self._queue.remove(mine)
            self._taken[user] += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken[user] -= 1
                self._taken += Counter()  # without users that have none
                self._changed.notify_all()

    def _next(self) -> tuple[Hashable, object] | None:
        if self._taken.total() >= self._most:
            return None
        first = min(self._queue, key=lambda one: self._taken[one[0]])
        return first if self._taken[first[0]] < self._each else None


def _too_many(what: str) -> TooManyProblem:
    return TooManyProblem(f"{what}: too many other requests take long; ask again later", RETRY_SECONDS)


class Kept:
    """Thread-safe. The threads are daemons: none of them delays the end of the service."""

    def __init__(self, wait: float = 25.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait, self._clock = wait, clock
        self._slots = {kind: Slots(most, (most + 1) // 2) for kind, most in SLOTS.items()}
        self._waiting: dict[str, list[int]] = {kind: [] for kind in SLOTS}
        """Kind -> users of the requests that wait."""
        self._lock = threading.Lock()
        self._running: dict[Hashable, _Entry] = {}
        self._results: dict[Hashable, _Entry] = {}

    def get(
        self, who: Principal, key: Hashable, make: Callable[[], T], what: str, *, kind: str = PAGE,
        seconds: float = 600.0, fresh: bool = False,
    ) -> T:  # fmt: skip
        """The result of `make`, at most `seconds` old; with `fresh`, computed after this call began. Everybody who
        asks for a key waits for the same computation. Raises UnavailableProblem if it takes too long (it continues, so
        that asking again finds its result), TooManyProblem if many wait, and what `make` raises."""
        asked = self._clock()
        while True:
            with self._lock:
                entry = self._known(who, key, asked, seconds, fresh)
            if entry is None:
                with self._place(who, kind, what):
                    entry = self._entry(who, key, make, what, kind, asked, seconds, fresh)
                    futures.wait([entry.future], self._wait)
                    with self._lock:
                        entry.waiters -= 1
            if not entry.future.done():
                entry.told.add(who.user_id)
                raise UnavailableProblem(f"{what}: not known after {self._wait:g} s; ask again in a minute")
            found = entry.future.result()
            if entry.began >= asked or not fresh or who.user_id in entry.told:
                entry.told.discard(who.user_id)
                return cast(T, found)

    def soon(
        self, who: Principal, key: Hashable, make: Callable[[], T], what: str, *, kind: str = COUNT,
        seconds: float = 600.0, wait: float = 0.0,
    ) -> T | None:  # fmt: skip
        """The same, but None while it is being computed, after `wait` seconds."""
        entry = self._entry(who, key, make, what, kind, self._clock(), seconds)
        futures.wait([entry.future], wait)
        return cast(T, entry.future.result()) if entry.future.done() else None

    @contextmanager
    def turn(self, who: Principal, kind: str, what: str) -> Iterator[None]:
        """A slot for what is computed in this thread and not kept."""
        with (
            self._place(who, kind, what),
            self._slots[kind].taken(who.user_id, what, self._wait),
            bounded(EXPRESSION_SECONDS),
        ):
            yield

    @contextmanager
    def _place(self, who: Principal, kind: str, what: str) -> Iterator[None]:
        """Among the requests that wait."""
        users, most = self._waiting[kind], WAITING[kind]
        with self._lock:
            if len(users) >= most or users.count(who.user_id) >= most // 4:
                raise _too_many(what)
            users.append(who.user_id)
        try:
            yield
        finally:
            with self._lock:
                users.remove(who.user_id)

    def _entry(
        self, who: Principal, key: Hashable, make: Callable[[], object], what: str, kind: str, asked: float,
        seconds: float, fresh: bool = False,
    ) -> _Entry:  # fmt: skip
        with self._lock:
            entry = self._known(who, key, asked, seconds, fresh) or self._running.get(key)
            entry = entry or self._start(who, key, make, what, kind, seconds)
            entry.waiters += 1
            return entry

    def _known(self, who: Principal, key: Hashable, asked: float, seconds: float, fresh: bool) -> _Entry | None:
        known = self._results.get(key)
        if known is None or asked - known.ended > min(seconds, known.seconds):
            return None
        return known if not fresh or known.began >= asked or who.user_id in known.told else None

    def drop(self, key: Hashable) -> None:
        """Forget a result."""
        with self._lock:
            self._results.pop(key, None)

    def _start(
        self, who: Principal, key: Hashable, make: Callable[[], object], what: str, kind: str, seconds: float
    ) -> _Entry:
        under_way = [one.user for one in self._running.values() if one.kind == kind]
        if len(under_way) >= RUNNING or under_way.count(who.user_id) >= RUNNING // 4:
            raise _too_many(what)
        entry = self._running[key] = _Entry(who.user_id, kind, self._clock(), seconds)
        threading.Thread(target=self._compute, args=(key, entry, make), name="curate-kept", daemon=True).start()
        return entry

    def _compute(self, key: Hashable, entry: _Entry, make: Callable[[], Any]) -> None:
        try:
            with self._slots[entry.kind].taken(entry.user), bounded(EXPRESSION_SECONDS):
                if entry.kind == QUESTION and not entry.waiters and self._clock() - entry.began > self._wait:
                    raise UnavailableProblem("no request waited for it any more; ask again")
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
