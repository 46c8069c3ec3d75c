"""Entries (concepts, words, hashtags) of the texts of a selection, before and after it: counts, head and tail.

Memory is three numbers and a name per entry, independent of the size of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.nouns.manifest import Manifest
from curate.html.charts import RankChart, rank_chart
from curate.kernels.entries import TAIL_SHARE, entries_of, tail_count
from curate.report.survey.spread import Spread, spread

SHOWN = 12
TOP = 10

Floats = NDArray[np.float64]


@dataclass
class EntryBalance:
    """Texts by entry: texts that reached the selection, their expected copies, and their copies."""

    names: list[str] = field(default_factory=list)
    before: Floats = field(default_factory=lambda: np.zeros(0))
    expected: Floats = field(default_factory=lambda: np.zeros(0))
    after: Floats = field(default_factory=lambda: np.zeros(0))
    texts: Floats = field(default_factory=lambda: np.zeros(3))
    """Total of all texts: before, expected, after."""
    matched: int = 0
    """Texts with at least one entry."""
    _ids: dict[str, int] = field(default_factory=dict)

    def add(self, table: pa.Table, columns: Sequence[str], reached: NDArray[np.bool_], live: NDArray[np.bool_]) -> None:
        """Add a table with columns of entries, `item_copies` and `item_expected`. `reached`, `live`: masks (n,) of the
        rows that reached the selection, and of the rows that were not rejected."""
        mask = pa.array(reached)
        found = entries_of(table.select(list(columns)).filter(mask), columns)
        kept = live[reached][found.row]
        expected, copies = (
            item_values(table.column(name).filter(mask), found.row, found.place)
            for name in ("item_expected", "item_copies")
        )
        values = np.stack([np.ones(len(found)), expected, copies * kept])
        self.texts += values.sum(axis=1)
        self.matched += int(found.matched.sum())
        ids = np.array([self._id(name) for name in found.names], dtype=np.int64)
        for name, value in zip(("before", "expected", "after"), values, strict=True):
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
    """Element `place` (m,) of the list of each `row` (m,); 0 if the list is too short."""
    lists = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = pc.fill_null(lists.flatten().cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    known = place < lengths[row]
    values = np.zeros(len(row))
    values[known] = flat[(np.cumsum(lengths) - lengths)[row[known]] + place[known]]
    return values


@dataclass(frozen=True)
class EntryChange:
    """An entry whose number of texts changed."""

    name: str
    before: int
    expected: float
    after: int
    widths: tuple[float, float]
    """Bars before and after, in percent of the largest of its table."""


@dataclass(frozen=True)
class Tail:
    """Entries with fewer texts than `threshold`."""

    threshold: float
    target_share: float | None
    """Share of matches from which the threshold follows; None if the recipe sets the threshold."""
    entries: int
    kept: int
    """Entries of the tail that a selected text still has."""
    share: tuple[float, float]
    """Share of matches, before and after."""


@dataclass(frozen=True)
class HeadAndTail:
    """How evenly texts are distributed over entries, before (first) and after (second)."""

    evenness: tuple[float, float]
    """Entropy over its maximum, the entropy of equally many equal entries."""
    top: tuple[float, float]
    """Share of matches of the most common entries."""
    top_entries: int
    tail: Tail | None
    """None with `by`: each group has its own tail, and the counts here are over all groups."""
    by: str | None


@dataclass(frozen=True)
class EntrySection:
    """The page's section about entries."""

    columns: list[str]
    title: str
    chart: RankChart
    before: Spread
    after: Spread
    texts: int
    matched: int
    expected: float
    drawn: int
    figures: HeadAndTail
    reduced: list[EntryChange]
    repeated: list[EntryChange]


def entry_columns(manifest: Manifest | None, columns: frozenset[str]) -> tuple[str, ...]:
    """Columns of entries that a selection balances by; empty for other kinds of selections."""
    named = manifest.parameters.get("columns") if manifest is not None else None
    known = isinstance(named, (list, tuple)) and all(name in columns for name in (*named, "item_copies"))
    return tuple(named) if known and named else ()


def entry_section(counts: EntryBalance, manifest: Manifest | None, columns: Sequence[str]) -> EntrySection | None:
    """None if no text that reached the selection has an entry."""
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
        expected=float(counts.texts[1]),
        drawn=int(counts.texts[2]),
        figures=head_and_tail(before, after, manifest.parameters if manifest is not None else {}),
        reduced=shifts(counts, before - counts.expected),
        repeated=shifts(counts, counts.expected - before),
    )


def head_and_tail(before: NDArray[np.int64], after: NDArray[np.int64], parameters: Mapping[str, Any]) -> HeadAndTail:
    """`before`, `after`: texts per entry (K,), over all groups of rows."""
    by = parameters.get("by")
    entropy = np.log2(max(2, int((before > 0).sum())))
    most_common = np.argsort(-before, kind="stable")[:TOP]
    return HeadAndTail(
        evenness=(spread(before).entropy_bits / entropy, spread(after).entropy_bits / entropy),
        top=_shares(before, after, most_common),
        top_entries=min(TOP, int((before > 0).sum())),
        tail=None if by else tail_of(before, after, parameters),
        by=by,
    )


def tail_of(before: NDArray[np.int64], after: NDArray[np.int64], parameters: Mapping[str, Any]) -> Tail:
    """Entries below the recipe's threshold, or else those with its `tail_share` (or TAIL_SHARE) of matches before."""
    threshold, share = parameters.get("threshold") or parameters.get("tail"), None
    if threshold is None:
        share = parameters.get("tail_share") or TAIL_SHARE
        threshold = tail_count(before, share)
    tail = (before < threshold) & (before > 0)
    shares = _shares(before, after, np.flatnonzero(tail))
    return Tail(float(threshold), share, int(tail.sum()), int((after[tail] > 0).sum()), shares)


def _shares(before: NDArray[np.int64], after: NDArray[np.int64], some: NDArray[np.int64]) -> tuple[float, float]:
    first, second = (float(counts[some].sum() / max(1, counts.sum())) for counts in (before, after))
    return first, second


def shifts(counts: EntryBalance, change: Floats) -> list[EntryChange]:
    """Entries of the largest expected `change` (K,) > 0, largest first."""
    order = np.lexsort((np.array(counts.names, dtype=object), -change))[:SHOWN]
    shown = order[change[order] > 0.5]
    largest = max(counts.before[shown].max(initial=0), counts.after[shown].max(initial=0), 1)
    found = []
    for place in shown.tolist():
        pair = (counts.before[place], counts.after[place])
        widths = (100 * pair[0] / largest, 100 * pair[1] / largest)
        found.append(
            EntryChange(counts.names[place], int(pair[0]), float(counts.expected[place]), int(pair[1]), widths)
        )
    return found
