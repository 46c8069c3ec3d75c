"""Test set of students on OpenClipart: clip-arts held out by duplicate set, as in training."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.ablations.folders import ROOT, Curated, curate
from bench.ablations.judge import Floats, knn_right, only
from distill.samples.sources.dataset import Dataset, open_dataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.split import held_out
from pipelines.openclipart import openclipart

TEST_FRACTION = 0.2
"""The same as in the training recipes."""
LEAST = 2
"""Minimum number of training images in a folder whose held-out images are tested."""


@dataclass(frozen=True)
class ClipArts:
    keys: list[str]
    sets: list[str]
    images: list[bytes]
    texts: list[str]
    """The first line of each image's text."""
    labels: NDArray[np.int64]
    """Indices into `classes`, the images' folders."""
    classes: list[str]
    sides: NDArray[np.int64]
    """(n, 2): width and height."""
    rarest: NDArray[np.int64]
    """Number of images with the rarest concept of an image; 0 if it has no concept."""

    def held(self, seed: int) -> NDArray[np.bool_]:
        """Mask (n,) of the images that a recipe with this seed never trains on."""
        return held_out(self.keys, self.sets, seed=seed, fraction=TEST_FRACTION)

    def knn(self, summaries_ND: Floats, seed: int) -> Floats:
        """1 if the predicted folder of a held-out image is right, 0 if not; NaN for images that are not tested."""
        test = self.held(seed)
        known = np.bincount(self.labels[~test], minlength=len(self.classes))
        tested = test & (known[self.labels] >= LEAST)
        right = np.zeros(len(test), np.float32)
        bank = (summaries_ND[~test], self.labels[~test])
        right[tested] = knn_right(*bank, summaries_ND[tested], self.labels[tested], len(self.classes))
        return only(right, tested)


def images() -> Path:
    return openclipart(ROOT / ".cache" / "openclipart")


def native(seed: int) -> Curated:
    """The dataset of all clip-arts, the same for every seed."""
    return curate("clip-arts", [f"images={images()}"])


@lru_cache
def clip_arts() -> ClipArts:
    dataset = open_dataset(native(0).dataset)
    members = MemberReader(dataset)
    keys, labels = [str(key) for key in dataset.strings("key")], [str(name) for name in dataset.strings("label")]
    classes, places = np.unique(np.array(labels), return_inverse=True)
    texts = [members.member(row, "txt") for row in range(len(dataset))]
    return ClipArts(
        keys=keys,
        sets=[name or key for name, key in zip(dataset.strings("duplicate_set"), keys, strict=True)],
        images=[members.read(row) for row in range(len(dataset))],
        texts=[(text or b"").decode().split("\n")[0] for text in texts],
        labels=places.astype(np.int64),
        classes=classes.tolist(),
        sides=np.stack([dataset.integers("width"), dataset.integers("height")], axis=1),
        rarest=_rarest(dataset),
    )


def _rarest(dataset: Dataset) -> NDArray[np.int64]:
    concepts = [set(own or ()) for own in dataset.values("concepts", np.arange(len(dataset)))]
    counts = Counter(name for own in concepts for name in own)
    return np.array([min((counts[name] for name in own), default=0) for own in concepts], dtype=np.int64)
