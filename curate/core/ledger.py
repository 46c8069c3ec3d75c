"""The ledger: rows alive before each stage, rows rejected by reason, and rows alive after it. It must add up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from curate.core.errors import LedgerError

SET_ASIDE = "shard_set_aside"
"""Reason of the rows of a shard that failed permanently; the run's record names the shard."""
RESERVED = frozenset(
    ("absent", "duplicate_key", "killed", "no_data", "no_items", "not_selected", SET_ASIDE, "tombstone")
)
"""Reasons of the engine, which are counted and shown separately. Filters must not use them."""


MOST_KINDS, MOST_NAMES = 100, 20
"""Kinds of skipped things that are counted apart, and names that are kept of each."""
_EXTENSION = re.compile(r"(?<=.)\.\w{1,12}$")


@dataclass(frozen=True)
class Skip:
    """What a source found and made no row of, of one kind: how many, and the names of the first."""

    count: int = 0
    names: tuple[str, ...] = ()

    def __add__(self, other: Skip) -> Skip:
        return Skip(self.count + other.count, (self.names + other.names)[:MOST_NAMES])


Skips = dict[str, Skip]
"""Kind (reason, with the extension of the name) -> what was skipped."""


def skip(skips: Skips, reason: str, name: str) -> None:
    """Count something that is skipped."""
    extension = _EXTENSION.search(name.rpartition("/")[2].lower())
    kind = f"{reason} {extension.group()}" if extension else reason
    if kind not in skips and len(skips) >= MOST_KINDS:
        kind = reason
    found = skips.get(kind, Skip())
    shown = (name if name.isprintable() else ascii(name)[1:-1],) if len(found.names) < MOST_NAMES else ()
    skips[kind] = found + Skip(1, shown)


def skips_of(reasons: Mapping[str, str]) -> Skips:
    """From name -> reason."""
    skips = Skips()
    for name, reason in reasons.items():
        skip(skips, reason, name)
    return skips


def joined_skips(*several: Mapping[str, Skip]) -> Skips:
    kinds = sorted({kind for skips in several for kind in skips})
    return {kind: sum((skips[kind] for skips in several if kind in skips), Skip()) for kind in kinds}


def told(skips: Mapping[str, Skip], most: int) -> str:
    """How many of each kind, the most frequent ones first, and the name of the first of each."""
    common = sorted(skips.items(), key=lambda item: (-item[1].count, item[0]))
    shown = [f"{kind} {one.count:,} ({', '.join(one.names[:1])})" for kind, one in common[:most]]
    rest = sum(one.count for _, one in common[most:])
    return ", ".join([*shown, f"other {rest:,}"] if rest else shown)


@dataclass
class ItemEntry:
    """Items (sentences) of a family: alive before, rejected themselves, lost with their row, alive after."""

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
    """Counts of one stage: rows alive before it, rows that left at it, by reason, and rows alive after it.

    `unusable` rows can never have the stage's facts; `error` rows could not be computed this time. With `keep_null`
    both pass, and `kept` counts them. `copies` are the rows after a selection repeats them (None: each passes once);
    `items` are the distinct items among them, if items are selected one by one. `children` are the samples derived from
    the rows that pass. `of_items` counts the items of each family that filters judge. `skipped` is what a source found
    beside its rows (None for other stages, and of earlier versions)."""

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
    skipped: Skips | None = None

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
            other.skipped if self.skipped is None else joined_skips(self.skipped, other.skipped or {}),
        )

    @property
    def found(self) -> int:
        """What a source found: its rows, alive or not, and what it skipped."""
        return self.before + sum(one.count for one in (self.skipped or {}).values())

    @property
    def lost(self) -> Counter[str]:
        """Rows that were rejected, unusable or in error, by reason."""
        return self.rejected + self.unusable + self.error

    @property
    def left(self) -> Counter[str]:
        """Rows that left here, by reason: those of `lost` that do not continue under `keep_null`."""
        return self.rejected if self.kept else self.lost

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
        if self.skipped is not None:
            value["skipped"] = {kind: [one.count, list(one.names)] for kind, one in sorted(self.skipped.items())}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        counted: dict[str, Any] = {n: Counter(value.get(n, {})) for n in ("rejected", "unusable", "error", "counters")}
        plain = {
            name: value[name] for name in ("before", "after", "copies", "items", "children", "kept") if name in value
        }
        items = {name: ItemEntry.from_json(item) for name, item in value.get("of_items", {}).items()}
        skipped = value.get("skipped")
        skips = (
            None if skipped is None else {kind: Skip(count, tuple(names)) for kind, (count, names) in skipped.items()}
        )
        return cls(**plain, **counted, of_items=items, skipped=skips)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None and b is None else (a or 0) + (b or 0)


def total(entries: Iterable[Entry]) -> Entry:
    return sum(entries, Entry())
