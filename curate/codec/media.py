"""The media that samples may be of. A medium is a codec; the engine finds it here, and imports no medium itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curate.codec import formats, frames, images
from curate.codec.frames import Frame
from curate.codec.video import containers, limited
from curate.core.errors import InputError, Reject, Undecodable, did_you_mean
from curate.core.reader import Reader, as_reader

Encoded = bytes | Reader
"""A sample's bytes, or what reads them."""


@dataclass(frozen=True)
class Medium:
    """What can be done with an encoded sample. All functions but `sniff` raise Undecodable with one of `reasons`."""

    name: str
    version: int
    """Increases when the same bytes decode to other pixels; what stages saw of the medium is then recomputed."""
    reasons: Mapping[str, str]
    """Reject reasons, with their meaning."""
    foreign: str
    """The reason for a sample of another medium."""
    sniff: Callable[[bytes], str | None]
    """The format, from the first bytes; None if they are of another medium."""
    probe: Callable[[Encoded], Any]
    """Properties from the header, named like the columns of a pool: `width`, `height`, `format`, `frames` …"""
    open: Callable[..., Any]
    """(encoded, max_pixels) -> what stages see: for an image, its pixels; for a video, its reader, of which
    curate.codec.video.limited decodes what is asked for."""
    frames: Callable[[Encoded, Sequence[float]], Iterator[Frame]]
    """The frame that is shown at each of the times (seconds, ascending)."""
    extract: Callable[[Encoded, Sequence[dict[str, Any]]], Iterator[Encoded | Reject]]
    """The bytes of the parts with these spans (ascending, at least one), the same each time; or why one has none."""
    thumbnail: Callable[[Encoded, int], bytes]
    """A WebP, given the maximum of its longer side in pixels."""
    film: Callable[[Encoded, int, int], bytes] | None = None
    """The same of a number of frames side by side, over the whole time; None if it does not move."""


MOST_IMAGE_BYTES = 1 << 30


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of bytes, for readers too, which are read whole."""

    def of_reader(encoded: Encoded, *given: Any, **more: Any) -> Any:
        reader = as_reader(encoded)
        if reader.size > MOST_IMAGE_BYTES:
            raise Undecodable("too_many_bytes", f"{reader.size:,} bytes; at most {MOST_IMAGE_BYTES:,} are read")
        return function(reader.bytes(), *given, **more)

    return of_reader


MEDIA = {
    medium.name: medium
    for medium in (
        Medium(
            name="image",
            version=1,
            reasons=frames.REASONS | {"too_many_bytes": "a file of over 1 GiB, which is not read into memory"},
            foreign="not_an_image",
            sniff=formats.sniff,
            probe=images.probe,
            open=_whole(images.decode),
            frames=_whole(frames.shown),
            extract=_whole(frames.extract),
            thumbnail=_whole(images.thumbnail),
        ),
        Medium(
            name="video",
            version=1,
            reasons=limited.REASONS,
            foreign="not_a_video",
            sniff=containers.sniff,
            probe=limited.probe,
            open=lambda encoded, max_pixels=None: as_reader(encoded),
            frames=limited.shown,
            extract=limited.extracted,
            thumbnail=limited.thumbnail,
            film=limited.thumbnail,
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


def sniffed(encoded: Encoded, among: Sequence[str]) -> Medium:
    """The first of these media that knows the format; if none does, the first."""
    return _sniffed(as_reader(encoded).read_at(0, formats.SNIFF_BYTES), among) or of(among[0])


def _sniffed(head: bytes, among: Iterable[str]) -> Medium | None:
    return next((medium for medium in map(of, among) if medium.sniff(head)), None)


def extension_of(encoded: Encoded, among: Sequence[str]) -> str | None:
    """Usual file name extension of what the first bytes say; None if they are of none of these media."""
    head = as_reader(encoded).read_at(0, formats.SNIFF_BYTES)
    found = next(filter(None, (of(name).sniff(head) for name in among)), None)
    return found and (formats.EXTENSION_OF | containers.EXTENSION_OF).get(found, found)


def opener(encoded: Encoded, among: Sequence[str]) -> Callable[..., Any]:
    """What opens a sample for a stage that sees these media. Raises Undecodable if it is of another medium, of which
    nothing but the first bytes is read: a film would not fit into memory as an image does."""
    head = as_reader(encoded).read_at(0, formats.SNIFF_BYTES)
    medium, other = _sniffed(head, among), _sniffed(head, MEDIA)
    if medium is None and other is not None:
        raise Undecodable(of(among[0]).foreign, f"it is of the medium {other.name}")
    return (medium or of(among[0])).open
