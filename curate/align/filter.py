"""`align.filter`: texts that say too little of what their image shows are rejected, and images without any other text.

Xray's ViSE keeps pairs from a cosine of 0.25 on; DataComp (section 3.4) the best 30 % of the pool.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from curate.align.scores import is_list, numbers_of
from curate.core.contracts import Filter, Table
from curate.core.errors import CurateError


class ScoreFilter(Filter):
    """Keep the texts whose score is at or above a threshold. Scores are compared as float32; null and NaN never pass.

    For the best share of a pool, let `align.threshold` and `align.margin` go before, and give
    `score: similarity_margin, threshold: 0`. Rejects, for each text: dissimilar.
    """

    op: ClassVar[str] = "align.filter"

    threshold: float = Field(allow_inf_nan=False, description="Score from which a text is kept; Xray's is 0.25.")
    score: str = Field("similarity", description="Column of lists with a score for each text of a row.")

    def reads(self) -> tuple[str, ...]:
        return (self.score,)

    def places(self) -> str | None:
        return self.score

    def keep(self, table: Table) -> pa.Array:
        """Raises CurateError for a column of anything else."""
        column = table.column(self.score)
        if not is_list(column):
            raise CurateError(
                f"{self.op}.score: {self.score!r} holds {column.type}, expected a list of numbers per row; "
                "for a number per row use filter.where"
            )
        found = numbers_of(self.op, column, self.score, "score")
        lengths = np.maximum(found.lengths, 0)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        passes = np.zeros(int(offsets[-1]), dtype=bool)
        with np.errstate(over="ignore"):
            least = np.float32(self.threshold)
        passes[offsets[found.row] + found.place] = found.values.to_numpy(zero_copy_only=False) >= least
        reasons = pa.array(np.where(passes, None, "dissimilar"), pa.string())
        return pa.ListArray.from_arrays(offsets.astype(np.int32), reasons, mask=pa.array(found.lengths < 0))
