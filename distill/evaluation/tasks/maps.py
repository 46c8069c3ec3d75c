"""Patch features as colours: three principal components over some images become red, green and blue."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.encoders.student.patches import unpatchify
from distill.evaluation.datasets import EvaluationSet
from distill.evaluation.extraction import FeatureBatch, FeatureExtractor, united
from distill.evaluation.result import Result, not_computed
from distill.parallel import World

Floats = NDArray[np.floating[Any]]
IMAGE = "image"
"""Name of the row with the images themselves."""
_SIDE = 160
"""Pixels of the longer side of a map."""


class PatchFeatures:
    """Evaluator that keeps the pixels and patch features of a few images."""

    def __init__(self, patch: int) -> None:
        self._patch = patch
        self.pixels: dict[int, NDArray[np.uint8]] = {}
        self.values: dict[str, dict[int, Floats]] = {}

    def update(self, features: FeatureBatch) -> None:
        for image in features.batch.images:
            rows, columns = image.grid
            self.pixels[image.row] = unpatchify(image.patches, columns, rows, self._patch)
        for name, output in features.outputs.items():
            if output.patches is not None:
                self.values.setdefault(name, {}).update(features.per_image(output.patches))

    def merge(self, world: World) -> None:
        self.pixels = {row: one for part in world.gather(self.pixels) for row, one in part.items()}
        self.values = united(world.gather(self.values))


def run(extractor: FeatureExtractor, data: EvaluationSet) -> tuple[Result, list[tuple[str, list[bytes]]]]:
    """The result, and the rows of the drawing: name, and a PNG per image."""
    settings, features = data.settings, PatchFeatures(extractor.reader.patch)
    extractor.run(data.rows(test=True, most=settings.map_images), [features])
    rows = sorted(features.pixels)
    if not rows or not features.values:
        return not_computed("no image could be read, or no model has patch features"), []
    drawn = [(IMAGE, [png(features.pixels[row], smooth=True) for row in rows])]
    for name, own in features.values.items():
        shown = colours([own[row] for row in rows], foreground=settings.map_foreground)
        drawn.append((name, [png(one) for one in shown]))
    return {"models": list(features.values), "pictures": len(rows)}, drawn


def components(patches_NC: Floats, count: int = 3) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean (C,) and principal directions (C, count), largest variance first, with a positive largest entry."""
    x = patches_NC.astype(np.float64)
    mean = x.mean(0)
    _, vectors = np.linalg.eigh((x - mean).T @ (x - mean))
    chosen = vectors[:, ::-1][:, :count]
    signs = np.sign(chosen[np.abs(chosen).argmax(0), np.arange(chosen.shape[1])])
    return mean, chosen * signs


def colours(patches: Sequence[Floats], *, foreground: bool = False) -> list[NDArray[np.uint8]]:
    """Patch features (h, w, C) of some images -> colours (h, w, 3) of each, from one space of colours.

    The middle 96 % of each component fill its channel. foreground: splits the patches at the middle of the first
    component's range, fits the colours to the smaller side, and leaves the other side white (as DINOv2 does).
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
    """Mask (N,) of the smaller side of the first component, split at the middle of its range: objects are smaller than
    backgrounds."""
    mean, directions = components(flat_NC, 1)
    first = (flat_NC - mean) @ directions[:, 0]
    above = first > (first.min() + first.max()) / 2
    return above if above.sum() <= len(above) / 2 else ~above


def png(pixels_HW3: NDArray[np.uint8], *, smooth: bool = False) -> bytes:
    """A small image for the page, about 160 pixels on its longer side; smooth for photographs, blocks for patches."""
    image = Image.fromarray(pixels_HW3)
    scale = _SIDE / max(image.size)
    if not smooth:
        scale = max(1, round(scale))
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    stream = io.BytesIO()
    image.resize(size, Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST).save(stream, "PNG")
    return stream.getvalue()
