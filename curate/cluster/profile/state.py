"""What `cluster.profile` keeps of a pool: sums that are the same in any order, of a size that the tree decides.

Distances are counted per leaf in bins of an eighth of an octave: the first eleven bits of a float32 (Arrow and numpy
agree on IEEE 754). The other twenty are added up as whole numbers, so that sums, and with them means, are exact
whatever order shards come in; quantiles are those of the bins, read linearly inside of one (at most 12 % wide). Beyond
400,000 leaves bins are wider, up to an octave beyond 1.6 million.

Sources and captions are those of the rows of smallest rank in each leaf, `kept` of them: all, where a leaf has no
more. Where leaves are so many that this could come to more than SAMPLED_ROWS, `kept` is halved until it cannot, and
beyond as many leaves only those of a share, chosen by hash, have any. All of this the tree decides, not the pool, so
that states merge in any order, as a tree too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.kernels.groups import position_in_group

SAMPLED_ROWS = 2_000_000
FINE_LEAVES, WIDEST = 400_000, 3
"""Leaves up to which bins are an eighth of an octave; how often they may double, which keeps them inside an octave,
where a float is linear in its bits and sums are exact."""
LOW_BITS = 20
RANGE_ROWS = 1 << 22
"""Bins that are added up at once."""
_BINS = 1 << (31 - LOW_BITS)
SCHEMA = pa.schema(
    [
        pa.field("leaf", pa.int64()),
        pa.field("bin", pa.int16()),
        pa.field("count", pa.int64()),
        pa.field("low", pa.int64()),
        pa.field("rank", pa.uint64()),
        pa.field("caption", pa.string()),
        pa.field("source", pa.string()),
    ]
)
"""A row is a bin of a leaf's distances (`rank` null) or a sampled row (`bin` null): first the bins, by leaf and bin,
then the rows, by leaf and rank."""


@dataclass(frozen=True)
class Grain:
    """Resolution for the size of a tree: `kept` rows are sampled of each of `1 / 2**thin` of the leaves; a bin is
    `2**width` eighths of an octave."""

    kept: int
    thin: int = 0
    width: int = 0

    @classmethod
    def of(cls, leaves: int, sample: int, most_rows: int = SAMPLED_ROWS) -> Grain:
        kept, thin, width = sample, 0, 0
        while kept > 1 and leaves * kept > most_rows:
            kept //= 2
        while leaves * kept > most_rows << thin:
            thin += 1
        while width < WIDEST and leaves > FINE_LEAVES << width:
            width += 1
        return cls(kept, thin, width)

    def sampled(self, leaf: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Rows (n,) whose leaf is one of those that have a sample."""
        mixed = (leaf.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        return mixed & np.uint64((1 << self.thin) - 1) == 0


@dataclass
class Histogram:
    """Bins of each leaf's distances, by leaf, then bin: arrays (m,). `low` is the sum of the bits below the bin's; a
    bin is `2**width` eighths of an octave."""

    leaf: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    bin: NDArray[np.integer] = field(default_factory=lambda: np.zeros(0, np.int64))
    count: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    low: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    width: int = 0

    @classmethod
    def of(cls, leaf: NDArray[np.int64], distance: NDArray[np.float32], width: int = 0) -> Histogram:
        """leaf (n,), distance (n,) finite and not negative."""
        bits = np.ascontiguousarray(distance, dtype=np.float32).view(np.uint32).astype(np.int64)
        below = LOW_BITS + width
        return cls._summed(leaf, bits >> below, np.ones(len(leaf), np.int64), bits & ((1 << below) - 1), width)

    @classmethod
    def _summed(
        cls,
        leaf: NDArray[np.int64],
        bin_: NDArray[np.integer],
        count: NDArray[np.int64],
        low: NDArray[np.int64],
        width: int,
    ) -> Histogram:
        place = leaf * _BINS + bin_
        order = np.argsort(place, kind="stable")
        place = place[order]
        starts = np.flatnonzero(np.r_[True, np.diff(place) > 0][: len(place)])
        if not len(starts):
            return cls(width=width)
        at_leaf, at_bin = np.divmod(place[starts], _BINS)
        counts, lows = (np.add.reduceat(values[order], starts) for values in (count, low))
        return cls(at_leaf, at_bin, counts, lows, width)

    @classmethod
    def together(cls, parts: Sequence[Histogram], width: int = 0, rows: int = RANGE_ROWS) -> Histogram:
        """The sum of histograms of one width; holds some `rows` bins at a time beside them and what comes out."""
        leaves = max((int(part.leaf[-1]) + 1 for part in parts if len(part.leaf)), default=0)
        ranges = max(1, -(-sum(len(part.leaf) for part in parts) // rows))
        edges = np.arange(ranges + 1) * leaves // ranges
        cuts = [np.searchsorted(part.leaf, edges) for part in parts]
        summed = []
        for number in range(ranges):
            mine = [part.cut(*cut[number : number + 2].tolist()) for part, cut in zip(parts, cuts, strict=True)]
            leaf, bin_, count, low = cls._joined(mine)
            summed.append(cls._summed(leaf, bin_, count, low, width))
        leaf, bin_, count, low = cls._joined(summed)
        return cls(leaf, bin_, count, low, width)

    @staticmethod
    def _joined(parts: Sequence[Histogram]) -> list[NDArray[np.int64]]:
        names = ("leaf", "bin", "count", "low")
        empty = [np.zeros(0, np.int64)]
        return [np.concatenate([getattr(part, name) for part in parts] or empty) for name in names]

    def cut(self, start: int, stop: int) -> Histogram:
        """Some of its bins."""
        at = slice(start, stop)
        return Histogram(self.leaf[at], self.bin[at], self.count[at], self.low[at], self.width)

    def of_clusters(self, path: NDArray[np.int64]) -> Histogram:
        """The bins of the clusters that contain the leaves: path (K_1,)."""
        return self._summed(path[self.leaf], self.bin, self.count, self.low, self.width)

    def range(self, first: int, stop: int) -> Histogram:
        """The bins of clusters first .. stop - 1, which are numbered from 0."""
        start, end = np.searchsorted(self.leaf, [first, stop]).tolist()
        found = self.cut(start, end)
        return Histogram(found.leaf - first, found.bin, found.count, found.low, self.width)

    def rows(self, clusters: int) -> NDArray[np.int64]:
        return np.bincount(self.leaf, weights=self.count, minlength=clusters).astype(np.int64)

    def sums(self, clusters: int) -> NDArray[np.float64]:
        """Sum of the distances of each cluster (K,)."""
        low, high = edge(self.bin, self.width), edge(self.bin + 1, self.width)
        value = self.count * low + self.low * ((high - low) / (1 << (LOW_BITS + self.width)))
        return np.asarray(np.bincount(self.leaf, weights=value, minlength=clusters), dtype=np.float64)

    def quantiles(self, q: float, clusters: int) -> NDArray[np.float64]:
        """The distance below which the share q of each cluster's rows lies; NaN where it has none."""
        found = np.full(clusters, np.nan)
        if len(self.leaf):
            rows, running = self.rows(clusters), np.cumsum(self.count)
            before = np.r_[0, np.cumsum(rows)[:-1]][self.leaf]
            wanted = q * rows[self.leaf]
            reached = running - before
            here = (reached >= wanted) & (reached - self.count < np.maximum(wanted, 1e-9))
            share = (wanted - (reached - self.count))[here] / self.count[here]
            low, high = edge(self.bin[here], self.width), edge(self.bin[here] + 1, self.width)
            found[self.leaf[here]] = low + share * (high - low)
        return found


def edge(bin_: NDArray[np.integer], width: int = 0) -> NDArray[np.float64]:
    """Smallest distance of a bin."""
    return (bin_.astype(np.int64) << (LOW_BITS + width)).astype(np.uint32).view(np.float32).astype(np.float64)


@dataclass
class Sample:
    """Rows of smallest rank of each leaf, by leaf, then rank."""

    leaf: NDArray[np.int64]
    rank: NDArray[np.uint64]
    told: pa.Table
    """caption, source."""

    def only(self, grain: Grain) -> Sample:
        """What a tree of this grain keeps of it."""
        order = np.lexsort((self.rank, self.leaf))
        order = order[grain.sampled(self.leaf[order])]
        mine = order[position_in_group(self.leaf[order]) < grain.kept]
        return Sample(self.leaf[mine], self.rank[mine], self.told.take(pa.array(mine)))


def to_table(histogram: Histogram, sample: Sample) -> pa.Table:
    bins, rows = len(histogram.leaf), len(sample.leaf)
    above = [histogram.leaf, histogram.bin.astype(np.int16), histogram.count, histogram.low]
    none = [pa.nulls(rows, SCHEMA.field(name).type) for name in SCHEMA.names[1:4]]
    first = [*map(pa.array, above), *(pa.nulls(bins, SCHEMA.field(name).type) for name in SCHEMA.names[4:])]
    told = [sample.told.column(name).combine_chunks() for name in ("caption", "source")]
    second = [pa.array(sample.leaf), *none, pa.array(sample.rank), *told]
    return pa.concat_tables([pa.table(first, schema=SCHEMA), pa.table(second, schema=SCHEMA)])


def from_table(table: pa.Table, width: int) -> tuple[Histogram, Sample]:
    """What `to_table` was given. Raises ValueError for bins that are not by leaf."""
    bins = table.column("rank").null_count
    counted, sampled = table.slice(0, bins), table.slice(bins)
    leaf, count, low = (counted.column(name).to_numpy() for name in ("leaf", "count", "low"))
    bin_ = counted.column("bin").to_numpy().astype(np.int16)  # widened where bins are added up
    if sampled.column("rank").null_count:
        raise ValueError("a state of cluster.profile: bins must come before sampled rows")
    row_leaf, rank = (sampled.column(name).to_numpy() for name in ("leaf", "rank"))
    return Histogram(leaf, bin_, count, low, width), Sample(row_leaf, rank, sampled.select(["caption", "source"]))


def merge(states: Iterable[pa.Table], grain: Grain) -> pa.Table:
    """States in any order -> one; what is held at a time is about twice what comes out."""
    held: list[pa.Table] = []
    waiting, rows = 0, 0
    for state in states:
        held.append(state.select(SCHEMA.names))
        waiting += state.num_rows
        if waiting > max(rows, 1 << 18):
            held = [_together(held, grain)]
            waiting, rows = 0, held[0].num_rows
    return _together(held, grain)


def _together(tables: Sequence[pa.Table], grain: Grain) -> pa.Table:
    parts = [from_table(table, grain.width) for table in tables] or [from_table(SCHEMA.empty_table(), grain.width)]
    leaf, rank = (np.concatenate([getattr(sample, name) for _, sample in parts]) for name in ("leaf", "rank"))
    sample = Sample(leaf, rank, pa.concat_tables([sample.told for _, sample in parts])).only(grain)
    return to_table(Histogram.together([histogram for histogram, _ in parts], grain.width), sample)
