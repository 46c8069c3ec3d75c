"""How fast stages are, lane by lane, and when a unit hangs."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from curate.engine.workers.beat import BATCH, SET_UP, Told

RECENT_SECONDS = 30.0
BATCHES = 5
"""So many batches tell how long one takes."""
FIRST_SECONDS = 3600.0
"""How long one of the first batches may take, a step that is not one of many alike, or a set-up."""
LEAST_SECONDS = 600.0
TIMES = 10
"""A batch may take so many times as long as the median one."""
KEPT = 1000
"""Batch times that the median is of."""


@dataclass
class Rate:
    """What one stage has done in one lane."""

    rows: int = 0
    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """In batches, over all units."""
    recent: deque[tuple[float, int, int, float]] = field(default_factory=deque)
    """(when, rows, bytes, seconds) of the last RECENT_SECONDS."""

    def add(self, told: Told, now: float) -> None:
        self.rows, self.batches = self.rows + told.rows, self.batches + told.batches
        self.bytes, self.seconds = self.bytes + told.bytes, self.seconds + told.seconds
        self.recent.append((now, told.rows, told.bytes, told.seconds))

    def lately(self, now: float, began: float) -> tuple[float, float, float]:
        """(rows, bytes, busy seconds) per second of late."""
        while self.recent and self.recent[0][0] < now - RECENT_SECONDS:
            self.recent.popleft()
        span = max(1.0, min(RECENT_SECONDS, now - began))
        return tuple(sum(entry[k] for entry in self.recent) / span for k in (1, 2, 3))  # type: ignore[return-value]


class Meter:
    """The scheduler adds what it hears; anybody may read."""

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self._lock = threading.Lock()
        self._rates: dict[tuple[str, str], Rate] = {}
        self._began: dict[tuple[str, str], float] = {}
        self._batches: dict[str, int] = {}
        self._times: dict[str, deque[float]] = {}
        self._shown: dict[tuple[str, str], int] = {}
        self.units: dict[str, int] = {}
        """Lane -> units that its workers can run at a time."""

    def hear(self, lane: str, told: Mapping[str, Told]) -> None:
        """What a task has said of its stages since it was last asked."""
        now = time.monotonic()
        with self._lock:
            for stage, more in told.items():
                self._began.setdefault((lane, stage), now - more.seconds)
                self._rates.setdefault((lane, stage), Rate()).add(more, now)
                self._batches[stage] = self._batches.get(stage, 0) + more.batches
                self._times.setdefault(stage, deque(maxlen=KEPT)).extend(more.recent)

    def limit(self, stage: str, pace: str = BATCH) -> float:
        """Seconds after which a unit that finishes no batch of this stage hangs. A set-up is no batch: a deadline does
        not shorten its hour."""
        if pace == SET_UP:
            return max(FIRST_SECONDS, self.deadline or 0.0)
        if self.deadline is not None:
            return self.deadline
        with self._lock:
            if self._batches.get(stage, 0) < BATCHES:
                return FIRST_SECONDS
            least = LEAST_SECONDS if pace == BATCH else FIRST_SECONDS
            return max(least, TIMES * statistics.median(self._times[stage]))

    @property
    def least(self) -> float:
        """No limit is below this."""
        return LEAST_SECONDS if self.deadline is None else self.deadline

    def silent_limit(self, times: Sequence[float]) -> float:
        """The same of a task that has said nothing, by how many seconds others of its call took."""
        if self.deadline is not None:
            return self.deadline
        return max(FIRST_SECONDS, TIMES * statistics.median(times)) if times else FIRST_SECONDS

    def moved(self) -> list[dict[str, Any]]:
        """What `snapshot` says of those stages that have done something since this was last asked."""
        with self._lock:
            batches = {key: rate.batches for key, rate in self._rates.items()}
        new = {key for key, count in batches.items() if self._shown.get(key) != count}
        self._shown = batches
        said = ("stage", "lane", "rows", "rows_per_s", "bytes_per_s", "busy")
        return [{k: each[k] for k in said} for each in self.snapshot() if (each["lane"], each["stage"]) in new]

    def snapshot(self) -> list[dict[str, Any]]:
        """Per lane and stage: rows, batches, bytes and busy seconds so far; rows and bytes per second, and the share of
        the lane's units that it kept busy, over the last RECENT_SECONDS."""
        now, found = time.monotonic(), []
        with self._lock:
            for (lane, stage), rate in self._rates.items():
                rows, size, busy = rate.lately(now, self._began[lane, stage])
                found.append(
                    {
                        "stage": stage,
                        "lane": lane,
                        "rows": rate.rows,
                        "batches": rate.batches,
                        "bytes": rate.bytes,
                        "seconds": round(rate.seconds, 3),
                        "rows_per_s": round(rows, 1),
                        "bytes_per_s": round(size),
                        "busy": round(min(1.0, busy / max(1, self.units.get(lane, 1))), 3),
                    }
                )
        return found
