"""The table of `cluster.profile`, put together a level at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.cluster.profile_figures import Limits, Sources, explained, sources
from curate.cluster.profile_names import Said, names
from curate.cluster.profile_state import Histogram, Sample
from curate.core.tree import TreeShape

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
        told = self.sample.told.column("source").combine_chunks()
        return sources(told, self.weight, path[self.sample.leaf], clusters)

    def level(self, level: int, path: NDArray[np.int64], limits: Limits, mixed: bool) -> pa.Table:
        """path (K_1,): the cluster of each leaf. `mixed`: whether the pool has sources to tell apart."""
        clusters = self.shape.clusters[level - 1]
        counts = self.histogram.of_clusters(path)
        rows, sums = counts.rows(clusters), counts.sums(clusters)
        held = np.bincount(path[self.leaf_rows > 0], minlength=clusters)
        share = explained(sums, rows, held, self.variance)
        found = self.sources(path, clusters)
        columns = {
            "level": pa.array(np.full(clusters, level, np.int32)),
            "cluster": pa.array(np.arange(clusters)),
            "parent": self.shape.parent_column(level),
            "rows": pa.array(rows),
            "leaves": pa.array(np.bincount(path, minlength=clusters)),
            "mean_distance": _numbers(sums / np.where(rows, rows, np.nan)),
            "median_distance": _numbers(counts.quantiles(0.5, clusters)),
            "p90_distance": _numbers(counts.quantiles(0.9, clusters)),
            "explained": _numbers(share),
            "sources": pa.array(found.count),
            "source_entropy": _numbers(found.entropy_bits),
            "top_source": found.top,
            "top_source_share": _numbers(found.top_share),
            "name": pa.array(names(self.said, path[self.sample.leaf], clusters), pa.string()),
            "flags": limits.flags(rows, share, found, mixed),
        }
        return pa.table(columns, schema=_schema(columns))


def _schema(columns: Mapping[str, pa.Array]) -> pa.Schema:
    """Types, and units of what has one."""
    units = {name: {"unit": unit} for name, unit in UNITS.items()}
    return pa.schema([pa.field(name, array.type, metadata=units.get(name)) for name, array in columns.items()])


def _numbers(values: NDArray[np.float64]) -> pa.Array:
    """NaN, where there is nothing to measure, as null."""
    return pa.array(values, mask=np.isnan(values))
