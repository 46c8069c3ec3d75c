"""How well a student foretells its teacher on pictures that it was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.tasks.knn import unit

Floats = NDArray[np.floating[Any]]
_CONSTANT = 1e-12
"""Variance over mean square below which features are all the same, but for rounding."""


@dataclass
class Agreement:
    """Sums over rows of D features, said by the student and true by the teacher."""

    count: float
    cosine: float
    error: float
    """Squared."""
    true: NDArray[np.float64]
    """(D,)."""
    square: float
    """Of the true ones."""

    @classmethod
    def empty(cls, features: int) -> Agreement:
        return cls(0.0, 0.0, 0.0, np.zeros(features), 0.0)

    def add(self, said_ND: Floats, true_ND: Floats) -> None:
        said, true = said_ND.astype(np.float64), true_ND.astype(np.float64)
        cosine = float((unit(said).astype(np.float64) * unit(true)).sum())
        error = float(np.square(said - true).sum())
        self += Agreement(len(true), cosine, error, true.sum(0), float(np.square(true).sum()))

    def __iadd__(self, other: Agreement) -> Agreement:
        self.count, self.cosine = self.count + other.count, self.cosine + other.cosine
        self.error, self.square = self.error + other.error, self.square + other.square
        self.true = self.true + other.true
        return self

    def found(self) -> dict[str, float | None]:
        """`cosine` (mean over rows), `explained`: 1 - squared error / squared distance from the teacher's mean, so 0 is
        what saying the mean of these rows always would get, and 1 is everything; None where the teacher always says
        the same, as of one picture. Of no rows: nothing."""
        if not self.count:
            return {}
        variance = self.square - float(np.square(self.true).sum()) / self.count
        explained = 1.0 - self.error / variance if variance > _CONSTANT * self.square else None
        return {"cosine": self.cosine / self.count, "explained": explained}
