"""What is stored of an image, by a real runner."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from curate.acquire.download.environment import clean_environment
from curate.codec.images import decode
from tests.acquire.runner.portions import fetched
from tests.codec.make_images import encoded, gradient, grey16, noise, png, png_bomb

pytestmark = pytest.mark.usefixtures("runner_python")


def turned(format: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format == "webp" else {"quality": 95} if format in ("jpeg", "avif") else {}
    return encoded(gradient(), format, exif=exif, **options)


def rgba() -> bytes:
    image = gradient().convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return encoded(image, "png")


def deep_rgba() -> bytes:
    """16-bit PNG with transparency."""
    values = np.random.default_rng(0).integers(0, 65536, (32, 48, 4), dtype=np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png(48, 32, 16, 6, rows)


ODD = {
    **{
        f"{format} turned {orientation}": turned(format, orientation)
        for format in ("jpeg", "png", "webp", "tiff", "avif")
        for orientation in range(1, 9)
    },
    "grey, 16 bits": grey16(np.linspace(0, 65535, 48 * 32).reshape(32, 48).astype(np.uint16)),
    "RGBA, 16 bits": deep_rgba(),
    "RGBA": rgba(),
    "grey": encoded(gradient().convert("L"), "png"),
    "palette": encoded(gradient().quantize(), "png"),
    "bmp": encoded(gradient(), "bmp"),
    "jpeg2000": encoded(gradient(), "jpeg2000"),
    "animated gif": encoded(
        noise(32, 24).quantize(), "gif", save_all=True, append_images=[noise(32, 24, seed=1).quantize()]
    ),
}


def test_re_encoded_images_are_upright_and_have_the_pixels_that_we_decode() -> None:
    found = fetched(ODD, disable_all_reencoding=False, encode_format="png", encode_quality=1)
    for name, original in ODD.items():
        answer, stored = found[name]
        assert answer.code == "done", (name, answer)
        expected, image = decode(original), decode(stored)
        assert image.size == expected.size, name
        assert answer.meta == {"original_width": image.width, "original_height": image.height}
        difference = np.abs(np.asarray(image, int) - np.asarray(expected, int))
        assert difference.max() <= 3, (name, difference.max())


def test_originals_are_stored_as_they_come() -> None:
    damaged = encoded(noise(640, 480), "jpeg")
    images = {**ODD, "corrupt body": damaged[:2000] + bytes(len(damaged) - 2000)}
    found = fetched(images)
    for name, (answer, stored) in found.items():
        assert (answer.code, stored) == ("done", images[name]), name
        assert answer.meta == {}
    extensions = {name.split()[0]: answer.ext for name, (answer, _) in found.items()}
    assert {extensions[name] for name in ("jpeg", "webp", "avif", "tiff")} == {"jpg", "webp", "avif", "tif"}


@pytest.mark.parametrize("reencoding", [False, True])
def test_images_that_are_not_decoded(reencoding: bool) -> None:
    images = {
        "bomb": png_bomb(),
        "large": encoded(Image.new("RGB", (1001, 1000)), "png"),
        "fits": encoded(Image.new("RGB", (1000, 1000)), "png"),
        "header": encoded(gradient(), "png")[:20],
    }
    found = fetched(images, disable_all_reencoding=not reencoding, max_pixels=1_000_000)
    codes = {name: answer.code for name, (answer, _) in found.items()}
    assert codes == {"bomb": "too_many_pixels", "large": "too_many_pixels", "fits": "done", "header": "not_image"}
    assert found["large"][0].detail == "1001 x 1000; at most 1000000 pixels are decoded"


def test_what_the_resizer_rejects() -> None:
    images = {
        "small": encoded(gradient(63, 100), "png"),
        "large": encoded(gradient(300, 300), "png"),
        "long": encoded(gradient(301, 100), "png"),
        "fits": encoded(gradient(100, 100), "png"),
        "corrupt": encoded(noise(100, 100), "png")[:5000],
    }
    limits = {"min_image_size": 64, "max_image_area": 89_999, "max_aspect_ratio": 3}
    found = fetched(images, resize_mode="keep_ratio", image_size=64, **limits)
    assert {name: (answer.status, answer.code, answer.detail) for name, (answer, _) in found.items()} == {
        "small": ("unusable", "resize", "image too small"),
        "large": ("unusable", "resize", "image area too large"),
        "long": ("unusable", "resize", "aspect ratio too large"),
        "fits": ("done", "done", ""),
        "corrupt": ("unusable", "resize", "Image decoding error"),
    }


PLAIN = {"jpeg": encoded(noise(300, 200), "jpeg"), "png": encoded(gradient(200, 300), "png"), "RGBA": rgba()}
RESIZE = """
import io, json, os, sys
from img2dataset.resizer import Resizer
for folder, options in json.loads(sys.argv[1]).items():
    resizer = Resizer(**options)
    for name in sys.argv[2:]:
        with open(name, "rb") as file, open(os.path.join(folder, name), "wb") as out:
            out.write(resizer(io.BytesIO(file.read()))[0])
"""
RESIZED: dict[str, dict[str, object]] = {
    "border": {"downscale_interpolation": "cubic", "encode_format": "webp", "encode_quality": 80},
    "center_crop": {"resize_only_if_bigger": True, "skip_reencode": True},
    "keep_ratio": {"encode_format": "png", "encode_quality": 1},
    "keep_ratio_largest": {"upscale_interpolation": "nearest", "image_size": 240},
    "no": {"disable_all_reencoding": False},
}
"""Options by resize mode."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, runner_python: Path) -> Path:
    """What img2dataset stores: PLAIN by resize mode."""
    folder = tmp_path_factory.mktemp("alone")
    for name, image in PLAIN.items():
        (folder / name).write_bytes(image)
    for mode in RESIZED:
        (folder / mode).mkdir()
    command = [runner_python, "-I", "-c", RESIZE, json.dumps({mode: resized(mode) for mode in RESIZED}), *PLAIN]
    subprocess.run(command, cwd=folder, env=clean_environment(), check=True)
    return folder


def resized(mode: str) -> dict[str, object]:
    return {"resize_mode": mode, "image_size": 128, "resize_only_if_bigger": False, **RESIZED[mode]}


@pytest.mark.long
@pytest.mark.parametrize("mode", RESIZED)
def test_img2dataset_alone_stores_the_same(alone: Path, mode: str) -> None:
    for name, (answer, stored) in fetched(PLAIN, **resized(mode)).items():
        assert stored == (alone / mode / name).read_bytes(), name
        assert answer.ext == RESIZED[mode].get("encode_format", "jpg")
        width, height = Image.open(io.BytesIO(PLAIN[name])).size
        assert answer.meta == {"original_width": width, "original_height": height}


def test_exif_is_kept_on_demand() -> None:
    found = fetched({"turned": turned("jpeg", 6), "none": PLAIN["jpeg"]}, resize_mode="keep_ratio", extract_exif=True)
    assert json.loads(found["turned"][0].meta["exif"])["Image Orientation"] == "Rotated 90 CW"
    assert found["none"][0].meta["exif"] == "{}"
