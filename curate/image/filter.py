"""`image.filter`: rejects images by size, aspect ratio, format and animation, as measured by `image.inspect`."""

from __future__ import annotations

from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from curate.codec.formats import DECODED
from curate.core.contracts import Filter, Table


class ImageFilter(Filter):
    """Reject images by size, aspect ratio, format and animation.

    Rejects: format, animated, too_small, too_large, aspect. An image that breaks several rules gets the first of these
    reasons. A null value breaks no rule.
    """

    op: ClassVar[str] = "image.filter"

    min_side: int = Field(32, ge=1, description="Shorter side in pixels below which an image is too_small.")
    max_side: int | None = Field(None, ge=1, description="Longer side in pixels above which an image is too_large.")
    max_aspect: float | None = Field(
        None, ge=1, description="Ratio of longer to shorter side above which an image is rejected as aspect."
    )
    animated: Literal["keep", "reject"] = Field(
        "keep", description="Keep or reject images of several frames; later stages see only the first frame."
    )
    formats: list[str] | None = Field(
        None, description=f"Formats to keep, out of {', '.join(DECODED)}; null keeps all."
    )

    @field_validator("formats")
    @classmethod
    def _known_formats(cls, formats: list[str] | None) -> list[str] | None:
        unknown = sorted(set(formats or ()) - set(DECODED))
        if unknown:
            raise ValueError(f"unknown format {unknown[0]!r}; choose from {', '.join(DECODED)}")
        return formats

    def reads(self) -> tuple[str, ...]:
        optional = {"format": self.formats is not None, "frames": self.animated == "reject"}
        return ("width", "height", *(name for name, used in optional.items() if used))

    def keep(self, table: Table) -> pa.ChunkedArray:
        sides = [table.column(name).cast(pa.float64()) for name in ("width", "height")]
        shorter, longer = (side(*sides, skip_nulls=False) for side in (pc.min_element_wise, pc.max_element_wise))
        rules: list[tuple[pa.ChunkedArray, str]] = []
        if self.formats is not None:
            other = pc.invert(pc.is_in(table.column("format"), pa.array(self.formats, pa.string())))
            rules.append((pc.and_(other, pc.is_valid(table.column("format"))), "format"))
        if self.animated == "reject":
            rules.append((pc.greater(table.column("frames"), 1), "animated"))
        rules.append((pc.less(shorter, self.min_side), "too_small"))
        if self.max_side is not None:
            rules.append((pc.greater(longer, self.max_side), "too_large"))
        if self.max_aspect is not None:
            rules.append((pc.greater(longer, pc.multiply(shorter, self.max_aspect)), "aspect"))
        reasons = pa.chunked_array([pa.nulls(table.num_rows, pa.string())])
        for broken, reason in reversed(rules):
            reasons = pc.if_else(pc.fill_null(broken, False), pa.scalar(reason), reasons)
        return reasons
