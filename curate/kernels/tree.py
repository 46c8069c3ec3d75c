"""A `cluster_tree` artifact without its centroids: sizes and parents, for counting, naming and showing clusters.

With millions of leaves, centroids take tens of gigabytes; `parents_t` take eight bytes per cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.contracts import Artifact
from curate.core.errors import CurateError


@dataclass(frozen=True)
class TreeShape:
    """Number of clusters of each level, finest first, and the parents (K_t,) in level t + 1 of the clusters of level
    t."""

    clusters: tuple[int, ...]
    parents: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, tree: Artifact) -> Self:
        clusters = tuple(int(level["clusters"]) for level in tree["levels"]["levels"])
        return cls(clusters, tuple(np.asarray(tree[f"parents_{t}"]) for t in range(1, len(clusters))))

    def above(self, level: int) -> Self:
        """The tree without the levels below `level`; 1 is all of it."""
        return type(self)(self.clusters[level - 1 :], self.parents[level - 1 :])

    def paths(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(level, cluster (K_1,) of each leaf at that level), finest first."""
        path = np.arange(self.clusters[0])
        for level in range(1, len(self.clusters) + 1):
            yield level, path
            if level < len(self.clusters):
                path = self.parents[level - 1][path]

    def sums(self, values: NDArray[Any]) -> list[NDArray[np.int64]]:
        """Integers of the first leaves (at most K_1) -> sums per cluster of each level, finest first. Exact below
        2**53."""
        padded = np.zeros(self.clusters[0])
        padded[: len(values)] = values
        return [
            np.bincount(path, weights=padded, minlength=self.clusters[level - 1]).astype(np.int64)
            for level, path in self.paths()
        ]

    def parent_column(self, level: int) -> pa.Array:
        """Parent of each cluster of a level; null at the coarsest level."""
        if level == len(self.clusters):
            return pa.nulls(self.clusters[level - 1], pa.int64())
        return pa.array(self.parents[level - 1], pa.int64())

    def table(self, leaf_rows: NDArray[np.int64]) -> pa.Table:
        """The tree as a table, finest level first: level, cluster, parent, rows, leaves (with and without rows)."""
        rows, leaves = self.sums(leaf_rows), self.sums(np.ones(self.clusters[0]))
        parts = []
        for level, count in enumerate(self.clusters, 1):
            columns = {
                "level": pa.array(np.full(count, level, np.int32)),
                "cluster": pa.array(np.arange(count)),
                "parent": self.parent_column(level),
                "rows": pa.array(rows[level - 1]),
                "leaves": pa.array(leaves[level - 1]),
            }
            parts.append(pa.table(columns))
        return pa.concat_tables(parts)


def leaves_of(op: str, table: pa.Table, leaves: int, column: str = "cluster_1") -> NDArray[np.int64]:
    """Leaf (n,) of each row. Raises CurateError if rows were assigned to another tree."""
    found = table.column(column)
    leaf = found.fill_null(-1).to_numpy().astype(np.int64)
    if len(leaf) and not 0 <= leaf.min() <= leaf.max() < leaves:
        raise CurateError(
            f"{op}: {column} holds {leaf.min()}..{leaf.max()} ({found.null_count} null), but its `tree` has "
            f"{leaves} leaves; give it rows that were assigned to this tree"
        )
    return leaf
