"""img2dataset's Resizer with a safe and correct decoder.

Its own decodes images of any size, ignores orientation, and clips 16 bits to 8 when it encodes. Here the header is
checked before any pixel is decoded, and the Resizer gets upright pixels with 8 bits, the same as those of
`curate.codec`. An animation is reduced to its first frame. Images that are not re-encoded are checked too.
"""

from __future__ import annotations

import inspect
import math
import os
import struct
import time
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import cv2
import numpy as np
from img2dataset import resizer
from numpy.typing import NDArray

from curate.acquire.fetch.codes import Failure
from curate.codec.images import Probe, probe
from curate.core.errors import Undecodable

NO_ROW = struct.pack("<q", -1)


class Image(BytesIO):
    """A fetched image and its row."""

    def __init__(self, data: bytes, row: int) -> None:
        super().__init__(data)
        self.row = row


class Video(BytesIO):
    """In the place of a video that is in the spool: it passes the Resizer untouched."""


def header(data: bytes, max_pixels: int) -> Probe:
    """Raises Failure: not_image, too_many_pixels."""
    try:
        found = probe(data, here=True)  # this process is a limited one
    except Undecodable as error:
        raise Failure("not_image", str(error)) from None
    except MemoryError:
        raise Failure("unexpected", "no memory for the header") from None
    if found.width * found.height > max_pixels:
        raise Failure("too_many_pixels", f"{found.width} x {found.height}; at most {max_pixels} pixels are decoded")
    return found


class Cv2:
    """cv2 with another decoder."""

    orientation = 1
    """EXIF orientation of the next image."""

    def __getattr__(self, name: str) -> Any:
        return getattr(cv2, name)

    def imdecode(self, data: NDArray[np.uint8], flags: int) -> NDArray[Any] | None:
        pixels: NDArray[Any] | None = cv2.imdecode(data, flags)
        if pixels is None:
            return None
        if pixels.dtype == np.uint16:
            pixels = cv2.convertScaleAbs(pixels, alpha=1 / 257)
        if pixels.dtype != np.uint8:
            raise ValueError(f"{pixels.dtype} pixels; expected 8 or 16 bits")
        return turned(pixels, self.orientation)


def turned(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Upright pixels of an image with this EXIF orientation, 1..8 (EXIF 2.32, tag 0x0112)."""
    if orientation >= 5:
        pixels = cv2.transpose(pixels)
    mirror = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}.get(orientation)
    return pixels if mirror is None else cv2.flip(pixels, mirror)


class Resizer(resizer.Resizer):  # type: ignore[misc]
    """Writes its row to the start of the spool, where the parent finds it if the decoder kills the process."""

    def __init__(self, spool: int, max_pixels: int, **options: Any) -> None:
        super().__init__(**options)
        self.spool, self.max_pixels, self.cv2 = spool, max_pixels, Cv2()
        resizer.cv2 = self.cv2
        self.failure: Failure | None = None
        """Why the last image was rejected, if its header is the reason."""
        self.since: float | None = None
        """Start of the current image, by time.monotonic()."""

    def __call__(self, image: Image | Video, boxes: Any = None) -> Any:
        self.failure = None
        if isinstance(image, Video):
            return b"", None, None, None, None, None
        os.pwrite(self.spool, struct.pack("<q", image.row), 0)
        self.since = time.monotonic()
        try:
            found = header(image.getvalue(), self.max_pixels)
            self.cv2.orientation = 1 if found.format == "tiff" else found.orientation  # cv2 turns a TIFF
            return super().__call__(image, boxes)
        except Failure as failure:
            self.failure = failure
            return None, None, None, None, None, str(failure)
        finally:
            self.since = None
            os.pwrite(self.spool, NO_ROW, 0)


def resizer_of(settings: Mapping[str, Any], spool: int) -> Resizer:
    """img2dataset's options under their own names."""
    unlimited = ("max_image_area", "max_aspect_ratio")
    names = inspect.signature(resizer.Resizer).parameters.keys() - {"blurrer", *unlimited}
    options = {name: settings[name] for name in names}
    if options["disable_all_reencoding"] is None:
        options["disable_all_reencoding"] = options["resize_mode"] == "no"
    limits = {name: math.inf if settings[name] is None else settings[name] for name in unlimited}
    return Resizer(spool, settings["max_pixels"], **options, **limits)
