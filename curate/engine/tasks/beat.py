"""Progress of a running task, and the signals sent to it.

A task runs in one thread of a worker. It reports the start and end of each batch to its beat. The scheduler requests
snapshots every few seconds; from them it computes how fast a stage is and whether a unit hangs.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from curate.core.fetches import Code
from curate.core.spend import Spend, combined

RECENT = 64
"""Batch times kept between two snapshots."""
BATCH, LONG, SET_UP = "batch", "long", "set-up"
"""Kind of work in progress, which sets the time limit: a batch of rows; a step of a task such as a merge or a part of a
fit, whose durations vary widely; or the setup of a stage, such as loading its model."""


@dataclass(frozen=True)
class RunningBatch:
    """A batch in progress."""

    stage: str
    rows: tuple[int, ...]
    """Positions in the unit, counted across its shards."""
    since: float
    """time.monotonic() of the worker."""


@dataclass
class BatchStats:
    """Batches that one stage finished since the last snapshot."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)
    """Seconds of the last RECENT batches."""
    codes: Counter[Code] = field(default_factory=Counter)
    """Fetches by code."""
    spend: dict[str, Spend] = field(default_factory=dict)
    """Endpoint -> what requests to it cost."""
    found: int = 0
    """Rows for which nothing was computed: they are done, but say nothing about how fast the rest will be."""

    def add(self, more: BatchStats) -> None:
        self.batches, self.rows = self.batches + more.batches, self.rows + more.rows
        self.found += more.found
        self.bytes, self.seconds = self.bytes + more.bytes, self.seconds + more.seconds
        self.recent = [*self.recent, *more.recent][-RECENT:]
        self.codes.update(more.codes)
        self.spend = combined(self.spend, more.spend)


class Beat:
    """Heartbeat of one task. The task's thread writes it, the scheduler's thread reads it."""

    def __init__(self, unit: str = "", lane: str = "") -> None:
        self.unit, self.lane = unit, lane
        self.run = ""
        self.stopping = False
        """Wind down: publish what is done at the next border between batches, then end."""
        self.again = False
        """The task was started before, by a worker that died or an attempt that failed: some output may exist."""
        self.abandoned = False
        """The task hung in a thread, which cannot be ended; its outcome is ignored."""
        self.stage = ""
        """Stage of the last batch."""
        self.pace = LONG
        """BATCH, LONG or SET_UP: kind of the last work."""
        self.batches = 0
        """Batches finished since the task began, over all stages."""
        self.moved = time.monotonic()
        """When a batch last began or ended."""
        self.turn: AbstractContextManager[Any] = nullcontext()
        """Held while a batch is computed: of the units that share a GPU, one computes while the others read and
        publish."""
        self._lock = threading.Lock()
        self._running: RunningBatch | None = None
        self._stats: dict[str, BatchStats] = {}
        self._passed: dict[str, int] = {}

    def doing(self, stage: str, rows: Sequence[int] = ()) -> None:
        """A batch of a stage begins; `rows` are its rows in the unit. Without rows it is a step that may take long."""
        with self._lock:
            self.moved, self.stage, self.pace = time.monotonic(), stage, BATCH if rows else LONG
            self._running = RunningBatch(stage, tuple(rows), self.moved)

    def done(self, stage: str, rows: int, seconds: float, size: int = 0, codes: Counter[Code] | None = None) -> None:
        """A batch has ended. `size`: bytes read or sent for it; `codes`: its fetches by code."""
        with self._lock:
            self.moved, self._running = time.monotonic(), None
            self.batches += 1
            batch = BatchStats(1, rows, size, seconds, [seconds], codes or Counter())
            self._stats.setdefault(stage, BatchStats()).add(batch)

    def passed(self, stage: str, rows: int, found: bool) -> None:
        """`rows` rows of the unit have passed a stage by now. `found`: none was computed since the last call."""
        with self._lock:
            more = rows - self._passed.get(stage, 0)
            if more > 0:  # a pass may start over
                self._passed[stage] = rows
                self._stats.setdefault(stage, BatchStats()).add(BatchStats(rows=more, found=more if found else 0))

    def spent(self, stage: str, endpoint: str, spend: Spend) -> None:
        """Requests of a stage to an endpoint have ended."""
        with self._lock:
            self._stats.setdefault(stage, BatchStats()).add(BatchStats(spend={endpoint: spend}))

    @contextmanager
    def setting_up(self, stage: str) -> Iterator[None]:
        """Covers the setup of a stage, and the wait while another task sets it up; then restores the previous state."""
        with self._lock:
            before, self.pace, self.stage = (self.stage, self.pace, self._running), SET_UP, f"{stage} (setting up)"
            self.moved, self._running = time.monotonic(), None
        try:
            yield
        finally:
            with self._lock:
                self.stage, self.pace, self._running = before
                self.moved = time.monotonic()

    def snapshot(self) -> dict[str, Any]:
        """Current state, and the stats since the last snapshot; picklable."""
        with self._lock:
            stats, self._stats = self._stats, {}
            return {
                "unit": self.unit,
                "stage": self.stage,
                "pace": self.pace,
                "batches": self.batches,
                "idle": time.monotonic() - self.moved,
                "running": self._running,
                "stats": stats,
                "notes": _noted(),
            }

    def relay(self, snapshot: Mapping[str, Any]) -> None:
        """Take over a snapshot from the child process that runs this task."""
        with self._lock:
            self.stage, self.pace, self._running = snapshot["stage"], snapshot["pace"], snapshot["running"]
            self.moved, self.batches = time.monotonic() - snapshot["idle"], snapshot["batches"]
            for stage, more in snapshot["stats"].items():
                self._stats.setdefault(stage, BatchStats()).add(more)
        for name, text in snapshot["notes"].items():
            note(text, name)


_here = threading.local()
_notes: dict[str, str] = {}
_noting = threading.Lock()


def note(text: str, name: str = "") -> None:
    """Tell the people who watch the run, with the next snapshot of any task of this process. Notes with one name are
    about the same thing: they see one every few seconds; others they see once."""
    with _noting:
        _notes[name or text] = text


def _noted() -> dict[str, str]:
    with _noting:
        found = dict(_notes)
        _notes.clear()
        return found


def current() -> Beat:
    """Beat of this thread's task; outside of a task, a new beat that nothing reads."""
    found: Beat | None = getattr(_here, "beat", None)
    return found if found is not None else Beat()


@dataclass
class Work:
    """Rows and bytes of one step of a task."""

    rows: int = 0
    bytes: int = 0


@contextmanager
def working(stage: str) -> Iterator[Work]:
    """Report the start of a step to this thread's beat, and at its end the rows and bytes set in `Work`."""
    mine, work, began = current(), Work(), time.monotonic()
    mine.doing(stage)
    yield work
    mine.done(stage, work.rows, time.monotonic() - began, work.bytes)


@contextmanager
def beating(beat: Beat) -> Iterator[Beat]:
    """Make `beat` the current beat of this thread."""
    before = getattr(_here, "beat", None)
    _here.beat = beat
    try:
        yield beat
    finally:
        _here.beat = before
