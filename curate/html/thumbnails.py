"""Images and videos -> small WebP images, or the reason why there is none. Threads decode, in bounded memory."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from curate.codec import media
from curate.codec.formats import webp_size
from curate.core.errors import Reject
from curate.core.reader import Reader
from curate.core.view import View


@dataclass(frozen=True)
class Thumbnail:
    """WebP, or why there is none: `reason` in a word or two, `detail` in one line."""

    data: bytes = b""
    width: int = 0
    height: int = 0
    frames: int = 1
    """Frames side by side, each of this width."""
    reason: str = ""
    detail: str = ""


MISSING = Thumbnail(reason="no bytes", detail="The pool has no bytes for this row: its download or import failed.")


def thumbnail(data: bytes | Reader | Reject, pixels: int, frames: int = 1) -> Thumbnail:
    """At most `pixels` on the longer side; never enlarged. frames: of a video; an image has one."""
    try:
        if isinstance(data, Reject):
            raise data
        medium = media.sniffed(data, tuple(media.MEDIA))
        film = medium.film if frames > 1 else None
        small = medium.thumbnail(data, pixels) if film is None else film(data, pixels, frames)
    except Reject as error:
        return Thumbnail(reason=error.reason.replace("_", " "), detail=_separated(error.detail))
    width, height = webp_size(small)
    return Thumbnail(small, width, height) if film is None else Thumbnail(small, width // frames, height, frames)


def _separated(text: str) -> str:
    """`at most 100000000 pixels` with thousands separators."""
    return re.sub(r"\b\d{5,}\b", lambda found: f"{int(found[0]):,}", text)


def thumbnails(view: View, keys: Iterable[str], pixels: int, threads: int, frames: int = 1) -> dict[str, Thumbnail]:
    """A thumbnail per key, of `frames` frames for a video; samples without bytes get MISSING."""
    found = dict.fromkeys(keys, MISSING)
    waiting: deque[tuple[str, Future[Thumbnail]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for key, data in view.images(list(found)):
            waiting.append((key, pool.submit(thumbnail, data, pixels, frames)))
            if len(waiting) > 2 * threads:  # whose bytes are in memory
                done, small = waiting.popleft()
                found[done] = small.result()
    return found | {key: small.result() for key, small in waiting}
