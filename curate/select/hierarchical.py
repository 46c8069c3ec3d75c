"""`select.hierarchical`: the most balanced sample of a pool that its tree of clusters allows."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Table
from curate.select.clusters import SelectClusters


class SelectHierarchical(SelectClusters):
    """Sample evenly among clusters: distribute the target down the tree, evenly among siblings at each level.

    A cluster with fewer rows than its quota gives all of them. Rejects: not_sampled.
    """

    op: ClassVar[str] = "select.hierarchical"

    strategy: Literal["random", "closest"] = Field(
        "random", description="How to choose rows of a leaf: by hash(seed, key), or those closest to its centroid."
    )

    def order_columns(self) -> tuple[str, ...]:
        return ("centroid_distance",)

    def order(self, lines: Table) -> NDArray[np.floating] | None:
        return lines.column("centroid_distance").to_numpy() if self.strategy == "closest" else None
