"""Patch features as colours: three principal components over a set of pictures become red, green and blue."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.floating[Any]]
_SIDE = 160
"""Pixels of the longer side of a map."""


def components(patches_NC: Floats, count: int = 3) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean (C,) and principal directions (C, count), the first first; signs so that the largest entry is positive."""
    x = patches_NC.astype(np.float64)
    mean = x.mean(0)
    _, vectors = np.linalg.eigh((x - mean).T @ (x - mean))
    chosen = vectors[:, ::-1][:, :count]
    signs = np.sign(chosen[np.abs(chosen).argmax(0), np.arange(chosen.shape[1])])
    return mean, chosen * signs


def colours(patches: Sequence[Floats], *, foreground: bool = False) -> list[NDArray[np.uint8]]:
    """Patch features (h, w, C) of some pictures -> (h, w, 3) of each, in one space of colours for all.

    Each component's middle 96 % fill its channel. foreground: patches on the smaller side of the first component's
    middle are fitted anew and shown, the others are white (as DINOv2's pictures do).
    """
    flat = np.concatenate([item.reshape(-1, item.shape[-1]) for item in patches]).astype(np.float64)
    shown = _foreground(flat) if foreground else np.ones(len(flat), dtype=bool)
    out = np.full((len(flat), 3), 255, dtype=np.uint8)
    if shown.any():
        mean, directions = components(flat[shown])
        values = (flat[shown] - mean) @ directions
        values = np.pad(values, ((0, 0), (0, 3 - values.shape[1])))
        low, high = np.percentile(values, [2, 98], axis=0)
        spread = np.where(high - low > 1e-9 * np.abs(high).max(initial=1e-9), high - low, np.inf)
        out[shown] = np.rint(255 * np.clip(np.where(np.isinf(spread), 0.5, (values - low) / spread), 0, 1))
    sizes = np.cumsum([item.shape[0] * item.shape[1] for item in patches])[:-1]
    pieces = np.split(out, sizes)
    return [piece.reshape(*item.shape[:2], 3) for piece, item in zip(pieces, patches, strict=True)]


def _foreground(flat_NC: Floats) -> NDArray[np.bool_]:
    """The smaller side (N,) of the first component, cut in the middle of its range: things are smaller than grounds."""
    mean, directions = components(flat_NC, 1)
    first = (flat_NC - mean) @ directions[:, 0]
    above = first > (first.min() + first.max()) / 2
    return above if above.sum() <= len(above) / 2 else ~above


def png(pixels_HW3: NDArray[np.uint8], *, smooth: bool = False) -> bytes:
    """A small picture for the page, the longer side about 160 pixels; smooth for photographs, blocks for patches."""
    image = Image.fromarray(pixels_HW3)
    scale = _SIDE / max(image.size)
    if not smooth:
        scale = max(1, round(scale))
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    stream = io.BytesIO()
    image.resize(size, Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST).save(stream, "PNG")
    return stream.getvalue()
