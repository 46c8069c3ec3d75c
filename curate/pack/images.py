"""Members of an image in the dataset: its bytes as they are, or resized."""

from __future__ import annotations

import io
import re
from typing import Any, Literal

from PIL import Image

from curate.codec.images import decode, has_profile, probe
from curate.core.errors import Undecodable
from curate.core.reader import Reader

Format = Literal["webp", "jpeg", "png"]

_EXTENSION = re.compile(r"[a-z0-9]{1,8}")
_USUAL_EXTENSIONS = {
    "jpeg": ("jpg", "jpeg", "jpe", "jfif"),
    "tiff": ("tif", "tiff"),
    "jpeg2000": ("jp2", "j2k", "jpx", "j2c"),
    "heif": ("heic", "heif", "hif"),
}


def extension_of(given: str, format: str | None) -> str:
    """The source's extension if it is usual for the format, else the format's usual one: readers rely on it."""
    usual = _USUAL_EXTENSIONS.get(format, (format,)) if format else ()
    ext = given.lower()
    if _EXTENSION.fullmatch(ext) and (not usual or ext in usual):
        return ext
    return usual[0] if usual else "bin"


def facts_of(width: int | None, height: int | None, format: str | None, sha256: str) -> dict[str, Any]:
    return {"width": width, "height": height, "format": format, "sha256": sha256}


def size_of(data: Reader) -> tuple[int | None, int | None]:
    try:
        found = probe(data)
    except Undecodable:
        return None, None
    return found.width, found.height


EXTENSIONS: dict[Format, str] = {"webp": "webp", "jpeg": "jpg", "png": "png"}


def fitted_size(width: int, height: int, max_side: int) -> tuple[int, int]:
    """Size with the longer side at most `max_side`, no side below 1 and the aspect ratio kept; never enlarged."""
    longer = max(width, height)
    if longer <= max_side:
        return width, height
    return max(1, round(width * max_side / longer)), max(1, round(height * max_side / longer))


def resize(data: bytes, max_side: int, format: Format, quality: int) -> tuple[bytes, int, int]:
    """(bytes, width, height) of the resized image. Raises Undecodable.

    An image that already fits keeps its bytes if they are plain: of this format, upright, 8-bit grey or sRGB, a frame.
    Others are converted to sRGB by their embedded profile, if any, and resized with a Lanczos filter.
    """
    found = probe(data)
    size = fitted_size(found.width, found.height, max_side)
    plain = found.mode in ("RGB", "L") and found.frames == 1 and found.orientation == 1 and not found.alpha
    if plain and found.format == format and size == (found.width, found.height) and not has_profile(data):
        return data, *size
    image = decode(data, srgb=True)
    if image.size != size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    return encode(image, format, quality), *size


def encode(image: Image.Image, format: Format, quality: int) -> bytes:
    options: dict[str, Any] = {
        "webp": {"quality": quality, "method": 4},
        "jpeg": {"quality": quality, "subsampling": 0 if quality >= 90 else 2, "optimize": True},
        "png": {"compress_level": 6},
    }[format]
    sink = io.BytesIO()
    image.save(sink, format=format, **options)
    return sink.getvalue()
