"""What kNN, linear probes and zero-shot classification share: labelled features, and accuracies from class scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError
from distill.evaluation.datasets import LabelSplit
from distill.evaluation.extraction import Vectors
from distill.evaluation.models import EvaluatedModel
from distill.evaluation.result import Result
from distill.parallel import World
from distill.recipe import EvaluateRecipe

Floats = NDArray[np.floating[Any]]
HEADS_TOGETHER = "heads together"
MIN_HEADS = 2
"""Heads of which an ensemble makes sense."""


@dataclass
class LabelledFeatures:
    """Labelled training and test images that could be read, with the features of all models."""

    split: LabelSplit
    vectors: Vectors
    models: Sequence[EvaluatedModel]
    settings: EvaluateRecipe
    world: World
    seed: int = 0
    attention: Mapping[str, Mapping[int, Floats]] = field(default_factory=dict)
    """Scores (classes,) of each model's attention probe, by test row."""

    def __post_init__(self) -> None:
        read = self.vectors.rows
        self.train = [int(row) for row in self.split.train if int(row) in read]
        self.test = [int(row) for row in self.split.test if int(row) in read]
        self.all_test = sorted({*self.test, *(int(row) for row in self.split.left_out if int(row) in read)})

    def labels(self, rows: Sequence[int]) -> NDArray[np.int64]:
        return np.array([self.split.labels[row] for row in rows], dtype=np.int64)

    def result(self, scores: Mapping[str, Floats], rows: Sequence[int]) -> Result:
        """Accuracies, overall and by class, of each model's scores (rows, classes)."""
        labels, names = self.labels(rows), self.split.classes
        return {
            "test_images": len(rows),
            "test_classes": len(set(labels.tolist())),
            "classes": len(names),
            "models": {name: accuracies(one, labels, top=(5,)) for name, one in scores.items()},
            "by_class": {name: by_class(one, labels, names) for name, one in scores.items()},
        }

    def baselines(self) -> Result:
        """Sizes of the split, and the accuracies of guessing and of always predicting the largest class."""
        train, test = self.labels(self.train), self.labels(self.test)
        majority = Counter(train.tolist()).most_common(1)[0][0]
        return {
            "train_images": len(train),
            "left_out_images": len(self.split.left_out),
            "left_out_classes": self.split.left_out_classes,
            "chance": 1 / len(self.split.classes),
            "majority": float((test == majority).mean()),
        }

    def why_not_trainable(self) -> str | None:
        """Why no classifier can be trained and tested; None if one can."""
        if not len(self.split.test):
            least = self.settings.min_train_images
            return f"no test image has a {self.settings.label!r} with {least} training images"
        if not self.train or not self.test:
            return f"only {len(self.train)} training and {len(self.test)} test images can be read"
        if len({self.split.labels[row] for row in self.train}) < 2:
            return f"the training images have only one {self.settings.label!r}; a classifier needs 2"
        return None


def ranks_of_truth(scores_MC: Floats, labels_M: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of classes that score above the true one (M,): 0 if it is the best. A lower class number wins ties."""
    own = np.take_along_axis(scores_MC, labels_M[:, None], 1)
    before = np.arange(scores_MC.shape[1]) < labels_M[:, None]
    ranks: NDArray[np.int64] = (scores_MC > own).sum(1) + ((scores_MC == own) & before).sum(1)
    return ranks


def accuracies(scores_MC: Floats, labels_M: NDArray[np.int64], top: Sequence[int] = ()) -> dict[str, float]:
    """`accuracy` over images, `per_class` (its mean over the tested classes), `topK` for each K below C."""
    rank = ranks_of_truth(scores_MC, labels_M)
    _, place = np.unique(labels_M, return_inverse=True)
    right = np.bincount(place, rank == 0) / np.bincount(place)
    found = {"accuracy": float((rank == 0).mean()), "per_class": float(right.mean())}
    return found | {f"top{k}": float((rank < k).mean()) for k in top if k < scores_MC.shape[1]}


def by_class(scores_MC: Floats, labels_M: NDArray[np.int64], names: Sequence[str]) -> list[dict[str, Any]]:
    """`name`, `pictures` (images) and `right` (accuracy) of each tested class, by accuracy, then by name. `taken_for`
    is the most frequent wrong prediction (None if all are right)."""
    predicted = scores_MC.argmax(1)
    rows: list[dict[str, Any]] = []
    for label in np.unique(labels_M):
        own = predicted[labels_M == label]
        wrong = np.bincount(own[own != label], minlength=len(names))
        other = names[int(wrong.argmax())] if wrong.any() else None
        right = float((own == label).mean())
        rows.append({"name": names[label], "pictures": len(own), "right": right, "taken_for": other})
    return sorted(rows, key=lambda row: (-row["right"], row["name"]))


def check_finite(what: str, values: Floats) -> None:
    """Raises InputError if some of the vectors are NaN or infinite; `what` begins the message."""
    bad = ~np.isfinite(values).reshape(len(values), -1).all(1) if values.size else np.zeros(0, dtype=bool)
    if bad.any():
        raise InputError(
            f"{what}: {int(bad.sum())} of {len(values)} vectors are not finite (NaN or infinite), so the weights are "
            f"broken; check the losses in metrics.jsonl, or evaluate another checkpoint"
        )
