"""Figures of `cluster.profile` for the clusters of one level, as pure functions of counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NOISE, SINGLE_SOURCE, EMPTY, TINY = "noise", "single_source", "empty", "tiny"


def explained(
    sums: NDArray[np.float64], rows: NDArray[np.int64], leaves: NDArray[np.int64], variance: float
) -> NDArray[np.float64]:
    """Share of the pool's variance that the leaves of each cluster explain: 1 - S / ((n - m) V).

    S (`sums`) is the sum of the squared distances of a cluster's rows to the means of their leaves, n (`rows`) the
    number of rows, m (`leaves`) the number of non-empty leaves, and V the mean squared distance of the pool to its
    mean. The share is 1 if all rows equal their centroids, near 0 if they are no more similar than rows of the whole
    pool, negative if they are more scattered than the pool, and NaN if n = m. It has n - m in place of n, as an
    adjusted R squared has, since the mean of n unrelated rows explains 1/n of their variance.
    """
    free = rows - leaves
    if variance <= 0:
        return np.where(free > 0, 1.0, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(free > 0, 1 - sums / (free * variance), np.nan)


@dataclass(frozen=True)
class Sources:
    """Sources of the rows of each cluster, as arrays (K,). NaN or null if no sampled row has a source."""

    known: NDArray[np.int64]
    """Sampled rows with a source."""
    count: NDArray[np.int64]
    """Distinct sources of these rows."""
    entropy_bits: NDArray[np.float64]
    top_share: NDArray[np.float64]
    top: pa.Array


def sources(source: pa.Array, weight: NDArray[np.float64], cluster: NDArray[np.int64], clusters: int) -> Sources:
    """Sources of each cluster, from sampled rows. On equal shares, the first source by name is the top source.

    source: (n,), strings or nulls; weight: (n,), number of rows that a sampled row represents; cluster: (n,).
    """
    given = source.is_valid().to_numpy(zero_copy_only=False)
    encoded = source.filter(pa.array(given)).dictionary_encode()
    values = np.array(encoded.dictionary.to_pylist(), dtype=object)
    order = np.argsort(values) if len(values) else np.empty(0, dtype=np.int64)
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.arange(len(values))
    pair = cluster[given] * max(1, len(values)) + place[encoded.indices.to_numpy()]
    pairs, index = np.unique(pair, return_inverse=True)
    mass = np.bincount(index, weights=weight[given], minlength=len(pairs))
    group, number = np.divmod(pairs, max(1, len(values)))
    total = np.bincount(group, weights=mass, minlength=clusters)
    share = mass / total[group]
    entropy = np.bincount(group, weights=-share * np.log2(share), minlength=clusters)
    best = np.lexsort((number, -mass, group))
    first = best[np.flatnonzero(np.r_[True, np.diff(group[best]) > 0][: len(best)])]
    top_share, place_of_top = np.full(clusters, np.nan), np.full(clusters, -1)
    top_share[group[first]], place_of_top[group[first]] = share[first], order[number[first]]
    top = pa.array(values, pa.string()).take(pa.array(place_of_top, mask=place_of_top < 0))
    known = np.bincount(cluster[given], minlength=clusters)
    count = np.bincount(group, minlength=clusters)
    return Sources(known, count, np.where(known > 0, np.abs(entropy), np.nan), top_share, top)


@dataclass(frozen=True)
class FlagLimits:
    """Thresholds of the flags."""

    noise: float
    single_source: float
    tiny: int

    def flags(
        self, rows: NDArray[np.int64], explained: NDArray[np.float64], sources: Sources, mixed: bool
    ) -> pa.ListArray:
        """Flags of each cluster. `mixed`: whether the pool as a whole has several sources."""
        with np.errstate(invalid="ignore"):
            noise = (rows >= self.tiny) & (explained < self.noise)
            single = (sources.top_share >= self.single_source) & (sources.known >= self.tiny) & mixed
        masks = {EMPTY: rows == 0, TINY: (rows > 0) & (rows < self.tiny), NOISE: noise, SINGLE_SOURCE: single}
        held = np.stack(list(masks.values()), axis=1)
        offsets = np.r_[0, np.cumsum(held.sum(axis=1))].astype(np.int32)
        return pa.ListArray.from_arrays(offsets, pa.array(list(masks)).take(pa.array(np.nonzero(held)[1])))
