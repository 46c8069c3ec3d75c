"""Live status and events of runs, for all viewers of this process.

status   of an attempt, at most 2 s old: computed from events that were read once
stream   of a run: the last events and what follows, through one tail, however many watch
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from functools import lru_cache

from curate.api import EventsPage, Run, Status, Workspace
from curate.service.problems import TooManyProblem
from curate.service.settings import Settings
from curate.service.watch.reader import Known, Reader
from curate.service.watch.tail import POLL_SECONDS, Look, Position, Tail, Viewer

MOST_READERS = 512
MOST_ENDED = 512
MOST_TAILS = 256
IDLE_SECONDS = 300.0
"""After which the reader of an attempt without viewers is dropped."""
SETTLED_SECONDS = 10.0
"""For which viewers of an ended run share what its tail has read."""


class Watch:
    """Thread-safe."""

    def __init__(self, settings: Settings, poll: float = POLL_SECONDS) -> None:
        self.settings, self._poll = settings, poll
        self._opened = lru_cache(maxsize=256)(Workspace)
        self._lock = threading.Lock()
        self._readers: OrderedDict[tuple[str, str], Reader] = OrderedDict()
        self._ended: OrderedDict[tuple[str, str], Known] = OrderedDict()
        self._tails: dict[Hashable, Tail] = {}
        self._streams: Counter[int] = Counter()
        """Open streams, by user."""
        self._closed = False

    # --- status ---

    def known(self, url: str, attempt_id: str, alive: bool | None = None) -> Known | None:
        """About an attempt in a workspace; None before it starts. `alive`: whether its driver is, if that is known.
        Raises UnavailableProblem."""
        key = (url, attempt_id)
        with self._lock:
            if key in self._ended:
                self._ended.move_to_end(key)
                return self._ended[key]
        found = self._reader(url, attempt_id).known(alive)
        if found is not None and found.settled:
            with self._lock:
                self._readers.pop(key, None)
                self._ended[key] = found
                while len(self._ended) > MOST_ENDED:
                    self._ended.popitem(last=False)
        return found

    def status(self, url: str, attempt_id: str, alive: bool | None = None) -> Status | None:
        """Like the one above, for an attempt."""
        found = self.known(url, attempt_id, alive)
        return found.status if found is not None else None

    def page(self, url: str, attempt_id: str, after: str, limit: int, live: bool) -> EventsPage:
        """Events of an attempt after one. Those of a `live` one come from memory if it has them."""
        if live:
            news = self._reader(url, attempt_id).news(after)
            if not news.missed:
                events = tuple(news.events[:limit])
                return EventsPage(events, events[-1][0] if events else after)
        return Run(self._opened(url), attempt_id).events_page(after, limit)

    def _reader(self, url: str, attempt_id: str) -> Reader:
        key = (url, attempt_id)
        with self._lock:
            reader = self._readers.get(key)
            if reader is None:
                reader = self._readers[key] = Reader(self._opened(url), attempt_id)
            self._readers.move_to_end(key)
            reader.used = now = time.monotonic()
            while len(self._readers) > MOST_READERS or now - next(iter(self._readers.values())).used > IDLE_SECONDS:
                self._readers.popitem(last=False)
            return reader

    # --- streams ---

    @property
    def open(self) -> int:
        """Number of open streams."""
        return sum(self._streams.values())

    @contextlib.contextmanager
    def counted(self, user_id: int) -> Iterator[None]:
        """Count one stream of a user. Raises TooManyProblem."""
        most = self.settings.limits.streams
        with self._lock:
            if self._streams[user_id] >= most:
                raise TooManyProblem(f"you have {most} event streams open, the most; close one of them", 5.0)
            self._streams[user_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams[user_id] -= 1
                self._streams += Counter()  # drops zeros

    async def stream(
        self,
        key: Hashable,
        url: str,
        look: Callable[[], Look],
        after: Position | None = None,
        ended: bool = False,
        login: str = "",
        allowed: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[bytes]:
        """Server-sent events of a run, encoded: its state, the last events after a place, what follows, and `end`.
        `key` identifies the run; `look` reads its row, in a thread; `ended`: whether it has ended, as just seen;
        `allowed`: see `Viewer`."""
        viewer = Viewer(login, allowed)
        tail = self._joined(key, url, look, viewer, after, ended)
        try:
            async for chunk in viewer.chunks():
                yield chunk
        finally:
            tail.leave(viewer)

    def _joined(
        self, key: Hashable, url: str, look: Callable[[], Look], viewer: Viewer, after: Position | None, ended: bool
    ) -> Tail:
        """The run's tail, with the viewer. A run that was resumed needs a new one."""
        with self._lock:
            self._tails = {key: tail for key, tail in self._tails.items() if not _stale(tail)}
            tail = self._tails.get(key)
            if tail is not None and (ended or tail.ended is None) and tail.join(viewer, after):
                return tail
            if len(self._tails) >= MOST_TAILS or self._closed:
                raise TooManyProblem("too many runs are being watched; poll the run's status instead", 10.0)
            tail = self._tails[key] = Tail(str(key), look, lambda attempt: self._reader(url, attempt), self._poll)
            tail.join(viewer, after)
            return tail

    def close(self) -> None:
        with self._lock:
            self._closed = True
            tails, self._tails = list(self._tails.values()), {}
            self._readers.clear()
        for tail in tails:
            tail.close()


def _stale(tail: Tail) -> bool:
    return tail.dead or (tail.ended is not None and time.monotonic() - tail.ended > SETTLED_SECONDS)


__all__ = ["Look", "Watch"]
