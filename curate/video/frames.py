"""`video.frames`: turns frames of videos into samples, so that all stages for images work on them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import ClassVar, Literal

from PIL import Image
from pydantic import Field

from curate.codec.video.limited import frames
from curate.codec.video.times import duration_of, times_ms
from curate.core.contracts import Child, Derive, Sample


class Frames(Derive):
    """Turn frames of each video or clip into images: those that a player shows at some times.

    Spans: {"time_ms": when the frame begins}; a frame that is shown at several of the times is one sample, and keeps
    its key when other times are asked for. A header that overstates the duration gives fewer frames, and without one a
    parent is rejected as no_duration: put `video.look` before, which measures it. Rejects with the codec's reasons too.
    """

    op: ClassVar[str] = "video.frames"
    child_kind: ClassVar[str] = "frame"
    sees: ClassVar[tuple[str, ...]] = ("video",)

    frames: int = Field(
        8, ge=1, le=10_000, description="Number of frames, at the middles of as many equal parts of the video."
    )
    every_seconds: float | None = Field(
        None,
        ge=0.001,
        le=86_400,
        description="Seconds per frame, if that gives at most `frames`.",
    )
    short_side: int | None = Field(
        512, ge=1, description="Shorter side in pixels; smaller frames are not enlarged. null: as large as the video."
    )
    format: Literal["jpeg", "png"] = Field("jpeg", description="Format of the images.")
    quality: int = Field(92, ge=1, le=100, description="Quality of a JPEG; a PNG has none.")

    def reads(self) -> tuple[str, ...]:
        return ("duration_ms",)

    def children(self, sample: Sample) -> Iterator[Child]:
        every_ms = None if self.every_seconds is None else round(self.every_seconds * 1000)
        last = None
        times = times_ms(duration_of(sample.reader, sample.row), self.frames, every_ms)
        for frame in frames(sample.reader, times, self.short_side):
            if frame.ms != last:
                data = self._encoded(Image.fromarray(frame.rgb))
                ext = "jpg" if self.format == "jpeg" else "png"
                yield Child({"time_ms": frame.ms}, data, ext, {"damaged": frame.corrupt})
            last = frame.ms

    def _encoded(self, image: Image.Image) -> bytes:
        sink = io.BytesIO()
        image.save(sink, self.format, quality=self.quality)
        return sink.getvalue()
