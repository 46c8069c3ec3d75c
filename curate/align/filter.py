"""`align.filter`: texts that say too little of what their picture shows are left out, pictures without any are refused.

Xray's ViSE keeps pairs from a cosine of 0.25 on; DataComp (section 3.4) the best 30 % of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PrivateAttr

from curate.align.scores import scores_of
from curate.align.threshold import KIND
from curate.core.contracts import Artifact, Batch, Map
from curate.core.errors import CurateError
from curate.core.items import PER_ITEM, texts_of


class Filter(Map):
    """Keep the texts whose score is at or above a threshold, each in its place; null where one is not.

    `threshold` is a number (Xray's is 0.25) or the name of an `align.threshold` stage. Scores are compared as float32;
    null and NaN never pass. Counts items_kept and items_refused. Rejects: no_text (a row without any), dissimilar (no
    text of a row passes).
    """

    op: ClassVar[str] = "align.filter"
    ports: ClassVar[dict[str, str]] = {"threshold": KIND}
    optional_ports: ClassVar[tuple[str, ...]] = ("threshold",)
    batch_rows: ClassVar[int] = 4096

    threshold: float | None = Field(
        None, allow_inf_nan=False, description="Score from which a text is kept; or the stage that finds it."
    )
    column: str = Field("text", description="Column of texts: one a row, or a list (`sentences`).")
    score: str = Field("similarity", description="Column with a score for each of these texts, or one for each row.")
    output: str = Field(
        "aligned", pattern=r"^[a-z][a-z0-9_]*$", description="Name of the column of texts kept, a list for each row."
    )

    _least: float = PrivateAttr()

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.column, self.score)))

    def writes(self) -> tuple[str, ...]:
        return (self.output,)

    def schema(self) -> pa.Schema:
        metadata = {**PER_ITEM, "of": f"{self.column} with a {self.score} of at least {self._least:.9g}"}
        return pa.schema([pa.field(self.output, pa.list_(pa.string()), metadata=metadata)])

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError without a threshold, with two, or with that of another score."""
        found = artifacts["threshold"]["threshold"] if "threshold" in artifacts else None
        if (found is None) == (self.threshold is None):
            given = "none" if found is None else f"{self.threshold} and a stage's {found['value']:.4g}"
            raise CurateError(f"{self.op}.threshold: {given} given; give a number, or name an `align.threshold` stage")
        if found is not None and found["column"] != self.score:
            raise CurateError(
                f"{self.op}.threshold: is one of {found['column']!r}, but the score here is {self.score!r}; name the "
                "threshold of this score"
            )
        self._least = float(self.threshold if found is None else found["value"])  # type: ignore[arg-type]

    def process(self, batch: Batch) -> dict[str, Any]:
        table = batch.table
        items = texts_of(self.op, table.column(self.column), self.column)
        scores = scores_of(self.op, items, table.column(self.score), self.score, table.column("key"))
        with np.errstate(over="ignore"):
            passes = scores >= np.float32(self._least)
        kept = pc.if_else(pa.array(passes), items.values, pa.scalar(None, items.values.type))
        batch.counters.update({"items_kept": int(passes.sum()), "items_refused": int((~passes).sum())})
        some, good = (np.bincount(rows, minlength=len(batch)) > 0 for rows in (items.row, items.row[passes]))
        reject = np.where(good, None, np.where(some, "dissimilar", "no_text"))
        return {self.output: items.nest(kept, pa.string()), "reject": reject.tolist()}
