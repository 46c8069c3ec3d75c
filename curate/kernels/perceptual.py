"""A 256-bit perceptual hash: resized, recompressed or brightened copies of an image differ in a few bits.

The image is resized to 64 x 64, ignoring its aspect ratio, and transformed by an orthonormal DCT-II per channel. A bit
is 1 if the coefficient of one low frequency exceeds THRESHOLD. Frequencies are taken in order, the lowest first.
    176 bits of luma (without the mean), 32 of each chroma (with the mean), 16 of the aspect ratio in thermometer code
The usual pHash compares with the median instead (Zauner 2010, section 3.2.1; PDQ, Facebook 2019). This fails for
drawings: in symmetric or flat ones most coefficients are zero, so their bits are noise, and JPEG flips half of them.
A threshold above the noise keeps these bits at 0, and the number of ones measures how much detail the hash has.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HASH_BYTES = 32
THRESHOLD = 6.0
"""Unit: grey levels x 64, the scale of an orthonormal 64 x 64 DCT; an amplitude of about 0.2 grey levels."""
MIN_ONES = 32
"""An image with fewer frequencies above THRESHOLD is flat: unrelated flags, dots and thin rings would match."""

_SIDE = 64
_LUMA_BITS, _CHROMA_BITS, _ASPECT_BITS = 176, 32, 16
_LOW = 20  # frequencies per axis; enough for the lowest 177 of the quarter disc


def _low_frequencies_first() -> NDArray[np.int64]:
    """Flat indices into a (_LOW, _LOW) block of coefficients, the lowest frequency first, starting with the mean."""
    y, x = np.mgrid[0:_LOW, 0:_LOW]
    return np.lexsort((x.ravel(), y.ravel(), (y**2 + x**2).ravel()))


_ORDER = _low_frequencies_first()
_ASPECTS = 2.0 ** ((np.arange(_ASPECT_BITS) - (_ASPECT_BITS - 1) / 2) / 4)


def perceptual_hash(image: Image.Image) -> tuple[bytes, bool]:
    """RGB image -> (hash of HASH_BYTES bytes, whether the image is flat: too little detail to compare)."""
    small = image.resize((2 * _SIDE, 2 * _SIDE), Image.Resampling.BOX)
    left, top, right, bottom = inner_box(np.asarray(small))
    square = small.resize((_SIDE, _SIDE), Image.Resampling.BOX, box=(left, top, right, bottom))
    aspect = image.width / image.height * (right - left) / (bottom - top)
    return hash_square(np.asarray(square), aspect)


def hash_square(pixels_HWC: NDArray[np.uint8], aspect: float) -> tuple[bytes, bool]:
    """pixels (64, 64, 3) of an image whose width / height was `aspect` -> (hash, flat)."""
    red, green, blue = np.moveaxis(pixels_HWC.astype(np.float64), -1, 0)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue  # ITU-R BT.601, as in JPEG
    return hash_planes(luma, 0.564 * (blue - luma), 0.713 * (red - luma), aspect)


def hash_planes(
    luma_HW: NDArray[Any], blue_HW: NDArray[Any], red_HW: NDArray[Any], aspect: float, threshold: float = THRESHOLD
) -> tuple[bytes, bool]:
    """Planes of luma, 0 to 255, and of the two chromas, around 0 -> (hash, flat). Their sides are at least 20."""
    present = np.concatenate(
        [
            _low_frequencies(luma_HW)[1 : _LUMA_BITS + 1] > threshold,
            _low_frequencies(blue_HW)[:_CHROMA_BITS] > threshold,
            _low_frequencies(red_HW)[:_CHROMA_BITS] > threshold,
        ]
    )
    bits = np.concatenate([present, aspect > _ASPECTS])
    return np.packbits(bits).tobytes(), bool(present.sum() < MIN_ONES)


def _low_frequencies(plane_HW: NDArray[Any]) -> NDArray[np.float64]:
    """DCT-II coefficients of a plane, at the scale of one of 64 x 64, the lowest frequency first."""
    height, width = plane_HW.shape
    return (_basis(height) @ plane_HW @ _basis(width).T).ravel()[_ORDER]


@cache
def _basis(side: int) -> NDArray[np.float64]:
    basis = np.cos(np.pi * (np.arange(side) + 0.5) * np.arange(_LOW)[:, None] / side) * np.sqrt(2 / side)
    basis[0] /= np.sqrt(2)
    return basis * np.sqrt(_SIDE / side)


def inner_box(pixels_HWC: NDArray[np.uint8]) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of the image without letterbox or pillarbox bars, with sub-pixel accuracy.

    Bars are uniform, come in opposite pairs, and end in a straight edge along more than half of the side. The white
    margin of a drawing has no such edge and is kept, because its exact end would change with every recompression.
    """
    height, width = pixels_HWC.shape[:2]
    top, bottom = _bars(pixels_HWC)
    left, right = _bars(pixels_HWC.swapaxes(0, 1))
    return left, top, width - right, height - bottom


def _bars(pixels_HWC: NDArray[np.uint8]) -> tuple[float, float]:
    """Rows of bar above and below; (0, 0) unless both exist and leave at least a quarter of the height."""
    above, below = _bar(pixels_HWC), _bar(pixels_HWC[::-1])
    return (above, below) if above and below and above + below <= len(pixels_HWC) * 0.75 else (0.0, 0.0)


def _bar(pixels_HWC: NDArray[np.uint8], least: int = 5, uniform: float = 8.0, edge: int = 32) -> float:
    """Rows of bar at the top, 0 if there is no bar.

    A bar has at least `least` rows whose mean difference from the bar's colour is at most `uniform` levels. Within a
    few rows it must be followed by a row that differs by more than `edge` levels in most pixels. The row before that
    one mixes bar and image, and counts in proportion to its share of bar.
    """
    off = np.abs(pixels_HWC.astype(np.int16) - np.median(pixels_HWC[0], axis=0)).max(axis=2)
    end = int((off.mean(axis=1) > uniform).argmax())
    for mixed in range(end, min(end + 3, len(off) - 1)) if end >= least else ():
        if (off[mixed + 1] > edge).mean() > 0.5:
            return mixed + 1 - min(1.0, float(off[mixed].mean() / off[mixed + 1].mean()))
    return 0.0
