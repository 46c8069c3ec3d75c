"""Encoded images -> small WebP images, or the reason why there is none. Threads decode, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from curate.codec import media
from curate.codec.formats import webp_size
from curate.core.errors import Undecodable
from curate.core.view import View

CHUNK = 128
"""Images whose encoded bytes are in memory at a time."""


@dataclass(frozen=True)
class Thumbnail:
    """WebP, or why there is none: `reason` in a word or two, `detail` in one line."""

    data: bytes = b""
    width: int = 0
    height: int = 0
    reason: str = ""
    detail: str = ""


MISSING = Thumbnail(reason="no bytes", detail="The pool has no image for this row: its download or import failed.")


def thumbnail(data: bytes, pixels: int) -> Thumbnail:
    """At most `pixels` on the longer side; never enlarged."""
    try:
        small = media.DEFAULT.thumbnail(data, pixels)
    except Undecodable as error:
        return Thumbnail(reason=error.reason.replace("_", " "), detail=_separated(error.detail))
    return Thumbnail(small, *webp_size(small))


def _separated(text: str) -> str:
    """`at most 100000000 pixels` with thousands separators."""
    return re.sub(r"\b\d{5,}\b", lambda found: f"{int(found[0]):,}", text)


def thumbnails(view: View, keys: Iterable[str], pixels: int, threads: int) -> dict[str, Thumbnail]:
    """A thumbnail per key; images without bytes get MISSING."""
    found: dict[str, Thumbnail] = {}
    with ThreadPoolExecutor(threads) as pool:
        for chunk in _chunks(dict.fromkeys(keys), CHUNK):
            images = view.images(chunk)
            present = [key for key in chunk if key in images]
            small = pool.map(lambda data: thumbnail(data, pixels), [images[key] for key in present])
            found |= dict.fromkeys(chunk, MISSING) | dict(zip(present, small, strict=True))
    return found


def _chunks(keys: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(keys)
    while chunk := list(islice(rest, size)):
        yield chunk
