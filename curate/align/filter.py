"""`align.filter`: rejects texts that match their image too poorly, and images that have no other text.

Xray's ViSE keeps pairs with a cosine of at least 0.25, DataComp (section 3.4) the best 30 % of the pool.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from curate.align.scores import is_list, numbers_of
from curate.core.contracts import Filter, Table
from curate.core.errors import CurateError


class ScoreFilter(Filter):
    """Keep the texts whose score is at or above a threshold.

    Scores are compared as float32; null and NaN never pass. To keep the best share of a pool, run `align.threshold` and
    `align.margin` first and set `score: similarity_margin, threshold: 0`. Rejects, per text: dissimilar.
    """

    op: ClassVar[str] = "align.filter"

    threshold: float = Field(allow_inf_nan=False, description="Lowest score at which a text is kept; Xray uses 0.25.")
    score: str = Field("similarity", description="Column of lists: a score for each text of a row.")

    def reads(self) -> tuple[str, ...]:
        return (self.score,)

    def places(self) -> str | None:
        return self.score

    def keep(self, table: Table) -> pa.Array:
        """Raises CurateError if the column is not a list of numbers."""
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
        reasons = pc.if_else(passes, pa.scalar(None, pa.string()), "dissimilar")
        return pa.ListArray.from_arrays(offsets.astype(np.int32), reasons, mask=pa.array(found.lengths < 0))
