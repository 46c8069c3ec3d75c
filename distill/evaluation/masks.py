"""Segmentation masks of images: a class per pixel, from a PNG of the sample or from the image's transparency."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.codec.images import probe
from curate.codec.pixels import upright
from curate.core.errors import InputError, Reject
from distill.samples.images.square import Square, squared
from distill.samples.sources.members import MemberReader

ALPHA = "alpha"
UNLABELLED = 255
"""Value of pixels without a class in a mask PNG."""
Plane = TypeVar("Plane", Image.Image, Image.Image | None)


def read_mask(
    members: MemberReader, row: int, name: str, width: int, height: int, square: Square | None = None
) -> NDArray[np.int64] | None:
    """Class of each pixel (height, width), -1 for none, resized like the image; None without a mask.

    name: a member of the tar, or ALPHA; square: how the image became a square. Raises Reject if the image or the
    mask cannot be read.
    """
    data = members.read(row) if name == ALPHA else members.member(row, name)
    if data is None:
        return None
    plane: Image.Image | None
    orientation = 1
    if name == ALPHA:
        info = probe(data)
        if not info.alpha:
            return None
        orientation = info.orientation
        plane = _opened(data, name, row, _alpha)
    else:
        plane = mask_classes(data, name, row)
    if plane is None:
        return None
    plane = upright(plane, orientation)
    if square == "crop":
        plane = squared(plane, square)
    plane = plane.resize((width, height), Image.Resampling.NEAREST)
    values = np.asarray(plane).astype(np.int64)
    if name == ALPHA:
        return (values >= 128).astype(np.int64)
    return np.where(values == UNLABELLED, -1, values)


def mask_classes(data: bytes, name: str, row: int) -> Image.Image:
    """A mask as a plane of classes. Raises Reject if it cannot be read, InputError if it has colours."""
    return _opened(data, name, row, lambda image: _classes(image, row))


def _alpha(image: Image.Image) -> Image.Image | None:
    """None for an image that is opaque (or transparent) everywhere: it does not separate figure and ground."""
    alpha = image.convert("RGBA").getchannel("A")
    values = np.asarray(alpha) >= 128
    return alpha if values.any() and not values.all() else None


def _opened(data: bytes, name: str, row: int, read: Callable[[Image.Image], Plane]) -> Plane:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return read(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Reject("mask_unreadable", f"{name} of row {row}: {error}") from error


def _classes(image: Image.Image, row: int) -> Image.Image:
    if image.mode not in ("L", "P", "1"):
        raise InputError(
            f"evaluate.masks: the mask of row {row} is an image of mode {image.mode!r}; "
            f"give PNGs of mode L or P, whose values are classes (255: none)"
        )
    image.load()
    return image if image.mode != "1" else image.convert("L").point(lambda value: value // 255)
