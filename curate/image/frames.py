"""`image.frames`: turns frames of animations and pages of TIFF files into samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from curate.codec.frames import MOST_FRAMES, MOST_PIXELS, frames
from curate.codec.images import MAX_PIXELS
from curate.core.contracts import Added, Child, Derive, Sample


class Frames(Derive):
    """Turn each frame of a GIF, WebP, APNG or AVIF, and each page of a TIFF, into a PNG sample as a viewer shows it.

    Spans: {"frame": number, "start": seconds, "stop": seconds}, {"page": number}; {"frame": 0} for an image with a
    single frame, which keeps its bytes. Rejects a parent as frame_bomb, or with the codec's empty, not_an_image,
    unsupported, truncated, corrupt, too_many_pixels, metadata_bomb. One bad frame rejects the whole parent.
    """

    op: ClassVar[str] = "image.frames"
    child_kind: ClassVar[str] = "frame"

    bytes: Annotated[Literal["stored", "virtual"], Added()] = Field(
        "stored",
        description="stored: each frame as a PNG in the pool. virtual: extracted from its animation whenever a stage "
        "reads it, which costs no space and decodes the animation again.",
    )
    every: int = Field(1, ge=1, description="Take every n-th frame or page, starting with the first.")
    most: int | None = Field(
        None, ge=1, description="Maximum number of frames per image, spread evenly over those that `every` selects."
    )
    stills: Literal["keep", "skip"] = Field(
        "keep", description="Keep an image with a single frame as a sample with its original bytes, or skip it."
    )
    max_pixels: int = Field(
        MAX_PIXELS, ge=1, description="Width x height of a frame above which an image is too_many_pixels."
    )
    most_pixels: int = Field(
        MOST_PIXELS,
        ge=1,
        description="Total pixels of all frames above which an image is a frame_bomb, checked before decoding; an "
        f"image of more than {MOST_FRAMES:,} frames always is.",
    )

    @property
    def virtual(self) -> bool:
        return self.bytes == "virtual"

    def children(self, sample: Sample) -> Iterator[Child]:
        limits = self.max_pixels, self.most_pixels
        for frame in frames(sample.data, self.every, self.most, *limits, encode=not self.virtual):
            if frame.count > 1 or self.stills == "keep":
                yield Child(frame.span, frame.data, frame.ext, {"frames": frame.count}, frame.probe)
