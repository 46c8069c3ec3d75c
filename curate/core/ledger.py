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
    """One stage's line. `copies` are rows after a declared expansion (None: each row goes on once)."""

    before: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    after: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    copies: int | None = None

    def __add__(self, other: Entry) -> Entry:
        copies = None if self.copies is None and other.copies is None else (self.copies or 0) + (other.copies or 0)
        return Entry(
            self.before + other.before,
            self.rejected + other.rejected,
            self.after + other.after,
            self.counters + other.counters,
            copies,
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
        return value if self.copies is None else value | {"copies": self.copies}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            value["before"], Counter(value["rejected"]), value["after"], Counter(value["counters"]), value.get("copies")
        )


def total(entries: Iterable[Entry]) -> Entry:
    return sum(entries, Entry())
