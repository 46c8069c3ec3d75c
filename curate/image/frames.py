"""`image.frames`: frames of animations and pages of TIFF files become samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from curate.codec.frames import MOST_FRAMES, MOST_PIXELS, frames
from curate.codec.images import MAX_PIXELS
from curate.core.contracts import Child, Derive, Sample


class Frames(Derive):
    """A sample for each frame of a GIF, WebP, APNG or AVIF, and for each page of a TIFF: a PNG of what a viewer shows.

    Spans: {"frame": number, "start": seconds, "stop": seconds}, {"page": number}; {"frame": 0} of an image with a
    single frame, which keeps its own bytes. Rejects a parent as frame_bomb, and with the codec's empty, not_an_image,
    unsupported, truncated, corrupt, too_many_pixels, metadata_bomb: one bad frame costs them all.
    """

    op: ClassVar[str] = "image.frames"
    child_kind: ClassVar[str] = "frame"

    every: int = Field(1, ge=1, description="Each n-th frame or page becomes a sample, from the first on.")
    most: int | None = Field(
        None, ge=1, description="Most frames of an image, spread evenly over those that `every` leaves."
    )
    stills: Literal["keep", "skip"] = Field(
        "keep", description="Whether an image with a single frame becomes a sample too, with its own bytes."
    )
    max_pixels: int = Field(
        MAX_PIXELS, ge=1, description="Width x height of a frame above which an image is too_many_pixels."
    )
    most_pixels: int = Field(
        MOST_PIXELS,
        ge=1,
        description="Pixels of all frames together above which an image is a frame_bomb, before decoding; one of more "
        f"than {MOST_FRAMES:,} frames always is.",
    )

    def children(self, sample: Sample) -> Iterator[Child]:
        for frame in frames(sample.data, self.every, self.most, self.max_pixels, self.most_pixels):
            if frame.count > 1 or self.stills == "keep":
                yield Child(frame.span, frame.data, frame.ext, {"frames": frame.count})
