"""The table of `cluster.profile`, put together a level at a time, and ranges of a level's clusters at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.cluster.profile.figures import Limits, Sources, explained, sources
from curate.cluster.profile.names import Said, names
from curate.cluster.profile.state import Histogram, Sample
from curate.kernels.tree import TreeShape

RANGE_CLUSTERS = 1 << 20
"""Clusters whose figures are worked out at once."""
UNITS = dict.fromkeys(("mean_distance", "median_distance", "p90_distance"), "squared L2") | {"source_entropy": "bits"}


@dataclass(frozen=True)
class Counted:
    """What all levels are made of."""

    shape: TreeShape
    variance: float
    histogram: Histogram
    sample: Sample
    leaf_rows: NDArray[np.int64]
    weight: NDArray[np.float64]
    """(n,): the rows of its leaf that each sampled row stands for."""
    said: Said

    @classmethod
    def of(cls, shape: TreeShape, variance: float, histogram: Histogram, sample: Sample) -> Counted:
        rows = histogram.rows(shape.clusters[0])
        sampled = np.bincount(sample.leaf, minlength=len(rows))
        weight = (rows / np.maximum(sampled, 1))[sample.leaf]
        said = Said.of([text or "" for text in sample.told.column("caption").to_pylist()])
        return cls(shape, variance, histogram, sample, rows, weight, said)

    def sources(self, path: NDArray[np.int64], clusters: int) -> Sources:
        return self._sources(path[self.sample.leaf], 0, clusters)

    def _sources(self, cluster: NDArray[np.int64], first: int, stop: int) -> Sources:
        """Of clusters first .. stop - 1, by the cluster of each sampled row."""
        mine = np.flatnonzero((cluster >= first) & (cluster < stop))
        told = self.sample.told.column("source").take(pa.array(mine)).combine_chunks()
        return sources(told, self.weight[mine], cluster[mine] - first, stop - first)

    def level(
        self, level: int, path: NDArray[np.int64], limits: Limits, mixed: bool, clusters_at_once: int = RANGE_CLUSTERS
    ) -> pa.Table:
        """path (K_1,): the cluster of each leaf. `mixed`: whether the pool has sources to tell apart."""
        clusters = self.shape.clusters[level - 1]
        counts = self.histogram.of_clusters(path)
        leaves = np.bincount(path, minlength=clusters), np.bincount(path[self.leaf_rows > 0], minlength=clusters)
        said = names(self.said, path[self.sample.leaf], clusters)
        parts = []
        for first in range(0, clusters, clusters_at_once):
            stop = min(clusters, first + clusters_at_once)
            at, found = slice(first, stop), self._sources(path[self.sample.leaf], first, stop)
            columns = self._columns(counts.range(first, stop), *(count[at] for count in leaves), found, limits, mixed)
            place = {
                "level": pa.array(np.full(stop - first, level, np.int32)),
                "cluster": pa.array(np.arange(first, stop)),
                "parent": self.shape.parent_column(level).slice(first, stop - first),
            }
            flags = columns.pop("flags")
            whole = {**place, **columns, "name": pa.array(said[at], pa.string()), "flags": flags}
            parts.append(pa.table(whole, schema=_schema(whole)))
        return pa.concat_tables(parts)

    def _columns(
        self,
        counts: Histogram,
        leaves: NDArray[np.int64],
        held: NDArray[np.int64],
        found: Sources,
        limits: Limits,
        mixed: bool,
    ) -> dict[str, pa.Array]:
        """Figures of some clusters: `leaves` (n,) of each, and those of them that have rows."""
        clusters = len(leaves)
        rows, sums = counts.rows(clusters), counts.sums(clusters)
        share = explained(sums, rows, held, self.variance)
        return {
            "rows": pa.array(rows),
            "leaves": pa.array(leaves),
            "mean_distance": _numbers(sums / np.where(rows, rows, np.nan)),
            "median_distance": _numbers(counts.quantiles(0.5, clusters)),
            "p90_distance": _numbers(counts.quantiles(0.9, clusters)),
            "explained": _numbers(share),
            "sources": pa.array(found.count),
            "source_entropy": _numbers(found.entropy_bits),
            "top_source": found.top,
            "top_source_share": _numbers(found.top_share),
            "flags": limits.flags(rows, share, found, mixed),
        }


def _schema(columns: Mapping[str, pa.Array]) -> pa.Schema:
    """Types, and units of what has one."""
    units = {name: {"unit": unit} for name, unit in UNITS.items()}
    return pa.schema([pa.field(name, array.type, metadata=units.get(name)) for name, array in columns.items()])


def _numbers(values: NDArray[np.float64]) -> pa.Array:
    """NaN, where there is nothing to measure, as null."""
    return pa.array(values, mask=np.isnan(values))
