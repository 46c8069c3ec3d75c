"""Pictures as people have them (files, bytes, PIL's, arrays), looked at as the reader of training looks at its own."""

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
from distill.samples.images.pixels import Fit, decode_to, resize

Given = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8]


def pixels_of(given: Given, fit: Fit, *, reduced: bool) -> NDArray[np.uint8]:
    """RGB bytes (height, width, 3) of the size that `fit` says; an array that has it already is not changed.

    Upright, transparency over white, 16 bits scaled to 8. reduced: large JPEGs are decoded at a fraction of their size.
    Raises InputError for a picture that cannot be read, TypeError for what is none.
    """
    if isinstance(given, np.ndarray):
        if given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] != 3 or not given.size:
            raise InputError(
                f"a picture of shape {given.shape} and type {given.dtype}; give RGB bytes (height, width, 3)"
            )
        height, width, _ = given.shape
        return given if fit(width, height) == (width, height) else _resized(Image.fromarray(given), fit)
    if isinstance(given, Image.Image):
        return _resized(_upright(given), fit)
    if isinstance(given, bytes | bytearray | memoryview):
        return _decoded(bytes(given), fit, reduced, f"{len(given)} bytes")
    if isinstance(given, str | os.PathLike):
        return _decoded(_read(given), fit, reduced, str(given))
    raise TypeError(
        f"{_named(given)} is no picture; give a path, encoded bytes, PIL's, or RGB bytes (height, width, 3)"
    )


def listed(given: Any) -> list[Any]:
    """Several pictures as a list. Raises TypeError for a single one."""
    single = isinstance(given, str | bytes | bytearray | memoryview | os.PathLike | Image.Image)
    if single or (isinstance(given, np.ndarray) and given.ndim == 3):
        raise TypeError(f"{_named(given)} is a single picture; give a list, as in model([picture])")
    try:
        return list(given)
    except TypeError:
        raise TypeError(f"{_named(given)} is no list of pictures; give one, as in model([picture])") from None


def _named(given: Any) -> str:
    shape = f" of shape {tuple(given.shape)}" if hasattr(given, "shape") else ""
    return f"a {type(given).__name__}{shape}"


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({_why(error)}); give a picture's path") from error


def _decoded(data: bytes, fit: Fit, reduced: bool, name: str) -> NDArray[np.uint8]:
    try:
        if reduced:
            return np.ascontiguousarray(decode_to(data, fit, MAX_PIXELS)[..., :3])
        return _resized(decode(data), fit)
    except Undecodable as error:
        raise InputError(f"{name}: no picture can be read ({error}); give one that is whole") from error


def _upright(image: Image.Image) -> Image.Image:
    """Pillow turns a TIFF itself when it loads it."""
    orientation = 1 if image.format == "TIFF" else exif_orientation(image.info.get("exif") or b"")
    try:
        image.load()
        own = image.copy() if has_alpha(image) else image  # what is said of transparency is changed on the way
        return upright(to_rgb(own), orientation)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise InputError(f"{_named(image)} cannot be read ({_why(error)}); give a picture that is whole") from error


def _resized(image: Image.Image, fit: Fit) -> NDArray[np.uint8]:
    return np.ascontiguousarray(resize(image, fit(*image.size))[..., :3])


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
