"""Points of a map as a PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor

View = tuple[float, float, float, float]
"""Left, bottom, right, top."""
WIDEST = 3
"""Pixels of a point, if there are few."""
FAINT = 56
"""Opacity, of 255, of points that are not alive."""


def fitted(view: View, width: int, height: int) -> View:
    """The least view of the shape width x height around a view, so that both axes have the same scale."""
    left, bottom, right, top = view
    scale = max((right - left) / width, (top - bottom) / height)
    x, y = (left + right) / 2, (bottom + top) / 2
    return (x - scale * width / 2, y - scale * height / 2, x + scale * width / 2, y + scale * height / 2)


def scatter(
    xy: NDArray[np.float32],
    category: NDArray[np.uint8],
    alive: NDArray[np.uint8],
    colours: Sequence[str],
    extent: View,
    size: tuple[int, int],
) -> bytes:
    """PNG of `size` (width, height) without a background. xy (n, 2), category (n,): index of `colours` (#rrggbb).
    extent: what is seen at least."""
    width, height = size
    left, bottom, right, top = fitted(extent, width, height)
    scale = np.array([width / (right - left), -height / (top - bottom)])
    at = np.floor((xy - [left, top]) * scale)
    seen = (at >= 0).all(axis=1) & (at < [width - WIDEST, height - WIDEST]).all(axis=1)
    x, y = at[seen].astype(np.int64).T
    palette = np.array([[*ImageColor.getrgb(one), 255] for one in colours], np.uint8)
    ink = palette[category[seen]]
    ink[alive[seen] == 0, 3] = FAINT
    order = np.argsort(alive[seen], kind="stable")  # the last point at a pixel is seen
    image = np.zeros((height, width, 4), np.uint8)
    wide = WIDEST if len(x) < 20_000 else 2 if len(x) < 200_000 else 1
    for across, down in np.ndindex(wide, wide):
        image[y[order] + down, x[order] + across] = ink[order]
    held = io.BytesIO()
    Image.fromarray(image, "RGBA").save(held, "PNG")
    return held.getvalue()
