"""`image.appearance`: how sharp and how colourful images are, for `filter.where` to reject blurred or grey photos."""

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
    ]
)


class Appearance(Map):
    """Measure each image's sharpness and saturation.

    Both depend on what an image shows: a sharp sky has little detail, and noise counts as detail. Choose a threshold by
    looking at images around it. Unusable: images that cannot be decoded.
    """

    op: ClassVar[str] = "image.appearance"
    pixels: ClassVar[bool] = True

    max_pixels: int = Field(MAX_PIXELS, ge=1, description="Width x height above which an image is not decoded.")
    threads: Annotated[int, Runtime(), Field(ge=1, description="Decoding threads.")] = 2

    def schema(self) -> pa.Schema:
        return SCHEMA

    def prepare(self, sample: Sample) -> tuple[float, float]:
        image = sample.image(self.max_pixels)
        scale = SIDE / max(image.size)
        if scale < 1:
            width, height = (max(1, round(side * scale)) for side in image.size)
            image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
        return sharpness(image), saturation(image)

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
