"""First pass over the pool: counts of everything, and a bounded sample of the rejected and the kept rows.

If the pool has more than READ_SHARDS shards, the pass reads that many. `with_pool_counts` then replaces its counts by
those of the ledger and of the selection, which cover the whole pool.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.hashing import ranks
from curate.core.ledger import Entry
from curate.core.view import View
from curate.kernels.reservoir import Reservoir
from curate.report.survey.entries import EntryBalance
from curate.report.survey.quotas import TreeQuotas, quotas_of
from curate.report.survey.rows import LabelCounts, add_at, grown, integers, label_column, texts
from curate.report.survey.scope import FACTS, Scope, read_tables, shards_read
from curate.report.survey.sizes import ImageSizes
from curate.report.survey.videos import VideoTimes, columns_of
from curate.report.verdict.compare import Comparison
from curate.report.verdict.gather import Contenders

BACKGROUND_TEXTS = 5000


@dataclass
class LevelSizes:
    """Sizes of the clusters of one level; arrays (K,) by cluster id."""

    before: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    after: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    parent: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Cluster of the next coarser level; -1 if no row has it."""
    seen: NDArray[np.bool_] | None = None
    """Mask (K,) of the clusters with rows in the shards read; None: all."""

    def add(self, ids: NDArray[np.int64], copies: NDArray[np.int64], parents: NDArray[np.int64] | None) -> None:
        self.before = add_at(self.before, ids)
        self.after = add_at(self.after, ids, copies)
        if parents is not None and len(ids):
            self.parent = grown(self.parent, int(ids.max()) + 1, -1)
            self.parent[ids] = parents

    def compared(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sizes before and after of the clusters that were not empty before."""
        held = self.before > 0
        return self.before[held], self.after[held]


@dataclass(frozen=True)
class Read:
    """The part of the pool that was read, if that is not all of it."""

    shards: int
    of_shards: int
    rows: int
    sizes: bool = True
    """Whether the sizes of clusters are counts of these shards, too, and not of the pool."""


@dataclass
class Survey:
    rows: int = 0
    kept: int = 0
    """Images that pass, each counted once."""
    copies: int = 0
    rejected: dict[tuple[str, str], int] = field(default_factory=dict)
    """Rows by (stage, reason)."""
    levels: list[LevelSizes] = field(default_factory=list)
    """Finest first."""
    labels: LabelCounts = field(default_factory=LabelCounts)
    entries: EntryBalance = field(default_factory=EntryBalance)
    sizes: ImageSizes = field(default_factory=ImageSizes)
    videos: VideoTimes = field(default_factory=VideoTimes)
    reject_rows: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    kept_rows: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """A sample of the captions (and labels) of rows that reached the selection."""
    read: Read | None = None
    lost: int = 0
    """Rows that do not pass."""
    comparison: Comparison | None = None
    """The selection beside a random sample of the rows that reached it."""


class Surveyor:
    """Adds up shards. Memory is the counts and the samples, independent of the size of the pool."""

    def __init__(self, scope: Scope, seed: int, rejects: int, kept: int) -> None:
        self.scope, self.seed = scope, seed
        self.found = Survey(levels=[LevelSizes() for _ in range(scope.levels)])
        self._reasons: dict[tuple[str, str], int] = {}
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._contenders = Contenders(scope, seed)
        self._rejects, self._kept, self._texts = Reservoir(rejects), Reservoir(kept), Reservoir(BACKGROUND_TEXTS)

    def add(self, table: pa.Table) -> None:
        order = ranks(self.seed, table.column("key").to_pylist())
        reached, copies = self.scope.reached(table), self.scope.copies(table)
        if self.scope.select:
            self._contenders.add(table.filter(reached), copies[reached])
        table = table.drop_columns([name for name in (self.scope.embedding,) if name in table.column_names])
        self.found.rows += table.num_rows
        self.found.kept += int((copies > 0).sum())
        self.found.copies += int(copies.sum())
        self.found.sizes.add(table)
        if columns_of(table.column_names):
            self.found.videos.add(table, copies > 0)
        self._add_rejects(table, order)
        self._add_levels(table, reached, copies)
        kept = np.flatnonzero(copies > 0)
        self._kept.add(table.take(kept), np.zeros(len(kept), np.int64), order[kept])
        if self.scope.label or self.scope.known:
            self.found.labels.add(self.scope.labels(table.filter(reached)), copies[reached])
        if self.scope.entries:
            self.found.entries.add(table, self.scope.entries, reached, self.scope.live(table))
        naming = pa.table({"text": self.scope.naming_texts(table)}).filter(reached)
        self._texts.add(naming, np.zeros(naming.num_rows, np.int64), order[reached])

    def _add_rejects(self, table: pa.Table, order: NDArray[np.uint64]) -> None:
        rejected = pc.is_valid(texts(table, "rejected_by")).to_numpy(zero_copy_only=False)
        rows, order = table.filter(rejected), order[rejected]
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
        found.texts = [row["text"] for row in self._texts.rows().get(0, []) if row["text"]]
        found.lost = sum(found.rejected.values())
        found.comparison = self._contenders.compare(found.labels)
        return found


def survey(view: View, scope: Scope, seed: int, rejects: int, kept: int) -> Survey:
    """One pass over the shards read; it samples `rejects` rows per stage and reason, and `kept` of the kept rows."""
    surveyor = Surveyor(scope, seed, rejects, kept)
    label = label_column(scope.label) if scope.label else None
    references = ("duplicate_of", "semantic_of", "contamination")
    wanted = (*FACTS, scope.caption, "caption", *references, "centroid_distance", label, *scope.clusters)
    wanted += (*((scope.embedding,) if scope.select else ()), *columns_of(scope.columns))
    items = (*scope.entries, "item_copies", "item_expected") if scope.entries else ()
    for table in read_tables(view, scope.names(*wanted, *items, "rejected_by", "reject_reason", "copies")):
        surveyor.add(table)
    return surveyor.finish()


def with_pool_counts(view: View, scope: Scope, found: Survey) -> Survey:
    """The survey with the counts of the whole pool, if it read only some of its shards."""
    read, shards = shards_read(view)
    if read == shards:
        return found
    entries = _pool_ledger(view)
    made = next((entry.children for entry in entries.values() if entry.children is not None), None)
    pool = view.size()[1] if made is None else made
    # the rejects of a stage that makes samples are rows of the pool that it reads
    entries = {stage: entry for stage, entry in entries.items() if entry.children is None}
    lost = Counter({(stage, why): count for stage, entry in entries.items() for why, count in entry.lost.items()})
    kept = min((entry.after for entry in entries.values()), default=pool)
    copies = view.stages[scope.select].entry.copies if scope.select else None
    levels = _pool_levels(quotas_of(view), found.levels)
    return replace(
        found,
        rows=pool,
        kept=kept,
        copies=kept if copies is None else copies,
        lost=pool - kept,
        rejected={pair: count for pair, count in lost.items() if count},
        reject_rows={pair: found.reject_rows.get(pair, []) for pair, count in lost.items() if count},
        levels=levels or found.levels,
        read=Read(read, shards, found.rows, sizes=bool(found.levels) and levels is None),
    )


def _pool_ledger(view: View) -> dict[str, Entry]:
    """Ledger entries of the stages that samples pass through, from the stage that makes the pool onwards."""
    passed = {name: manifest for name, manifest in view.stages.items() if manifest.ledger}
    names = [name for name, manifest in passed.items() if manifest.noun not in ("artifact", "dataset")]
    pools = [place for place, name in enumerate(names) if view.stages[name].noun == "pool"]
    return {name: view.stages[name].entry for name in names[pools[-1] if pools else 0 :]}


def _pool_levels(quotas: TreeQuotas | None, levels: list[LevelSizes]) -> list[LevelSizes] | None:
    """Sizes of all clusters as the selection counted and filled them; None without a selection on these levels."""
    if quotas is None or len(levels) != len(quotas.shape.clusters):
        return None
    sums = zip(quotas.shape.sums(quotas.count), quotas.shape.sums(quotas.quota), strict=True)
    parents: list[NDArray[np.int64]] = [*quotas.shape.parents, np.zeros(0, np.int64)]
    return [
        LevelSizes(before, after, parent, seen=grown(level.before, len(before), 0)[: len(before)] > 0)
        for (before, after), parent, level in zip(sums, parents, levels, strict=True)
    ]
