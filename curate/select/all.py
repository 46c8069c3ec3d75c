"""`select.all`: every live row, once."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Select, Table


class SelectAll(Select):
    """Take every live row once, for a pool that needs no balance or that upstream stages have sampled."""

    op: ClassVar[str] = "select.all"

    multiplier: Literal[1] = Field(1, description="Always 1: rows are not repeated.")

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return counts

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        return {"copies": np.ones(lines.num_rows, dtype=np.int64), "reject": pa.nulls(lines.num_rows, pa.string())}
