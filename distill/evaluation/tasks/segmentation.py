"""Segmentation by a linear layer on frozen patch features, measured by mean intersection over union.

In closed form (`probe`), the layer is fitted to the share of each class in the pixels of a patch. Its scores are
interpolated bilinearly to the pixels that the student sees, as usual for linear probes of patch features; a pixel gets
the class of the highest score. A second layer is trained by gradient descent (`trained`; AMoE, section 4: 10 epochs,
batches of 32 images, learning rate 1e-3). The paper names no optimiser and no loss. Ours: Adam; the cross-entropy with
the share of each class in a patch's pixels, which is the mean over its labelled pixels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.core.errors import InputError, Reject
from distill.evaluation.datasets import EvaluationSet
from distill.evaluation.extraction import FeatureBatch, summed
from distill.evaluation.masks import ALPHA
from distill.evaluation.result import Result, not_computed
from distill.evaluation.tasks import probe
from distill.evaluation.tasks.trained import LinearLayer, Schedule, train
from distill.parallel import World

Floats = NDArray[np.floating[Any]]
MAX_CLASSES = 255


class _Masks:
    """Masks of the training or test images, at the size that the student sees."""

    def __init__(self, data: EvaluationSet, patch: int) -> None:
        self._data, self._patch = data, patch
        self.left_out: Counter[str] = Counter()
        """Images without a mask, by reason."""
        self.rows: set[int] = set()

    def mask(self, row: int, grid: tuple[int, int]) -> NDArray[np.int64] | None:
        height, width = grid[0] * self._patch, grid[1] * self._patch
        if self._data.mixture.frames_of(row)[0] > 1:
            self.left_out["clip"] += 1
            return None
        try:
            mask = self._data.mask(row, width, height)
        except Reject as error:
            self.left_out[error.reason] += 1
            return None
        if mask is None:
            self.left_out["no_mask"] += 1
        else:
            self.rows.add(row)
        return mask

    def merge_masks(self, world: World) -> None:
        parts = world.gather((self.left_out, self.rows))
        self.left_out = sum((part[0] for part in parts), Counter())
        self.rows = set().union(*(part[1] for part in parts))


@dataclass(frozen=True)
class Probe:
    """A linear layer on the patch features of a model."""

    model: str
    layer: probe.Linear


class ProbeTrainer(_Masks):
    """Evaluator of the training images: sums of each model's probe, and their features if a layer is trained."""

    def __init__(self, data: EvaluationSet, patch: int) -> None:
        super().__init__(data, patch)
        self.sums: dict[str, probe.Sums] = {}
        self._kept: dict[str, dict[int, tuple[Floats, Floats]]] = {}
        self._world: World | None = None

    def update(self, features: FeatureBatch) -> None:
        targets = {}
        for row, grid in zip(features.rows, features.grids, strict=True):
            mask = self.mask(row, grid)
            if mask is not None:
                targets[row] = class_shares(mask, self._patch)
        for name, output in features.outputs.items():
            if output.patches is None:
                continue
            for row, patches in features.per_image(output.patches):
                if row in targets:
                    self._add(name, row, patches.reshape(-1, patches.shape[-1]), targets[row])

    def _add(self, name: str, row: int, features_NP: Floats, targets_NC: Floats) -> None:
        sums = self.sums.setdefault(name, probe.Sums.empty(features_NP.shape[1], MAX_CLASSES))
        known = targets_NC.sum(1) > 0
        sums.add(features_NP[known], targets_NC[known])
        if self._data.settings.segmentation_epochs and known.any():
            self._kept.setdefault(name, {})[row] = (
                features_NP[known].astype(np.float16),
                targets_NC[known].astype(np.float16),
            )

    def merge(self, world: World) -> None:
        self.merge_masks(world)
        self.sums = summed(world.gather(self.sums))
        self._world = world

    def probes(self) -> dict[str, Probe]:
        """By name for people. Raises InputError if the masks have fewer than 2 classes."""
        own, found = self._data.settings, {}
        schedule = Schedule(own.segmentation_epochs, own.segmentation_batch, own.segmentation_learning_rate)
        for name, sums in self.sums.items():
            trained = sums.y > 0
            found[name] = Probe(name, _trained_classes(probe.fit(sums), trained))
            if schedule.epochs:
                layer = self._train(self._kept.pop(name, {}), len(sums.x), trained, schedule)
                found[f"{name}, {schedule.epochs} epochs"] = Probe(name, _trained_classes(layer, trained))
        return found

    def _train(
        self, kept: dict[int, tuple[Floats, Floats]], width: int, trained: NDArray[np.bool_], schedule: Schedule
    ) -> probe.Linear:
        """The layer, with as many classes as the masks can have. A collective of all ranks."""
        assert self._world is not None
        own = {row: (features, targets[:, trained]) for row, (features, targets) in kept.items()}
        start = LinearLayer(width, int(trained.sum()))
        layer = train(start, own, schedule, world=self._world, seed=self._data.seed).folded()
        weight, bias = np.zeros((len(layer.weight), len(trained))), np.zeros(len(trained))
        weight[:, trained], bias[trained] = layer.weight, layer.bias
        return probe.Linear(weight, bias, layer.strength)


def _trained_classes(layer: probe.Linear, trained: NDArray[np.bool_]) -> probe.Linear:
    """Drops the classes above the last trained one. Classes without training pixels get -inf: never predicted."""
    classes = int(np.flatnonzero(trained)[-1]) + 1
    bias = np.where(trained[:classes], layer.bias[:classes], -np.inf)
    return probe.Linear(layer.weight[:, :classes], bias, layer.strength)


class MaskEvaluator(_Masks):
    """Evaluator of the test images: pixels (true, predicted) of each model's probe. Pixels of classes that no training
    image has are not counted."""

    def __init__(self, data: EvaluationSet, patch: int, probes: dict[str, Probe]) -> None:
        super().__init__(data, patch)
        self._probes = probes
        self.pixels = {name: np.zeros([len(one.layer.bias)] * 2, dtype=np.int64) for name, one in probes.items()}

    def update(self, features: FeatureBatch) -> None:
        true = {row: self.mask(row, grid) for row, grid in zip(features.rows, features.grids, strict=True)}
        for name, one in self._probes.items():
            all_patches = features.outputs[one.model].patches
            assert all_patches is not None
            for row, patches in features.per_image(all_patches):
                mask = true[row]
                if mask is not None:
                    scores = one.layer(patches.reshape(-1, patches.shape[-1])).reshape(*patches.shape[:2], -1)
                    predicted = upsampled(scores, mask.shape)
                    self.pixels[name] += confusion(predicted.ravel(), mask.ravel(), len(one.layer.bias))

    def merge(self, world: World) -> None:
        self.merge_masks(world)
        self.pixels = summed(world.gather(self.pixels))


def result(masks: str | None, trainer: ProbeTrainer | None, evaluator: MaskEvaluator | None) -> Result:
    """`masks`: the setting evaluate.masks."""
    if masks is None:
        return not_computed("no masks given; set evaluate.masks to a member (seg.png), or to alpha")
    if trainer is None or not trainer.rows or evaluator is None or not evaluator.rows:
        sides = [(trainer, "training"), (evaluator, "test")]
        left = [(side, one.left_out.most_common()) for one, side in sides if one is not None]
        text = "; ".join(f"{side}: {', '.join(f'{why} {count}' for why, count in own) or 'all'}" for side, own in left)
        return not_computed(f"no image has a mask ({masks}) in both the training and the test images ({text})")
    if not any(pixels.any() for pixels in evaluator.pixels.values()):
        return not_computed(f"no pixel of the test masks ({masks}) has a class that a training image has")
    models, classes = {}, 0
    for name, pixels in evaluator.pixels.items():
        mean, each = mean_iou(pixels)
        classes = len(each)
        labels = class_names(masks, classes)
        own = {label: float(value) for label, value in zip(labels, each, strict=True) if np.isfinite(value)}
        models[name] = {"mean_iou": mean, "pixel_accuracy": float(np.trace(pixels) / pixels.sum()), "each": own}
    pixels = next(iter(evaluator.pixels.values()))
    return {
        "models": models,
        "train_images": len(trainer.rows),
        "test_images": len(evaluator.rows),
        "without_mask": sum(trainer.left_out.values()) + sum(evaluator.left_out.values()),
        "classes": classes,
        "largest_class": float(pixels.sum(1).max() / pixels.sum()),
    }


def class_shares(mask_HW: NDArray[np.int64], patch: int) -> NDArray[np.float64]:
    """Share (patches, MAX_CLASSES) of each class in a patch's labelled pixels; zeros for patches without any.

    Raises InputError for a class of MAX_CLASSES or more.
    """
    if mask_HW.max(initial=0) >= MAX_CLASSES:
        raise InputError(f"evaluate.masks: class {mask_HW.max()}; masks have classes 0..{MAX_CLASSES - 1}")
    height, width = mask_HW.shape
    cut = mask_HW.reshape(height // patch, patch, width // patch, patch).transpose(0, 2, 1, 3).reshape(-1, patch**2)
    place = np.arange(len(cut))[:, None] * MAX_CLASSES + cut
    counts = np.bincount(place[cut >= 0], minlength=len(cut) * MAX_CLASSES).reshape(-1, MAX_CLASSES)
    total = counts.sum(1, keepdims=True)
    return np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)


def upsampled(scores_HWC: Floats, size: tuple[int, ...]) -> NDArray[np.int64]:
    """Class (height, width) of the highest score, with patch scores interpolated bilinearly; never a class of -inf."""
    best = np.full(size, -np.inf, dtype=np.float32)
    predicted = np.zeros(size, dtype=np.int64)
    for label in np.flatnonzero(np.isfinite(scores_HWC).all((0, 1))):
        plane = Image.fromarray(np.ascontiguousarray(scores_HWC[:, :, label], dtype=np.float32))
        values = np.asarray(plane.resize((size[1], size[0]), Image.Resampling.BILINEAR))
        higher = values > best
        best[higher], predicted[higher] = values[higher], label
    return predicted


def confusion(predicted: NDArray[np.int64], true: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Pixels (C, C) by true and predicted class; true classes outside 0..C-1 are not counted."""
    known = (true >= 0) & (true < classes)
    return np.bincount(true[known] * classes + predicted[known], minlength=classes**2).reshape(classes, classes)


def mean_iou(confusion_CC: NDArray[np.int64]) -> tuple[float, NDArray[np.float64]]:
    """Intersection over union: the mean over the classes that occur, and of each class (NaN if it does not occur)."""
    both = np.diag(confusion_CC).astype(np.float64)
    union = confusion_CC.sum(0) + confusion_CC.sum(1) - both
    each = np.divide(both, union, out=np.full(len(both), np.nan), where=union > 0)
    occurs = confusion_CC.sum(1) > 0
    return float(each[occurs].mean()) if occurs.any() else float("nan"), each


def class_names(masks: str, classes: int) -> list[str]:
    return ["ground", "figure"][:classes] if masks == ALPHA else [str(label) for label in range(classes)]
