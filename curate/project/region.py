"""`project.region`: keeps or rejects the rows in a region drawn on a map."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, Field

from curate.core.contracts import Filter, Table
from curate.core.errors import CurateError
from curate.kernels.region import corners_of, inside


class InRegion(Filter):
    """Keep the rows inside a polygon on the map of `project.place`, or those outside.

    Rejects: `reason`; `reason` + _null if the row has no place.
    """

    op: ClassVar[str] = "project.region"

    polygon: Annotated[list[tuple[float, float]], AfterValidator(corners_of)] = Field(
        description="Corners in order, 3 to 200: [[0, 0], [4, 0], [4, 3]]. Sides may cross: the even-odd rule."
    )
    side: Literal["inside", "outside"] = Field("inside", description="Which rows to keep.")
    column: str = Field("map", description="Start of the names of the two columns: map for map_x and map_y.")
    map: str | None = Field(
        None, description="Version of the map that the polygon was drawn on. On another map the run fails."
    )
    reason: str = Field("region", pattern="^[a-z][a-z0-9_]*$", description="Reject reason: not_a_photo.")

    def reads(self) -> tuple[str, ...]:
        return f"{self.column}_x", f"{self.column}_y"

    def keep(self, table: Table) -> pa.Array:
        """Raises CurateError if the rows were placed on another map."""
        field = table.schema.field(f"{self.column}_x")
        found = (field.metadata or {}).get(b"map", b"").decode()
        if self.map is not None and found not in ("", self.map):
            remedy = "draw the region again on the map of this run, or leave `map` out"
            raise CurateError(f"{self.op}.map: drawn on map {self.map}, but the rows are placed on {found}; {remedy}")
        x, y = (table.column(name).combine_chunks() for name in self.reads())
        values = (np.asarray(column.to_numpy(zero_copy_only=False), np.float64) for column in (x, y))
        kept = pa.array(inside(self.polygon, *values) == (self.side == "inside"))
        reasons = pc.if_else(kept, pa.scalar(None, pa.string()), self.reason)
        missing = pc.or_(pc.is_null(x), pc.is_null(y))
        return pc.if_else(missing, f"{self.reason}_null", reasons)
