"""`image.inspect`: decodes each image and writes its size and form; `image.filter` rejects images by these."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import Field

from curate.codec.formats import DECODED
from curate.codec.images import MAX_PIXELS, Probe, probe
from curate.core.contracts import Batch, Map, Runtime, Sample
from curate.core.errors import Undecodable

SCHEMA = pa.schema(
    [
        pa.field("width", pa.int32(), metadata={"unit": "pixels", "of": "the upright image"}),
        pa.field("height", pa.int32(), metadata={"unit": "pixels", "of": "the upright image"}),
        pa.field("aspect", pa.float32(), metadata={"unit": "width / height"}),
        pa.field("format", pa.string(), metadata={"values": " ".join(DECODED)}),
        pa.field("frames", pa.int32()),
        pa.field("orientation", pa.int8(), metadata={"source": "EXIF 0x0112, 1 where absent"}),
        pa.field("mode", pa.string(), metadata={"source": "Pillow's mode as stored"}),
        pa.field("has_alpha", pa.bool_()),
    ]
)


class Inspect(Map):
    """Decode every image once, since a valid header does not imply valid pixels, and write its size and form.

    Unusable: too_many_pixels, and the codec's empty, not_an_image, unsupported, truncated, corrupt, metadata_bomb.
    """

    op: ClassVar[str] = "image.inspect"
    version: ClassVar[int] = 2
    pixels: ClassVar[bool] = True

    max_pixels: int = Field(
        MAX_PIXELS,
        ge=1,
        description="Width x height above which an image is too_many_pixels; checked in the header before decoding.",
    )
    threads: Annotated[int, Runtime(), Field(ge=1, description="Decoding threads.")] = 2

    def schema(self) -> pa.Schema:
        return SCHEMA

    def prepare(self, sample: Sample) -> Probe:
        found = probe(sample.reader)
        if found.width * found.height > self.max_pixels:
            raise Undecodable("too_many_pixels", f"{found.width} x {found.height}; at most {self.max_pixels}")
        sample.image(self.max_pixels)
        return found

    def process(self, batch: Batch) -> dict[str, Any]:
        probes: list[Probe] = batch.prepared
        return {
            "width": [found.width for found in probes],
            "height": [found.height for found in probes],
            "aspect": [found.width / found.height for found in probes],
            "format": [found.format for found in probes],
            "frames": [found.frames for found in probes],
            "orientation": [found.orientation for found in probes],
            "mode": [found.mode for found in probes],
            "has_alpha": [found.alpha for found in probes],
        }
