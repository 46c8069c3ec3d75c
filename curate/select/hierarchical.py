"""`select.hierarchical`: as balanced a share of the pool as its tree of clusters allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, model_validator

from curate.core.contracts import Artifact, Select, Table
from curate.core.errors import CurateError
from curate.core.hashing import ranks
from curate.select.picking import copies_of
from curate.select.sampling import leaf_quotas

NOT_SAMPLED = "not_sampled"


class SelectHierarchical(Select):
    """Hierarchical balanced sampling: quotas flow down the tree, every cluster giving as much as its siblings can.

    A cluster that runs out gives everything. Rows left over are rejected as `not_sampled`.
    """

    op: ClassVar[str] = "select.hierarchical"
    ports: ClassVar[dict[str, str]] = {"tree": "cluster_tree"}

    target: int | None = Field(None, ge=1, description="Rows to take, copies counted; or give `share`.")
    share: float | None = Field(
        None,
        gt=0,
        description="Rows to take, copies counted, as a share of those that reach the stage; or give `target`.",
    )
    multiplier: int = Field(1, ge=1, description="The most copies of one row.")
    strategy: Literal["random", "closest"] = Field(
        "random", description="Rows of a leaf cluster: by hash(seed, key), or the closest to its centroid."
    )
    seed: int = Field(0, ge=0, description="Seed of every random choice.")

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.target is None) == (self.share is None):
            raise ValueError(f"target: {self.target} with share: {self.share}; give one of the two")
        return self

    _parents: list[NDArray[np.int64]] = PrivateAttr()
    _leaves: int = PrivateAttr()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        tree = artifacts["tree"]
        self._parents = [np.asarray(tree[f"parents_{t}"]) for t in range(1, len(tree["levels"]["levels"]))]
        self._leaves = tree["levels"]["levels"][0]["clusters"]

    def scaled(self, fraction: float) -> Self:
        if self.target is None:
            return self
        return self.model_copy(update={"target": max(1, int(self.target * fraction))})

    def target_rows(self) -> int | None:
        return self.target

    def reads(self) -> tuple[str, ...]:
        return ("cluster_1", "centroid_distance")

    def deal(self, table: Table) -> Table:
        """Units are leaf clusters. Raises CurateError for clusters that the tree does not have."""
        column = table.column("cluster_1")
        leaves = column.fill_null(-1).to_numpy().astype(np.int64)
        if len(leaves) and not 0 <= leaves.min() <= leaves.max() < self._leaves:
            raise CurateError(
                f"{self.op}: cluster_1 holds {leaves.min()}..{leaves.max()} ({column.null_count} null), but its `tree` "
                f"has {self._leaves} leaves; select from rows that were assigned to this tree"
            )
        return table.select(["key", "centroid_distance"]).append_column("unit", pa.array(leaves))

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Raises TargetError where the pool cannot give the target."""
        rows = np.zeros(self._leaves, dtype=np.int64)
        rows[: len(counts)] = counts
        target = self.target if self.share is None else max(1, int(self.share * rows.sum()))
        return leaf_quotas(rows, self._parents, target, self.multiplier, self.seed)

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        distance = lines.column("centroid_distance").to_numpy() if self.strategy == "closest" else None
        rank = ranks(self.seed, lines.column("key").to_pylist())
        copies = copies_of(lines.column("unit").to_numpy(), quotas, rank, distance)
        return {"copies": copies, "reject": pa.array(np.where(copies > 0, None, NOT_SAMPLED), pa.string())}
