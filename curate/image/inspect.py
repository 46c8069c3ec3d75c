"""`image.inspect`: can the picture be decoded, how large is it, and does it pass the pool's rules of size and form?

Rules are looked up in the header first, so that a picture they refuse costs no decoding; its facts stay in the columns
beside the reason. What cannot be decoded at all is refused with the codec's reason (curate.codec.images.REASONS).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, field_validator

from curate.codec.formats import DECODED
from curate.codec.images import MAX_PIXELS, Probe, probe
from curate.core.contracts import Batch, Map, Runtime, Sample
from curate.core.errors import Undecodable

SCHEMA = pa.schema(
    [
        pa.field("width", pa.int32(), metadata={"unit": "pixels", "of": "the upright picture"}),
        pa.field("height", pa.int32(), metadata={"unit": "pixels", "of": "the upright picture"}),
        pa.field("aspect", pa.float32(), metadata={"unit": "width / height"}),
        pa.field("format", pa.string(), metadata={"values": " ".join(DECODED)}),
        pa.field("frames", pa.int32()),
        pa.field("orientation", pa.int8(), metadata={"source": "EXIF 0x0112, 1 where absent"}),
        pa.field("mode", pa.string(), metadata={"source": "Pillow's mode as stored"}),
        pa.field("has_alpha", pa.bool_()),
    ]
)


class Inspect(Map):
    """Decode every picture once; write its size and form; refuse what breaks a rule.

    Rejects: too_small, too_large, too_many_pixels, aspect, animated, format, and the codec's empty, not_an_image,
    unsupported, truncated, corrupt, metadata_bomb.
    """

    op: ClassVar[str] = "image.inspect"
    pixels: ClassVar[bool] = True

    min_side: int = Field(32, ge=1, description="Shorter side in pixels below which a picture is too_small.")
    max_side: int | None = Field(None, ge=1, description="Longer side in pixels above which a picture is too_large.")
    max_pixels: int = Field(
        MAX_PIXELS, ge=1, description="Width x height above which a picture is too_many_pixels, before decoding."
    )
    max_aspect: float | None = Field(
        None, ge=1, description="Longer over shorter side above which a picture is rejected as aspect."
    )
    animated: Literal["keep", "reject"] = Field(
        "keep", description="What happens to pictures of several frames; kept ones are represented by their first."
    )
    formats: list[str] | None = Field(None, description=f"Formats to keep, out of {', '.join(DECODED)}; all when null.")
    threads: Annotated[int, Runtime(), Field(ge=1, description="Decoding threads.")] = 2

    @field_validator("formats")
    @classmethod
    def _known_formats(cls, formats: list[str] | None) -> list[str] | None:
        unknown = sorted(set(formats or ()) - set(DECODED))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not decoded here; choose from {', '.join(DECODED)}")
        return formats

    def writes(self) -> tuple[str, ...]:
        return tuple(SCHEMA.names)

    def schema(self) -> pa.Schema:
        return SCHEMA

    def prepare(self, sample: Sample) -> tuple[Probe, str | None]:
        found = probe(sample.data)
        if found.width * found.height > self.max_pixels:
            raise Undecodable("too_many_pixels", f"{found.width} x {found.height}; at most {self.max_pixels}")
        reason = self._broken_rule(found)
        if reason is None:
            sample.image(self.max_pixels)
        return found, reason

    def _broken_rule(self, found: Probe) -> str | None:
        shorter, longer = sorted((found.width, found.height))
        rules = {
            "format": self.formats is not None and found.format not in self.formats,
            "animated": self.animated == "reject" and found.frames > 1,
            "too_small": shorter < self.min_side,
            "too_large": self.max_side is not None and longer > self.max_side,
            "aspect": self.max_aspect is not None and longer > self.max_aspect * shorter,
        }
        return next((reason for reason, broken in rules.items() if broken), None)

    def process(self, batch: Batch) -> dict[str, Any]:
        probes: list[Probe] = [found for found, _ in batch.prepared]
        return {
            "width": [found.width for found in probes],
            "height": [found.height for found in probes],
            "aspect": [found.width / found.height for found in probes],
            "format": [found.format for found in probes],
            "frames": [found.frames for found in probes],
            "orientation": [found.orientation for found in probes],
            "mode": [found.mode for found in probes],
            "has_alpha": [found.alpha for found in probes],
            "reject": [reason for _, reason in batch.prepared],
        }
