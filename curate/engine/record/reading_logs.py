"""Read the logs of a run: the segments of all workers (`runs/<id>/logs/<worker>-000001.jsonl`) merged by time.

Each worker's own clock sets its times, so records of a node whose clock is off appear early or late.
"""

from __future__ import annotations

import heapq
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from curate.core.errors import InputError
from curate.core.store.storage import Storage

LogRecord = dict[str, Any]
"""time, level and message; unit, stage, lane, worker, node and traceback if known."""
LEVELS = ("debug", "info", "warning", "error", "critical")
FOLLOW_SECONDS = 2.0


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


def _records(storage: Storage, segments: Iterable[str]) -> Iterator[LogRecord]:
    for segment in segments:
        for line in storage.read(segment).splitlines():
            yield json.loads(line)


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


def _number(level: str) -> int:
    return int(getattr(logging, level.upper(), logging.INFO))
