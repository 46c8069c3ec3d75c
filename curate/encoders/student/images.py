"""Input images of a loaded model (paths, encoded bytes, Pillow images, arrays), read exactly as training reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.codec.formats import exif_orientation
from curate.codec.images import MAX_PIXELS, decode
from curate.codec.pixels import has_alpha, to_rgb, upright
from curate.core.errors import InputError, Undecodable
from curate.encoders.student.pixels import Fit, decode_to, resize

ImageInput = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8]


def pixels_of(image: ImageInput, fit: Fit, *, reduced: bool) -> NDArray[np.uint8]:
    """RGB bytes (height, width, 3) of the size that `fit` returns; an array that has this size is not changed.

    Upright, transparency over white, 16 bits scaled to 8. reduced: large JPEGs are decoded at a fraction of their size.
    Raises InputError for an image that cannot be read, TypeError for any other type.
    """
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise InputError(f"expected RGB bytes (height, width, 3), not shape {image.shape} and type {image.dtype}")
        height, width, _ = image.shape
        return image if fit(width, height) == (width, height) else _resized(Image.fromarray(image), fit)
    if isinstance(image, Image.Image):
        return _resized(_upright(image), fit)
    if isinstance(image, bytes | bytearray | memoryview):
        return _decoded(bytes(image), fit, reduced, f"{len(image)} bytes")
    if isinstance(image, str | os.PathLike):
        return _decoded(_read(image), fit, reduced, str(image))
    raise TypeError(
        f"expected an image, not {_type(image)}; give a path, encoded bytes, a Pillow image, or RGB bytes"
        " (height, width, 3)"
    )


def as_list(images: Any) -> list[Any]:
    """Raises TypeError for a single image."""
    single = isinstance(images, str | bytes | bytearray | memoryview | os.PathLike | Image.Image)
    if single or (isinstance(images, np.ndarray) and images.ndim == 3):
        raise TypeError(f"expected a list of images, not one {_type(images)}; write model([image])")
    try:
        return list(images)
    except TypeError:
        raise TypeError(f"expected a list of images, not {_type(images)}; write model([image])") from None


def _type(value: Any) -> str:
    name = type(value).__name__
    return f"{name} of shape {tuple(value.shape)}" if hasattr(value, "shape") else name


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {str(path)!r} ({_reason(error)}); give the path of an image") from error


def _decoded(data: bytes, fit: Fit, reduced: bool, name: str) -> NDArray[np.uint8]:
    try:
        if reduced:
            return np.ascontiguousarray(decode_to(data, fit, MAX_PIXELS)[..., :3])
        return _resized(decode(data), fit)
    except Undecodable as error:
        raise InputError(f"{name}: cannot decode the image ({error}); give an intact file") from error


def _upright(image: Image.Image) -> Image.Image:
    orientation = 1 if image.format == "TIFF" else exif_orientation(image.info.get("exif") or b"")  # Pillow turns TIFFs
    try:
        image.load()
        own = image.copy() if has_alpha(image) else image  # to_rgb changes the transparency in `info`
        return upright(to_rgb(own), orientation)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise InputError(f"cannot decode the {_type(image)} ({_reason(error)}); give an intact image") from error


def _resized(image: Image.Image, fit: Fit) -> NDArray[np.uint8]:
    return np.ascontiguousarray(resize(image, fit(*image.size))[..., :3])


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
