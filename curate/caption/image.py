"""Images as endpoints get them: of a size that they bear, as JPEG without metadata, in base64."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import numpy as np
from PIL.Image import Resampling, new
from simplejpeg import encode_jpeg

from curate.caption.chat import EncodedImage

if TYPE_CHECKING:
    from PIL.Image import Image


LONGEST = 4
"""How many times longer than others a thin image may stay, before it is padded."""


def encode(image: Image, side: int, quality: int, least: int = 1) -> EncodedImage:
    """An RGB image, reduced so that its longer side is at most `side` pixels, but its shorter side not below `least`:
    some servers fall at thinner ones. A very thin image is padded with white. The pixels decide the bytes."""
    width, height = image.size
    longer, shorter = max(width, height), min(width, height)
    scale = max(side / longer, min(least / shorter, LONGEST * side / longer))
    if scale < 1:
        size = max(1, round(width * scale)), max(1, round(height * scale))
        image = image.resize(size, Resampling.BICUBIC, reducing_gap=2.0)
    if min(image.size) < least:
        padded = new("RGB", (max(image.width, least), max(image.height, least)), (255, 255, 255))
        padded.paste(image, ((padded.width - image.width) // 2, (padded.height - image.height) // 2))
        image = padded
    data = encode_jpeg(np.ascontiguousarray(image), quality=quality, colorspace="RGB", colorsubsampling="420")
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return EncodedImage(digest, base64.b64encode(data), len(data), *image.size)
