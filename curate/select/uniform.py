"""`select.uniform`: a uniform sample of the rows, of an exact size."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, model_validator

from curate.core.contracts import Select, Table
from curate.core.errors import TargetError
from curate.core.hashing import ranks
from curate.select.clusters import copies_of

NOT_DRAWN = "not_drawn"
UNIT_BITS = 16
"""Upper bits of a rank, which are the unit of its row. Units below the border are taken whole, those above not at all;
only the rows of the unit at the border are compared."""
_SALT = 0xC1
"""Makes the sample independent of the rows that other selections take with the same seed."""


class SelectUniform(Select):
    """Take rows at random, each with the same probability: those of smallest hash(seed, key).

    The size is exact. A larger sample of one seed contains the smaller ones, so two stages that are to be independent
    need different seeds. A row added to the pool displaces at most one other.
    Rejects: not_drawn.
    """

    op: ClassVar[str] = "select.uniform"
    target_name: ClassVar[str] = "count"

    count: int | None = Field(None, ge=1, description="Rows to take; or give `share`.")
    share: float | None = Field(
        None, gt=0, le=1, description="Rows to take as a share of the stage's rows, rounded down; or give `count`."
    )
    seed: int = Field(0, ge=0, description="Seed of the sample.")
    multiplier: Literal[1] = Field(1, description="Always 1: rows are not repeated.")

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.count is None) == (self.share is None):
            raise ValueError(f"count: {self.count} with share: {self.share}; give one of the two")
        return self

    def scaled(self, fraction: float) -> Self:
        if self.count is None:
            return self
        return self.model_copy(update={"count": max(1, int(self.count * fraction))})

    def target_rows(self) -> int | None:
        return self.count

    def draw(self) -> str:
        return f"{self.op} with seed {self.seed}"

    def deal(self, table: Table) -> Table:
        unit = self._ranks(table) >> np.uint64(64 - UNIT_BITS)
        return table.select(["key"]).append_column("unit", pa.array(unit.astype(np.int64)))

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Raises TargetError if there are fewer rows than `count`, or none."""
        rows = int(counts.sum())
        if not rows:
            raise TargetError(f"{self.op}: no rows reach it; `curate status RUN` shows where they left, and why")
        count = self.count if self.count is not None else max(1, int((self.share or 0) * rows))
        if count > rows:
            raise TargetError(
                f"{self.op}.count: {count:,} rows, but only {rows:,} reach it; lower it, or give `share` instead"
            )
        return np.clip(count - (np.cumsum(counts) - counts), 0, counts)

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        copies = copies_of(lines.column("unit").to_numpy(), quotas, self._ranks(lines))
        return {"copies": copies, "reject": pc.if_else(copies > 0, pa.scalar(None, pa.string()), NOT_DRAWN)}

    def _ranks(self, table: Table) -> NDArray[np.uint64]:
        return ranks(self.seed, table.column("key").to_pylist(), _SALT)
