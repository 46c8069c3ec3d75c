from __future__ import annotations

import pickle
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from curate.codec.images import REASONS, decode, probe
from curate.core.errors import Undecodable
from tests.codec import make_images

WHITE = (255, 255, 255)
FORMATS = {
    "jpeg": ("JPEG", {}),
    "png": ("PNG", {}),
    "gif": ("GIF", {}),
    "webp": ("WEBP", {"lossless": True}),
    "avif": ("AVIF", {"quality": 90}),
    "bmp": ("BMP", {}),
    "tiff": ("TIFF", {"compression": "tiff_lzw"}),
    "jpeg2000": ("JPEG2000", {}),
}


def attempt(data: bytes) -> bytes | str:
    """Pixels, or the reject reason."""
    try:
        return decode(data, max_pixels=1 << 20).tobytes()
    except Undecodable as error:
        return error.reason


def reason(data: bytes, **options: int) -> str:
    with pytest.raises(Undecodable) as caught:
        decode(data, **options)
    assert caught.value.reason in REASONS
    assert "\n" not in str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_probed_and_decoded(name: str) -> None:
    kind, options = FORMATS[name]
    data = make_images.encoded(make_images.gradient(), kind, **options)
    found = probe(data)
    assert (found.width, found.height, found.format, found.frames, found.orientation) == (48, 32, name, 1, 1)
    decoded = decode(data)
    assert (decoded.mode, decoded.size) == ("RGB", (48, 32))
    difference = np.abs(np.asarray(decoded, int) - np.asarray(make_images.gradient(), int))
    assert difference.mean() < 6


@pytest.mark.parametrize("name", FORMATS)
def test_an_incomplete_file_is_truncated(name: str) -> None:
    kind, options = FORMATS[name]
    data = make_images.encoded(make_images.noise(), kind, **options)
    found = reason(data[: len(data) * 2 // 3])
    assert found == "truncated" or (name in ("jpeg2000", "tiff", "avif") and found == "corrupt")


@pytest.mark.parametrize("name", FORMATS)
def test_a_header_without_pixels_is_rejected(name: str) -> None:
    kind, options = FORMATS[name]
    data = make_images.encoded(make_images.noise(), kind, **options)
    assert reason(data[:20]) in ("truncated", "corrupt", "not_an_image")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "empty"),
        (b"this is text named .jpg", "not_an_image"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "not_an_image"),
        (bytes(4096), "not_an_image"),
        (b'<?xml version="1.0"?>\n<!-- x -->\n<svg xmlns="http://www.w3.org/2000/svg"/>', "unsupported"),
        (b"%PDF-1.7", "unsupported"),
        (b"\x00\x00\x00\x18ftypheic\0\0\0\0mif1heic", "corrupt"),
        (b"P6 1 1 255 abc", "unsupported"),
        (b"\xff\xd8\xff" + b"rubbish" * 100 + b"\xff\xd9", "corrupt"),
    ],
)
def test_other_files_are_rejected_with_a_reason(data: bytes, expected: str) -> None:
    assert reason(data) == expected
    with pytest.raises(Undecodable) as caught:
        probe(data)
    assert caught.value.reason == expected


def test_bombs_are_rejected_before_decoding() -> None:
    data = make_images.png_bomb()
    assert (probe(data).width, probe(data).height) == (50_000, 50_000)
    tracemalloc.start()
    assert reason(data) == "too_many_pixels"
    assert reason(make_images.webp_header(16_000, 16_000)) == "too_many_pixels"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP"])
def test_metadata_bombs_are_rejected(kind: bytes) -> None:
    assert reason(make_images.text_bomb(kind)) == "metadata_bomb"


def test_the_limit_is_exact_and_may_exceed_pillows() -> None:
    data = make_images.encoded(make_images.gradient(48, 32), "PNG")
    assert decode(data, max_pixels=48 * 32).size == (48, 32)
    assert reason(data, max_pixels=48 * 32 - 1) == "too_many_pixels"
    wide = make_images.encoded(Image.new("1", (20_000, 9_000)), "PNG")  # 180 megapixels, twice Pillow's limit
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert (probe(wide).width, reason(wide)) == (20_000, "too_many_pixels")
    assert seen == []


def test_pillows_settings_are_unchanged() -> None:
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    decode(make_images.encoded(make_images.gradient(), "PNG"))
    reason(make_images.png_bomb())
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_images_are_upright(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = make_images.encoded(make_images.gradient(), kind, exif=exif)
    found, decoded = probe(data), decode(data)
    assert (found.width, found.height) == decoded.size == ((32, 48) if orientation >= 5 else (48, 32))
    assert found.orientation == orientation
    # red grows to the right of the stored image, green downwards
    stored = {1: "rb", 2: "lb", 3: "lt", 4: "rt", 5: "br", 6: "bl", 7: "tl", 8: "tr"}[orientation]
    values = np.asarray(decoded, int)
    sides = {"l": values[:, 0], "r": values[:, -1], "t": values[0], "b": values[-1]}
    for channel, side in enumerate(stored):
        assert sides[side][..., channel].mean() > 240


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(
    ("enough", "given"), [((200, 100), 1), ((40, 30), 4), ((51, 30), 2), ((48, 50), 2), ((1, 1), 8)]
)
def test_a_jpeg_may_be_decoded_smaller_but_not_too_small(orientation: int, enough: tuple[int, int], given: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = make_images.gradient(200, 120)
    data = make_images.encoded(stored, "JPEG", exif=exif, quality=95)
    turned = (120, 200) if orientation == 6 else (200, 120)
    asked: list[tuple[int, int]] = []
    wanted = enough[::-1] if orientation == 6 else enough
    decoded = decode(data, enough=lambda *size: asked.append(size) or wanted)
    assert asked == [turned]
    assert decoded.size == tuple(side // given for side in turned)
    whole = decode(data).resize(decoded.size, Image.Resampling.BICUBIC)
    assert np.abs(np.asarray(decoded, int) - np.asarray(whole, int)).mean() < 3
    other = make_images.encoded(stored, "PNG")
    assert decode(other, enough=lambda *_: (1, 1)).size == (200, 120)


def test_corrupt_exif_is_ignored() -> None:
    data = make_images.encoded(make_images.gradient(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12")
    assert probe(data).orientation == 1
    assert decode(data).size == (48, 32)


def test_transparency_is_composited_over_white() -> None:
    rgba = Image.new("RGBA", (4, 1), (255, 0, 0, 255))
    rgba.putpixel((1, 0), (0, 0, 0, 0))
    rgba.putpixel((2, 0), (0, 0, 0, 128))
    for kind in ("PNG", "WEBP", "TIFF"):
        data = make_images.encoded(rgba, kind, **({"lossless": True} if kind == "WEBP" else {}))
        decoded = decode(data)
        assert probe(data).alpha
        assert [decoded.getpixel((x, 0)) for x in range(3)] == [(255, 0, 0), WHITE, (127, 127, 127)]


@pytest.mark.parametrize("transparency", [1, bytes([255, 0])])
def test_a_transparent_palette_entry_is_white(transparency: int | bytes) -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([200, 10, 10, 0, 0, 0])
    palette.putpixel((1, 0), 1)
    data = make_images.encoded(palette, "PNG", transparency=transparency)
    assert probe(data).mode == "P"
    assert [decode(data).getpixel((x, 0)) for x in range(2)] == [(200, 10, 10), WHITE]


def test_grey_with_a_transparent_value() -> None:
    grey = Image.new("L", (2, 1), 90)
    grey.putpixel((1, 0), 7)
    data = make_images.encoded(grey, "PNG", transparency=7)
    assert [decode(data).getpixel((x, 0)) for x in range(2)] == [(90, 90, 90), WHITE]


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    values = np.array([[0, 257, 32896, 65535, 300]], dtype=np.uint16)
    assert [pixel[0] for pixel in np.asarray(decode(make_images.grey16(values)))[0]] == [0, 1, 128, 255, 1]
    rows = b"\0" + np.array([0, 0x8000, 0xFFFF], dtype=">u2").tobytes()
    assert decode(make_images.png(1, 1, 16, 2, rows)).getpixel((0, 0)) == (0, 128, 255)


def test_cmyk_becomes_rgb() -> None:
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    data = make_images.encoded(cmyk, "JPEG", quality=95)
    assert probe(data).mode == "CMYK"
    red, green, blue = decode(data).getpixel((8, 8))
    assert red > 240
    assert max(green, blue) < 15


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue", "green")]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        options = {"lossless": True} if kind == "WEBP" else {}
        data = make_images.encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert probe(data).frames == 3
        assert decode(data).getpixel((4, 4)) == (255, 0, 0)


def test_one_pixel() -> None:
    data = make_images.encoded(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG")
    assert (probe(data).width, probe(data).height) == (1, 1)
    assert decode(data).getpixel((0, 0)) == (1, 2, 3)


def test_decoded_images_have_no_metadata() -> None:
    assert decode(make_images.encoded(make_images.gradient(), "JPEG", comment=b"hello", dpi=(300, 300))).info == {}


def test_reasons_survive_pickling() -> None:
    with pytest.raises(Undecodable) as caught:
        decode(b"")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.reason, copy.detail) == ("empty", "0 bytes")


def test_threads_give_the_same_results() -> None:
    data = [make_images.encoded(make_images.noise(seed=seed), "PNG") for seed in range(16)]
    data += [make_images.png_bomb(), b"text"]

    alone = [attempt(item) for item in data]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(attempt, data * 8)) == alone * 8


ENCODED = [make_images.encoded(make_images.noise(24, 24), kind, **options) for kind, options in FORMATS.values()]


@settings(max_examples=150)
@given(st.sampled_from(ENCODED), st.lists(st.tuples(st.floats(0, 0.999), st.binary(max_size=4)), max_size=6))
def test_damage_gives_an_image_or_a_reason(data: bytes, damage: list[tuple[float, bytes]]) -> None:
    damaged = bytearray(data)
    for place, patch in damage:
        start = int(place * len(damaged))
        damaged[start : start + len(patch)] = patch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = attempt(bytes(damaged))
    assert isinstance(outcome, bytes) or outcome in REASONS
