"""Linear probes in closed form: ridge regression onto the classes, its strength chosen by generalised cross-validation.

The sums of a probe are added picture by picture, so that patches of many pictures need no memory, and over ranks. The
answer depends on no order, seed or learning rate (Golub, Heath and Wahba 1979 for the choice of the strength).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError

Floats = NDArray[np.floating[Any]]
STRENGTHS = np.logspace(-6, 2, 17)
"""Of the penalty, over the mean variance of a feature."""


@dataclass
class Sums:
    """What a probe of D features and C classes needs to know of its training rows, in float64."""

    count: float
    x: NDArray[np.float64]
    """(D,)."""
    y: NDArray[np.float64]
    """(C,)."""
    xx: NDArray[np.float64]
    """(D, D)."""
    xy: NDArray[np.float64]
    """(D, C)."""
    yy: float

    @classmethod
    def empty(cls, features: int, classes: int) -> Sums:
        return cls(
            0.0, np.zeros(features), np.zeros(classes), np.zeros((features, features)),
            np.zeros((features, classes)), 0.0,
        )  # fmt: skip

    def add(self, features_ND: Floats, wanted_NC: Floats) -> None:
        """wanted: one for the class of a row and zeros, or shares of the classes."""
        x, y = features_ND.astype(np.float64), wanted_NC.astype(np.float64)
        self += Sums(len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y, float(np.square(y).sum()))

    def __iadd__(self, other: Sums) -> Sums:
        self.count, self.yy = self.count + other.count, self.yy + other.yy
        self.x, self.y, self.xx, self.xy = (
            self.x + other.x, self.y + other.y, self.xx + other.xx, self.xy + other.xy,
        )  # fmt: skip
        return self


@dataclass(frozen=True)
class Linear:
    weight: NDArray[np.float64]
    """(D, C)."""
    bias: NDArray[np.float64]
    """(C,)."""
    strength: float
    """Of STRENGTHS, the one chosen."""

    def __call__(self, features_ND: Floats) -> NDArray[np.float64]:
        """Scores (N, C)."""
        return features_ND.astype(np.float64) @ self.weight + self.bias


def fit(sums: Sums) -> Linear:
    """Raises InputError where there is nothing to tell apart: fewer than 2 classes or rows."""
    classes = int((sums.y > 0).sum())
    if classes < 2 or sums.count < 2:
        raise InputError(f"a linear probe needs 2 classes and 2 rows; it was given {classes} and {int(sums.count)}")
    count, mean_x, mean_y = sums.count, sums.x / sums.count, sums.y / sums.count
    xx = sums.xx / count - np.outer(mean_x, mean_x)
    xy = sums.xy / count - np.outer(mean_x, mean_y)
    yy = sums.yy / count - float(np.square(mean_y).sum())
    values, vectors = np.linalg.eigh(xx)
    values = np.maximum(values, 0.0)
    turned = vectors.T @ xy
    penalties = STRENGTHS * max(float(values.mean()), 1e-30)
    best = int(np.argmin([_cross_validated(values, turned, yy, count, penalty) for penalty in penalties]))
    weight = vectors @ (turned / (values + penalties[best])[:, None])
    return Linear(weight, mean_y - mean_x @ weight, float(STRENGTHS[best]))


def _cross_validated(
    values: NDArray[np.float64], turned: NDArray[np.float64], yy: float, count: float, penalty: float
) -> float:
    """Mean squared residual over (1 - degrees of freedom / rows)^2; the mean itself is one degree of freedom."""
    gain = (np.square(turned) * ((values + 2 * penalty) / np.square(values + penalty))[:, None]).sum()
    freedom = 1.0 + float((values / (values + penalty)).sum())
    return max(yy - float(gain), 0.0) / max(1.0 - freedom / count, 1e-3) ** 2


def one_hot(labels_N: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    return np.eye(classes)[labels_N]


def confusion(said: NDArray[np.int64], true: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Pixels (true, said) (C, C); true labels outside of 0..C-1 are not counted."""
    known = (true >= 0) & (true < classes)
    return np.bincount(true[known] * classes + said[known], minlength=classes**2).reshape(classes, classes)


def mean_iou(confusion_CC: NDArray[np.int64]) -> tuple[float, NDArray[np.float64]]:
    """Mean over the classes that occur, and of each class (NaN where it does not): intersection over union."""
    both = np.diag(confusion_CC).astype(np.float64)
    union = confusion_CC.sum(0) + confusion_CC.sum(1) - both
    each = np.divide(both, union, out=np.full(len(both), np.nan), where=union > 0)
    occurs = confusion_CC.sum(1) > 0
    return float(each[occurs].mean()) if occurs.any() else float("nan"), each
