"""`image.appearance`: sharpness, saturation and main colours of images, for `filter.where` and for search by words."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from PIL import Image, ImageStat
from pydantic import Field

from curate.codec.images import MAX_PIXELS
from curate.core.contracts import Batch, Map, Runtime, Sample

SIDE = 1024
"""Larger images are scaled down to this longer side, so that sharpness does not depend on the camera's resolution."""
SCHEMA = pa.schema(
    [
        pa.field("sharpness", pa.float32(), metadata={"of": f"variance of luma's Laplacian, up to {SIDE} pixels wide"}),
        pa.field("saturation", pa.float32(), metadata={"of": "mean of HSV's saturation: 0 is grey, 1 is pure colours"}),
        pa.field("colours", pa.list_(pa.string()), metadata={"of": "colours of the middle, the most frequent first"}),
    ]
)


HUES = {"red": 12, "orange": 40, "yellow": 66, "green": 165, "blue": 260, "purple": 310, "pink": 345}
"""Colour -> degrees of hue below which it is, and not below the one before; from 345 it is red again."""
COLOURS = (*HUES, "brown", "black", "grey", "white")
LEAST_SHARE, THUMBNAIL = 0.15, 64
"""Share of the middle that a colour must have, of pixels of an image scaled to a square."""


class Appearance(Map):
    """Measure each image's sharpness and saturation, and name its main colours.

    Sharpness and saturation depend on what an image shows: a sharp sky has little detail, and noise counts as detail.
    Choose a threshold by looking at images around it. Colours are those of at least 15 % of the middle of the image,
    three quarters of its width and height. Unusable: images that cannot be decoded.
    """

    op: ClassVar[str] = "image.appearance"
    version: ClassVar[int] = 2
    pixels: ClassVar[bool] = True

    max_pixels: int = Field(MAX_PIXELS, ge=1, description="Width x height above which an image is not decoded.")
    threads: Annotated[int, Runtime(), Field(ge=1, description="Decoding threads.")] = 2

    def schema(self) -> pa.Schema:
        return SCHEMA

    def prepare(self, sample: Sample) -> tuple[float, float, list[str]]:
        image = sample.image(self.max_pixels)
        scale = SIDE / max(image.size)
        if scale < 1:
            width, height = (max(1, round(side * scale)) for side in image.size)
            image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
        return sharpness(image), saturation(image), colours(image)

    def process(self, batch: Batch) -> dict[str, Any]:
        return {name: [row[index] for row in batch.prepared] for index, name in enumerate(SCHEMA.names)}


def sharpness(image: Image.Image) -> float:
    """Variance of the Laplacian of luma, 0 to 255, over the pixels with four neighbours (Pech-Pacheco et al. 2000)."""
    luma = np.asarray(image.convert("L"), dtype=np.int16)
    inner = luma[1:-1, 1:-1]
    laplacian = luma[:-2, 1:-1] + luma[2:, 1:-1] + luma[1:-1, :-2] + luma[1:-1, 2:] - 4 * inner
    return float(laplacian.var()) if inner.size else 0.0


def saturation(image: Image.Image) -> float:
    """Mean of (max - min) / max over the colours of each pixel; black counts as grey."""
    return float(ImageStat.Stat(image.convert("HSV").getchannel("S")).mean[0] / 255)


def colours(image: Image.Image) -> list[str]:
    """Colours of the middle, the most frequent first: at most six."""
    width, height = image.size
    box = width / 8, height / 8, width * 7 / 8, height * 7 / 8
    small = image.convert("RGB").resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX, box=box, reducing_gap=2.0)
    hue, grey, value = np.moveaxis(np.asarray(small.convert("HSV"), np.float32), -1, 0) * [[[360]], [[1]], [[1]]] / 255
    found = np.digitize(hue, list(HUES.values())) % len(HUES)
    found[(hue >= 12) & (hue < 45) & (value < 0.6)] = COLOURS.index("brown")
    pale = grey < np.where(value > 0.8, 0.12, 0.2)
    found[pale] = np.where(value > 0.8, COLOURS.index("white"), COLOURS.index("grey"))[pale]
    found[value < 0.2] = COLOURS.index("black")
    counts = np.bincount(found.ravel(), minlength=len(COLOURS))
    order = np.argsort(-counts, kind="stable")
    return [COLOURS[number] for number in order[counts[order] >= LEAST_SHARE * found.size]]
