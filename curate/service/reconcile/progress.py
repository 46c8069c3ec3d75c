"""What the events of a running attempt add up to, and what of it people should look at. A look reads only the segments
that are new."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from curate.api import Run
from curate.core.spend import RunSpend

EVENTS = 500
"""Most events per page."""
PAGES = 4
"""Most pages per look: a new leader catches up over several looks."""
VARIES = ("time", "rows_per_s", "bytes_per_s", "busy", "left_seconds", "seconds")
"""Fields that change although nothing was done."""
COUNTERS = ("spend", "allocated", "lost")
"""Events that only count: none of them is progress."""
BUDGET_SHARE = 0.8
"""Used share of the failure budget that raises an alert: early enough to save the run."""
THINNED = ("progress", "step", "fetches")


@dataclass
class Progress:
    """Progress of an attempt."""

    clock: Callable[[], float] = time.monotonic
    stages_done: set[str] = field(default_factory=set)
    gpu_seconds: float = 0.0
    dollars: float = 0.0
    tokens: int = 0
    budget: float = 0.0
    """Share of the failure budget that is used."""
    lanes: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """(stage, lane) -> what was last measured there, for the stages that are not done."""
    moved: float = field(init=False)
    """When something was last done, as far as this process has seen it."""
    _after: str = ""
    _last: dict[tuple[object, ...], Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.moved = self.clock()

    @property
    def idle_seconds(self) -> float:
        return self.clock() - self.moved

    def read(self, run: Run) -> None:
        """Read what is new, at most some pages of it."""
        for _ in range(PAGES):
            page = run.events_page(self._after, EVENTS)
            for _, event in page.events:
                self.add(event)
            self._after = page.next
            if len(page.events) < EVENTS:
                return

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event")
        if kind == "stage":
            self.stages_done.add(str(event["stage"]))
            self.lanes = {place: last for place, last in self.lanes.items() if place[0] != event["stage"]}
        elif kind == "progress" and event.get("lane"):
            self.lanes[str(event["stage"]), str(event["lane"])] = event
        elif kind in COUNTERS:
            self._count(event)
        if kind not in COUNTERS and self._new(event):
            self.moved = self.clock()

    def _count(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "spend":
            spent = RunSpend.from_json(event["stages"]).total
            self.dollars, self.tokens = spent.dollars or 0.0, spent.tokens
        elif event["event"] == "allocated":
            self.gpu_seconds = float(event["gpu_seconds"])
        else:
            self.budget = event["rows"] / max(1, event["allowed"])

    def _new(self, event: Mapping[str, Any]) -> bool:
        """Whether an event says that something was done: its kind is rare, or a field that counts has changed."""
        if event.get("event") not in THINNED:
            return True
        key = (event["event"], event.get("stage"), event.get("lane"))
        about = {name: value for name, value in event.items() if name not in VARIES}
        before = self._last.get(key)
        self._last[key] = about
        return before != about


def alert(idle_seconds: float, stalled_seconds: float, budget: float) -> str:
    """`idle_seconds`: since the last progress; `budget`: used share of the failure budget. "" if all is well."""
    found = []
    if idle_seconds > stalled_seconds:
        found.append(f"no progress for {_rounded(idle_seconds)}")
    if budget >= BUDGET_SHARE:
        found.append(f"{min(budget, 1.0):.0%} of its failure budget is used")
    return "; ".join(found)


def _rounded(seconds: float) -> str:
    """Coarse, so that the text rarely changes."""
    minutes = int(seconds // 60)
    if minutes < 10:
        return f"{max(1, minutes)} min"
    return f"{minutes // 10 * 10} min" if minutes < 120 else f"{minutes // 60} h"
