"""Images as endpoints get them: at most a given side, as JPEG without metadata, in base64."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import numpy as np
from PIL.Image import Resampling
from simplejpeg import encode_jpeg

from curate.caption.chat import EncodedImage

if TYPE_CHECKING:
    from PIL.Image import Image


def encode(image: Image, side: int, quality: int) -> EncodedImage:
    """An RGB image, reduced so that its longer side is at most `side` pixels. The pixels decide the bytes."""
    width, height = image.size
    scale = side / max(width, height)
    if scale < 1:
        size = max(1, round(width * scale)), max(1, round(height * scale))
        image = image.resize(size, Resampling.BICUBIC, reducing_gap=2.0)
    data = encode_jpeg(np.ascontiguousarray(image), quality=quality, colorspace="RGB", colorsubsampling="420")
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return EncodedImage(digest, base64.b64encode(data), len(data), *image.size)
