"""The event log of a run: numbered segments of JSON lines, because objects cannot be appended to.

Progress is reported every few seconds, so it is thinned: a segment keeps the newest event of each stage and lane, and
segments with nothing but progress become rarer the longer a run takes. A run of one day writes about 1,500 segments.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from curate.core.errors import InputError
from curate.core.store.storage import Storage

FLUSH_SECONDS = 2.0
MOST_SECONDS = 60.0
"""Maximum interval between two segments with nothing but progress."""
SHARE = 0.01
"""Interval between them as a share of the run's time so far."""
THINNED = ("progress", "step", "fetches", "spend", "allocated", "lost")
"""Event types of which a segment keeps only the newest by stage and lane."""
READERS = 16
FOLLOW_SECONDS = 2.0
PLACE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


@dataclass(frozen=True)
class EventsPage:
    """Some events of a run, in order."""

    events: tuple[tuple[str, dict[str, Any]], ...]
    """(id, event); an id is `<segment>:<line>`, both counted from 1."""
    next: str
    """Where the next page begins. Without news it costs one storage operation to look there."""


class Events:
    """Writes a run's events, from any thread."""

    def __init__(self, storage: Storage, run_id: str, *, held: bool = False) -> None:
        self.storage, self.folder = storage, f"runs/{run_id}/events"
        self.listener: Callable[[str, dict[str, Any]], None] | None = None
        """Called with the type and fields of each event; a terminal shows the scheduler's measurements this way."""
        self.held = held
        """Nothing is stored for now, as before a run has its record."""
        self._lock = threading.Lock()
        self._lines: dict[Any, str] = {}
        """Key of an event -> its line: its number, or (event, stage, lane) if it is thinned."""
        self._count = self._number = 0
        self._began = self._flushed = time.monotonic()

    def emit(self, event: str, **fields: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "event": event} | fields, sort_keys=True)
        with self._lock:
            self._count += 1
            thinned = event in THINNED
            name = (event, fields.get("stage"), fields.get("lane")) if thinned else self._count
            self._lines.pop(name, None)  # so that it comes last
            self._lines[name] = line
            now = time.monotonic()
            urgent = not all(isinstance(name, tuple) for name in self._lines)
            wait = FLUSH_SECONDS if urgent else min(MOST_SECONDS, max(FLUSH_SECONDS, SHARE * (now - self._began)))
            if now - self._flushed > wait:
                self._publish()
        if self.listener is not None:
            self.listener(event, fields)

    def flush(self) -> None:
        with self._lock:
            self._publish()

    def _publish(self) -> None:
        self._flushed = time.monotonic()
        if self._lines and not self.held:
            text = "\n".join([*self._lines.values(), ""])
            self.storage.publish_bytes(segment(self.folder, self._number + 1), text.encode())
            self._number, self._lines = self._number + 1, {}


def segment(folder: str, number: int) -> str:
    return f"{folder}/{number:06d}.jsonl"


def read_events(storage: Storage, run_id: str) -> list[dict[str, Any]]:
    """All events of a run, in order."""
    folder = f"runs/{run_id}/events"
    files = [f"{folder}/{file}" for file in sorted(storage.list(folder))]
    if len(files) < READERS or storage.local:
        texts = [storage.read(file) for file in files]
    else:
        with ThreadPoolExecutor(READERS) as pool:
            texts = list(pool.map(storage.read, files))
    return [one for text in texts for one in parsed(text.splitlines())]


def follow_events(
    storage: Storage, run_id: str, ended: Callable[[], bool], poll_seconds: float = FOLLOW_SECONDS
) -> Iterator[dict[str, Any]]:
    """Events as they are written, until `ended()`."""
    number = 1
    while True:
        last = ended()
        while True:
            try:
                text = storage.read(segment(f"runs/{run_id}/events", number))
            except FileNotFoundError:
                break
            number += 1
            yield from parsed(text.splitlines())
        if last:
            return
        time.sleep(poll_seconds)


def events_page(storage: Storage, run_id: str, after: str = "", limit: int = 500) -> EventsPage:
    """Events after an id, or after `next` of another page; "" begins with the first. Reads only the segments that it
    returns, which never change. Raises InputError for anything else."""
    number, line = _place(after)
    found: list[tuple[str, dict[str, Any]]] = []
    while len(found) < limit:
        try:
            text = storage.read(segment(f"runs/{run_id}/events", number))
        except FileNotFoundError:
            break
        lines = text.splitlines()
        taken = lines[line : line + limit - len(found)]
        found += [(f"{number}:{place}", one) for place, one in enumerate(parsed(taken), line + 1)]
        line += len(taken)
        if line >= len(lines):
            number, line = number + 1, 0
    return EventsPage(tuple(found), f"{number}:{line}")


def _place(after: str) -> tuple[int, int]:
    """(segment, lines of it that are known)."""
    if not after:
        return 1, 0
    match = PLACE.fullmatch(after)
    if match is None:
        raise InputError(
            f"after {after[:40]!r}: expected SEGMENT:LINE, such as 12:3; leave it out to begin at the start"
        )
    return max(1, int(match[1])), int(match[2])


def parsed(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """Lines of JSON, parsed at once: one at a time costs three times as much."""
    found: list[dict[str, Any]] = json.loads(b"[" + b",".join(lines) + b"]")
    return found


def last_segment(storage: Storage, run_id: str) -> int:
    """Number of the newest segment, by a listing; 0 if there is none."""
    names = [name.removesuffix(".jsonl") for name in storage.list(f"runs/{run_id}/events")]
    return max((int(name) for name in names if name.isdecimal()), default=0)
