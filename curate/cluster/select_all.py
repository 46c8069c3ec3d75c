"""`select.all`: every row that is still alive, once."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Select, Table
from curate.core.hashing import key_words

UNITS = 1024
"""Rows are dealt to this many units by key, so that buckets stay small."""


class SelectAll(Select):
    """Takes every live row once: a pool without balance, or one that upstream stages have cut to size."""

    op: ClassVar[str] = "select.all"

    multiplier: Literal[1] = Field(1, description="Always 1: rows are not repeated.")

    def units(self, table: Table) -> NDArray[np.int64]:
        return (key_words(table.column("key").to_pylist())[:, 0] % np.uint64(UNITS)).astype(np.int64)

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return counts

    def pick(self, rows: Table, units: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        return {"copies": np.ones(rows.num_rows, dtype=np.int64), "reject": pa.nulls(rows.num_rows, pa.string())}
