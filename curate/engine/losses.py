"""Rows that a run loses to failures, against its budget for them."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from curate.core.errors import BudgetError
from curate.core.ledger import Entry
from curate.engine.record.events import Events


class Losses:
    def __init__(self, budget: float, events: Events | None = None) -> None:
        """`budget`: share of a pool's rows that may be lost. `events`: of the run; None in a plan."""
        self._budget, self._events = budget, events
        self._rows: dict[str, int] = {}
        """Stage or portion -> rows that failed there, in this run or in the run that built it."""
        self._example = ""
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        return sum(self._rows.values())

    def record(self, what: str, rows: int, why: str, pool_rows: int) -> None:
        """Record the rows that failed in `what`. Raises BudgetError if the run has lost more than its budget."""
        with self._lock:
            self._record(what, rows, why, pool_rows)

    def add(self, stage: str, entry: Entry, messages: Mapping[str, str], pool_rows: int) -> None:
        """Add a shard's rows in error at a stage, computed now or by an earlier run. Raises BudgetError."""
        if entry.error:
            reason = next(iter(entry.error))
            why = f"{stage}: {messages.get(reason, reason)}"
            with self._lock:
                self._record(stage, self._rows.get(stage, 0) + entry.error.total(), why, pool_rows)

    def _record(self, what: str, rows: int, why: str, pool_rows: int) -> None:
        self._rows[what] = rows
        self._example = self._example or (why if rows else "")
        lost, allowed = self.total, math.ceil(self._budget * pool_rows)
        if lost and self._events is not None:
            self._events.emit("lost", rows=lost, allowed=allowed)
        if lost > allowed:
            raise BudgetError(
                f"{lost:,} rows were lost to failures, the budget is {allowed:,} "
                f"({self._budget:.1%} of {pool_rows:,}); first: {self._example}; "
                "fix the cause (`curate retry` tries them again) or raise --failure-budget"
            )
