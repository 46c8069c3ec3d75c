"""Throughput of stages by lane, and the time limits after which a unit counts as hung."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from curate.engine.workers.beat import BATCH, SET_UP, BatchStats

RECENT_SECONDS = 30.0
BATCHES = 5
"""Number of batches from which a stage's median is trusted."""
FIRST_SECONDS = 3600.0
"""Time limit for the first batches, for steps whose durations vary, and for setups."""
LEAST_SECONDS = 600.0
TIMES = 10
"""A batch may take this many times as long as the median one."""
KEPT = 1000
"""Batch times that the median is taken over."""


@dataclass
class StageRate:
    """Totals and recent rates of one stage in one lane."""

    rows: int = 0
    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """Time spent in batches, over all units."""
    recent: deque[tuple[float, int, int, float]] = field(default_factory=deque)
    """(when, rows, bytes, seconds) of the last RECENT_SECONDS."""

    def add(self, stats: BatchStats, now: float) -> None:
        self.rows, self.batches = self.rows + stats.rows, self.batches + stats.batches
        self.bytes, self.seconds = self.bytes + stats.bytes, self.seconds + stats.seconds
        self.recent.append((now, stats.rows, stats.bytes, stats.seconds))

    def lately(self, now: float, began: float) -> tuple[float, float, float]:
        """(rows, bytes, busy seconds) per second over the last RECENT_SECONDS."""
        while self.recent and self.recent[0][0] < now - RECENT_SECONDS:
            self.recent.popleft()
        span = max(1.0, min(RECENT_SECONDS, now - began))
        rows, size, busy = (sum(entry[k] for entry in self.recent) / span for k in (1, 2, 3))
        return rows, size, busy


class Meter:
    """The scheduler adds the stats of its workers; any thread may read."""

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self._lock = threading.Lock()
        self._rates: dict[tuple[str, str], StageRate] = {}
        self._began: dict[tuple[str, str], float] = {}
        self._batches: dict[str, int] = {}
        self._times: dict[str, deque[float]] = {}
        self._shown: dict[tuple[str, str], int] = {}
        self.units: dict[str, int] = {}
        """Lane -> units that its workers can run at a time."""

    def add(self, lane: str, stats: Mapping[str, BatchStats]) -> None:
        """Add a task's stats since its last snapshot, by stage."""
        now = time.monotonic()
        with self._lock:
            for stage, more in stats.items():
                self._began.setdefault((lane, stage), now - more.seconds)
                self._rates.setdefault((lane, stage), StageRate()).add(more, now)
                self._batches[stage] = self._batches.get(stage, 0) + more.batches
                self._times.setdefault(stage, deque(maxlen=KEPT)).extend(more.recent)

    def limit(self, stage: str, pace: str = BATCH) -> float:
        """Seconds without a finished batch after which a unit of this stage counts as hung. A deadline does not shorten
        the hour that a setup may take."""
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
        """Lower bound of all limits."""
        return LEAST_SECONDS if self.deadline is None else self.deadline

    def silent_limit(self, times: Sequence[float]) -> float:
        """Limit for a task that reports no batches, from the seconds that other payloads of its call took."""
        if self.deadline is not None:
            return self.deadline
        return max(FIRST_SECONDS, TIMES * statistics.median(times)) if times else FIRST_SECONDS

    def changed(self) -> list[dict[str, Any]]:
        """Entries of `snapshot` for the stages that finished a batch since the last call."""
        with self._lock:
            batches = {key: rate.batches for key, rate in self._rates.items()}
        new = {key for key, count in batches.items() if self._shown.get(key) != count}
        self._shown = batches
        names = ("stage", "lane", "rows", "rows_per_s", "bytes_per_s", "busy")
        return [{k: each[k] for k in names} for each in self.snapshot() if (each["lane"], each["stage"]) in new]

    def snapshot(self) -> list[dict[str, Any]]:
        """Per lane and stage: total rows, batches, bytes and busy seconds; over the last RECENT_SECONDS, rows and bytes
        per second and the busy share of the lane's units."""
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
