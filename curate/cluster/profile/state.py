"""State of `cluster.profile`: sums that do not depend on the order of shards. The tree bounds their size.

Distances are counted per leaf in bins of an eighth of an octave: the first eleven bits of a float32 (Arrow and numpy
both use IEEE 754). The other twenty bits are summed as integers, so that sums and means are exact for any order of the
shards. Quantiles are interpolated linearly within a bin (at most 12 % wide). Beyond 400,000 leaves the bins are wider,
up to an octave beyond 1.6 million leaves.

Sources and captions come from the `rows_per_leaf` rows of smallest rank in each leaf, or from all rows if a leaf has
fewer. If all leaves together could exceed SAMPLED_ROWS, `rows_per_leaf` is halved until they cannot. If there are more
leaves than SAMPLED_ROWS, only a share of the leaves, chosen by hash, is sampled. The resolution depends on the tree
only, not on the pool, so states can be merged in any order, and in a tree as well.
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
"""Leaves up to which bins are an eighth of an octave wide, and how often the width may double. A bin then stays within
an octave, where a float is linear in its bits, so sums are exact."""
LOW_BITS = 20
RANGE_ROWS = 1 << 22
"""Bins that are summed at once."""
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
"""A row is either a bin of a leaf's distances (`rank` is null) or a sampled row (`bin` is null). The bins come first,
sorted by leaf and bin, then the sampled rows, sorted by leaf and rank."""


@dataclass(frozen=True)
class Resolution:
    """Resolution of a state, which depends on the size of the tree: `rows_per_leaf` rows are sampled from each of
    `1 / 2**leaf_bits` of the leaves, and a bin is `2**width` eighths of an octave wide."""

    rows_per_leaf: int
    leaf_bits: int = 0
    width: int = 0

    @classmethod
    def of(cls, leaves: int, sample: int, most_rows: int = SAMPLED_ROWS) -> Resolution:
        rows, leaf_bits, width = sample, 0, 0
        while rows > 1 and leaves * rows > most_rows:
            rows //= 2
        while leaves * rows > most_rows << leaf_bits:
            leaf_bits += 1
        while width < WIDEST and leaves > FINE_LEAVES << width:
            width += 1
        return cls(rows, leaf_bits, width)

    def sampled(self, leaf: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the leaf of each row (n,) is sampled."""
        mixed = (leaf.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        return mixed & np.uint64((1 << self.leaf_bits) - 1) == 0


@dataclass
class Histogram:
    """Histogram of each leaf's distances: arrays (m,), sorted by leaf, then bin. `low` is the sum of the lower bits of
    the distances in the bin; a bin is `2**width` eighths of an octave wide."""

    leaf: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    bin: NDArray[np.integer] = field(default_factory=lambda: np.zeros(0, np.int64))
    count: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    low: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    width: int = 0

    @classmethod
    def of(cls, leaf: NDArray[np.int64], distance: NDArray[np.float32], width: int = 0) -> Histogram:
        """Count distances (n,), finite and not negative, by leaf (n,)."""
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
    def merged(cls, parts: Sequence[Histogram], width: int = 0, rows: int = RANGE_ROWS) -> Histogram:
        """Sum histograms of the same width; needs memory for about `rows` bins in addition to inputs and result."""
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
        """Bins start .. stop - 1."""
        at = slice(start, stop)
        return Histogram(self.leaf[at], self.bin[at], self.count[at], self.low[at], self.width)

    def of_clusters(self, path: NDArray[np.int64]) -> Histogram:
        """Histogram of the clusters that contain the leaves; path (K_1,) is the cluster of each leaf."""
        return self._summed(path[self.leaf], self.bin, self.count, self.low, self.width)

    def range(self, first: int, stop: int) -> Histogram:
        """Histogram of clusters first .. stop - 1, renumbered from 0."""
        start, end = np.searchsorted(self.leaf, [first, stop]).tolist()
        found = self.cut(start, end)
        return Histogram(found.leaf - first, found.bin, found.count, found.low, self.width)

    def rows(self, clusters: int) -> NDArray[np.int64]:
        return np.bincount(self.leaf, weights=self.count, minlength=clusters).astype(np.int64)

    def sums(self, clusters: int) -> NDArray[np.float64]:
        """Sum (K,) of the distances of each cluster."""
        low, high = edge(self.bin, self.width), edge(self.bin + 1, self.width)
        value = self.count * low + self.low * ((high - low) / (1 << (LOW_BITS + self.width)))
        return np.asarray(np.bincount(self.leaf, weights=value, minlength=clusters), dtype=np.float64)

    def quantiles(self, q: float, clusters: int) -> NDArray[np.float64]:
        """Quantile q of each cluster's distances; NaN if it has no rows."""
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
    """Sampled rows: the rows of smallest rank of each leaf, sorted by leaf, then rank."""

    leaf: NDArray[np.int64]
    rank: NDArray[np.uint64]
    texts: pa.Table
    """Columns `caption` and `source`."""

    def limited_to(self, resolution: Resolution) -> Sample:
        """Reduce the sample to the rows that `resolution` allows."""
        order = np.lexsort((self.rank, self.leaf))
        order = order[resolution.sampled(self.leaf[order])]
        mine = order[position_in_group(self.leaf[order]) < resolution.rows_per_leaf]
        return Sample(self.leaf[mine], self.rank[mine], self.texts.take(pa.array(mine)))


def to_table(histogram: Histogram, sample: Sample) -> pa.Table:
    bins, rows = len(histogram.leaf), len(sample.leaf)
    above = [histogram.leaf, histogram.bin.astype(np.int16), histogram.count, histogram.low]
    none = [pa.nulls(rows, SCHEMA.field(name).type) for name in SCHEMA.names[1:4]]
    first = [*map(pa.array, above), *(pa.nulls(bins, SCHEMA.field(name).type) for name in SCHEMA.names[4:])]
    texts = [sample.texts.column(name).combine_chunks() for name in ("caption", "source")]
    second = [pa.array(sample.leaf), *none, pa.array(sample.rank), *texts]
    return pa.concat_tables([pa.table(first, schema=SCHEMA), pa.table(second, schema=SCHEMA)])


def from_table(table: pa.Table, width: int) -> tuple[Histogram, Sample]:
    """Inverse of `to_table`. Raises ValueError if bins and sampled rows are mixed."""
    bins = table.column("rank").null_count
    counted, sampled = table.slice(0, bins), table.slice(bins)
    leaf, count, low = (counted.column(name).to_numpy() for name in ("leaf", "count", "low"))
    bin_ = counted.column("bin").to_numpy().astype(np.int16)  # widened when bins are summed
    if sampled.column("rank").null_count:
        raise ValueError("a state of cluster.profile: bins must come before sampled rows")
    row_leaf, rank = (sampled.column(name).to_numpy() for name in ("leaf", "rank"))
    return Histogram(leaf, bin_, count, low, width), Sample(row_leaf, rank, sampled.select(["caption", "source"]))


def merge(states: Iterable[pa.Table], resolution: Resolution) -> pa.Table:
    """Merge states, in any order; needs about twice the memory of the result."""
    held: list[pa.Table] = []
    waiting, rows = 0, 0
    for state in states:
        held.append(state.select(SCHEMA.names))
        waiting += state.num_rows
        if waiting > max(rows, 1 << 18):
            held = [_merge_all(held, resolution)]
            waiting, rows = 0, held[0].num_rows
    return _merge_all(held, resolution)


def _merge_all(tables: Sequence[pa.Table], resolution: Resolution) -> pa.Table:
    parts = [from_table(table, resolution.width) for table in tables] or [
        from_table(SCHEMA.empty_table(), resolution.width)
    ]
    leaf, rank = (np.concatenate([getattr(sample, name) for _, sample in parts]) for name in ("leaf", "rank"))
    sample = Sample(leaf, rank, pa.concat_tables([sample.texts for _, sample in parts])).limited_to(resolution)
    return to_table(Histogram.merged([histogram for histogram, _ in parts], resolution.width), sample)
