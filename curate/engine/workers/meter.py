"""Throughput of stages by lane, and the time limits after which a unit counts as hung."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from curate.core.fetches import FETCHED, Code, codes_to_json
from curate.core.spend import Spend, combined
from curate.engine.tasks.beat import BATCH, SET_UP, BatchStats

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
    codes: Counter[Code] = field(default_factory=Counter)
    spend: dict[str, Spend] = field(default_factory=dict)
    """Endpoint -> what requests to it cost, those of lost tasks included."""
    lost: int = 0
    """Rows of tasks whose worker died or that hung: another attempt repeats them."""
    recent: deque[tuple[float, BatchStats]] = field(default_factory=deque)
    """Stats of the last RECENT_SECONDS, and when they came."""

    def add(self, stats: BatchStats, now: float) -> None:
        self.rows, self.batches = self.rows + stats.rows, self.batches + stats.batches
        self.bytes, self.seconds = self.bytes + stats.bytes, self.seconds + stats.seconds
        self.codes.update(stats.codes)
        self.spend = combined(self.spend, stats.spend)
        self.recent.append((now, stats))

    def lose(self, stats: BatchStats) -> None:
        self.lost += stats.rows
        self.codes.subtract(stats.codes)

    def lately(self, now: float, began: float) -> tuple[float, float, float, float]:
        """(rows that were not found, bytes, busy seconds, fetches done) per second over the last RECENT_SECONDS."""
        while self.recent and self.recent[0][0] < now - RECENT_SECONDS:
            self.recent.popleft()
        span = max(1.0, min(RECENT_SECONDS, now - began))
        last = [stats for _, stats in self.recent]
        rows, size = sum(stats.rows - stats.found for stats in last) / span, sum(stats.bytes for stats in last) / span
        return rows, size, sum(s.seconds for s in last) / span, sum(s.codes[FETCHED] for s in last) / span


class Meter:
    """The scheduler adds the stats of its workers; any thread may read."""

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self._lock = threading.Lock()
        self._rates: dict[tuple[str, str], StageRate] = {}
        self._began: dict[tuple[str, str], float] = {}
        self._batches: dict[str, int] = {}
        self._times: dict[str, deque[float]] = {}
        self._shown: dict[tuple[str, str], tuple[int, int]] = {}
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

    def lose(self, lane: str, stats: Mapping[str, BatchStats]) -> None:
        """Count the rows of a task that was lost, which another attempt repeats."""
        with self._lock:
            for stage, lost in stats.items():
                self._rates[lane, stage].lose(lost)

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

    def spend(self) -> dict[str, dict[str, Spend]]:
        """Stage -> endpoint -> what requests cost so far."""
        found: dict[str, dict[str, Spend]] = {}
        with self._lock:
            for (_, stage), rate in self._rates.items():
                if rate.spend:
                    found[stage] = combined(found.get(stage, {}), rate.spend)
        return found

    def changed(self) -> list[dict[str, Any]]:
        """Entries of `snapshot` for stages that finished rows or a batch since the last call. A stage that fetches also
        has entries after its last batch, until its rates are 0."""
        with self._lock:
            batches = {key: (rate.batches, rate.rows) for key, rate in self._rates.items()}
            falling = {key for key, rate in self._rates.items() if rate.codes and rate.recent}
        new = {key for key, count in batches.items() if self._shown.get(key) != count} | falling
        self._shown = batches
        found = [each for each in self.snapshot() if (each["lane"], each["stage"]) in new]
        return [{name: value for name, value in each.items() if name not in ("batches", "seconds")} for each in found]

    def snapshot(self) -> list[dict[str, Any]]:
        """Per lane and stage: total rows, batches, bytes and busy seconds; over the last RECENT_SECONDS, rows and bytes
        per second and the busy share of the lane's units. `lost`: rows that were repeated. For a stage that fetches:
        fetches by code, and those done per second."""
        now, found = time.monotonic(), []
        with self._lock:
            for (lane, stage), rate in self._rates.items():
                rows, size, busy, fetched = rate.lately(now, self._began[lane, stage])
                more: dict[str, Any] = {"lost": rate.lost} if rate.lost else {}
                if rate.codes:
                    more |= {"codes": codes_to_json(rate.codes), "fetched_per_s": round(fetched, 1)}
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
                    | more
                )
        return found
