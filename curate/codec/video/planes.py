"""Converts decoded planes to RGB, with the same bytes on every processor.

FFmpeg's own conversion rounds differently with other instruction sets. Here integers are multiplied, and Pillow resizes
planes in fixed-point arithmetic. High dynamic range is not mapped, interlaced lines are not separated, pixels that are
not square are not stretched, and chroma samples count as centred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.core.errors import Undecodable

Plane = NDArray[np.uint8]

KR_KB = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 5: (0.299, 0.114), 6: (0.299, 0.114), 7: (0.212, 0.087),
         9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}  # fmt: skip
"""AVColorSpace (ITU-T H.273, table 4) -> weights of red and blue in luma."""
UNSPECIFIED, LIMITED, FULL = 2, 1, 2
STRIP = 32
"""Lines that are converted at a time."""
HD_LINES = 576
"""Taller frames of no stated colour space are of BT.709, others of BT.601."""
PACKED = {"rgb24": (0, 1, 2), "bgr24": (2, 1, 0), "bgr0": (2, 1, 0), "bgra": (2, 1, 0), "rgba": (0, 1, 2)}
"""Pixel formats of bytes side by side -> places of red, green and blue."""


@dataclass(frozen=True, eq=False)
class Planes:
    """8-bit planes as decoded, which `rotation` makes upright."""

    planes: tuple[Plane, ...]
    """Y; Y, U, V; or R, G, B. Chroma may have half the width and height, rounded up."""
    space: int
    """A key of KR_KB; 0 for RGB."""
    full: bool
    """Whether values span 0 to 255, rather than 16 to 235."""
    rotation: int
    """Degrees counterclockwise: 0, 90, 180 or 270."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, upright."""
        height, width = self.planes[0].shape
        return (height, width) if self.rotation % 180 else (width, height)

    def rgb(self, side: int | None = None) -> Plane:
        """Upright, height x width x 3. side: shorter side; never enlarged."""
        planes = [self._resized(plane, side) for plane in self.planes]
        if len(planes) == 1:
            planes = [planes[0] if self.full else STRETCHED[planes[0]]] * 3
        elif self.space:
            rgb_HWC = np.empty((*planes[0].shape, 3), np.uint8)
            for top in range(0, len(rgb_HWC), STRIP):  # fits the processor's cache, and needs little memory
                y, u, v = (plane[top : top + STRIP] for plane in planes)
                np.stack(_from_yuv(y, u, v, *KR_KB[self.space], self.full), -1, out=rgb_HWC[top : top + STRIP])
            return np.ascontiguousarray(np.rot90(rgb_HWC, self.rotation // 90))
        return np.ascontiguousarray(np.rot90(np.stack(planes, -1), self.rotation // 90))

    def _resized(self, plane: Plane, side: int | None) -> Plane:
        """A plane at the size of the first, or with the shorter side given."""
        height, width = self.planes[0].shape
        target = small_size(width, height, side)
        if plane.shape == target[::-1]:
            return plane
        # The last column and row of chroma may reach beyond the frame.
        box = (0, 0, width / round(width / plane.shape[1]), height / round(height / plane.shape[0]))
        resample = Image.Resampling.BILINEAR if target == (width, height) else Image.Resampling.BICUBIC
        return np.asarray(Image.fromarray(plane).resize(target, resample, box))


def small_size(width: int, height: int, side: int | None) -> tuple[int, int]:
    """The size with this shorter side; never larger, never 0."""
    short = min(width, height)
    if side is None or side >= short:
        return width, height
    return max(1, (width * side + short // 2) // short), max(1, (height * side + short // 2) // short)


def of_frame(frame: Any) -> Planes:
    """Copy the planes of an av.VideoFrame. Raises Undecodable for pixel formats that are not known."""
    form, name = frame.format, frame.format.name
    space, grey = frame.colorspace, name.startswith("gray")
    full = frame.color_range == FULL or name.startswith("yuvj") or (grey and frame.color_range != LIMITED)
    if name in PACKED:
        values = _plane(frame, 0, form.padded_bits_per_pixel // 8)
        planes = tuple(np.ascontiguousarray(values[..., place]) for place in PACKED[name])
        return Planes(planes, 0, True, _rotation(frame))
    known = form.is_planar and not form.is_big_endian and not form.has_palette and not form.is_bit_stream
    if not (known or grey) or len(form.components) == 2:
        raise Undecodable("unsupported", f"pixel format {name}")
    bits = form.components[0].bits
    if not 8 <= bits <= 16 or "f32" in name or "f16" in name or name.startswith("nv"):
        raise Undecodable("unsupported", f"pixel format {name}")
    count = min(3, len(form.components))
    planes = tuple(_eight_bits(_plane(frame, place, 1 if bits == 8 else 2), bits) for place in range(count))
    if form.is_rgb:  # planes are G, B, R
        return Planes((planes[2], planes[0], planes[1]), 0, True, _rotation(frame))
    if space == UNSPECIFIED or space == 0:
        space = 1 if frame.height > HD_LINES else 6
    if space not in KR_KB:
        raise Undecodable("unsupported", f"colour space {space} of ITU-T H.273")
    return Planes(planes, space, full, _rotation(frame))


def _plane(frame: Any, place: int, pixel_bytes: int) -> NDArray[Any]:
    """A copy, without what pads lines: height x width, or height x width x bytes for packed pixels of 3 and 4."""
    plane = frame.planes[place]
    lines = np.frombuffer(plane, np.uint8)[: plane.height * plane.line_size].reshape(plane.height, plane.line_size)
    values = lines[:, : plane.width * pixel_bytes].copy()
    if pixel_bytes == 1:
        return values
    return values.view("<u2") if pixel_bytes == 2 else values.reshape(plane.height, plane.width, pixel_bytes)


def _eight_bits(values: NDArray[Any], bits: int) -> Plane:
    return (values if bits == 8 else np.minimum(values >> (bits - 8), 255)).astype(np.uint8)


def _rotation(frame: Any) -> int:
    """Degrees in the display matrix, to the nearest quarter."""
    return int(round(frame.rotation / 90) * 90) % 360


def _from_yuv(y: Plane, u: Plane, v: Plane, kr: float, kb: float, full: bool) -> list[Plane]:
    """Integers of 16 fractional bits (ITU-R BT.601, BT.709, BT.2020: the inverse of the same equations)."""
    luma, chroma, black = (1.0, 1.0, 0) if full else (255 / 219, 255 / 224, 16)
    kg = 1 - kr - kb

    def fixed(factor: float) -> np.int32:
        return np.int32(round(factor * 65536))

    grey = (y.astype(np.int32) - black) * fixed(luma) + np.int32(32768)
    cb, cr = u.astype(np.int32) - 128, v.astype(np.int32) - 128
    red = grey + cr * fixed(2 * (1 - kr) * chroma)
    green = grey - cb * fixed(2 * (1 - kb) * kb / kg * chroma) - cr * fixed(2 * (1 - kr) * kr / kg * chroma)
    blue = grey + cb * fixed(2 * (1 - kb) * chroma)
    return [np.clip(values >> 16, 0, 255).astype(np.uint8) for values in (red, green, blue)]


STRETCHED: Plane = np.clip(np.rint((np.arange(256) - 16.0) * 255 / 219), 0, 255).astype(np.uint8)
"""Limited range -> full."""
