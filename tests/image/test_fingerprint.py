from __future__ import annotations

import pyarrow as pa
from PIL import Image

from curate.codec.images import decode
from curate.core.contracts import Batch, Sample
from curate.image.fingerprint import Fingerprint, pixel_sha256
from tests.codec import make_images


def fingerprints(*data: bytes) -> list[dict[str, object]]:
    stage = Fingerprint()
    batch = Batch(pa.table({"key": ["0" * 32] * len(data)}), [stage.prepare(Sample(item, decode)) for item in data])
    return pa.table(stage.process(batch), schema=stage.schema()).to_pylist()


def test_other_encodings_of_the_same_pixels_have_the_same_fingerprint() -> None:
    image = make_images.noise()
    png, bmp, jpeg = (make_images.encoded(image, kind) for kind in ("PNG", "BMP", "JPEG"))
    first, second, third = fingerprints(png, bmp, jpeg)
    assert first == second
    assert first["pixel_sha256"] != third["pixel_sha256"]


def test_the_shape_enters_the_digest() -> None:
    assert pixel_sha256(Image.new("RGB", (2, 3))) != pixel_sha256(Image.new("RGB", (3, 2)))
    assert len(pixel_sha256(Image.new("RGB", (2, 3)))) == 64


def test_an_image_of_one_colour_is_flat() -> None:
    flat, busy = fingerprints(
        *(make_images.encoded(p, "PNG") for p in (Image.new("RGB", (50, 50)), make_images.noise()))
    )
    assert (flat["flat"], busy["flat"]) == (True, False)
