"""Patch grids of images of any aspect ratio."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def grids(
    widths: NDArray[np.int64], heights: NDArray[np.int64], *, patch: int, max_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Patch grids (columns (n,), rows (n,)) of images of these sizes in pixels: native aspect, at most `max_tokens`.

    An image is scaled down to fit, never up; sides are rounded to whole patches (at least one). If rounding the shorter
    side up exceeds the limit, the longer side is shortened. Rotating an image by 90 degrees rotates its grid. An
    unknown size (< 1) gets the largest square.
    """
    width, height = np.asarray(widths, dtype=np.float64), np.asarray(heights, dtype=np.float64)
    unknown = (width < 1) | (height < 1)
    side = patch * np.floor(np.sqrt(max_tokens))
    width, height = np.where(unknown, side, width), np.where(unknown, side, height)
    scale = np.minimum(1.0, np.sqrt(max_tokens * patch**2 / (width * height))) / patch
    columns = np.clip(np.rint(width * scale), 1, max_tokens).astype(np.int64)
    rows = np.clip(np.rint(height * scale), 1, max_tokens).astype(np.int64)
    over = columns * rows > max_tokens
    wide = width >= height
    columns = np.where(over & wide, max_tokens // rows, columns)
    rows = np.where(over & ~wide, max_tokens // columns, rows)
    return columns, rows


@lru_cache(maxsize=1 << 16)
def grid(width: int, height: int, *, patch: int, max_tokens: int) -> tuple[int, int]:
    """(columns, rows) of one image."""
    columns, rows = grids(np.array([width]), np.array([height]), patch=patch, max_tokens=max_tokens)
    return int(columns[0]), int(rows[0])


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
    """The inverse of `patchify`, to look at a model's input."""
    cut = patches.reshape(rows, columns, patch, patch, -1).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(cut).reshape(rows * patch, columns * patch, -1)
