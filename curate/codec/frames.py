"""Extracts frames of animations and pages of TIFF files, each as the bytes of a separate image.

A frame is the image that a viewer shows; Pillow applies earlier frames, disposal and blending. A frame depends on
earlier frames, so `frames` decodes from the first frame to the last selected one, and `extract` does the same and
yields the same bytes. Frames are counted before any is decoded, because a few kilobytes can encode thousands of large
frames.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from PIL import Image
from PIL.ImageFile import ImageFile

from curate.codec import images, pixels
from curate.codec.formats import EXTENSION_OF
from curate.codec.images import MAX_PIXELS, Probe
from curate.codec.pixels import has_alpha, upright
from curate.core.errors import Undecodable
from curate.core.reader import Reader

MOST_PIXELS = 4_000_000_000
MOST_FRAMES = 20_000
ANIMATED = ("gif", "webp", "png", "avif")
REASONS = images.REASONS | {
    "frame_bomb": f"all frames together have more pixels than allowed, or there are over {MOST_FRAMES:,}; none was "
    "decoded"
}
"""All reject reasons of `frames` and `extract`, with their meaning."""


@dataclass(frozen=True)
class Frame:
    span: dict[str, Any]
    """{"frame": number, "start": seconds, "stop": seconds} of an animation, {"page": number} of a TIFF, {"frame": 0} of
    an image with a single frame. Numbers start at 0."""
    data: bytes | None
    """A PNG; the original bytes if the file has a single frame; None if it is not encoded."""
    ext: str
    count: int
    """Number of frames of the file."""
    probe: Probe | None = None
    """What `probe` would find in the bytes of the frame, if anything; set if it is not encoded."""


@dataclass(frozen=True)
class FrameCount:
    """Format and number of frames, from the headers."""

    format: str
    count: int
    first: int
    """Pillow's number of the first frame: 1 in an APNG whose default image is not part of the animation."""


def survey(data: bytes, max_pixels: int = MAX_PIXELS, most_pixels: int = MOST_PIXELS) -> FrameCount:
    """Count the frames without decoding them. Raises Undecodable, also if a frame has more than `max_pixels` or all
    frames together have more than `most_pixels`."""
    name = images._known_format(data)
    if name in images.LIMITED:
        found = images.probe(data)
        images._check_size((found.width, found.height), max_pixels)
        return FrameCount(name, 1, 0)
    try:
        image = images._open(name, data, max_pixels)
        if name == "tiff":
            count, area, first = *_pages(image, max_pixels, most_pixels), 0
        else:
            first = int(getattr(image, "default_image", False))
            count = getattr(image, "n_frames", 1) - first if name in ANIMATED else 1
            area = count * image.width * image.height
            if name == "gif" and count == 1:  # without a frame count, a truncated GIF looks like a still
                image.load()
    except Exception as error:  # noqa: BLE001 - the sample boundary
        raise images._undecodable(name, Reader(data), error) from None
    if count > 1 and (area > most_pixels or count > MOST_FRAMES):
        allowed = f"at most {most_pixels:,} pixels and {MOST_FRAMES:,} frames are decoded"
        raise Undecodable("frame_bomb", f"{count:,} frames of {area:,} pixels; {allowed}")
    return FrameCount(name, max(count, 1), first)


def _pages(image: ImageFile, max_pixels: int, most_pixels: int) -> tuple[int, int]:
    """(number of pages, their pixels). Pages differ in size, so the count stops above the limit."""
    count = area = 0
    while count <= MOST_FRAMES and area <= most_pixels:
        images._check_size(image.size, max_pixels)
        count, area = count + 1, area + image.width * image.height
        try:
            image.seek(count)
        except EOFError:
            break
    return count, area


def select(count: int, every: int = 1, most: int | None = None) -> list[int]:
    """Numbers of every n-th of `count` frames, thinned evenly to at most `most`; always includes the first."""
    numbers = range(0, count, every)
    if most is None or len(numbers) <= most:
        return list(numbers)
    return [numbers[place * len(numbers) // most] for place in range(most)]


def frames(
    data: bytes,
    every: int = 1,
    most: int | None = None,
    max_pixels: int = MAX_PIXELS,
    most_pixels: int = MOST_PIXELS,
    encode: bool = True,
) -> Iterator[Frame]:
    """The selected frames in order; without `encode`, they have no bytes. Raises Undecodable, possibly after some
    frames."""
    found = survey(data, max_pixels, most_pixels)
    if found.count == 1:
        ext = EXTENSION_OF.get(found.format, found.format)
        yield Frame({"frame": 0}, data, ext, 1) if encode else Frame({"frame": 0}, None, ext, 1, _probe(data))
        return
    selected = select(found.count, every, most)
    numbers = set(selected)
    for number, (span, image) in enumerate(islice(_composed(data, found, max_pixels), selected[-1] + 1)):
        if number in numbers and encode:
            yield Frame(span, _png(image), "png", found.count)
        elif number in numbers:
            probe = Probe(*image.size, "png", 1, 1, image.mode, has_alpha(image))
            yield Frame(span, None, "png", found.count, probe)


def shown(data: bytes, times: Sequence[float], max_pixels: int = MAX_PIXELS) -> Iterator[Frame]:
    """The frame at each time (seconds, ascending): the last one after the end, and the first page of a TIFF. Raises
    Undecodable, possibly after some frames."""
    found = survey(data, max_pixels)
    if found.count == 1 or found.format == "tiff":
        first = next(frames(data, most=1, max_pixels=max_pixels))
        yield from (first for _ in times)
        return
    waiting = list(times)
    for number, (span, image) in enumerate(_composed(data, found, max_pixels), 1):
        due = [time for time in waiting if time < span["stop"] or number == found.count]
        if due:
            yield from [Frame(span, _png(image), "png", found.count)] * len(due)
        waiting = waiting[len(due) :]
        if not waiting:
            return


def extract(data: bytes, spans: Sequence[dict[str, Any]]) -> Iterator[bytes]:
    """The bytes of frames, in ascending order, the same as from `frames`, whose limits the file has passed.
    Raises Undecodable, possibly after some, also if a frame does not exist."""
    found = survey(data, sys.maxsize, sys.maxsize)
    place = "page" if found.format == "tiff" and found.count > 1 else "frame"
    wanted = [span.get(place, -1) for span in spans]
    if wanted != sorted(wanted) or not 0 <= wanted[0] <= wanted[-1] < found.count:
        raise Undecodable("corrupt", f"{found.format}: frames {list(spans)} are not in order among {found.count}")
    if found.count == 1:
        yield from (data for _ in wanted)
        return
    copies = Counter(wanted)
    for number, (_, image) in enumerate(islice(_composed(data, found, sys.maxsize), wanted[-1] + 1)):
        if number in copies:
            yield from [_png(image)] * copies[number]


def _probe(data: bytes) -> Probe | None:
    try:
        return images.probe(data)
    except Undecodable:
        return None


def _composed(data: bytes, found: FrameCount, max_pixels: int) -> Iterator[tuple[dict[str, Any], Image.Image]]:
    """(span, image) of every frame; an image is valid until the next is requested."""
    name, passed = found.format, 0.0  # milliseconds
    try:
        image = images._open(name, data, max_pixels)
        orientation = 1 if name == "tiff" else images._orientation(name, image)  # Pillow rotates a TIFF on load
        for number in range(found.count):
            image.seek(number + found.first)
            images._check_size(image.size, max_pixels)  # a GIF's frame may be larger than its canvas
            image.load()
            span: dict[str, Any] = {"page": number}
            if name != "tiff":
                start, passed = passed, passed + image.info.get("duration", 0)
                span = {"frame": number, "start": _seconds(start), "stop": _seconds(passed)}
            yield span, upright(_plain(image.copy()), orientation)
    except Exception as error:  # noqa: BLE001 - the sample boundary
        raise images._undecodable(name, Reader(data), error) from None


def _seconds(milliseconds: float) -> float:
    return round(milliseconds / 1000, 6)


def _plain(image: Image.Image) -> Image.Image:
    """Convert to a mode that PNG has and every reader supports: 1, L, RGB or, if any pixel is transparent, RGBA."""
    if image.mode in ("1", "L", "RGB") and not has_alpha(image):
        return image
    if has_alpha(image) and image.mode not in pixels._WIDE_MODES:
        rgba = image if image.mode == "RGBA" else pixels._with_alpha_channel(image)
        if rgba.getchannel("A").getextrema() != (255, 255):
            return rgba
    return pixels.to_rgb(image)


def _png(image: Image.Image) -> bytes:
    image.info = {}  # or the PNG would include a profile, a comment or a resolution
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
