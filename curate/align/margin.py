"""`align.margin`: scores minus the threshold of `align.threshold`, for a filter to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, PrivateAttr

from curate.align.scores import numbers_of
from curate.align.threshold import KIND
from curate.core.contracts import Artifact, Batch, Map
from curate.core.errors import CurateError
from curate.core.items import places_of


class Margin(Map):
    """Subtract the threshold from each score of a row: 0 or more exactly if the score reaches the threshold.

    The column is `<score>_margin`, a list per row like the scores; a number per row becomes a list of one.
    """

    op: ClassVar[str] = "align.margin"
    ports: ClassVar[dict[str, str]] = {"threshold": KIND}
    batch_rows: ClassVar[int] = 4096

    score: str = Field("similarity", description="Column of scores from which the threshold was computed.")

    _least: np.float32 = PrivateAttr()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if the threshold was computed from another column."""
        found = artifacts["threshold"]["threshold"]
        if found["column"] != self.score:
            raise CurateError(
                f"{self.op}.threshold: computed from {found['column']!r}, but `score` is {self.score!r}; name a "
                "threshold of that column"
            )
        self._least = np.float32(found["value"])

    def reads(self) -> tuple[str, ...]:
        return (self.score,)

    def schema(self) -> pa.Schema:
        metadata = places_of(self.score) | {"of": f"{self.score} minus the threshold"}
        return pa.schema([pa.field(f"{self.score}_margin", pa.list_(pa.float32()), metadata=metadata)])

    def process(self, batch: Batch) -> dict[str, Any]:
        """The sign is exact: an IEEE 754 difference is 0 for equal numbers only, because tiny ones are subnormal."""
        found = numbers_of(self.op, batch.table.column(self.score), self.score, "score")
        with np.errstate(over="ignore", invalid="ignore"):
            above = found.values.to_numpy(zero_copy_only=False) - self._least
        return {f"{self.score}_margin": found.nest(above, pa.float32())}
