"""Converts any Pillow mode to upright 8-bit RGB over white: the single definition of an image's pixels.

Values are scaled, never clipped: 16 bits become 8, transparent pixels are composited over white. Colour profiles are
ignored, also of CMYK, except by `in_srgb`. Formats wider than 16 bits have no fixed range, so it follows from the
data.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

_T = Image.Transpose
_UPRIGHT = {
    2: _T.FLIP_LEFT_RIGHT,
    3: _T.ROTATE_180,
    4: _T.FLIP_TOP_BOTTOM,
    5: _T.TRANSPOSE,
    6: _T.ROTATE_270,
    7: _T.TRANSVERSE,
    8: _T.ROTATE_90,
}
_ALPHA_MODES = {"RGBA", "LA", "PA", "RGBa", "La"}
_WIDE_MODES = {"I", "F", "I;16", "I;16B", "I;16L", "I;16N"}


def has_alpha(image: Image.Image) -> bool:
    return image.mode in _ALPHA_MODES or "transparency" in image.info


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Apply EXIF orientation 1..8 (EXIF 2.32, tag 0x0112); any other value returns the image unchanged."""
    operation = _UPRIGHT.get(orientation)
    return image if operation is None else image.transpose(operation)


_SPACES = {"RGB": ("RGB", "RGBA"), "CMYK": ("CMYK",), "GRAY": ("L",)}


def other_profile(profile: bytes | None) -> ImageCms.ImageCmsProfile | None:
    """An embedded ICC profile; None if there is none, or it is sRGB, or cannot be read."""
    try:
        found = ImageCms.ImageCmsProfile(io.BytesIO(profile)) if profile else None
        return None if found is None or ImageCms.getProfileDescription(found).startswith("sRGB") else found
    except (OSError, ValueError, ImageCms.PyCMSError):
        return None


def in_srgb(image: Image.Image) -> Image.Image:
    """A loaded image by its embedded colour profile, if there is one that fits its mode and is not sRGB."""
    profile = other_profile(image.info.get("icc_profile"))
    if profile is None:
        return image
    if image.mode == "P":
        image = image.convert("RGBA" if has_alpha(image) else "RGB")
    if image.mode not in _SPACES.get(profile.profile.xcolor_space.strip(), ()):
        return image
    target = ImageCms.createProfile("sRGB")
    try:
        found = ImageCms.profileToProfile(image, profile, target, outputMode="RGBA" if image.mode == "RGBA" else "RGB")
    except ImageCms.PyCMSError:
        return image
    return image if found is None else found


def to_rgb(image: Image.Image) -> Image.Image:
    """A loaded image of any mode in RGB, with transparency composited over white. Raises ValueError on NaN."""
    if image.mode in _WIDE_MODES:
        return _wide_to_rgb(image)
    if not has_alpha(image):
        return image if image.mode == "RGB" else image.convert("RGB")
    rgba = image if image.mode == "RGBA" else _with_alpha_channel(image)
    alpha = rgba.getchannel("A")
    if alpha.getextrema() == (255, 255):
        return rgba.convert("RGB")
    canvas = Image.new("RGB", rgba.size, (255, 255, 255))
    canvas.paste(rgba, mask=alpha)
    return canvas


def _with_alpha_channel(image: Image.Image) -> Image.Image:
    colour = image.info.get("transparency")
    if isinstance(colour, tuple) and max(colour) > 255:
        image.info["transparency"] = tuple(value >> 8 for value in colour)
    if image.mode == "CMYK":
        del image.info["transparency"]
        image = image.convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    return image.convert("RGBA")


def _wide_to_rgb(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    grey = scale_to_8_bits(values, sixteen_bits=image.mode.startswith("I;16"))
    colour: Any = image.info.get("transparency")
    if isinstance(colour, int):
        grey = np.where(values == colour, np.uint8(255), grey)
    return Image.fromarray(grey).convert("RGB")


def scale_to_8_bits(values_HW: NDArray[Any], *, sixteen_bits: bool) -> NDArray[np.uint8]:
    """Grey values -> 8 bits, rounded. Full scale is 65535 for 16-bit data; otherwise the smallest of 1 (floats only),
    255 and 65535 that is at least the maximum, or the maximum. Negative values are black. ValueError if not finite."""
    if sixteen_bits:
        return ((values_HW.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if not np.isfinite(values_HW).all():
        raise ValueError("pixels are not finite numbers")
    top = float(values_HW.max())
    scales = (1.0, 255.0, 65535.0) if values_HW.dtype.kind == "f" else (255.0, 65535.0)
    full = next((scale for scale in scales if top <= scale), top)
    return np.rint(np.clip(values_HW.astype(np.float64), 0.0, full) * (255.0 / full)).astype(np.uint8)
