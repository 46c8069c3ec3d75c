from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageDraw
from scipy.fft import dctn

from curate.codec.images import decode
from curate.kernels import perceptual
from curate.kernels.perceptual import HASH_BYTES, inner_box, perceptual_hash


def distance(a: Image.Image, b: Image.Image) -> int:
    first, second = (np.frombuffer(perceptual_hash(image)[0], np.uint8) for image in (a, b))
    return int(np.bitwise_count(first ^ second).sum())


def blobs(seed: int = 0, size: tuple[int, int] = (300, 200)) -> Image.Image:
    """Twenty random coloured ellipses: edges, colours and no symmetry."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(rng.integers(0, 256, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for _ in range(20):
        x, y, w, h = rng.random(4) * (*size, size[0] / 2, size[1] / 2)
        draw.ellipse((x - w / 2, y - h / 2, x + w / 2, y + h / 2), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


def recompressed(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return decode(buffer.getvalue())


def test_coefficients_equal_an_orthonormal_dct() -> None:
    plane = np.random.default_rng(0).random((64, 64)) * 255
    expected = dctn(plane, norm="ortho")[:20, :20].ravel()[perceptual._ORDER]
    assert np.allclose(perceptual._low_frequencies(plane), expected)
    assert perceptual._ORDER[0] == 0
    assert perceptual._ORDER[: perceptual._LUMA_BITS + 1].max() < 20 * 20


@pytest.mark.parametrize("seed", range(8))
def test_copies_are_near_and_other_images_far(seed: int) -> None:
    image = blobs(seed)
    assert distance(image, image.resize((150, 100), Image.Resampling.LANCZOS)) <= 6
    assert distance(image, image.resize((900, 600), Image.Resampling.BICUBIC)) <= 6
    assert distance(image, recompressed(image, 70)) <= 6
    assert distance(image, recompressed(image, 20)) <= 16
    assert distance(image, blobs(seed + 100)) > 60
    assert distance(image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)) > 40


def test_colour_and_aspect_ratio_change_the_hash() -> None:
    image = blobs(3)
    red, green, blue = image.split()
    assert distance(image, Image.merge("RGB", (blue, green, red))) > 12
    assert distance(image, image.resize((300, 400))) >= 4


@pytest.mark.parametrize("bar", ["black", (20, 20, 20), "white"])
def test_letterboxes_do_not_change_the_hash(bar: str | tuple[int, int, int]) -> None:
    image = blobs(5, (320, 180))
    letterboxed = Image.new("RGB", (320, 240), bar)
    letterboxed.paste(image, (0, 30))
    pillarboxed = Image.new("RGB", (400, 180), bar)
    pillarboxed.paste(image, (40, 0))
    assert distance(image, letterboxed) <= 10
    assert distance(image, pillarboxed) <= 10


def test_the_white_margin_of_a_drawing_is_kept() -> None:
    drawing = Image.new("RGB", (128, 128), "white")
    ImageDraw.Draw(drawing).ellipse((40, 40, 90, 90), fill="navy")
    assert inner_box(np.asarray(drawing)) == (0, 0, 128, 128)


def test_a_single_bar_is_not_a_letterbox() -> None:
    pixels = np.full((128, 128, 3), 200, dtype=np.uint8)
    pixels[:40] = 0
    assert inner_box(pixels) == (0, 0, 128, 128)
    pixels[-20:] = 0
    assert inner_box(pixels) == (0, 40, 128, 108)


def test_images_without_detail_are_flat() -> None:
    stripes = Image.new("RGB", (90, 60), "red")
    ImageDraw.Draw(stripes).rectangle((0, 20, 90, 40), fill="white")
    for image in (Image.new("RGB", (80, 40), "teal"), Image.new("RGB", (1, 1)), stripes):
        digest, flat = perceptual_hash(image)
        assert (len(digest), flat) == (HASH_BYTES, True)
    assert not perceptual_hash(blobs())[1]


@pytest.mark.parametrize("size", [(1, 400), (400, 1), (2, 3), (3000, 2000)])
def test_any_size_has_a_hash(size: tuple[int, int]) -> None:
    assert len(perceptual_hash(Image.new("RGB", size, "olive"))[0]) == HASH_BYTES


def test_photographs_are_far_apart_and_near_their_copies(data: Path) -> None:
    images = pq.read_table(data / "imagenet-sample-1000.parquet", columns=["image"]).column("image")[:60].to_pylist()
    photos = [decode(item["bytes"] if isinstance(item, dict) else item) for item in images]
    copies = [recompressed(photo.resize((photo.width * 2 // 3, photo.height * 2 // 3)), 50) for photo in photos]
    hashes, others = (
        np.array([np.frombuffer(perceptual_hash(image)[0], np.uint64) for image in group]) for group in (photos, copies)
    )
    distances = np.bitwise_count(hashes[:, None] ^ others[None]).sum(axis=2)
    own = np.diag(distances)
    assert np.median(own) <= 3
    assert own.max() <= 16
    assert distances[~np.eye(60, dtype=bool)].min() > 48
