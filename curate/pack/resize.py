"""Encoded picture -> the same picture, no side longer than asked, in one format."""

from __future__ import annotations

import io
from typing import Any, Literal

from PIL import Image

from curate.codec.images import decode, probe

Format = Literal["webp", "jpeg", "png"]
EXTENSIONS: dict[Format, str] = {"webp": "webp", "jpeg": "jpg", "png": "png"}


def fitted(width: int, height: int, max_side: int) -> tuple[int, int]:
    """Size with the longer side at most `max_side`, aspect kept, no side below 1; never enlarged."""
    longer = max(width, height)
    if longer <= max_side:
        return width, height
    return max(1, round(width * max_side / longer)), max(1, round(height * max_side / longer))


def resize(data: bytes, max_side: int, format: Format, quality: int) -> tuple[bytes, int, int]:
    """(bytes, width, height). A picture that fits already keeps its bytes if they are plain: of this format, upright,
    8-bit grey or RGB, one frame. Otherwise Lanczos on RGB. Raises Undecodable."""
    found = probe(data)
    size = fitted(found.width, found.height, max_side)
    plain = found.mode in ("RGB", "L") and found.frames == 1 and found.orientation == 1 and not found.alpha
    if plain and found.format == format and size == (found.width, found.height):
        return data, *size
    picture = decode(data)
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    return encode(picture, format, quality), *size


def encode(picture: Image.Image, format: Format, quality: int) -> bytes:
    options: dict[str, Any] = {
        "webp": {"quality": quality, "method": 4},
        "jpeg": {"quality": quality, "subsampling": 0 if quality >= 90 else 2, "optimize": True},
        "png": {"compress_level": 6},
    }[format]
    sink = io.BytesIO()
    picture.save(sink, format=format, **options)
    return sink.getvalue()
