"""The tail of a run that is watched: one thread, which looks at its row in the database and at the log of its
current attempt every two seconds, and publishes what is new to all viewers.

Ids of events on a run's stream are `<segment>:<line>` of the attempt's log, with the segments of attempt n counted from
(n - 1) * 1,000,000 + 1, so that ids grow from attempt to attempt.

Threads publish bytes that are made once; each viewer has a bounded queue in its own event loop, and one whose queue is
full is dropped, so that a slow client delays no other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sse_starlette import ServerSentEvent

from curate.core.errors import CurateError
from curate.service.problems import ForbiddenProblem, NotFoundProblem, NotLoggedInProblem
from curate.service.watch.reader import RECENT, Event, Reader

log = logging.getLogger("curate.service")
POLL_SECONDS = 2.0
CHECK_SECONDS = 4.0
"""Between two looks at the tokens and sessions of its viewers."""
LINGER_SECONDS = 30.0
"""How long a tail without viewers lives on."""
SEGMENTS = 1_000_000
"""More than an attempt has: a run of a day writes about 1,500."""
FORM = "([0-9]{1,15}):([0-9]{1,9})"
MOST_CHUNKS = 64
"""Most that waits for a viewer that does not keep up: about two minutes."""

# --- ids --------------------------------------------------------------------------------------------------------------


class Position(NamedTuple):
    """Place of an event; places are ordered."""

    attempt: int
    segment: int
    line: int

    @property
    def id(self) -> str:
        return f"{(self.attempt - 1) * SEGMENTS + self.segment}:{self.line}"

    @property
    def within(self) -> str:
        """The id within its attempt, which the engine uses."""
        return f"{self.segment}:{self.line}"


def place(attempt: int, within: str) -> Position:
    segment, _, line = within.partition(":")
    return Position(attempt, int(segment), int(line))


def parse(text: str | None) -> Position | None:
    """The place of an id; None for anything else, because browsers send back whatever they were given once."""
    found = re.fullmatch(FORM, (text or "").strip())
    if found is None:
        return None
    attempt, segment = divmod(int(found[1]), SEGMENTS)
    return Position(attempt + 1, segment, int(found[2]))


# --- viewers ----------------------------------------------------------------------------------------------------------


def encoded(data: dict[str, Any], event: str | None = None, id: str | None = None) -> bytes:
    text = json.dumps(data, separators=(",", ":"), default=str)
    return ServerSentEvent(text, event=event, id=id, sep="\n").encode()


SLOW = encoded({"reason": "the client was too slow; connect again with Last-Event-ID"}, "gap")
BEHIND = encoded({"reason": "earlier events are left out"}, "gap")


class Viewer:
    """One open stream. Made and iterated in its event loop. `allowed` raises a Problem once its token or session has
    ended; only one of the viewers with the same `login` is asked."""

    def __init__(self, login: str = "", allowed: Callable[[], None] = lambda: None) -> None:
        self.login, self.allowed = login, allowed
        self.loop = asyncio.get_running_loop()
        self._chunks: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._over = False
        self.closed = False

    def push(self, chunk: bytes, over: bool = False) -> None:
        """In the loop. `over`: nothing follows."""
        if self._over:
            return
        if len(self._chunks) >= MOST_CHUNKS:
            chunk, over = SLOW, True
        if chunk:
            self._chunks.append(chunk)
        self._over = over
        self._wake.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            while self._chunks:
                yield self._chunks.popleft()
            if self._over:
                return
            self._wake.clear()
            await self._wake.wait()


def publish(viewers: Iterable[Viewer], chunk: bytes, over: bool = False) -> None:
    """From any thread: wakes each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Viewer]] = {}
    for viewer in viewers:
        by_loop.setdefault(viewer.loop, []).append(viewer)
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_push, some, chunk, over)
        except RuntimeError:  # the loop is closed, and its viewers with it
            for viewer in some:
                viewer.closed = True


def _push(viewers: list[Viewer], chunk: bytes, over: bool) -> None:
    for viewer in viewers:
        viewer.push(chunk, over)


# --- the tail ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """A run by its row in the database."""

    state: str
    reason: str
    attempt: int
    attempt_id: str
    ended: bool
    alert: str = ""
    begun: bool = True
    """Whether the attempt may have events."""

    def data(self) -> dict[str, Any]:
        found = asdict(self)
        found.pop("begun")
        return found


class Tail:
    """Thread-safe. `look` reads the row; `reader` gives the reader of an attempt."""

    def __init__(
        self, name: str, look: Callable[[], Look], reader: Callable[[str], Reader], poll: float = POLL_SECONDS
    ) -> None:
        self._look, self._reader, self._poll = look, reader, poll
        self._lock = threading.Lock()
        self._viewers: set[Viewer] = set()
        self._waiting: dict[Viewer, Position | None] = {}
        """Viewers that came before the first look, and where each continues."""
        self._recent: deque[tuple[Position, bytes]] = deque(maxlen=RECENT)
        self._missed = False
        self._seen: Look | None = None
        self._read: dict[str, str] = {}
        """Attempt -> id of the last event that was published."""
        self._wake = threading.Event()
        self._idle = self._checked = time.monotonic()
        self.ended: float | None = None
        """When the last event was published, once there is one."""
        self.dead = False
        self._thread = threading.Thread(target=self._serve, name=f"curate-tail-{name}", daemon=True)
        self._thread.start()

    def join(self, viewer: Viewer, after: Position | None) -> bool:
        """Let a viewer have what happened after a place, and what happens from now on. False if this tail has died."""
        with self._lock:
            if self.dead:
                return False
            if self._seen is None:
                self._waiting[viewer] = after
            else:
                self._begin(viewer, after)
            self._viewers.add(viewer)
            return True

    def leave(self, viewer: Viewer) -> None:
        with self._lock:
            self._viewers.discard(viewer)
            self._waiting.pop(viewer, None)
            self._idle = time.monotonic()

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def close(self) -> None:
        with self._lock:
            self.dead = True
            publish(self._viewers, b"", over=True)
            self._viewers.clear()
        self._wake.set()

    # --- the thread ---

    def _serve(self) -> None:
        while not self._finished():
            for step in (self._check, self._pass):  # a workspace that does not answer keeps no stream open
                try:
                    step()
                except CurateError as error:  # the database or the workspace does not answer
                    log.warning("a stream waits: %s", error)
                except Exception:  # a bug; viewers connect again, and get a new tail
                    log.exception("a stream ends")
                    self.close()
            self._wake.wait(self._poll)

    def _finished(self) -> bool:
        """Whether it has lost its last viewer; viewers that come later get a new one."""
        with self._lock:
            if not self._viewers and time.monotonic() - self._idle > LINGER_SECONDS:
                self.dead = True
            return self.dead or self.ended is not None

    def _pass(self) -> None:
        seen = self._look()
        news, missed = self._news(seen) if seen.begun else ([], False)
        parts = [chunk for _, chunk in news]
        with self._lock:
            if seen != self._seen:
                parts.insert(0, encoded(seen.data(), "state"))
            first, self._seen = self._seen is None, seen
            self._missed |= missed or len(self._recent) + len(news) > RECENT
            self._recent.extend(news)
            if seen.ended:
                self.ended = time.monotonic()
            if first:
                for viewer, after in self._waiting.items():
                    self._begin(viewer, after)
                self._waiting.clear()
            elif parts or seen.ended:
                end = [encoded(seen.data(), "end")] if seen.ended else []
                publish(self._viewers, b"".join([*parts, *end]), over=seen.ended)

    def _check(self) -> None:
        """End the streams of tokens and sessions that have ended, and of users who may not watch the run any more."""
        if time.monotonic() - self._checked < CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        with self._lock:
            by_login = {viewer.login: viewer for viewer in self._viewers}
        for login, one in by_login.items():
            try:
                one.allowed()
            except (NotLoggedInProblem, ForbiddenProblem, NotFoundProblem):
                with self._lock:
                    publish([viewer for viewer in self._viewers if viewer.login == login], b"", over=True)

    def _news(self, seen: Look) -> tuple[list[tuple[Position, bytes]], bool]:
        """Events of the current attempt since the last pass, encoded."""
        after = self._read.get(seen.attempt_id)
        found = self._reader(seen.attempt_id).news(after)
        if not found.events:
            return [], found.missed
        self._read = {seen.attempt_id: found.events[-1][0]}
        places = [(place(seen.attempt, within), event) for within, event in found.events]
        return [(at, encoded(shaped(at, event), id=at.id)) for at, event in places], found.missed

    def _begin(self, viewer: Viewer, after: Position | None) -> None:
        """The first chunk of a viewer: the state, and the events that it has missed."""
        assert self._seen is not None
        parts = [encoded(self._seen.data(), "state")]
        known = [chunk for at, chunk in self._recent if after is None or at > after]
        if self._missed and (after is None or after < self._recent[0][0]):
            parts.append(BEHIND)
        end = [encoded(self._seen.data(), "end")] if self.ended is not None else []
        publish([viewer], b"".join([*parts, *known, *end]), over=self.ended is not None)


def shaped(at: Position, event: Event) -> dict[str, Any]:
    """An event in the form of `shapes.runs.Event`, for JSON."""
    data = {name: value for name, value in event.items() if name not in ("event", "time")}
    return {"id": at.id, "event": event["event"], "time": event["time"], "data": data}
