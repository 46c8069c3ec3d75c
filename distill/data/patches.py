"""A picture of any aspect -> the patches of its grid."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image


def resize_to_grid(image: Image.Image, columns: int, rows: int, patch: int) -> NDArray[np.uint8]:
    """RGB picture -> pixels (rows * patch, columns * patch, 3), bicubic with antialiasing.

    By torch's resize of 8-bit pixels, which does what Pillow's does, to rounding, in a quarter of the time.
    """
    import torch
    from torch.nn.functional import interpolate

    height, width = rows * patch, columns * patch
    if image.size == (width, height):
        return np.asarray(image)
    try:  # Pillow's own memory, where it lies in one piece: a fourth channel in it has no meaning
        pixels = torch.from_dlpack(pa.array(image).flatten()).view(1, image.height, image.width, 4)
    except ValueError:
        pixels = torch.from_numpy(np.array(image))[None]
    resized = interpolate(pixels.permute(0, 3, 1, 2), size=(height, width), mode="bicubic", antialias=True)
    return resized[0, :3].permute(1, 2, 0).contiguous().numpy()


def patchify(pixels_HWC: NDArray[np.uint8], patch: int) -> NDArray[np.uint8]:
    """Pixels -> patches (rows * columns, patch * patch * 3), row by row; inside a patch row by row, channels last."""
    height, width, channels = pixels_HWC.shape
    cut = pixels_HWC.reshape(height // patch, patch, width // patch, patch, channels).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(cut).reshape(-1, patch * patch * channels)


def unpatchify(patches: NDArray[np.uint8], columns: int, rows: int, patch: int) -> NDArray[np.uint8]:
    """The inverse of `patchify`, for looking at what a model is given."""
    cut = patches.reshape(rows, columns, patch, patch, -1).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(cut).reshape(rows * patch, columns * patch, -1)
