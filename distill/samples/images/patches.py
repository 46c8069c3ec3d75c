"""A picture of any aspect -> the patches of its grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from distill.samples.images.pixels import resize


def resize_to_grid(image: Image.Image, columns: int, rows: int, patch: int) -> NDArray[np.uint8]:
    """RGB picture -> pixels (rows * patch, columns * patch, 3), bicubic with antialiasing."""
    return np.ascontiguousarray(resize(image, (columns * patch, rows * patch))[..., :3])


def patchify(pixels_HWC: NDArray[np.uint8], patch: int) -> NDArray[np.uint8]:
    """Pixels -> patches (rows * columns, patch * patch * 3), row by row; inside a patch row by row, channels last.

    A fourth channel is dropped.
    """
    height, width, channels = pixels_HWC.shape
    cut = pixels_HWC.reshape(height // patch, patch, width // patch, patch, channels).transpose(0, 2, 1, 3, 4)
    if channels == 4:  # channel by channel, since numpy copies three bytes of four slowly
        out = np.empty((*cut.shape[:4], 3), dtype=np.uint8)
        for channel in range(3):
            out[..., channel] = cut[..., channel]
        cut = out
    return np.ascontiguousarray(cut).reshape(-1, patch * patch * 3)


def unpatchify(patches: NDArray[np.uint8], columns: int, rows: int, patch: int) -> NDArray[np.uint8]:
    """The inverse of `patchify`, for looking at what a model is given."""
    cut = patches.reshape(rows, columns, patch, patch, -1).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(cut).reshape(rows * patch, columns * patch, -1)
