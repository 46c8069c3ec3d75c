"""How well a student predicts its teachers' features on images that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.extraction import FeatureBatch, summed
from distill.evaluation.result import Result, not_computed
from distill.evaluation.tasks.knn import unit
from distill.parallel import World

Floats = NDArray[np.floating[Any]]
_CONSTANT = 1e-12
"""Variance over mean square below which features differ by rounding only."""


class PredictionErrors:
    """Evaluator that compares students' predictions with teachers' features, by (student, teacher, kind)."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, str], Agreement] = {}

    def update(self, features: FeatureBatch) -> None:
        for name, output in features.outputs.items():
            for teacher, prediction in output.predictions.items():
                target = features.targets.get(teacher)
                if target is None:
                    continue
                for kind in ("summary", "patches"):
                    predicted, true = getattr(prediction, kind), getattr(target, kind)
                    if predicted is not None and true is not None:
                        self._add((name, teacher, kind), predicted.numpy(), true.numpy())

    def _add(self, key: tuple[str, str, str], predicted: Floats, true: Floats) -> None:
        self.values.setdefault(key, Agreement.empty(true.shape[1])).add(predicted, true)

    def merge(self, world: World) -> None:
        self.values = summed(world.gather(self.values))

    def result(self) -> Result:
        if not self.values:
            return not_computed("none of these students was trained on an available teacher")
        models: Result = {}
        for (student, teacher, kind), agreement in self.values.items():
            models.setdefault(student, {}).setdefault(teacher, {})[kind] = agreement.result()
        return {"models": models}


@dataclass
class Agreement:
    """Sums over rows of D features: the student's predictions and the teacher's values."""

    count: float
    cosine: float
    error: float
    """Squared error."""
    true: NDArray[np.float64]
    """(D,)."""
    square: float
    """Squared norm of the true values."""

    @classmethod
    def empty(cls, features: int) -> Agreement:
        return cls(0.0, 0.0, 0.0, np.zeros(features), 0.0)

    def add(self, predicted_ND: Floats, true_ND: Floats) -> None:
        predicted, true = predicted_ND.astype(np.float64), true_ND.astype(np.float64)
        cosine = float((unit(predicted).astype(np.float64) * unit(true)).sum())
        error = float(np.square(predicted - true).sum())
        self += Agreement(len(true), cosine, error, true.sum(0), float(np.square(true).sum()))

    def __iadd__(self, other: Agreement) -> Agreement:
        self.count, self.cosine = self.count + other.count, self.cosine + other.cosine
        self.error, self.square = self.error + other.error, self.square + other.square
        self.true = self.true + other.true
        return self

    def result(self) -> dict[str, float | None]:
        """`cosine`: mean over rows. `explained`: 1 - squared error / squared distance from the teacher's mean; 1 is a
        perfect prediction, 0 is as good as always predicting the mean of these rows, None is for constant teacher
        features (a single image, for example). Empty without rows."""
        if not self.count:
            return {}
        variance = self.square - float(np.square(self.true).sum()) / self.count
        explained = 1.0 - self.error / variance if variance > _CONSTANT * self.square else None
        return {"cosine": self.cosine / self.count, "explained": explained}
