"""Linear probes in closed form: ridge regression onto the classes, its strength chosen by generalised cross-validation.

A probe needs sums over its training rows only. They are added up image by image and over ranks, so patches of many
images take no memory. The result does not depend on an order, a seed or a learning rate (choice of the strength: Golub,
Heath and Wahba 1979).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError

Floats = NDArray[np.floating[Any]]
STRENGTHS = np.logspace(-6, 2, 17)
"""Candidates for the penalty over the mean variance of a feature."""


@dataclass
class Sums:
    """Sums over the training rows of a probe of D features and C classes, in float64."""

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

    def add(self, features_ND: Floats, targets_NC: Floats) -> None:
        """targets: one-hot labels, or shares of the classes."""
        x, y = features_ND.astype(np.float64), targets_NC.astype(np.float64)
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
    """The chosen element of STRENGTHS."""

    def __call__(self, features_ND: Floats) -> NDArray[np.float64]:
        """Scores (N, C)."""
        return features_ND.astype(np.float64) @ self.weight + self.bias


def fit(sums: Sums) -> Linear:
    """Raises InputError if there are fewer than 2 classes or rows."""
    classes = int((sums.y > 0).sum())
    if classes < 2 or sums.count < 2:
        raise InputError(f"a linear probe needs 2 classes and 2 rows, not {classes} and {int(sums.count)}")
    count, mean_x, mean_y = sums.count, sums.x / sums.count, sums.y / sums.count
    xx = sums.xx / count - np.outer(mean_x, mean_x)
    xy = sums.xy / count - np.outer(mean_x, mean_y)
    yy = sums.yy / count - float(np.square(mean_y).sum())
    values, vectors = np.linalg.eigh(xx)
    values = np.maximum(values, 0.0)
    turned = vectors.T @ xy
    penalties = STRENGTHS * max(float(values.mean()), 1e-30)
    noise = len(values) * np.finfo(np.float64).eps * float(np.trace(sums.xx)) / count
    rank = int(min((values > noise).sum(), count - 1))
    kept = slice(len(values) - rank, None)
    errors = [_cross_validated(values[kept], turned[kept], yy, count, penalty) for penalty in penalties]
    best = int(np.argmin(errors))
    weight = vectors @ (turned / (values + penalties[best])[:, None])
    return Linear(weight, mean_y - mean_x @ weight, float(STRENGTHS[best]))


def _cross_validated(
    values: NDArray[np.float64], turned: NDArray[np.float64], yy: float, count: float, penalty: float
) -> float:
    """Mean squared residual over (1 - degrees of freedom / rows)^2; the mean itself is one degree of freedom.

    `values`: those above zero, of which there are fewer than rows. Both parts of the quotient vanish where a small
    penalty fits every row, so neither is a difference of large numbers.
    """
    explained = np.square(turned).sum(1) / values
    left = penalty / (values + penalty)
    free = count - 1 - len(values)
    outside = max(yy - float(explained.sum()), 0.0) if free else 0.0
    return (outside + float((explained * np.square(left)).sum())) / ((free + float(left.sum())) / count) ** 2


def one_hot(labels_N: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    return np.eye(classes)[labels_N]
