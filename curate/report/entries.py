"""What the texts of a selection say, before and after it: counts of entries (concepts, words, hashtags), head and tail.

Memory is three numbers and a name per entry, whatever the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.nouns import Manifest
from curate.kernels.entries import TAIL_SHARE, entries_of, tail_count
from curate.report.charts import RankChart, rank_chart
from curate.report.stats import Spread, spread

SHOWN = 12
TOP = 10

Floats = NDArray[np.float64]


@dataclass
class EntryCounts:
    """Texts by entry: those that reached the selection, copies that it expected to make of them, copies it made."""

    names: list[str] = field(default_factory=list)
    before: Floats = field(default_factory=lambda: np.zeros(0))
    due: Floats = field(default_factory=lambda: np.zeros(0))
    after: Floats = field(default_factory=lambda: np.zeros(0))
    texts: Floats = field(default_factory=lambda: np.zeros(3))
    """In all, as above."""
    matched: int = 0
    """Texts with any entry."""
    _ids: dict[str, int] = field(default_factory=dict)

    def add(
        self, table: pa.Table, columns: Sequence[str], reached: NDArray[np.bool_], alive: NDArray[np.bool_]
    ) -> None:
        """Rows with entries, and `item_copies` and `item_expected`; `reached`, `alive` (n,): whether the selection saw
        each, and whether it goes on."""
        live = pa.array(reached)
        found = entries_of(table.select(list(columns)).filter(live), columns)
        kept = alive[reached][found.row]
        due, copies = (
            item_values(table.column(name).filter(live), found.row, found.place)
            for name in ("item_expected", "item_copies")
        )
        values = np.stack([np.ones(len(found)), due, copies * kept])
        self.texts += values.sum(axis=1)
        self.matched += int(found.matched.sum())
        ids = np.array([self._id(name) for name in found.names], dtype=np.int64)
        for name, value in zip(("before", "due", "after"), values, strict=True):
            sums = np.bincount(found.entry, value[found.item], minlength=len(ids))
            total = np.concatenate([getattr(self, name), np.zeros(len(self.names) - len(getattr(self, name)))])
            total[ids] += sums
            setattr(self, name, total)

    def _id(self, name: str) -> int:
        found = self._ids.setdefault(name, len(self.names))
        if found == len(self.names):
            self.names.append(name)
        return found


def item_values(column: pa.ChunkedArray, row: NDArray[np.int64], place: NDArray[np.int64]) -> Floats:
    """Element `place` (m,) of the list of each `row` (m,); 0 where the list is too short."""
    lists = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = pc.fill_null(lists.flatten().cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    there = place < lengths[row]
    values = np.zeros(len(row))
    values[there] = flat[(np.cumsum(lengths) - lengths)[row[there]] + place[there]]
    return values


@dataclass(frozen=True)
class Shift:
    """An entry whose texts have become fewer or more."""

    name: str
    before: int
    due: float
    after: int
    widths: tuple[float, float]
    """Before and after, percent of the greatest of its table."""


@dataclass(frozen=True)
class Tail:
    """Entries with fewer texts than `threshold`."""

    threshold: float
    asked: float | None
    """The share of matches that the threshold follows from; None where the recipe gives the threshold itself."""
    entries: int
    kept: int
    """Of these, those that some text going on has."""
    share: tuple[float, float]
    """Of matches, before and after."""


@dataclass(frozen=True)
class HeadAndTail:
    """How even the entries are, before (first) and after (second)."""

    even: tuple[float, float]
    """Entropy over its maximum, that of as many equal entries."""
    top: tuple[float, float]
    """Share of matches that the commonest entries have."""
    top_entries: int
    tail: Tail | None
    """None with `by`: every group has a tail of its own, and texts are counted here over all groups."""
    by: str | None


@dataclass(frozen=True)
class EntrySection:
    """What the page says of entries."""

    columns: list[str]
    title: str
    chart: RankChart
    before: Spread
    after: Spread
    texts: int
    matched: int
    due: float
    made: int
    figures: HeadAndTail
    cut: list[Shift]
    repeated: list[Shift]


def entry_columns(manifest: Manifest | None, columns: frozenset[str]) -> tuple[str, ...]:
    """Columns of entries that a selection balances by; none for one of another kind."""
    named = manifest.parameters.get("columns") if manifest is not None else None
    known = isinstance(named, (list, tuple)) and all(name in columns for name in (*named, "item_copies"))
    return tuple(named) if known and named else ()


def entry_section(counts: EntryCounts, manifest: Manifest | None, columns: Sequence[str]) -> EntrySection | None:
    """None where no text that reached the selection has an entry."""
    if not counts.before.sum():
        return None
    before, after = counts.before.astype(np.int64), counts.after.astype(np.int64)
    series = [("before", "before", before), ("after", "after", after)]
    return EntrySection(
        columns=list(columns),
        title="Entries",
        chart=rank_chart(series, "entry", "texts that have it", "Matches"),
        before=spread(before),
        after=spread(after),
        texts=int(counts.texts[0]),
        matched=counts.matched,
        due=float(counts.texts[1]),
        made=int(counts.texts[2]),
        figures=head_and_tail(before, after, manifest.parameters if manifest is not None else {}),
        cut=shifts(counts, before - counts.due),
        repeated=shifts(counts, counts.due - before),
    )


def head_and_tail(before: NDArray[np.int64], after: NDArray[np.int64], parameters: Mapping[str, Any]) -> HeadAndTail:
    """Of texts (K,) per entry, all groups of rows taken together."""
    by = parameters.get("by")
    entropy = np.log2(max(2, int((before > 0).sum())))
    commonest = np.argsort(-before, kind="stable")[:TOP]
    return HeadAndTail(
        even=(spread(before).entropy_bits / entropy, spread(after).entropy_bits / entropy),
        top=_shares(before, after, commonest),
        top_entries=min(TOP, int((before > 0).sum())),
        tail=None if by else tail_of(before, after, parameters),
        by=by,
    )


def tail_of(before: NDArray[np.int64], after: NDArray[np.int64], parameters: Mapping[str, Any]) -> Tail:
    """What lies under the recipe's own threshold, or else holds its `tail_share`, or TAIL_SHARE, of matches before."""
    threshold, asked = parameters.get("threshold") or parameters.get("tail"), None
    if threshold is None:
        asked = parameters.get("tail_share") or TAIL_SHARE
        threshold = tail_count(before, asked)
    tail = (before < threshold) & (before > 0)
    shares = _shares(before, after, np.flatnonzero(tail))
    return Tail(float(threshold), asked, int(tail.sum()), int((after[tail] > 0).sum()), shares)


def _shares(before: NDArray[np.int64], after: NDArray[np.int64], some: NDArray[np.int64]) -> tuple[float, float]:
    return tuple(float(counts[some].sum() / max(1, counts.sum())) for counts in (before, after))  # type: ignore[return-value]


def shifts(counts: EntryCounts, change: Floats) -> list[Shift]:
    """The entries of the greatest `change` (K,) > 0 in expectation, greatest first."""
    order = np.lexsort((np.array(counts.names, dtype=object), -change))[:SHOWN]
    shown = order[change[order] > 0.5]
    greatest = max(counts.before[shown].max(initial=0), counts.after[shown].max(initial=0), 1)
    made = []
    for place in shown.tolist():
        pair = (counts.before[place], counts.after[place])
        widths = (100 * pair[0] / greatest, 100 * pair[1] / greatest)
        made.append(Shift(counts.names[place], int(pair[0]), float(counts.due[place]), int(pair[1]), widths))
    return made
