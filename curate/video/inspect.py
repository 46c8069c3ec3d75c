"""`video.inspect`: what a video's header and its first frame say, and its subtitles."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import pyarrow as pa
from pydantic import Field

from curate.codec.video.containers import CONTAINERS, Probe
from curate.codec.video.limited import inspect
from curate.core.contracts import Batch, Map, Runtime, Sample

SCHEMA = pa.schema(
    [
        pa.field("format", pa.string(), metadata={"values": " ".join(CONTAINERS)}),
        pa.field("codec", pa.string(), metadata={"source": "FFmpeg's name"}),
        pa.field("pixels", pa.string(), metadata={"source": "FFmpeg's name of the pixel format"}),
        pa.field("rotation", pa.int16(), metadata={"unit": "degrees counterclockwise, that make it upright"}),
        pa.field("aspect", pa.float32(), metadata={"unit": "width / height", "of": "the upright first frame"}),
        pa.field("fps", pa.float64(), metadata={"of": "the header"}),
        pa.field("has_audio", pa.bool_()),
        pa.field("subtitles", pa.string(), metadata={"of": "a soft subtitle track; null: there is none"}),
    ]
)


class Inspect(Map):
    """Read each video's header, decode its first frame, and write its form and its subtitles.

    What a header says may be wrong: that the rest decodes, and how large and long a video is, is known after
    `video.look`, which writes width, height, duration_ms and frames. The values of the header are columns of a pool
    of videos, which `filter.where` may use before anything is decoded. `subtitles` is text by strangers, like a
    caption: clean it with `text.clean`, `column: subtitles`. Unusable: the codec's reasons.
    """

    op: ClassVar[str] = "video.inspect"
    sees: ClassVar[tuple[str, ...]] = ("video",)
    pixels: ClassVar[bool] = True

    subtitles: bool = Field(
        True, description="Read a soft subtitle track, if there is one; in Matroska that reads the whole file."
    )
    languages: tuple[str, ...] = Field(
        (),
        description="Languages of which the first track is read, as headers name them: German may be deu, ger or de. "
        "Without any: the first track.",
    )
    max_text: int = Field(100_000, ge=1, le=10_000_000, description="Characters of subtitles after which they are cut.")
    threads: Annotated[int, Runtime(), Field(ge=1, description="Videos read at a time.")] = 2

    def schema(self) -> pa.Schema:
        return SCHEMA

    def prepare(self, sample: Sample) -> tuple[Probe, str | None]:
        return inspect(sample.reader, self.max_text if self.subtitles else 0, self.languages)

    def process(self, batch: Batch) -> dict[str, Any]:
        found: list[tuple[Probe, str | None]] = batch.prepared
        taken = {name: [getattr(probe, name, None) for probe, _ in found] for name in SCHEMA.names}
        return taken | {
            "aspect": [probe.width / probe.height for probe, _ in found],
            "subtitles": [text for _, text in found],
        }
