"""A linear layer on frozen patch features, judged by mean intersection over union.

It is fitted to the share of each class in a patch's pixels; scores are brought to the student's pixels bilinearly, as
usual for linear probes of patch features, and the highest one is the pixel's class.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from curate.core.errors import InputError, Reject
from distill.evaluation.judged import ALPHA, Judged
from distill.evaluation.tasks import probe
from distill.evaluation.watchers import Seen, added
from distill.training.parallel import World

Floats = NDArray[np.floating[Any]]
MOST_CLASSES = 255


class _Masks:
    """Of the pictures of one side, at the size that the student sees them."""

    def __init__(self, judged: Judged, patch: int) -> None:
        self._judged, self._patch = judged, patch
        self.left_out: Counter[str] = Counter()
        """Pictures without a mask, by reason."""
        self.rows: set[int] = set()

    def of(self, row: int, grid: tuple[int, int]) -> NDArray[np.int64] | None:
        height, width = grid[0] * self._patch, grid[1] * self._patch
        try:
            mask = self._judged.mask(row, width, height)
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


class Learner(_Masks):
    """Sums of each model's probe over the pictures that are learnt from."""

    def __init__(self, judged: Judged, patch: int) -> None:
        super().__init__(judged, patch)
        self.sums: dict[str, probe.Sums] = {}

    def see(self, seen: Seen) -> None:
        wanted = {}
        for row, grid in zip(seen.rows, seen.batch.grids, strict=True):
            mask = self.of(row, grid)
            if mask is not None:
                wanted[row] = shares(mask, self._patch)
        for name, answer in seen.answers.items():
            if answer.patches is None:
                continue
            for row, features in seen.of_each(answer.patches):
                if row in wanted:
                    self._add(name, features.reshape(-1, features.shape[-1]), wanted[row])

    def _add(self, name: str, features_NP: Floats, wanted_NC: Floats) -> None:
        sums = self.sums.setdefault(name, probe.Sums.empty(features_NP.shape[1], MOST_CLASSES))
        known = wanted_NC.sum(1) > 0
        sums.add(features_NP[known], wanted_NC[known])

    def merge(self, world: World) -> None:
        self.merge_masks(world)
        self.sums = added(world.gather(self.sums))

    def probes(self) -> dict[str, probe.Linear]:
        """Raises InputError where the masks have fewer than 2 classes."""
        return {name: _only_learnt(probe.fit(sums), sums.y > 0) for name, sums in self.sums.items()}


def _only_learnt(linear: probe.Linear, learnt: NDArray[np.bool_]) -> probe.Linear:
    """As many classes as the last one that was there; a class that was not there is never said."""
    classes = int(np.flatnonzero(learnt)[-1]) + 1
    bias = np.where(learnt[:classes], linear.bias[:classes], -np.inf)
    return probe.Linear(linear.weight[:, :classes], bias, linear.strength)


class Examiner(_Masks):
    """Pixels (true, said) of each model's probe over the pictures that are asked about; a class that no training
    picture has is not asked about."""

    def __init__(self, judged: Judged, patch: int, probes: dict[str, probe.Linear]) -> None:
        super().__init__(judged, patch)
        self._probes = probes
        self.pixels = {name: np.zeros((len(one.bias), len(one.bias)), dtype=np.int64) for name, one in probes.items()}

    def see(self, seen: Seen) -> None:
        true = {row: self.of(row, grid) for row, grid in zip(seen.rows, seen.batch.grids, strict=True)}
        for name, linear in self._probes.items():
            patches = seen.answers[name].patches
            assert patches is not None
            for row, features in seen.of_each(patches):
                mask = true[row]
                if mask is not None:
                    scores = linear(features.reshape(-1, features.shape[-1])).reshape(*features.shape[:2], -1)
                    said = upsampled(scores, mask.shape)
                    self.pixels[name] += probe.confusion(said.ravel(), mask.ravel(), len(linear.bias))

    def merge(self, world: World) -> None:
        self.merge_masks(world)
        self.pixels = added(world.gather(self.pixels))


def shares(mask_HW: NDArray[np.int64], patch: int) -> NDArray[np.float64]:
    """Share (patches, MOST_CLASSES) of each class in a patch's labelled pixels; zeros where none is labelled.

    Raises InputError for a class beyond what a mask can hold.
    """
    if mask_HW.max(initial=0) >= MOST_CLASSES:
        raise InputError(f"evaluate.masks: a class {mask_HW.max()}; masks hold classes 0..{MOST_CLASSES - 1}")
    height, width = mask_HW.shape
    cut = mask_HW.reshape(height // patch, patch, width // patch, patch).transpose(0, 2, 1, 3).reshape(-1, patch**2)
    place = np.arange(len(cut))[:, None] * MOST_CLASSES + cut
    counts = np.bincount(place[cut >= 0], minlength=len(cut) * MOST_CLASSES).reshape(-1, MOST_CLASSES)
    total = counts.sum(1, keepdims=True)
    return np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)


def upsampled(scores_HWC: Floats, size: tuple[int, ...]) -> NDArray[np.int64]:
    """Class (height, width) of the highest score, scores of patches interpolated bilinearly; -inf is never said."""
    best = np.full(size, -np.inf, dtype=np.float32)
    said = np.zeros(size, dtype=np.int64)
    for label in np.flatnonzero(np.isfinite(scores_HWC).all((0, 1))):
        plane = Image.fromarray(np.ascontiguousarray(scores_HWC[:, :, label], dtype=np.float32))
        values = np.asarray(plane.resize((size[1], size[0]), Image.Resampling.BILINEAR))
        higher = values > best
        best[higher], said[higher] = values[higher], label
    return said


def names_of(masks: str, classes: int) -> list[str]:
    return ["ground", "figure"][:classes] if masks == ALPHA else [str(label) for label in range(classes)]
