"""`cluster.drift`: test whether a pool has outgrown its tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Reduce, Table
from curate.kernels.evenness import evenness, gini
from curate.kernels.tree import TreeShape, leaves_of

_STATE = pa.schema([(name, pa.int64()) for name in ("leaf", "new", "rows", "far")])
_MERGED_ROWS = 1 << 20


class Drift(Reduce):
    """Decide whether the tree needs a refit: new rows are far from every centroid, or shift between the clusters.

    New rows are rows of shards that the tree was not fitted on. A row is far if its squared distance to its leaf's
    centroid exceeds the `percentile` of the fitted rows. With 99, that is 1 % of the fitted rows; new rows of the
    same kind exceed it more often, since no centroid was fitted to them. The expected share of far rows is estimated
    from the old rows, each measured to the mean of the other rows of its leaf, and the limit is never below it. Cluster
    sizes are compared level by level: the Jensen-Shannon divergence between the shares of new and of fitted rows, minus
    the divergence expected by chance.

    The artifact's `drift` contains `due`, the `reasons`, and their figures; its table `clusters` the `shown` clusters
    of each level that changed most. With fewer than `least_rows` new rows, `due` is false.
    """

    op: ClassVar[str] = "cluster.drift"
    kind: ClassVar[str] = "cluster_drift"
    ports: ClassVar[dict[str, str]] = {"tree": "cluster_tree"}

    percentile: int = Field(
        99, ge=50, le=99, description="Percentile of the fitted rows' distances beyond which a row is far."
    )
    far: float = Field(0.05, gt=0, le=1, description="Share of far rows among the new rows from which a refit is due.")
    shift: float = Field(
        0.045,
        gt=0,
        le=1,
        description="Change of the clusters' shares from which a refit is due, in bits beyond chance; 0.045 is about "
        "a population stability index of 0.25.",
    )
    least_rows: int = Field(100, ge=1, description="New rows below which no refit is due.")
    shown: int = Field(50, ge=1, description="Clusters of each level in the table; those that changed most are shown.")
    seed: int = Field(0, ge=0, description="Seed of the simulated samples that estimate the divergence by chance.")

    _shape: TreeShape = PrivateAttr()
    _beyond: float = PrivateAttr()
    _shards: frozenset[str] = PrivateAttr()
    _fitted: list[NDArray[np.int64]] = PrivateAttr()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        tree = artifacts["tree"]
        self._shape = TreeShape.of(tree)
        self._beyond = float(tree["distance_quantiles"][self.percentile])
        self._shards = frozenset(tree["shards"].column("shard").to_pylist())
        levels = range(1, len(self._shape.clusters) + 1)
        self._fitted = [np.asarray(tree[f"sizes_{level}"], dtype=np.int64) for level in levels]

    def reads(self) -> tuple[str, ...]:
        return ("cluster_1", "centroid_distance")

    def partial(self, table: Table) -> Table:
        leaf = leaves_of(self.op, table, self._shape.clusters[0])
        new = table.schema.metadata[b"shard"].decode() not in self._shards
        distance = table.column("centroid_distance").to_numpy()
        far = (distance if new else leave_one_out(distance, self._fitted[0][leaf])) > self._beyond
        return _sum_pairs(leaf, np.full(len(leaf), int(new)), np.ones(len(leaf), np.int64), far.astype(np.int64))

    def merge(self, states: Iterator[Table]) -> Table:
        held, waiting, rows = _STATE.empty_table(), [], 0
        for state in states:
            waiting.append(state.select(_STATE.names))
            rows += state.num_rows
            if rows > max(held.num_rows, _MERGED_ROWS):
                held, waiting, rows = _sum_states([held, *waiting]), [], 0
        return _sum_states([held, *waiting])

    def finish(self, state: Table) -> Artifact:
        leaf, new, rows, far = (state.column(name).to_numpy() for name in _STATE.names)
        mine = new == 1
        counted = {"rows": (leaf, rows), "new": (leaf[mine], rows[mine]), "far": (leaf[mine], far[mine])}
        by_leaf = {name: _per_leaf(*pair, self._shape.clusters[0]) for name, pair in counted.items()}
        sums = {name: self._shape.sums(values) for name, values in by_leaf.items()}
        count = int(by_leaf["new"].sum())
        enough = count >= self.least_rows
        summary: dict[str, Any] = {
            "fitted_rows": int(self._fitted[0].sum()),
            "rows": int(by_leaf["rows"].sum()),
            "new_rows": count,
            "least_rows": self.least_rows,
            "far": self._far(int(by_leaf["far"].sum()), count, int(far[~mine].sum()), int(rows[~mine].sum())),
            "levels": [self._level(t, sums["rows"][t - 1], sums["new"][t - 1]) for t, _ in self._shape.paths()],
        }
        reasons = self._reasons(summary) if enough else []
        parts = [
            self._most_changed(t, *(sums[name][t - 1] for name in ("rows", "new", "far")))
            for t, _ in self._shape.paths()
        ]
        verdict = {"due": bool(reasons), "reasons": reasons, "enough": enough}
        return {"drift": verdict | summary, "clusters": pa.concat_tables(parts)}

    def _far(self, far: int, rows: int, far_of_old: int, old: int) -> dict[str, Any]:
        expected = far_of_old / old if old else 1 - self.percentile / 100
        return {
            "rows": far,
            "share": far / rows if rows else None,
            "expected": expected,
            "limit": far_limit(self.far, expected, rows) if rows else None,
            "beyond": self._beyond,
        }

    def _level(self, level: int, rows: NDArray[np.int64], new: NDArray[np.int64]) -> dict[str, Any]:
        fitted = self._fitted[level - 1]
        facts: dict[str, Any] = {"level": level, "clusters": len(rows), "limit_bits": self.shift}
        for name, sizes in (("fitted", fitted), ("now", rows)):
            facts[name] = {"entropy": evenness(sizes), "gini": gini(sizes), "empty": int((sizes == 0).sum())}
        if new.any() and fitted.any():
            found = share_divergence(fitted, new, self.seed)
            facts |= {
                "shift_bits": found.bits,
                "chance_bits": found.chance_bits,
                "most_by_chance_bits": found.most_by_chance_bits,
                "excess_bits": found.excess_bits,
            }
        return facts

    def _reasons(self, summary: Mapping[str, Any]) -> list[str]:
        far, reasons = summary["far"], []
        if far["share"] > far["limit"]:
            reasons.append(
                f"{far['share']:.1%} of {summary['new_rows']:,} new rows lie farther from every centroid than "
                f"{self.percentile} % of the rows fitted on (limit {far['limit']:.1%})"
            )
        for level in summary["levels"]:
            certain = level.get("shift_bits", 0) > level.get("most_by_chance_bits", 1)
            if certain and level["excess_bits"] > self.shift:
                reasons.append(
                    f"level {level['level']}: new rows spread over its {level['clusters']:,} clusters in another way, "
                    f"by {level['excess_bits']:.3f} bits beyond chance (limit {self.shift:g})"
                )
        return reasons

    def _most_changed(
        self, level: int, rows: NDArray[np.int64], new: NDArray[np.int64], far: NDArray[np.int64]
    ) -> Table:
        """Table of the clusters whose shares changed most, in descending order of their part in the divergence."""
        fitted = self._fitted[level - 1]
        part = divergences(fitted, new) if new.any() else np.zeros(len(rows))
        ids = np.argsort(-part, kind="stable")[: self.shown]
        shares = {name: sizes[ids] / max(1, sizes.sum()) for name, sizes in (("fitted", fitted), ("new", new))}
        return pa.table(
            {
                "level": pa.array(np.full(len(ids), level, np.int32)),
                "cluster": pa.array(ids),
                "fitted": pa.array(fitted[ids]),
                "rows": pa.array(rows[ids]),
                "new": pa.array(new[ids]),
                "far": pa.array(far[ids]),
                "share_fitted": pa.array(shares["fitted"]),
                "share_new": pa.array(shares["new"]),
                "shift_bits": pa.array(part[ids]),
            }
        )


def _per_leaf(leaf: NDArray[np.int64], values: NDArray[np.int64], leaves: int) -> NDArray[np.int64]:
    return np.bincount(leaf, weights=values, minlength=leaves).astype(np.int64)


def _sum_pairs(
    leaf: NDArray[np.int64], new: NDArray[np.int64], rows: NDArray[np.int64], far: NDArray[np.int64]
) -> Table:
    """Sum rows and far rows for each (leaf, new) pair, in order of the pairs."""
    place = leaf * 2 + new
    order = np.argsort(place, kind="stable")
    place = place[order]
    starts = np.flatnonzero(np.r_[True, np.diff(place) > 0][: len(place)])
    if not len(starts):
        return _STATE.empty_table()
    added = (np.add.reduceat(values[order], starts) for values in (rows, far))
    return pa.table([*map(pa.array, (*np.divmod(place[starts], 2), *added))], schema=_STATE)


def _sum_states(tables: list[Table]) -> Table:
    """Sum states, each sorted by leaf; one range of leaves at a time, of about _MERGED_ROWS rows."""
    held = [[table.column(name).to_numpy() for name in _STATE.names] for table in tables]
    leaves = max((int(leaf[-1]) + 1 for leaf, *_ in held if len(leaf)), default=0)
    ranges = max(1, -(-sum(len(leaf) for leaf, *_ in held) // _MERGED_ROWS))
    edges = np.arange(ranges + 1) * leaves // ranges
    cuts = [np.searchsorted(leaf, edges) for leaf, *_ in held]
    parts = []
    for number in range(ranges):
        mine = [[values[cut[number] : cut[number + 1]] for values in of] for of, cut in zip(held, cuts, strict=True)]
        parts.append(_sum_pairs(*(np.concatenate(values) for values in zip(*mine, strict=True))))
    return pa.concat_tables(parts)


DRAWS = 20


def divergences(fitted: NDArray[np.int64], new: NDArray[np.int64]) -> NDArray[np.float64]:
    """Contribution (K,) of each cluster to the Jensen-Shannon divergence, in bits, between the shares of the clusters
    in the two counts (Lin 1991, eq. 4.1). The sum is 0 if all shares are equal, 1 if no cluster has rows in both."""
    p, q = (sizes / max(1, sizes.sum()) for sizes in (fitted, new))
    middle = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(share > 0, share * np.log2(share / middle), 0.0) for share in (p, q)]
    return (parts[0] + parts[1]) / 2


@dataclass(frozen=True)
class ShareDivergence:
    """Divergence between the shares of new and of fitted rows at one level, in bits."""

    bits: float
    chance_bits: float
    """Mean divergence of DRAWS pairs of samples of the same sizes, drawn from the shares of all rows."""
    most_by_chance_bits: float

    @property
    def excess_bits(self) -> float:
        return max(0.0, self.bits - self.chance_bits)


def share_divergence(fitted: NDArray[np.int64], new: NDArray[np.int64], seed: int) -> ShareDivergence:
    """Divergence of `new` from `fitted` (K,), and the divergence by chance. Two samples of one distribution differ too,
    and more with fewer rows per cluster: by 0.07 bits or more with 10 rows each. The divergence by chance is therefore
    simulated."""
    together = (fitted + new).astype(np.float64)
    share = together / together.sum()
    rng = np.random.default_rng(seed)
    sizes = int(fitted.sum()), int(new.sum())
    drawn = [float(divergences(*(rng.multinomial(n, share) for n in sizes)).sum()) for _ in range(DRAWS)]
    return ShareDivergence(float(divergences(fitted, new).sum()), float(np.mean(drawn)), max(drawn))


def leave_one_out(distance: NDArray[np.floating], fitted: NDArray[np.int64]) -> NDArray[np.float64]:
    """Squared distance (n,) of each row to the mean of the other rows of its leaf.

    distance: (n,), to the mean of all rows of the leaf; fitted: (n,), number of these rows. Without x, the mean of m
    rows moves away from x, and x - mean grows by m / (m - 1). The distance of a leaf's only row is infinite, since
    without it the row would belong to another leaf.
    """
    with np.errstate(divide="ignore"):
        grown = np.where(fitted > 0, fitted / (fitted - 1.0), 1.0) ** 2
    return np.where(fitted == 1, np.inf, distance * np.where(fitted == 1, 1.0, grown))


def far_limit(limit: float, expected: float, rows: int) -> float:
    """Share of far rows from which a refit is due: `limit`, or three standard errors above `expected` if that is more,
    as with few rows."""
    return max(limit, expected + 3 * float(np.sqrt(expected * (1 - expected) / rows)))
