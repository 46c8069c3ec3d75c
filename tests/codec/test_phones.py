"""What phones and cameras write: HEIF, JPEG XL, MPO and colours of a wide gamut."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pylibjxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from curate.codec import frames, images, limited
from curate.codec.formats import jxl_image, sniff
from curate.core.errors import Reject, Undecodable
from curate.pack.images import resize
from tests.codec import make_images

DATA = Path(__file__).parent / "data"
HEIC = (DATA / "corners.heic").read_bytes()
"""64 x 48: red, green, blue and yellow, from left to right, top row first."""
ROTATED = (DATA / "corners-rotated.heic").read_bytes()
"""The same, to be turned by 90 degrees clockwise."""
JXL = pylibjxl.encode(np.asarray(make_images.gradient()), lossless=True)


def corners(image: Image.Image) -> list[str]:
    names = {(255, 0, 0): "red", (0, 255, 0): "green", (0, 0, 255): "blue", (255, 255, 0): "yellow"}
    width, height = image.size
    places = ((5, 5), (width - 5, 5), (5, height - 5), (width - 5, height - 5))
    pixels = (image.getpixel(place) for place in places)
    return [min(names.items(), key=lambda item: abs(np.subtract(item[0], pixel)).sum())[1] for pixel in pixels]


def test_heif_is_decoded_upright_in_a_child() -> None:
    found = images.probe(HEIC)
    assert (found.width, found.height, found.format, found.frames, found.alpha) == (64, 48, "heif", 1, False)
    assert corners(images.decode(HEIC)) == ["red", "green", "blue", "yellow"]
    assert images.probe(ROTATED).width == 48
    assert corners(images.decode(ROTATED)) == ["blue", "red", "yellow", "green"]
    assert isinstance(limited.thumbnail(ROTATED, 32), bytes)
    assert next(frames.frames(HEIC)).data == HEIC


def test_a_decoder_of_heif_that_dies_rejects_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "MEMORY_BYTES", 1 << 20)
    with pytest.raises(Undecodable) as caught:
        images.decode(HEIC)
    assert caught.value.reason == "decoder_died"


def test_a_large_heif_arrives_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = images.decode(HEIC, here=True).tobytes()
    payload = b'{"max_pixels": 10000, "srgb": false}\n' + HEIC
    monkeypatch.setattr(limited, "PART_BYTES", 1000)
    first, *parts = limited.pixels(payload, None)  # type: ignore[arg-type]
    assert first == b"done\n64 48"
    assert len(parts) == 10 and b"".join(parts) == whole


def test_too_many_pixels_are_not_decoded() -> None:
    for data in (HEIC, JXL):
        with pytest.raises(Undecodable) as caught:
            images.decode(data, max_pixels=100)
        assert caught.value.reason == "too_many_pixels"


def test_jpeg_xl_is_decoded() -> None:
    found = images.probe(JXL)
    assert (found.width, found.height, found.format, found.frames) == (48, 32, "jxl", 1)
    assert images.decode(JXL).tobytes() == make_images.gradient().tobytes()
    alpha = np.zeros((8, 8, 4), np.uint8)
    data = pylibjxl.encode(alpha, lossless=True)
    assert images.probe(data).alpha
    assert images.decode(data).getpixel((0, 0)) == (255, 255, 255)
    grey = pylibjxl.encode(np.full((8, 8, 1), 77, np.uint8), lossless=True)
    assert images.decode(grey).getpixel((0, 0)) == (77, 77, 77)


def test_a_jpeg_that_became_jpeg_xl_keeps_its_pixels() -> None:
    jpeg = make_images.encoded(make_images.gradient(), "JPEG", quality=95)
    difference = np.subtract(images.decode(pylibjxl.jpeg_to_jxl(jpeg)), images.decode(jpeg), dtype=int)
    assert abs(difference).max() <= 3


@given(cut=st.floats(0, 0.999), place=st.floats(0, 0.999), byte=st.integers(0, 255), whole=st.booleans())
@pytest.mark.parametrize("data", [HEIC, JXL], ids=["heif", "jxl"])
def test_a_damaged_file_is_decoded_or_has_a_reason(
    data: bytes, cut: float, place: float, byte: int, whole: bool
) -> None:
    changed = bytearray(data if whole else data[: int(cut * len(data))])
    if changed:
        changed[int(place * len(changed))] = byte
    for function in (images.probe, images.decode):
        reason = ""
        try:
            function(bytes(changed))
        except Reject as error:
            reason = error.reason
        assert not reason or reason in limited.REASONS


def test_an_mpo_is_its_first_image() -> None:
    sink = io.BytesIO()
    first, second = make_images.gradient(), make_images.noise(48, 32)
    first.save(sink, "MPO", save_all=True, append_images=[second])
    found = images.probe(sink.getvalue())
    assert (found.format, found.frames, found.width) == ("jpeg", 1, 48)


# --- colours ---------------------------------------------------------------------------------------------------


def display_p3() -> bytes:
    """An ICC profile (version 2) of Display P3's primaries, adapted to D50, with a gamma of 2.2 (ICC.1:2001-04)."""

    def number(value: float) -> bytes:
        return struct.pack(">i", round(value * 65536))

    def xyz(*values: float) -> bytes:
        return b"XYZ \0\0\0\0" + b"".join(map(number, values))

    text = b"Display P3\0"
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", len(text)) + text + bytes(78),
        b"wtpt": xyz(0.9642, 1.0, 0.8249),
        b"rXYZ": xyz(0.51512, 0.24120, -0.00105),
        b"gXYZ": xyz(0.29198, 0.69225, 0.04189),
        b"bXYZ": xyz(0.15710, 0.06657, 0.78407),
        **{name: b"curv\0\0\0\0\0\0\0\1" + struct.pack(">H", round(2.2 * 256)) for name in (b"rTRC", b"gTRC", b"bTRC")},
    }
    table, body = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for name, data in tags.items():
        padded = data + bytes(-len(data) % 4)
        table += name + struct.pack(">II", start + len(body), len(data))
        body += padded
    size = start + len(body)
    white = b"".join(map(number, (0.9642, 1.0, 0.8249)))
    head = struct.pack(">I4sI4s4s4s12s4s", size, bytes(4), 0x02100000, b"mntr", b"RGB ", b"XYZ ", bytes(12), b"acsp")
    return (head + bytes(28) + white + bytes(48)) + table + body


P3 = display_p3()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_a_resized_image_is_srgb(kind: str) -> None:
    """Red of Display P3 is outside of sRGB; a moderate orange is inside, where other numbers mean the same colour."""
    orange = Image.new("RGB", (32, 32), (200, 120, 60))
    options = {"quality": 100} if kind in ("JPEG", "AVIF") else {"lossless": True} if kind == "WEBP" else {}
    sink = io.BytesIO()
    orange.save(sink, kind, icc_profile=P3, **options)
    kept, *_ = resize(sink.getvalue(), 32, "png", 90)
    found = np.asarray(images.decode(kept), int)[16, 16]
    assert abs(found - expected((200, 120, 60))).max() <= 3
    assert abs(np.asarray(images.decode(sink.getvalue()), int)[16, 16] - (200, 120, 60)).max() <= 3


def expected(pixel: tuple[int, int, int]) -> np.ndarray:
    """The sRGB values of a pixel of the profile, by its own arithmetic: gamma, primaries, and sRGB's curve."""
    linear = (np.array(pixel) / 255) ** 2.2
    p3 = np.array([[0.51512, 0.29198, 0.15710], [0.24120, 0.69225, 0.06657], [-0.00105, 0.04189, 0.78407]])
    srgb = np.array([[0.43607, 0.38515, 0.14307], [0.22249, 0.71687, 0.06061], [0.01392, 0.09708, 0.71410]])
    values = np.clip(np.linalg.solve(srgb, p3 @ linear), 0, 1)
    curved = np.where(values <= 0.0031308, 12.92 * values, 1.055 * values ** (1 / 2.4) - 0.055)
    return np.rint(255 * curved).astype(int)


def test_a_plain_image_keeps_its_bytes_only_if_it_is_srgb() -> None:
    orange, sink = Image.new("RGB", (32, 32), (200, 120, 60)), io.BytesIO()
    orange.save(sink, "PNG", icc_profile=P3)
    assert resize(sink.getvalue(), 32, "png", 90)[0] != sink.getvalue()
    own = io.BytesIO()
    orange.save(own, "PNG", icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    assert resize(own.getvalue(), 32, "png", 90)[0] == own.getvalue()


@given(st.binary(max_size=200) | st.integers(0, len(P3)).map(lambda size: P3[:size]))
def test_a_broken_profile_changes_nothing(profile: bytes) -> None:
    sink = io.BytesIO()
    make_images.gradient().save(sink, "PNG", icc_profile=profile)
    assert images.decode(sink.getvalue(), srgb=True).size == (48, 32)


@pytest.mark.parametrize("data", [HEIC, JXL])
def test_the_first_bytes_tell(data: bytes) -> None:
    assert sniff(data[:32]) in ("heif", "jxl")
    assert sniff(b"x" + data[:32]) is None


def in_boxes(**boxes: bytes) -> bytes:
    kinds = {"JXL ": b"\r\n\x87\n", "ftyp": b"jxl \0\0\0\0jxl "} | boxes
    return b"".join(struct.pack(">I4s", len(data) + 8, kind.encode()) + data for kind, data in kinds.items())


def test_metadata_of_jpeg_xl_are_not_expanded() -> None:
    """A box of brotli may hold gigabytes in a kilobyte; this one is not even brotli."""
    data = in_boxes(jxlc=JXL, brob=b"Exif" + bytes(99), Exif=bytes(99))
    assert jxl_image(data) == in_boxes(jxlc=JXL)
    assert images.decode(data).tobytes() == make_images.gradient().tobytes()


@given(st.binary(max_size=60))
def test_boxes_of_any_size_end(data: bytes) -> None:
    assert len(jxl_image(in_boxes() + data)) <= len(in_boxes() + data)
