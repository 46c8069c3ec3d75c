"""One reader for each attempt that is watched. It reads every segment of the event log once, and computes the
status from what it remembers, so that a further viewer costs no storage operation."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from curate.api import Entry, Run, Status, Workspace
from curate.core.errors import CurateError
from curate.core.secrets import redact
from curate.service.problems import UnavailableProblem

log = logging.getLogger("curate.service")
FRESH_SECONDS = 2.0
"""What is known is this old at most, unless storage is slow. The engine writes events every two seconds."""
END_SECONDS = 5.0
"""How long a viewer of an ended attempt waits while another viewer reads it."""
RECENT = 2000
"""Events that a new viewer gets."""
PAGE = 1000
REPEATED = frozenset({"progress", "step", "fetches", "spend", "allocated", "lost"})
"""Events of which only the last few of a stage and lane say something about the present."""
LAST = 20
LONG = 64
"""Segments of a log that is read by several threads at first."""
READERS = 16
THIN = 20_000
"""Events that are kept in memory for the status before repeated ones are dropped."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """An attempt, as far as its record and its events tell."""

    status: Status
    graph: Mapping[str, tuple[list[str], dict[str, str]]]
    """Stage -> its inputs and ports."""
    ledger: Mapping[str, Entry]
    outputs: Mapping[str, str]
    """Stage -> folder of its output in the workspace."""
    reports: frozenset[str]
    """Stages that make a page."""

    @property
    def settled(self) -> bool:
        """Whether it never changes. A driver may only have seemed dead."""
        return self.status.ended and self.status.state != "killed"


@dataclass(frozen=True)
class News:
    """Events with their ids, in order. `missed`: earlier ones are not in memory any more."""

    events: list[tuple[str, Event]]
    missed: bool = False


class Reader:
    """Reads one attempt. Thread-safe."""

    def __init__(self, workspace: Workspace, attempt_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.workspace, self.attempt_id, self._clock = workspace, attempt_id, clock
        self.used = clock()
        self._reading = threading.Lock()
        self._after = ""
        """Where the log was read to."""
        self._events: list[Event] = []
        self._thin = THIN
        self._recent: deque[tuple[str, Event]] = deque(maxlen=RECENT)
        self._count = 0
        self._known: Known | None = None
        self._run: Run | None = None
        self._read = self._computed = float("-inf")

    def known(self, alive: bool | None = None) -> Known | None:
        """None if the attempt has not started. Raises UnavailableProblem if nothing is known and storage does not
        answer; while it is slow, others get what was known before. `alive`: whether its driver is, if that is known."""
        self.used = now = self._clock()
        known = self._known
        if known is not None and (known.settled or (now - self._computed < FRESH_SECONDS and not _over(known, alive))):
            return known
        patience = -1 if known is None else END_SECONDS if _over(known, alive) else 0
        if not self._reading.acquire(timeout=patience):
            return known
        try:
            fresh = self._known is not None and self._clock() - self._computed < FRESH_SECONDS
            if self._known is None or not fresh or _over(self._known, alive):
                self._known = self._look(alive)
        except Exception as error:  # a file system raises anything; what is known is shown meanwhile
            problem = self._unavailable(error)
            log.warning("%s", problem)
            if known is None:
                raise problem from error
        finally:
            self._computed = self._clock()
            self._reading.release()
        return self._known

    def news(self, after: str | None) -> News:
        """Events after an id, or all that are in memory. Reads the log if what is known is old."""
        self.used = self._clock()
        with self._reading:
            try:
                if self._clock() - self._read >= FRESH_SECONDS / 2:
                    self._read_on()
            except Exception as error:  # a file system raises anything
                raise self._unavailable(error) from error
            recent, more = list(self._recent), self._count > RECENT
        if after is None:
            return News(recent, more)
        then = _order(after)
        return News([one for one in recent if _order(one[0]) > then], more and _order(recent[0][0]) > then)

    def _look(self, alive: bool | None) -> Known | None:
        run = self._begun()
        if run is None:
            return None
        record = run.record  # before the log, so that the log of an ended run is complete
        if record.result is None or record.result["error"]:
            self._read_on()
        record.events = self._events
        return Known(
            run.status(events=self._events, alive=alive),
            {name: (list(stage["from"]), dict(stage["ports"])) for name, stage in record.record["stages"].items()},
            record.ledger(),
            {name: str(output["base"]) for name, output in record.outputs.items()},
            frozenset(record.reports()),
        )

    def _read_on(self) -> None:
        """Read the log from where it was read to; one storage operation if nothing is new."""
        run = self._begun()
        if run is not None and not self._after:
            self._catch_up(run)
        more = run is not None
        while more and run is not None:
            page = run.events_page(self._after, PAGE)
            self._after = page.next
            self._add(page.events)
            more = len(page.events) == PAGE
        self._read = self._clock()
        if len(self._events) > self._thin:
            self._events = thinned(self._events)
            self._thin = 2 * len(self._events) + THIN

    def _catch_up(self, run: Run) -> None:
        """Read a long log by ranges in parallel."""
        last = run.last_segment()
        if last < LONG:
            return
        step = -(-last // READERS)
        with ThreadPoolExecutor(READERS) as pool:
            parts = pool.map(lambda first: _range(run, first, min(last, first + step - 1)), range(1, last + 1, step))
            for events in parts:
                self._add(events)
        self._after = f"{last + 1}:0"

    def _add(self, events: Sequence[tuple[str, Event]]) -> None:
        self._recent.extend(events)
        self._count += len(events)
        self._events += [event for _, event in events]

    def _begun(self) -> Run | None:
        """The run, once it has a record."""
        if self._run is None and self.workspace.has(self.attempt_id):
            self._run = self.workspace.run(self.attempt_id)
        return self._run

    def _unavailable(self, error: Exception) -> UnavailableProblem:
        said = str(error) if isinstance(error, CurateError) else f"{type(error).__name__}: {error}"
        text = redact(" ".join(said.split()))[:300]
        return UnavailableProblem(f"run {self.attempt_id}: its workspace does not answer ({text}); try again later")


def _over(known: Known, alive: bool | None) -> bool:
    """Whether it has ended since it was read."""
    return alive is False and not known.status.ended


def _range(run: Run, first: int, last: int) -> list[tuple[str, Event]]:
    """Events of some segments."""
    found: list[tuple[str, Event]] = []
    after = f"{first}:0"
    while _order(after) < (last + 1, 0):
        page = run.events_page(after, PAGE)
        found += [one for one in page.events if _order(one[0])[0] <= last]
        if not page.events:
            break
        after = page.next
    return found


def _order(within: str) -> tuple[int, int]:
    segment, _, line = within.partition(":")
    return int(segment), int(line or 0)


def thinned(events: list[Event]) -> list[Event]:
    """Without repeated events that newer ones replace, in order."""
    counts: Counter[tuple[Any, ...]] = Counter()
    kept = []
    for event in reversed(events):
        if event["event"] in REPEATED:
            name = (event["event"], event.get("stage"), event.get("lane"))
            counts[name] += 1
            if counts[name] > LAST:
                continue
        kept.append(event)
    return kept[::-1]
