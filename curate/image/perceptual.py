"""A 256-bit hash under which an image and its resized, recompressed or brightened copies differ in a few bits.

The image is squeezed to 64 x 64 and transformed by an orthonormal DCT-II per channel. A bit tells whether one low
frequency is present with positive sign, that is, above THRESHOLD; frequencies are taken from the lowest outwards.
    176 bits of luma (without the mean), 32 of each chroma (with the mean), 16 that spell the aspect as a thermometer
The usual pHash compares with the median instead (Zauner 2010, section 3.2.1; PDQ, Facebook 2019). In drawings that
fails: on symmetric or flat ones most coefficients are zero, so their bits are noise, and half of them flip under JPEG.
A threshold above the noise keeps them at 0, and the number of ones tells how much the hash says at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HASH_BYTES = 32
THRESHOLD = 6.0
"""In grey levels x 64, the scale of an orthonormal 64 x 64 DCT: an amplitude of about 0.2 grey levels."""
MIN_ONES = 32
"""With fewer frequencies present the image is flat: unrelated flags, dots and thin rings would agree."""

_SIDE = 64
_LUMA_BITS, _CHROMA_BITS, _ASPECT_BITS = 176, 32, 16
_LOW = 20  # frequencies per axis that hold the lowest 177 of the quarter disc


def _outwards() -> NDArray[np.int64]:
    """Flat indices into a (_LOW, _LOW) block of coefficients, from the lowest frequency outwards; the mean is first."""
    y, x = np.mgrid[0:_LOW, 0:_LOW]
    return np.lexsort((x.ravel(), y.ravel(), (y**2 + x**2).ravel()))


_ORDER = _outwards()
_BASIS = np.cos(np.pi * (np.arange(_SIDE) + 0.5) * np.arange(_LOW)[:, None] / _SIDE) * np.sqrt(2 / _SIDE)
_BASIS[0] /= np.sqrt(2)
_ASPECTS = 2.0 ** ((np.arange(_ASPECT_BITS) - (_ASPECT_BITS - 1) / 2) / 4)


def perceptual_hash(image: Image.Image) -> tuple[bytes, bool]:
    """RGB image -> (hash of HASH_BYTES bytes, whether it is flat: too little detail to compare)."""
    small = image.resize((2 * _SIDE, 2 * _SIDE), Image.Resampling.BOX)
    left, top, right, bottom = inner_box(np.asarray(small))
    square = small.resize((_SIDE, _SIDE), Image.Resampling.BOX, box=(left, top, right, bottom))
    aspect = image.width / image.height * (right - left) / (bottom - top)
    return hash_square(np.asarray(square), aspect)


def hash_square(pixels_HWC: NDArray[np.uint8], aspect: float) -> tuple[bytes, bool]:
    """pixels (64, 64, 3) of an image whose width / height was `aspect` -> (hash, flat)."""
    red, green, blue = np.moveaxis(pixels_HWC.astype(np.float64), -1, 0)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue  # ITU-R BT.601, as in JPEG
    present = np.concatenate(
        [
            _low_frequencies(luma)[1 : _LUMA_BITS + 1] > THRESHOLD,
            _low_frequencies(0.564 * (blue - luma))[:_CHROMA_BITS] > THRESHOLD,
            _low_frequencies(0.713 * (red - luma))[:_CHROMA_BITS] > THRESHOLD,
        ]
    )
    bits = np.concatenate([present, aspect > _ASPECTS])
    return np.packbits(bits).tobytes(), bool(present.sum() < MIN_ONES)


def _low_frequencies(plane_HW: NDArray[np.float64]) -> NDArray[np.float64]:
    """DCT-II coefficients of a 64 x 64 plane, lowest first."""
    return (_BASIS @ plane_HW @ _BASIS.T).ravel()[_ORDER]


def inner_box(pixels_HWC: NDArray[np.uint8]) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) without letterbox or pillarbox bars, to a part of a pixel.

    Bars are uniform, come in opposite pairs, and end in a straight edge along more than half of the side. The white
    around a drawing does not end so and stays: where exactly it ends would change with every recompression.
    """
    height, width = pixels_HWC.shape[:2]
    top, bottom = _bars(pixels_HWC)
    left, right = _bars(pixels_HWC.swapaxes(0, 1))
    return left, top, width - right, height - bottom


def _bars(pixels_HWC: NDArray[np.uint8]) -> tuple[float, float]:
    """Rows of bar above and below; (0, 0) unless both are there and a quarter of the height lies between them."""
    above, below = _bar(pixels_HWC), _bar(pixels_HWC[::-1])
    return (above, below) if above and below and above + below <= len(pixels_HWC) * 0.75 else (0.0, 0.0)


def _bar(pixels_HWC: NDArray[np.uint8], least: int = 5, uniform: float = 8.0, edge: int = 32) -> float:
    """Rows of bar at the top: at least `least` that are `uniform` levels off its colour on average, soon followed by
    one of which most is `edge` levels off. The row before that mixes bar and image, and counts by its shares."""
    off = np.abs(pixels_HWC.astype(np.int16) - np.median(pixels_HWC[0], axis=0)).max(axis=2)
    end = int((off.mean(axis=1) > uniform).argmax())
    for mixed in range(end, min(end + 3, len(off) - 1)) if end >= least else ():
        if (off[mixed + 1] > edge).mean() > 0.5:
            return mixed + 1 - min(1.0, float(off[mixed].mean() / off[mixed + 1].mean()))
    return 0.0
