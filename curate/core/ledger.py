"""The ledger: what every stage found alive, refused by reason, and passed on. It adds up, or the run fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from curate.core.errors import LedgerError

SET_ASIDE = "shard_set_aside"
"""Reason of the rows of a shard that failed for good; it is named in the run's record."""
ERROR_PREFIX = "error_"
"""Reasons that are failures of a stage (exceptions, killed processes), not its judgement: the budget bounds them."""


@dataclass
class Entry:
    """One stage's line. `copies` are rows after a declared expansion (None: each row goes on once), `items` those that
    they are copies of, where a row's items (sentences) go on one by one."""

    before: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    after: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    copies: int | None = None
    items: int | None = None

    def __add__(self, other: Entry) -> Entry:
        return Entry(
            self.before + other.before,
            self.rejected + other.rejected,
            self.after + other.after,
            self.counters + other.counters,
            _sum(self.copies, other.copies),
            _sum(self.items, other.items),
        )

    def check(self, stage: str) -> Self:
        if self.before - sum(self.rejected.values()) != self.after:
            lost = self.before - sum(self.rejected.values()) - self.after
            raise LedgerError(f"{stage}: {self.before} rows in, {self.after} out, {lost} unaccounted for")
        return self

    def errors(self) -> int:
        """Rows that failed one by one; those of shards set aside are counted by the shard."""
        return sum(n for reason, n in self.rejected.items() if reason.startswith(ERROR_PREFIX))

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"before": self.before, "rejected": dict(sorted(self.rejected.items()))}
        value |= {"after": self.after, "counters": dict(sorted(self.counters.items()))}
        expanded = {"copies": self.copies, "items": self.items}
        return value | {name: count for name, count in expanded.items() if count is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        rejected, counters = Counter(value["rejected"]), Counter(value["counters"])
        return cls(value["before"], rejected, value["after"], counters, value.get("copies"), value.get("items"))


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None and b is None else (a or 0) + (b or 0)


def total(entries: Iterable[Entry]) -> Entry:
    return sum(entries, Entry())
