"""The ledger: what every stage found alive, rejected by reason, and passed on. It adds up, or the run fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from curate.core.errors import LedgerError

SET_ASIDE = "shard_set_aside"
"""Reason of the rows of a shard that failed for good; it is named in the run's record."""
RESERVED = frozenset(
    ("absent", "duplicate_key", "killed", "no_data", "no_items", "not_selected", SET_ASIDE, "tombstone")
)
"""Reasons of the engine's own: what leaves with one of them is counted and shown in its own way, so no recipe may give
one to a filter."""


@dataclass
class ItemEntry:
    """Items (sentences) of one family: alive before, rejected one by one, lost because their row was, alive after."""

    before: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    after: int = 0

    def __add__(self, other: ItemEntry) -> ItemEntry:
        rejected = self.rejected + other.rejected
        return ItemEntry(self.before + other.before, rejected, self.lost + other.lost, self.after + other.after)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "rejected": dict(sorted(self.rejected.items()))}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{**value, "rejected": Counter(value["rejected"])})


@dataclass
class Entry:
    """One stage's line: rows alive before it, those that left the path there, by reason, and rows alive after it.

    `unusable` are rows that can never have the stage's facts, `error` those that could not be computed this time. With
    `keep_null` both go on: `kept` counts them. `copies` are rows after a selection's expansion (None: each row goes on
    once), `items` those that they are copies of, where a row's items go on one by one. `children` are the samples made
    out of the rows that go on. `of_items` is the ledger of the items of each family that filters judge."""

    before: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    after: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    copies: int | None = None
    items: int | None = None
    unusable: Counter[str] = field(default_factory=Counter)
    error: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    children: int | None = None
    of_items: dict[str, ItemEntry] = field(default_factory=dict)

    def __add__(self, other: Entry) -> Entry:
        families = {*self.of_items, *other.of_items}
        none = ItemEntry()
        return Entry(
            self.before + other.before,
            self.rejected + other.rejected,
            self.after + other.after,
            self.counters + other.counters,
            _sum(self.copies, other.copies),
            _sum(self.items, other.items),
            self.unusable + other.unusable,
            self.error + other.error,
            self.kept + other.kept,
            _sum(self.children, other.children),
            {name: self.of_items.get(name, none) + other.of_items.get(name, none) for name in families},
        )

    @property
    def lost(self) -> Counter[str]:
        """Rows that left the path here, by reason, whatever the kind of the reason."""
        return self.rejected + self.unusable + self.error

    def check(self, stage: str) -> Self:
        left = self.before - self.lost.total() + self.kept - self.after
        if left:
            raise LedgerError(f"{stage}: {self.before} rows before, {self.after} after, {left} unaccounted for")
        for family, items in self.of_items.items():
            left = items.before - items.rejected.total() - items.lost - items.after
            if left:
                raise LedgerError(f"{stage}: {items.before} items of {family}, {left} unaccounted for")
        return self

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"before": self.before}
        value |= {name: dict(sorted(getattr(self, name).items())) for name in ("rejected", "unusable", "error")}
        value |= {"after": self.after, "counters": dict(sorted(self.counters.items()))}
        more = {"copies": self.copies, "items": self.items, "children": self.children, "kept": self.kept or None}
        value |= {name: count for name, count in more.items() if count is not None}
        if self.of_items:
            value["of_items"] = {name: items.to_json() for name, items in sorted(self.of_items.items())}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        counted: dict[str, Any] = {n: Counter(value.get(n, {})) for n in ("rejected", "unusable", "error", "counters")}
        plain = {
            name: value[name] for name in ("before", "after", "copies", "items", "children", "kept") if name in value
        }
        items = {name: ItemEntry.from_json(item) for name, item in value.get("of_items", {}).items()}
        return cls(**plain, **counted, of_items=items)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None and b is None else (a or 0) + (b or 0)


def total(entries: Iterable[Entry]) -> Entry:
    return sum(entries, Entry())
