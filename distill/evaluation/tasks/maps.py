"""Patch features as colours: three principal components over some images become red, green and blue."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from curate.encoders.student.patches import unpatchify
from distill.evaluation.datasets import EvaluationSet
from distill.evaluation.extraction import FeatureBatch, FeatureExtractor, united
from distill.evaluation.models import TEACHER
from distill.evaluation.result import Result, not_computed
from distill.parallel import World

Floats = NDArray[np.floating[Any]]
_WHITE = np.array([0.95047, 1.0, 1.08883])
"""CIE XYZ of D65, the white of sRGB."""
_XYZ_TO_RGB = np.array([[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]])
_BLUR = 1.0
"""Standard deviation of the Gaussian, in patches."""
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
        for image, (rows, columns) in zip(features.batch.images, features.grids, strict=True):
            self.pixels[image.row] = unpatchify(image.patches, columns, rows, self._patch)
        for name, output in features.outputs.items():
            if output.patches is not None:
                self.values.setdefault(name, {}).update(features.per_image(output.patches))
            for head, predicted in output.predictions.items():
                if predicted.patches is not None:
                    own = self.values.setdefault(f"{name}, as {head}", {})
                    own.update(features.per_image(predicted.patches.numpy()))

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
    for name in _in_order(features.values):
        patches = [features.values[name][row] for row in rows]
        if settings.map_low_pass:
            patches = [low_pass(one) for one in patches]
        shown = colours(patches, foreground=settings.map_foreground, space=settings.map_colours)
        drawn.append((name, [png(one) for one in shown]))
    return {"models": [name for name, _ in drawn[1:]], "pictures": len(rows)}, drawn


def _in_order(names: Iterable[str]) -> list[str]:
    """Each head's projection before its teacher, as in Fig. 7 of AMoE: `student, as vit`, `teacher vit`."""
    found = list(names)
    for name in [name for name in found if name.startswith(TEACHER)]:
        heads = [other for other in found if other.endswith(f", as {name.removeprefix(TEACHER)}")]
        if heads:
            found.remove(name)
            found.insert(found.index(heads[-1]) + 1, name)
    return found


def low_pass(patches_HWC: Floats) -> NDArray[np.float64]:
    """Half of the features, and half of their blur over 3 x 3 patches (Perception Encoder, its appendix)."""
    own = patches_HWC.astype(np.float64)
    return 0.5 * own + 0.5 * gaussian_filter(own, sigma=(_BLUR, _BLUR, 0), radius=(1, 1, 0), mode="nearest")


def components(patches_NC: Floats, count: int = 3) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean (C,) and principal directions (C, count), largest variance first, with a positive largest entry."""
    x = patches_NC.astype(np.float64)
    mean = x.mean(0)
    _, vectors = np.linalg.eigh((x - mean).T @ (x - mean))
    chosen = vectors[:, ::-1][:, :count]
    signs = np.sign(chosen[np.abs(chosen).argmax(0), np.arange(chosen.shape[1])])
    return mean, chosen * signs


def colours(
    patches: Sequence[Floats], *, foreground: bool = False, space: Literal["rgb", "lch"] = "rgb"
) -> list[NDArray[np.uint8]]:
    """Patch features (h, w, C) of some images -> colours (h, w, 3) of each, from one space of colours.

    The middle 96 % of each component fill its channel. foreground: splits the patches at the middle of the first
    component's range, fits the colours to the smaller side, and leaves the other side white (as DINOv2 does). space:
    the components are red, green and blue, or lightness, chroma and hue.
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
        unit = np.clip(np.where(np.isinf(spread), 0.5, (values - low) / spread), 0, 1)
        out[shown] = np.rint(255 * (unit if space == "rgb" else lch(unit)))
    sizes = np.cumsum([item.shape[0] * item.shape[1] for item in patches])[:-1]
    pieces = np.split(out, sizes)
    return [piece.reshape(*item.shape[:2], 3) for piece, item in zip(pieces, patches, strict=True)]


def lch(unit_N3: Floats) -> NDArray[np.float64]:
    """Lightness, chroma and hue, each 0..1, -> RGB (N, 3), 0..1, by CIE L*a*b* (D65) and sRGB. Lightness is 20..90 of
    100, chroma 0..60, hue three quarters of a circle, so that both of its ends differ."""
    lightness, chroma = 20 + 70 * unit_N3[:, 0], 60 * unit_N3[:, 1]
    angle = 1.5 * np.pi * unit_N3[:, 2]
    y = (lightness + 16) / 116
    xyz = np.stack([y + chroma * np.cos(angle) / 500, y, y - chroma * np.sin(angle) / 200], axis=1)
    xyz = _WHITE * np.where(xyz > 6 / 29, xyz**3, 3 * (6 / 29) ** 2 * (xyz - 4 / 29))
    linear = np.clip(xyz @ _XYZ_TO_RGB.T, 0, 1)
    found: NDArray[np.float64] = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.clip(found, 0, 1)


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
