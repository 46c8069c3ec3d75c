from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from curate.codec.formats import DECODED, exif_orientation, sniff, sniff_other, webp_size
from tests.codec import make_images


@given(st.binary(max_size=64))
def test_any_bytes_have_at_most_one_format(data: bytes) -> None:
    assert sniff(data) in (*DECODED, None)
    assert 1 <= exif_orientation(data) <= 8
    assert exif_orientation(b"Exif\0\0MM\0*\0\0\0\x08" + data) in range(1, 9)
    assert sniff_other(data) is None or sniff(data) is None


def test_svg_behind_any_number_of_comments() -> None:
    assert sniff_other(b"<?xml version='1.0'?>" + b"<!-- a -->\n" * 100 + b"<svg >") == "svg"
    assert sniff_other(b"<!---->" * 500 + b"<html>") is None  # at once, not after 2^500 steps


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("prefix", [b"", b"Exif\0\0"])
def test_orientation_is_read_in_either_byte_order(orientation: int, prefix: bytes) -> None:
    big = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0" + bytes([orientation]) + b"\0\0"
    little = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0" + bytes([orientation]) + b"\0\0\0"
    assert exif_orientation(prefix + big) == exif_orientation(prefix + little) == orientation


@pytest.mark.parametrize("options", [{"lossless": True}, {"lossless": False}, {"exif": b"MM"}])
def test_webp_sizes_equal_pillows(options: dict[str, object]) -> None:
    for mode in ("RGB", "RGBA"):
        image = Image.new(mode, (321, 77), (1, 2, 3))
        assert webp_size(make_images.encoded(image, "WEBP", **options)) == (321, 77)
