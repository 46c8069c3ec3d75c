from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from curate.caption.image import encode


@pytest.mark.parametrize(
    ("size", "sent"),
    [((60, 40), (60, 40)), ((1000, 500), (512, 256)), ((300, 1200), (128, 512)), ((5000, 2), (2048, 1))],
)
def test_images_are_reduced_never_enlarged(size: tuple[int, int], sent: tuple[int, int]) -> None:
    found = encode(Image.new("RGB", size, "red"), 512, 90)
    data = base64.b64decode(found.base64)
    image = Image.open(io.BytesIO(data))
    assert image.format == "JPEG"
    assert image.size == sent == (found.width, found.height)
    assert len(data) == found.bytes
    assert "exif" not in image.info


@pytest.mark.parametrize(
    ("size", "sent"),
    [
        ((2400, 80), (840, 28)),
        ((1000, 500), (512, 256)),
        ((60, 10), (60, 28)),
        ((5000, 2), (2048, 28)),
        ((3, 3), (28, 28)),
    ],
)
def test_thin_images_keep_a_smallest_side(size: tuple[int, int], sent: tuple[int, int]) -> None:
    found = encode(Image.new("RGB", size, "red"), 512, 90, 28)
    assert (found.width, found.height) == sent


def test_equal_pixels_are_equal_requests() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (700, 900, 3), np.uint8)
    one, two = (encode(Image.fromarray(pixels), 512, 90) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != encode(Image.fromarray(255 - pixels), 512, 90)
    assert one != encode(Image.fromarray(pixels), 512, 80)
    assert abs(np.asarray(Image.open(io.BytesIO(base64.b64decode(one.base64)))).mean() - pixels.mean()) < 3
