"""`cluster.profile`: size, spread, sources, name and flags of each cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.cluster.profile import state
from curate.cluster.profile.figures import FlagLimits, Sources, explained, sources
from curate.cluster.profile.state import Histogram, Sample
from curate.core.contracts import Artifact, Reduce, Table
from curate.core.hashing import ranks
from curate.kernels.cluster_names import Terms, cluster_names
from curate.kernels.evenness import evenness, gini
from curate.kernels.interval import expected_entropy
from curate.kernels.meta import field_of
from curate.kernels.tree import TreeShape, leaves_of

CAPTION_CHARACTERS, SOURCE_CHARACTERS = 300, 100


class Profile(Reduce):
    """Describe every cluster of a tree in one table: rows, spread, sources, name and flags.

    The artifact's table `clusters` has a row for each cluster, finest level first: `level` (1 is the finest),
    `cluster`, `parent` (one level up), `rows`, `leaves`; `mean_distance`, `median_distance` and `p90_distance` of the
    rows to the centroids of their leaves (squared L2); `explained`, the share of the pool's variance that the leaves
    explain (near 0 if members are no more similar than rows of the whole pool); `sources`, `source_entropy` (bits),
    `top_source`, `top_source_share`; `name`, the words typical of its captions; `flags`. Captions and sources come from
    `sample` rows of each leaf: from fewer beyond 2 million / `sample` leaves, and from some leaves only beyond 2
    million. Sampled rows are weighted by the size of their leaf.

    Flags: `empty`, no rows; `tiny`, fewer rows than `tiny`; `noise`, explained below `noise`; `single_source`,
    `top_source` has at least `single_source` of the rows with a source, unless that is true of the whole pool. The
    artifact's `profile` summarises the pool and its levels: `even` is what a sample with as many rows of each cluster
    would do to the entropy of sources, in bits, with the 95 % interval of the difference to a random sample.
    """

    op: ClassVar[str] = "cluster.profile"
    version: ClassVar[int] = 4
    kind: ClassVar[str] = "cluster_profile"
    ports: ClassVar[dict[str, str]] = {"tree": "cluster_tree"}

    caption: str = Field("caption", description="Column of the texts from which clusters are named.")
    source: str | None = Field(
        "url",
        description="Source of a row: `url` for the host of the URL, another column, a field of the pool's meta as in "
        "`meta.category`, or null for none.",
    )
    sample: int = Field(64, ge=1, description="Rows of each leaf from which captions and sources are read.")
    noise: float = Field(0.05, le=1, description="Share of variance explained below which a cluster is noise.")
    single_source: float = Field(
        0.9, gt=0, le=1, description="Share of the largest source from which a cluster has a single source."
    )
    tiny: int = Field(5, ge=1, description="Rows below which a cluster is tiny; tiny clusters get no other flag.")
    seed: int = Field(0, ge=0, description="Seed of the sample.")

    _shape: TreeShape = PrivateAttr()
    _variance: float = PrivateAttr()
    _unit: bool = PrivateAttr()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        tree = artifacts["tree"]
        self._shape = TreeShape.of(tree)
        self._variance, self._unit = float(tree["levels"]["variance"]), bool(tree["levels"].get("unit_norm"))

    def reads(self) -> tuple[str, ...]:
        source = () if self.source is None else (self.source.split(".")[0],)
        return ("cluster_1", "centroid_distance", *dict.fromkeys((self.caption, *source)))

    def meta_fields(self) -> tuple[str, ...]:
        return (self.source or "",)

    def counting(self) -> dict[str, Any]:
        return {**super().counting(), "state": 3}

    @property
    def _resolution(self) -> state.Resolution:
        return state.Resolution.of(self._shape.clusters[0], self.sample)

    def partial(self, table: Table) -> Table:
        """Raises CurateError if the tree does not have one of the clusters."""
        leaf = leaves_of(self.op, table, self._shape.clusters[0])
        distance = table.column("centroid_distance").to_numpy()
        rank = ranks(self.seed, table.column("key").to_pylist())
        places = pa.table({"caption": np.arange(len(leaf)), "source": np.arange(len(leaf))})
        picked = state.Sample(leaf, rank, places).limited_to(self._resolution)
        rows = table.take(picked.texts.column("caption").cast(pa.int64()))
        captions = [_clipped(text, CAPTION_CHARACTERS) for text in rows.column(self.caption).to_pylist()]
        texts = {"caption": pa.array(captions, pa.string()), "source": pa.array(self._sources(rows), pa.string())}
        sample = state.Sample(picked.leaf, picked.rank, pa.table(texts))
        return state.to_table(state.Histogram.of(leaf, distance, self._resolution.width), sample)

    def _sources(self, rows: Table) -> list[str | None]:
        if self.source is None:
            return [None] * rows.num_rows
        column, _, field = self.source.partition(".")
        values = rows.column(column).to_pylist()
        if self.source == "url":
            values = [_host(value) for value in values]
        elif field:
            values = [field_of(value, field) for value in values]
        return [_clipped(value, SOURCE_CHARACTERS) for value in values]

    def merge(self, states: Iterator[Table]) -> Table:
        return state.merge(states, self._resolution)

    def finish(self, state_: Table) -> Artifact:
        counted = PoolCounts.of(
            self._shape, self._variance, self._unit, *state.from_table(state_, self._resolution.width)
        )
        pool = counted.sources(np.zeros(self._shape.clusters[0], np.int64), 1)
        mixed = not pool.top_share[0] >= self.single_source
        limits = FlagLimits(self.noise, self.single_source, self.tiny)
        tables = [counted.level(level, path, limits, mixed) for level, path in self._shape.paths()]
        rows, spread = int(counted.leaf_rows.sum()), counted.histogram.sums(self._shape.clusters[0]).sum()
        summary: dict[str, Any] = {
            "rows": rows,
            "variance": self._variance,
            "mean_distance": float(spread) / rows if rows else None,
            "sampled_rows": len(counted.weight),
            "source_entropy": _or_none(pool.entropy_bits[0]),
            "top_source": pool.top[0].as_py(),
            "top_source_share": _or_none(pool.top_share[0]),
            "levels": [_level_facts(table) for table in tables],
            "even": [counted.even(path) for _, path in self._shape.paths()],
        }
        return {"clusters": pa.concat_tables(tables), "profile": summary}


def _level_facts(table: Table) -> dict[str, Any]:
    rows = table.column("rows").to_numpy()
    flags = Counter(table.column("flags").combine_chunks().flatten().to_pylist())
    spread = {"entropy": evenness(rows), "gini": gini(rows)}
    return {"level": table.column("level")[0].as_py(), "clusters": len(rows), **spread, "flags": dict(flags)}


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _clipped(value: Any, characters: int) -> str | None:
    return None if value is None or value == "" else str(value).encode("utf-8", "replace").decode()[:characters]


def _host(url: str | None) -> str | None:
    """Host of a URL, without `www.`; None if it has no host."""
    try:
        host = urlsplit(url).hostname if url else None
    except ValueError:
        return None
    return host.removeprefix("www.") if host else None


RANGE_CLUSTERS = 1 << 20
"""Clusters whose figures are computed at once."""
UNITS = dict.fromkeys(("mean_distance", "median_distance", "p90_distance"), "squared L2") | {"source_entropy": "bits"}


@dataclass(frozen=True)
class PoolCounts:
    """Counts and samples by leaf, from which the figures of every level are computed."""

    shape: TreeShape
    variance: float
    histogram: Histogram
    sample: Sample
    leaf_rows: NDArray[np.int64]
    weight: NDArray[np.float64]
    """Number of rows (n,) that each sampled row represents."""
    terms: Terms
    scatter: NDArray[np.float64]
    """Sum (K_1,) of the squared distances of a leaf's rows to their mean. It follows from those to a centroid of length
    1: unit vectors at a mean squared distance d from it have a mean of length 1 - d / 2."""

    @classmethod
    def of(cls, shape: TreeShape, variance: float, unit: bool, histogram: Histogram, sample: Sample) -> PoolCounts:
        """unit: whether centroids have length 1, as the rows do."""
        rows = histogram.rows(shape.clusters[0])
        sampled = np.bincount(sample.leaf, minlength=len(rows))
        weight = (rows / np.maximum(sampled, 1))[sample.leaf]
        terms = Terms.of([text or "" for text in sample.texts.column("caption").to_pylist()])
        sums = histogram.sums(len(rows))
        scatter = sums - sums**2 / (4 * np.maximum(rows, 1)) if unit else sums
        return cls(shape, variance, histogram, sample, rows, weight, terms, scatter)

    def sources(self, path: NDArray[np.int64], clusters: int) -> Sources:
        return self._sources(path[self.sample.leaf], 0, clusters)

    def _sources(self, cluster: NDArray[np.int64], first: int, stop: int) -> Sources:
        """Sources of clusters first .. stop - 1. `cluster` is the cluster of each sampled row."""
        mine = np.flatnonzero((cluster >= first) & (cluster < stop))
        source = self.sample.texts.column("source").take(pa.array(mine)).combine_chunks()
        return sources(source, self.weight[mine], cluster[mine] - first, stop - first)

    def even(self, path: NDArray[np.int64]) -> dict[str, Any] | None:
        """Entropy of sources if each cluster of a level had as many rows, and of the pool. None if too few rows have a
        source. path (K_1,): cluster of each leaf."""
        source = self.sample.texts.column("source").combine_chunks().dictionary_encode().indices
        some = np.flatnonzero(pc.is_valid(source).to_numpy(zero_copy_only=False))
        cluster, label = path[self.sample.leaf[some]], source.take(pa.array(some)).to_numpy().astype(np.int64)
        rows = np.bincount(path, weights=self.leaf_rows)
        found = expected_entropy(label, self.weight[some] / rows[cluster], self.weight[some])
        return None if found is None else asdict(found) | {"verdict": found.verdict}

    def level(
        self,
        level: int,
        path: NDArray[np.int64],
        limits: FlagLimits,
        mixed: bool,
        clusters_at_once: int = RANGE_CLUSTERS,
    ) -> pa.Table:
        """Table of a level. path (K_1,): cluster of each leaf; `mixed`: whether the pool has several sources."""
        clusters = self.shape.clusters[level - 1]
        counts = self.histogram.of_clusters(path)
        leaves = np.bincount(path, minlength=clusters)
        filled = np.bincount(path[self.leaf_rows > 0], minlength=clusters)
        scatter = np.bincount(path, self.scatter, minlength=clusters).astype(np.float64)
        names = cluster_names(self.terms, path[self.sample.leaf], clusters)
        parts = []
        for first in range(0, clusters, clusters_at_once):
            stop = min(clusters, first + clusters_at_once)
            at, found = slice(first, stop), self._sources(path[self.sample.leaf], first, stop)
            columns = self._columns(
                counts.range(first, stop), leaves[at], filled[at], scatter[at], found, limits, mixed
            )
            place = {
                "level": pa.array(np.full(stop - first, level, np.int32)),
                "cluster": pa.array(np.arange(first, stop)),
                "parent": self.shape.parent_column(level).slice(first, stop - first),
            }
            flags = columns.pop("flags")
            whole = {**place, **columns, "name": pa.array(names[at], pa.string()), "flags": flags}
            parts.append(pa.table(whole, schema=_schema(whole)))
        return pa.concat_tables(parts)

    def _columns(
        self,
        counts: Histogram,
        leaves: NDArray[np.int64],
        held: NDArray[np.int64],
        scatter: NDArray[np.float64],
        found: Sources,
        limits: FlagLimits,
        mixed: bool,
    ) -> dict[str, pa.Array]:
        """Figures of some clusters: `leaves` (n,) counts all leaves of a cluster, `held` (n,) the non-empty ones."""
        clusters = len(leaves)
        rows, sums = counts.rows(clusters), counts.sums(clusters)
        share = explained(scatter, rows, held, self.variance)
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
    """Types of the columns, with units in the metadata."""
    units = {name: {"unit": unit} for name, unit in UNITS.items()}
    return pa.schema([pa.field(name, array.type, metadata=units.get(name)) for name, array in columns.items()])


def _numbers(values: NDArray[np.float64]) -> pa.Array:
    """Column of `values`, with null for NaN."""
    return pa.array(values, mask=np.isnan(values))
