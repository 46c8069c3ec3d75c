"""Frames of animations and pages of TIFF files, each as the bytes of an image of its own.

A frame is what a viewer shows: earlier frames, disposal and blending are Pillow's. A frame needs those before it, so
one pass goes from the first to the last that is wanted, and `extract` takes the same way: it gives the same bytes.
The file is measured before a pixel is decoded, because some kilobytes can hold thousands of large frames.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from PIL import Image
from PIL.ImageFile import ImageFile

from curate.codec import images, pixels
from curate.codec.images import MAX_PIXELS
from curate.codec.pixels import has_alpha, upright
from curate.core.errors import Undecodable

MOST_PIXELS = 4_000_000_000
MOST_FRAMES = 20_000
ANIMATED = ("gif", "webp", "png", "avif")
EXTENSIONS = {"jpeg": "jpg", "jpeg2000": "jp2", "tiff": "tif"}
REASONS = images.REASONS | {
    "frame_bomb": f"all frames together have more pixels than allowed, or there are over {MOST_FRAMES:,}; none was "
    "decoded"
}
"""Every reason that `frames` and `extract` give, with its meaning."""


class Frame(NamedTuple):
    span: dict[str, Any]
    """{"frame": number, "start": seconds, "stop": seconds} of an animation, {"page": number} of a TIFF, {"frame": 0} of
    an image that has no other. Numbers start at 0."""
    data: bytes
    """A PNG; the file's own bytes if it has a single frame."""
    ext: str
    count: int
    """Frames of the file."""


class Survey(NamedTuple):
    """What the headers say."""

    format: str
    count: int
    first: int
    """Where Pillow counts the first from: 1 in an APNG whose plain image is not a frame of the animation."""


def survey(data: bytes, max_pixels: int = MAX_PIXELS, most_pixels: int = MOST_PIXELS) -> Survey:
    """Count the frames before any is decoded. Raises Undecodable: also for a frame above `max_pixels`, and for all
    frames together above `most_pixels`."""
    name = images._known_format(data)
    try:
        image = images._open(name, data, max_pixels)
        if name == "tiff":
            count, area, first = *_pages(image, max_pixels, most_pixels), 0
        else:
            first = int(getattr(image, "default_image", False))
            count = getattr(image, "n_frames", 1) - first if name in ANIMATED else 1
            area = count * image.width * image.height
            if name == "gif" and count == 1:  # it does not say how many it has: one cut in its first looks like a still
                image.load()
    except Exception as error:  # noqa: BLE001 - the sample boundary
        raise images._undecodable(name, data, error) from None
    if count > 1 and (area > most_pixels or count > MOST_FRAMES):
        allowed = f"at most {most_pixels:,} pixels and {MOST_FRAMES:,} frames are decoded"
        raise Undecodable("frame_bomb", f"{count:,} frames of {area:,} pixels; {allowed}")
    return Survey(name, max(count, 1), first)


def _pages(image: ImageFile, max_pixels: int, most_pixels: int) -> tuple[int, int]:
    """(pages, their pixels), counted to just above the limit. Pages differ in size."""
    count = area = 0
    while count <= MOST_FRAMES and area <= most_pixels:
        images._check_size(image.size, max_pixels)
        count, area = count + 1, area + image.width * image.height
        try:
            image.seek(count)
        except EOFError:
            break
    return count, area


def chosen(count: int, every: int = 1, most: int | None = None) -> list[int]:
    """Every n-th of `count` frames, and of those at most `most`, evenly spread; the first is always among them."""
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
) -> Iterator[Frame]:
    """The `chosen` frames in order. Raises Undecodable, also between two frames."""
    found = survey(data, max_pixels, most_pixels)
    if found.count == 1:
        yield Frame({"frame": 0}, data, EXTENSIONS.get(found.format, found.format), 1)
        return
    wanted = chosen(found.count, every, most)
    numbers = set(wanted)
    for number, (span, image) in enumerate(islice(_composed(data, found, max_pixels), wanted[-1] + 1)):
        if number in numbers:
            yield Frame(span, _png(image), "png", found.count)


def extract(data: bytes, span: dict[str, Any], max_pixels: int = MAX_PIXELS, most_pixels: int = MOST_PIXELS) -> bytes:
    """The bytes of one frame, as `frames` gives them. Raises Undecodable, also where there is no such frame."""
    found = survey(data, max_pixels, most_pixels)
    number = span.get("page" if found.format == "tiff" and found.count > 1 else "frame", -1)
    if not 0 <= number < found.count:
        raise Undecodable("corrupt", f"{found.format}: no frame {span} among {found.count}")
    if found.count == 1:
        return data
    return _png(next(islice(_composed(data, found, max_pixels), number, None))[1])


def _composed(data: bytes, found: Survey, max_pixels: int) -> Iterator[tuple[dict[str, Any], Image.Image]]:
    """(span, image) of every frame; the image is valid until the next one is asked for."""
    name, passed = found.format, 0.0  # milliseconds
    try:
        image = images._open(name, data, max_pixels)
        orientation = 1 if name == "tiff" else images._orientation(name, image)  # Pillow turns a TIFF upright on load
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
        raise images._undecodable(name, data, error) from None


def _seconds(milliseconds: float) -> float:
    return round(milliseconds / 1000, 6)


def _plain(image: Image.Image) -> Image.Image:
    """In a mode that PNG has and every reader knows: 1, L, RGB or, where something is transparent, RGBA."""
    if image.mode in ("1", "L", "RGB") and not has_alpha(image):
        return image
    if has_alpha(image) and image.mode not in pixels._WIDE_MODES:
        rgba = image if image.mode == "RGBA" else pixels._with_alpha_channel(image)
        if rgba.getchannel("A").getextrema() != (255, 255):
            return rgba
    return pixels.to_rgb(image)


def _png(image: Image.Image) -> bytes:
    image.info = {}  # a profile, a comment or a resolution would be written too
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
