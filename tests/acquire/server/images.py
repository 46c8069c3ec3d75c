"""The images that the test server serves."""

from __future__ import annotations

import numpy as np
from PIL import Image

from tests.codec.make_images import encoded, grey16, noise

JPEG = encoded(noise(96, 64), "jpeg")
OTHER_JPEG = encoded(noise(96, 64, seed=1), "jpeg")
HTML = b"<!DOCTYPE html><html><body>Image not found</body></html>"
SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"/>'


def _rotated() -> bytes:
    """96 x 64 pixels as stored, to be shown as 64 x 96."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(noise(96, 64), "jpeg", exif=exif)


def _animated() -> bytes:
    first, *others = (noise(32, 24, seed=seed) for seed in range(3))
    return encoded(first, "gif", save_all=True, append_images=others, duration=50)


EXIF_JPEG = _rotated()
PNG_16 = grey16(np.linspace(0, 65535, 48 * 32).reshape(32, 48).astype(np.uint16))
ANIMATED_GIF = _animated()
