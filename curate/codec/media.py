"""The media that samples may be of. A medium is a codec; the engine finds it here, and imports no medium itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curate.codec import formats, frames, images
from curate.codec.formats import SNIFF_BYTES as SNIFF_BYTES
from curate.codec.frames import Frame
from curate.core.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Medium:
    """What can be done with a sample's bytes. All functions but `sniff` raise Undecodable with one of `reasons`."""

    name: str
    version: int
    """Increases when the same bytes decode to other pixels; what stages saw of the medium is then recomputed."""
    reasons: Mapping[str, str]
    """Reject reasons, with their meaning."""
    sniff: Callable[[bytes], str | None]
    """The format, from the first bytes; None if they are of another medium."""
    probe: Callable[[bytes], Any]
    """Properties from the header, named like the columns of a pool: `width`, `height`, `format`, `frames` …"""
    open: Callable[..., Any]
    """(data, max_pixels) -> what stages see: for an image, its pixels."""
    frames: Callable[[bytes, Sequence[float]], Iterator[Frame]]
    """The frame that is shown at each of the times (seconds, ascending)."""
    extract: Callable[[bytes, dict[str, Any]], bytes]
    """The bytes of the part with a span, the same each time."""
    thumbnail: Callable[[bytes, int], bytes]
    """A WebP, given the maximum of its longer side in pixels."""


MEDIA = {
    medium.name: medium
    for medium in (
        Medium(
            name="image",
            version=1,
            reasons=frames.REASONS,
            sniff=formats.sniff,
            probe=images.probe,
            open=images.decode,
            frames=frames.shown,
            extract=frames.extract,
            thumbnail=images.thumbnail,
        ),
    )
}
DEFAULT = MEDIA["image"]
"""The medium of a sample whose column `media` is null."""


def of(name: str) -> Medium:
    if name not in MEDIA:
        hint = did_you_mean(name, MEDIA, f"expected one of {', '.join(MEDIA)}")
        raise InputError(f"{name}: not a medium; {hint}")
    return MEDIA[name]


def sniffed(data: bytes, among: Sequence[str]) -> Medium:
    """The first of these media that knows the format of the bytes; if none does, the first."""
    known = [of(name) for name in among]
    return next((medium for medium in known if medium.sniff(data)), known[0])


def sniffs(data: bytes, among: Sequence[str]) -> bool:
    """Whether one of these media knows the format of the bytes."""
    return sniffed(data, among).sniff(data) is not None
