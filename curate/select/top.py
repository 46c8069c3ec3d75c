"""`select.top`: the best rows of each cluster by a score."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Table
from curate.core.errors import CurateError
from curate.select.clusters import SelectClusters

_ROUNDING = 1e-9
"""A product such as 0.07 * 100 may lie above the whole number that is meant."""


class SelectTop(SelectClusters):
    """Rank the rows of each leaf cluster by a score and take the best, as the last step of PVD does with videos
    (Bolya et al. 2025, Perception Encoder, appendix on PE Video, step 5). That also leaves few near-duplicates.

    `target` and `share` are distributed down the tree as in `select.hierarchical`. `count_per_cluster` and
    `share_per_cluster` take as many of each leaf, regardless of the levels above. Ties are broken by hash(seed, key).
    Rows without a score (null or NaN) come last. With `by`, a leaf is a label. Rejects: not_sampled; with `by` also
    no_label.
    """

    op: ClassVar[str] = "select.top"
    sizes: ClassVar[tuple[str, ...]] = ("target", "share", "count_per_cluster", "share_per_cluster")

    score: str = Field(description="Column of numbers to rank by.")
    best: Literal["highest", "lowest"] = Field("highest", description="Which scores are the best.")
    count_per_cluster: int | None = Field(None, ge=1, description="Rows to take of each leaf that has as many.")
    share_per_cluster: float | None = Field(
        None, gt=0, le=1, description="Share of each leaf's rows to take, rounded up: at least one row of each."
    )
    multiplier: Literal[1] = Field(1, description="Always 1: rows are not repeated.")

    def order_columns(self) -> tuple[str, ...]:
        return (self.score,)

    def deal(self, table: Table) -> Table:
        """Raises CurateError if the scores are not numbers, or for clusters that are not in the tree."""
        kind = table.schema.field(self.score).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
            raise CurateError(f"{self.op}.score: column {self.score!r} holds {kind}; give a column of numbers")
        return super().deal(table)

    def order(self, lines: Table, quotas: NDArray[np.int64]) -> NDArray[np.floating]:
        score = lines.column(self.score).cast(pa.float64()).to_numpy()
        return -score if self.best == "highest" else score

    def quotas(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.count_per_cluster is not None:
            return np.minimum(rows, self.count_per_cluster)
        if self.share_per_cluster is not None:
            return np.ceil(rows * self.share_per_cluster - _ROUNDING).astype(np.int64)
        return super().quotas(rows)
