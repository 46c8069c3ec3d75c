"""What `cluster.profile` keeps of a pool: sums that are the same in any order, of a size that the tree decides.

Distances are counted per leaf in bins of an eighth of an octave: the first eleven bits of a float32 (Arrow and numpy
agree on IEEE 754). The other twenty are added up as whole numbers, so that sums, and with them means, are exact
whatever order shards come in; quantiles are those of the bins, read linearly inside of one (at most 12 % wide).

Sources and captions are those of the rows of smallest rank in each leaf, `kept` of them: all, where a leaf has no
more. Where leaves are so many that this comes to more than SAMPLED_ROWS, `kept` is halved until it does not, down to 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

SAMPLED_ROWS = 4_000_000
LOW_BITS = 20
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
"""A row is a bin of a leaf's distances (`rank` null) or a sampled row (`bin` null)."""


@dataclass
class Histogram:
    """Bins of each leaf's distances, by leaf, then bin: arrays (m,). `low` is the sum of the bits below the bin's."""

    leaf: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    bin: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    count: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    low: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, leaf: NDArray[np.int64], distance: NDArray[np.float32]) -> Histogram:
        """leaf (n,), distance (n,) finite and not negative."""
        bits = np.ascontiguousarray(distance, dtype=np.float32).view(np.uint32).astype(np.int64)
        return cls._summed(leaf, bits >> LOW_BITS, np.ones(len(leaf), np.int64), bits & ((1 << LOW_BITS) - 1))

    @classmethod
    def _summed(
        cls, leaf: NDArray[np.int64], bin_: NDArray[np.int64], count: NDArray[np.int64], low: NDArray[np.int64]
    ) -> Histogram:
        place = leaf * _BINS + bin_
        order = np.argsort(place, kind="stable")
        place = place[order]
        starts = np.flatnonzero(np.r_[True, np.diff(place) > 0][: len(place)])
        if not len(starts):
            return cls()
        added = (np.add.reduceat(values[order], starts) for values in (count, low))
        return cls(*np.divmod(place[starts], _BINS), *added)

    @classmethod
    def together(cls, parts: Iterable[Histogram]) -> Histogram:
        parts = list(parts)
        joined = (np.concatenate([getattr(p, name) for p in parts]) for name in ("leaf", "bin", "count", "low"))
        return cls._summed(*joined)

    def of_clusters(self, path: NDArray[np.int64]) -> Histogram:
        """The bins of the clusters that the leaves lie in: path (K_1,)."""
        return self._summed(path[self.leaf], self.bin, self.count, self.low)

    def rows(self, clusters: int) -> NDArray[np.int64]:
        return np.bincount(self.leaf, weights=self.count, minlength=clusters).astype(np.int64)

    def sums(self, clusters: int) -> NDArray[np.float64]:
        """Sum of the distances of each cluster (K,)."""
        low, high = edge(self.bin), edge(self.bin + 1)
        value = self.count * low + self.low * ((high - low) / (1 << LOW_BITS))
        return np.bincount(self.leaf, weights=value, minlength=clusters)

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
            low, high = edge(self.bin[here]), edge(self.bin[here] + 1)
            found[self.leaf[here]] = low + share * (high - low)
        return found


def edge(bin_: NDArray[np.int64]) -> NDArray[np.float64]:
    """Smallest distance of a bin."""
    return (bin_ << LOW_BITS).astype(np.uint32).view(np.float32).astype(np.float64)


@dataclass
class Sample:
    """Rows of smallest rank of each leaf, by leaf, then rank. `kept`: at most so many of a leaf."""

    kept: int
    leaf: NDArray[np.int64]
    rank: NDArray[np.uint64]
    told: pa.Table
    """caption, source."""

    def cut(self, most_rows: int = SAMPLED_ROWS) -> Sample:
        order = np.lexsort((self.rank, self.leaf))
        leaf = self.leaf[order]
        starts = np.flatnonzero(np.r_[True, np.diff(leaf) > 0][: len(leaf)])
        sizes = np.diff(np.r_[starts, len(leaf)])
        kept = self.kept
        while kept > 1 and np.minimum(sizes, kept).sum() > most_rows:
            kept //= 2
        mine = order[np.arange(len(leaf)) - np.repeat(starts, sizes) < kept]
        return Sample(kept, self.leaf[mine], self.rank[mine], self.told.take(pa.array(mine)))


def to_table(histogram: Histogram, sample: Sample) -> pa.Table:
    bins, rows = len(histogram.leaf), len(sample.leaf)
    above = [histogram.leaf, histogram.bin.astype(np.int16), histogram.count, histogram.low]
    none = [pa.nulls(rows, SCHEMA.field(name).type) for name in SCHEMA.names[1:4]]
    first = [*map(pa.array, above), *(pa.nulls(bins, SCHEMA.field(name).type) for name in SCHEMA.names[4:])]
    told = [sample.told.column(name).combine_chunks() for name in ("caption", "source")]
    second = [pa.array(sample.leaf), *none, pa.array(sample.rank), *told]
    return pa.concat_tables([pa.table(first, schema=SCHEMA), pa.table(second, schema=SCHEMA)])


def from_table(table: pa.Table, kept: int) -> tuple[Histogram, Sample]:
    counted = table.filter(table.column("rank").is_null())
    sampled = table.filter(table.column("rank").is_valid())
    histogram = Histogram(*(counted.column(name).to_numpy().astype(np.int64) for name in SCHEMA.names[:4]))
    leaf, rank = (sampled.column(name).to_numpy() for name in ("leaf", "rank"))
    return histogram, Sample(kept, leaf, rank, sampled.select(["caption", "source"]))


def merge(states: Iterable[pa.Table], kept: int, most_rows: int = SAMPLED_ROWS) -> pa.Table:
    """States in any order -> one; what is held at a time is about twice what comes out."""
    held, waiting, rows = SCHEMA.empty_table(), [], 0
    for state in states:
        waiting.append(state.select(SCHEMA.names))
        rows += state.num_rows
        if rows > max(held.num_rows, 1 << 18):
            held, kept = _together([held, *waiting], kept, most_rows)
            waiting, rows = [], 0
    return _together([held, *waiting], kept, most_rows)[0]


def _together(tables: list[pa.Table], kept: int, most_rows: int) -> tuple[pa.Table, int]:
    histogram, sample = from_table(pa.concat_tables(tables), kept)
    sample = sample.cut(most_rows)
    return to_table(Histogram.together([histogram]), sample), sample.kept
