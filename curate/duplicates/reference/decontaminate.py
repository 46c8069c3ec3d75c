"""`duplicates.decontaminate`: keeps images of an evaluation set, and near copies of them, out of the training set."""

from __future__ import annotations

from typing import Annotated, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from curate.core.contracts import Filter, Table
from curate.core.errors import CurateError
from curate.duplicates.reference.match import KINDS, Kind


class Decontaminate(Filter):
    """Reject images that match the reference set of `duplicates.match`, all of them or only close matches.

    Rejects: contaminated.
    """

    op: ClassVar[str] = "duplicates.decontaminate"
    version: ClassVar[int] = 2

    column: str = Field(
        "contamination", pattern=r"^[a-z][a-z0-9_]*$", description="`column` of the `duplicates.match` stage to use."
    )
    kinds: Annotated[list[Kind], Field(min_length=1)] = Field(
        list(KINDS), description="Kinds of matches to reject; an image may match in several ways."
    )
    near: float | None = Field(
        None, ge=0, le=1, description="Minimum share of equal bits of a near match; null counts all matches found."
    )
    semantic: float | None = Field(
        None, ge=-1, le=1, description="Minimum cosine of a semantic match; null counts all matches found."
    )

    def reads(self) -> tuple[str, ...]:
        return tuple(f"{self.column}_{'kind' if kind == 'exact' else kind}" for kind in KINDS)

    def keep(self, table: Table) -> pa.ChunkedArray:
        """Raises CurateError if a threshold is below the search limit of `duplicates.match`."""
        hits = {"exact": pc.equal(table.column(f"{self.column}_kind"), "exact")}
        for kind, least in (("near", self.near), ("semantic", self.semantic)):
            similarity = table.column(f"{self.column}_{kind}")
            hits[kind] = pc.is_valid(similarity)
            if least is not None:
                self._check_searched(kind, least, table.schema.field(f"{self.column}_{kind}"))
                hits[kind] = pc.greater_equal(similarity, pa.scalar(least, pa.float32()))
        found = pa.chunked_array([pa.repeat(False, table.num_rows)])
        for kind in self.kinds:
            found = pc.or_(found, pc.fill_null(hits[kind], False))
        return pc.if_else(found, pa.scalar("contaminated"), pa.scalar(None, pa.string()))

    def _check_searched(self, kind: str, least: float, field: pa.Field) -> None:
        searched = (field.metadata or {}).get(b"least", b"-1").decode()
        if searched != "none" and least >= float(searched) - 1e-6:
            return
        limit = "compared none" if searched == "none" else f"searched only for {searched} and above"
        remedy = {"near": "raise its `max_distance`", "semantic": "name its `embedding` and raise its `eps`"}[kind]
        raise CurateError(
            f"{self.op}.{kind}: {least:g}, but its `duplicates.match` {limit}; {remedy}, or set this to null"
        )
