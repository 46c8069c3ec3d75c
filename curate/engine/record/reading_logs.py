"""Read the logs of a run: the segments of all workers (`runs/<id>/logs/<worker>-000001.jsonl`) merged by time.

Each worker's own clock sets its times, so records of a node whose clock is off appear early or late.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from curate.core.errors import InputError
from curate.core.store.storage import Storage
from curate.engine.record.events import parsed

LogRecord = dict[str, Any]
"""time, level and message; unit, stage, lane, worker, node and traceback if known."""
LEVELS = ("debug", "info", "warning", "error", "critical")
FOLLOW_SECONDS = 2.0
YOUNG_SECONDS = 2.0
"""Segments that were published this recently are left to the next page: others with the same time may still appear."""
PAGE_SEGMENTS = 64
"""Most segments that a page reads."""


@dataclass(frozen=True)
class LogPage:
    """Some records of a run, by time. Pages follow the order in which segments were published, because a worker
    publishes what it logged within the last 10 s."""

    records: tuple[LogRecord, ...]
    next: str
    """Where the next page begins."""
    more: bool
    """Whether it has something now."""


def read_logs(storage: Storage, run_id: str, stage: str | None = None, level: str = "debug") -> Iterator[LogRecord]:
    """All records by time, from a level upwards. Holds one segment of each worker at a time."""
    wanted = _wanted(stage, level)
    folder = f"runs/{run_id}/logs"
    segments: dict[str, list[str]] = {}
    for name in sorted(storage.list(folder)):
        segments.setdefault(name.rpartition("-")[0], []).append(f"{folder}/{name}")
    streams = [_records(storage, names) for names in segments.values()]
    yield from filter(wanted, heapq.merge(*streams, key=lambda record: record["time"]))


def follow_logs(
    storage: Storage,
    run_id: str,
    ended: Callable[[], bool],
    stage: str | None = None,
    level: str = "debug",
    poll_seconds: float = FOLLOW_SECONDS,
) -> Iterator[LogRecord]:
    """Records as they are written, until `ended()`; the records of one poll are sorted by time."""
    wanted = _wanted(stage, level)
    folder = f"runs/{run_id}/logs"
    seen: set[str] = set()
    while True:
        last = ended()
        new = [name for name in sorted(storage.list(folder)) if name not in seen]
        seen.update(new)
        found = _records(storage, (f"{folder}/{name}" for name in new))
        yield from sorted(filter(wanted, found), key=lambda record: record["time"])
        if last:
            return
        time.sleep(poll_seconds)


def log_page(
    storage: Storage, run_id: str, after: str = "", limit: int = 500, stage: str | None = None, level: str = "info"
) -> LogPage:
    """Records after `next` of another page; "" begins with the first. One listing, and the segments that it returns."""
    wanted, then = _wanted(stage, level), _cursor(after)
    places = _published(storage, run_id)
    new = [place for place in places if place > then[:2] or (place == then[:2] and then[2] >= 0)]
    found: list[LogRecord] = []
    for number, place in enumerate(new[:PAGE_SEGMENTS], 1):
        start = then[2] if place == then[:2] else 0
        records = list(_records(storage, [f"runs/{run_id}/logs/{place[1]}"]))
        for line, record in enumerate(records[start:], start + 1):
            found += [record] if wanted(record) else []
            if len(found) == limit and line < len(records):
                return LogPage(_by_time(found), _text(*place, line), True)
        then = (*place, -1)
        if len(found) >= limit:
            return LogPage(_by_time(found), _text(*then), number < len(new))
    return LogPage(_by_time(found), _text(*then), len(new) > PAGE_SEGMENTS)


def log_tail(storage: Storage, run_id: str, limit: int = 500, stage: str | None = None, level: str = "info") -> LogPage:
    """The last records, of the last segments; `next` continues with what is published later."""
    wanted, places = _wanted(stage, level), _published(storage, run_id)
    found: list[LogRecord] = []
    for place in reversed(places[-PAGE_SEGMENTS:]):
        found = [*filter(wanted, _records(storage, [f"runs/{run_id}/logs/{place[1]}"])), *found]
        if len(found) >= limit:
            break
    last = _text(*places[-1], -1) if places else ""
    return LogPage(_by_time(found)[-limit:], last, False)


def _published(storage: Storage, run_id: str) -> list[tuple[float, str]]:
    """(when, segment), in the order in which they were published."""
    now = time.time()
    found = storage.entries(f"runs/{run_id}/logs").items()
    # with a wrong clock here, nothing counts as young, and a record may be missed
    return sorted((then, name) for name, then in found if then is not None and not 0 <= now - then < YOUNG_SECONDS)


def _by_time(records: Iterable[LogRecord]) -> tuple[LogRecord, ...]:
    return tuple(sorted(records, key=lambda record: record["time"]))


def _text(then: float, name: str, line: int) -> str:
    return f"{then!r}/{line}/{name}" if name else ""


def _cursor(after: str) -> tuple[float, str, int]:
    """(when, segment, lines of it that are known; -1: all)."""
    try:
        then, line, name = after.split("/", 2) if after else ("-inf", "-1", "")
        return float(then), name, int(line)
    except ValueError:
        raise InputError(f"after {after[:40]!r}: expected `next` of another page; leave it out to begin") from None


def _records(storage: Storage, segments: Iterable[str]) -> Iterator[LogRecord]:
    for segment in segments:
        yield from parsed(storage.read(segment).splitlines())


def _wanted(stage: str | None, level: str) -> Callable[[LogRecord], bool]:
    """Filter by stage and level. Raises InputError for an unknown level."""
    if level.lower() not in LEVELS:
        raise InputError(f"--level {level}: expected one of {', '.join(LEVELS)}")
    least = _number(level)

    def wanted(record: LogRecord) -> bool:
        if _number(record.get("level", "info")) < least:
            return False
        return stage is None or stage in str(record.get("stage") or "").split(" + ")

    return wanted


@lru_cache(maxsize=64)
def _number(level: str) -> int:
    return int(getattr(logging, level.upper(), logging.INFO))
