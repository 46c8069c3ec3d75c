"""What a task says of itself while it runs, and what it is told: progress, and whether to wind down.

A task runs in one thread of a worker. Around each batch it says what it is doing; the scheduler asks for it every few
seconds and tells from it how fast a stage is, whether a unit hangs, and where.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

RECENT = 64
"""Batch times that a task keeps between two looks at it."""
BATCH, LONG, SET_UP = "batch", "long", "set-up"
"""What is under way, which decides when it hangs: a batch of rows; one step of a task, such as a merge or a part of a
fit, of which some take much longer than others; or a stage that loads its model."""


@dataclass(frozen=True)
class Doing:
    """A batch under way."""

    stage: str
    rows: tuple[int, ...]
    """Places in the unit: in its shards, one after the other."""
    since: float
    """time.monotonic() of the worker."""


@dataclass
class Told:
    """What a stage of a task has done since the last look."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)
    """Seconds of the last RECENT batches."""


class Beat:
    """One task's pulse. Its own thread writes, the scheduler's reads."""

    def __init__(self, unit: str = "", lane: str = "") -> None:
        self.unit, self.lane = unit, lane
        self.run = ""
        self.stopping = False
        """Wind down: publish what there is at the next border between batches, and end."""
        self.again = False
        """It was begun before, by a worker that died or an attempt that failed: some of it may be there."""
        self.abandoned = False
        """Nobody waits for this task any more: it has hung in a thread, which cannot be ended."""
        self.stage = ""
        """Stage of the last batch."""
        self.pace = LONG
        """BATCH, LONG or SET_UP: what the last one was."""
        self.batches = 0
        """Batches ended since the task began, of all stages."""
        self.moved = time.monotonic()
        """When a batch last began or ended."""
        self.turn: AbstractContextManager[Any] = nullcontext()
        """Held while a batch is computed: of the units that share a GPU one computes, the others read and publish."""
        self._lock = threading.Lock()
        self._doing: Doing | None = None
        self._told: dict[str, Told] = {}

    def doing(self, stage: str, rows: Sequence[int] = ()) -> None:
        """A batch begins: which stage, and which rows of the unit. One without rows is a step that may take long."""
        with self._lock:
            self.moved, self.stage, self.pace = time.monotonic(), stage, BATCH if rows else LONG
            self._doing = Doing(stage, tuple(rows), self.moved)

    def done(self, stage: str, rows: int, seconds: float, size: int = 0) -> None:
        """A batch has ended: its rows, seconds, and bytes read or sent for it."""
        with self._lock:
            self.moved, self._doing = time.monotonic(), None
            self.batches += 1
            told = self._told.setdefault(stage, Told())
            told.batches, told.rows = told.batches + 1, told.rows + rows
            told.bytes, told.seconds = told.bytes + size, told.seconds + seconds
            told.recent = [*told.recent[1 - RECENT :], seconds]

    @contextmanager
    def setting_up(self, stage: str) -> Iterator[None]:
        """A stage is being set up, or waited for while another task sets one up; then on with what was before."""
        with self._lock:
            before, self.pace, self.stage = (self.stage, self.pace, self._doing), SET_UP, f"{stage} (setting up)"
            self.moved, self._doing = time.monotonic(), None
        try:
            yield
        finally:
            with self._lock:
                self.stage, self.pace, self._doing = before
                self.moved = time.monotonic()

    def look(self) -> dict[str, Any]:
        """What has been told since the last look, and what is under way; picklable."""
        with self._lock:
            told, self._told = self._told, {}
            now = time.monotonic()
            return {
                "unit": self.unit,
                "stage": self.stage,
                "pace": self.pace,
                "batches": self.batches,
                "idle": now - self.moved,
                "doing": self._doing,
                "told": told,
            }

    def relay(self, look: Mapping[str, Any]) -> None:
        """Take over a look at the beat of a child process that carries out this task."""
        with self._lock:
            self.stage, self.pace, self._doing = look["stage"], look["pace"], look["doing"]
            self.moved, self.batches = time.monotonic() - look["idle"], look["batches"]
            for stage, more in look["told"].items():
                told = self._told.setdefault(stage, Told())
                told.batches, told.rows = told.batches + more.batches, told.rows + more.rows
                told.bytes, told.seconds = told.bytes + more.bytes, told.seconds + more.seconds
                told.recent = [*told.recent, *more.recent][-RECENT:]


class Turn:
    """What one task at a time holds. Waiting for it is not hanging: whoever holds it is looked at."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: int | None = None

    def __enter__(self) -> None:
        mine = current()
        with self._changed:
            while not self._changed.wait_for(lambda: self._holder is None, timeout=1.0):
                mine.moved = time.monotonic()
            self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self.free(threading.get_ident())

    def free(self, thread: int | None) -> None:
        """Give it up for a thread, which may have hung while it held it."""
        with self._changed:
            if self._holder == thread:
                self._holder = None
                self._changed.notify_all()


TURNS = {"gpu": Turn()}


def turn(lane: str) -> AbstractContextManager[Any]:
    """What a task of this lane holds while it computes: one at a time in a process that has a GPU."""
    return TURNS.get(lane) or nullcontext()


_here = threading.local()


def current() -> Beat:
    """The beat of this thread's task; one that nobody looks at outside of a task."""
    found: Beat | None = getattr(_here, "beat", None)
    return found if found is not None else Beat()


@contextmanager
def beating(beat: Beat) -> Iterator[Beat]:
    """Make `beat` that of this thread while a task runs."""
    before = getattr(_here, "beat", None)
    _here.beat = beat
    try:
        yield beat
    finally:
        _here.beat = before
