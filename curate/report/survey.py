"""First pass of the report over a pool: counts of everything, and a bounded sample of what was refused and kept.

Of a pool of many shards READ_SHARDS are read, chosen by hash; `curate.report.whole` then puts in the counts of all
that ledger and selection have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.hashing import ranks
from curate.core.view import View
from curate.report.entries import EntryCounts, entry_columns
from curate.report.rows import LabelCounts, Reservoir, integers, label_column, label_values, texts
from curate.report.stats import add_at, grown

FACTS = ("source_id", "url", "width", "height", "format", "meta")
CAPTIONS = ("text", "caption")
BACKGROUND_CAPTIONS = 5000
READ_SHARDS = 64
"""Shards whose tables a report reads, at most: pictures, captions and labels are theirs."""


@dataclass(frozen=True)
class Scope:
    """What a view has to show, and where the selection stands in it."""

    columns: frozenset[str]
    levels: int
    """Levels of `cluster_1` … `cluster_L`; 0 without clusters."""
    select: str | None
    earlier: tuple[str, ...]
    """Stages whose rejects never reach the selection."""
    caption: str | None
    label: str | None
    entries: tuple[str, ...] = ()
    """Columns of entries that the selection balances texts by."""

    def names(self, *wanted: str | None) -> list[str]:
        return [name for name in dict.fromkeys(wanted) if name is not None and name in self.columns]

    @property
    def clusters(self) -> list[str]:
        return [f"cluster_{level}" for level in range(1, self.levels + 1)]

    def reached(self, table: pa.Table) -> NDArray[np.bool_]:
        """Rows (n,) that came as far as the selection (to the end, when there is none)."""
        by = texts(table, "rejected_by")
        early = pc.is_in(by, value_set=pa.array(self.earlier, pa.string()))
        stopped = early if self.select else pc.is_valid(by)
        return ~stopped.to_numpy(zero_copy_only=False)

    def alive(self, table: pa.Table) -> NDArray[np.bool_]:
        """Rows (n,) that nothing has refused."""
        return pc.is_null(texts(table, "rejected_by")).to_numpy(zero_copy_only=False)

    def copies(self, table: pa.Table) -> NDArray[np.int64]:
        """How often each row (n,) goes on: what the selection says, or 1 for what is alive."""
        alive = self.alive(table)
        return alive * integers(table, "copies", 1) if self.select else alive.astype(np.int64)

    def said(self, table: pa.Table) -> pa.Array:
        """Caption and label (n,) in one string, or else the source id: what clusters are named after."""
        captions = texts(table, self.caption or "")
        labels = label_values(table, self.label) if self.label else texts(table, "")
        joined = pc.binary_join_element_wise(captions, labels, " ", null_handling="replace", null_replacement="")
        joined = pc.utf8_trim_whitespace(joined)
        return pc.if_else(pc.equal(joined, ""), pc.fill_null(texts(table, "source_id"), ""), joined)


def scope_of(view: View, caption: str | None, label: str | None) -> Scope:
    columns = frozenset(view.columns())
    levels = 0
    while f"cluster_{levels + 1}" in columns:
        levels += 1
    order = list(view.stages)
    selects = [name for name in order if view.stages[name].noun == "selection"]
    select = selects[-1] if selects else None
    known = caption if caption is not None else next((name for name in CAPTIONS if name in columns), None)
    return Scope(
        columns=columns,
        levels=levels,
        select=select,
        earlier=tuple(order[: order.index(select)]) if select else (),
        caption=known if known in columns else None,
        label=label if label is not None and label_column(label) in columns else None,
        entries=entry_columns(view.stages[select], columns) if select else (),
    )


@dataclass
class Level:
    """Sizes of the clusters of one level; arrays (K,) by cluster id."""

    before: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    after: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    parent: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Cluster of the next coarser level; -1 where no row told."""
    seen: NDArray[np.bool_] | None = None
    """Clusters (K,) of which the shards read hold a row; None is all."""

    def add(self, ids: NDArray[np.int64], copies: NDArray[np.int64], parents: NDArray[np.int64] | None) -> None:
        self.before = add_at(self.before, ids)
        self.after = add_at(self.after, ids, copies)
        if parents is not None and len(ids):
            self.parent = grown(self.parent, int(ids.max()) + 1, -1)
            self.parent[ids] = parents

    def compared(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sizes before and after of the clusters that held something before."""
        held = self.before > 0
        return self.before[held], self.after[held]


@dataclass(frozen=True)
class Read:
    """How much of the pool was read, where that is not all of it."""

    shards: int
    of_shards: int
    rows: int
    sizes: bool = True
    """Whether the sizes of clusters are those of these shards too, and not of the pool."""


@dataclass
class Survey:
    rows: int = 0
    kept: int = 0
    """Pictures that go on, counted once each."""
    copies: int = 0
    rejected: dict[tuple[str, str], int] = field(default_factory=dict)
    """Rows by (stage, reason)."""
    levels: list[Level] = field(default_factory=list)
    """Finest first."""
    labels: LabelCounts = field(default_factory=LabelCounts)
    entries: EntryCounts = field(default_factory=EntryCounts)
    reject_rows: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    kept_rows: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """A sample of the captions (and labels) that reached the selection."""
    read: Read | None = None
    left: int = 0
    """Rows that do not go on."""


class Surveyor:
    """Adds up shards; memory is the counts and the samples, whatever the pool."""

    def __init__(self, scope: Scope, seed: int, rejects: int, kept: int) -> None:
        self.scope, self.seed = scope, seed
        self.found = Survey(levels=[Level() for _ in range(scope.levels)])
        self._reasons: dict[tuple[str, str], int] = {}
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._rejects, self._kept, self._said = Reservoir(rejects), Reservoir(kept), Reservoir(BACKGROUND_CAPTIONS)

    def add(self, table: pa.Table) -> None:
        order = ranks(self.seed, table.column("key").to_pylist())
        reached, copies = self.scope.reached(table), self.scope.copies(table)
        self.found.rows += table.num_rows
        self.found.kept += int((copies > 0).sum())
        self.found.copies += int(copies.sum())
        self._add_rejects(table, order)
        self._add_levels(table, reached, copies)
        kept = np.flatnonzero(copies > 0)
        self._kept.add(table.take(kept), np.zeros(len(kept), np.int64), order[kept])
        if self.scope.label:
            self.found.labels.add(label_values(table.filter(reached), self.scope.label), copies[reached])
        if self.scope.entries:
            self.found.entries.add(table, self.scope.entries, reached, self.scope.alive(table))
        said = pa.table({"said": self.scope.said(table)}).filter(reached)
        self._said.add(said, np.zeros(said.num_rows, np.int64), order[reached])

    def _add_rejects(self, table: pa.Table, order: NDArray[np.uint64]) -> None:
        refused = pc.is_valid(texts(table, "rejected_by")).to_numpy(zero_copy_only=False)
        rows, order = table.filter(refused), order[refused]
        pairs = zip(texts(rows, "rejected_by").to_pylist(), texts(rows, "reject_reason").to_pylist(), strict=True)
        named = ((stage, reason or "no reason") for stage, reason in pairs)
        groups = np.array([self._reasons.setdefault(pair, len(self._reasons)) for pair in named], dtype=np.int64)
        self._counts = add_at(self._counts, groups)
        self._rejects.add(rows, groups, order)

    def _add_levels(self, table: pa.Table, reached: NDArray[np.bool_], copies: NDArray[np.int64]) -> None:
        ids = [integers(table, name, -1) for name in self.scope.clusters]
        for level, own in enumerate(ids):
            rows = reached & (own >= 0)
            above = ids[level + 1][rows] if level + 1 < len(ids) else None
            self.found.levels[level].add(own[rows], copies[rows], above)

    def finish(self) -> Survey:
        found, sampled = self.found, self._rejects.rows()
        found.rejected = {pair: int(self._counts[group]) for pair, group in self._reasons.items()}
        found.reject_rows = {pair: sampled.get(group, []) for pair, group in self._reasons.items()}
        found.kept_rows = self._kept.rows().get(0, [])
        found.said = [row["said"] for row in self._said.rows().get(0, []) if row["said"]]
        found.left = sum(found.rejected.values())
        return found


def survey(view: View, scope: Scope, seed: int, rejects: int, kept: int) -> Survey:
    """One pass over the shards read; `rejects` rows are sampled per stage and reason, `kept` of what goes on."""
    surveyor = Surveyor(scope, seed, rejects, kept)
    label = label_column(scope.label) if scope.label else None
    refusals = ("duplicate_of", "semantic_of", "contamination")
    wanted = (*FACTS, scope.caption, "caption", *refusals, "centroid_distance", label, *scope.clusters)
    items = (*scope.entries, "item_copies", "item_expected") if scope.entries else ()
    names = scope.names(*wanted, *items, "rejected_by", "reject_reason", "copies")
    for table in view.tables(names, READ_SHARDS):
        surveyor.add(table)
    return surveyor.finish()
