"""Linear centred kernel alignment: similarity of two representations of the same tokens, up to rotation and scale.

Kornblith et al. 2019 (Sec. 3), with the unbiased estimate of HSIC (Song et al. 2012, Eq. 5) averaged over minibatches
(Nguyen et al. 2021, Sec. 3.1): by the biased estimate, any two wide representations of few tokens are similar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
LAYER, EXPERT, OUTPUT = "layer", "expert", "output"
"""First words of the names of rows and columns."""
MIN_TOKENS = 4
"""The unbiased estimate divides by n - 3."""
_CONSTANT = 1e-12
"""Norm of centred features over the norm of the features, below which the rest is rounding."""


@dataclass(frozen=True)
class Centred:
    """Features (N, D) without their mean, and sums for `hsic`. Constant features become zero."""

    x: NDArray[np.float64]
    own: NDArray[np.float64]
    """Diagonal of x x^T (N,)."""
    rows: NDArray[np.float64]
    """Row sums of x x^T without its diagonal (N,)."""

    @classmethod
    def of(cls, features_ND: Floats) -> Centred:
        features = features_ND.astype(np.float64)
        x = features - features.mean(0)
        if np.linalg.norm(x) <= _CONSTANT * np.linalg.norm(features):
            x = np.zeros_like(x)
        own = np.square(x).sum(1)
        return cls(x, own, x @ x.sum(0) - own)


def hsic(a: Centred, b: Centred) -> float:
    """Unbiased HSIC of linear kernels over the same N >= 4 tokens, without an N x N matrix."""
    count = len(a.x)
    trace = float(np.square(a.x.T @ b.x).sum() - a.own @ b.own)
    sums = float(a.rows.sum() * b.rows.sum()) / ((count - 1) * (count - 2))
    return (trace + sums - 2 / (count - 2) * float(a.rows @ b.rows)) / (count * (count - 3))


def cka(a_ND: Floats, b_NP: Floats) -> float:
    """CKA of one batch: 1 if equal up to rotation, scale and shift; about 0, or slightly below, if unrelated."""
    return aligned(*(hsic(*pair) for pair in _pairs(Centred.of(a_ND), Centred.of(b_NP))))


def aligned(ab: float, aa: float, bb: float) -> float:
    """hsic(a, b) over the square root of hsic(a, a) hsic(b, b); NaN if a or b is constant."""
    return ab / np.sqrt(aa) / np.sqrt(bb) if aa > 0 and bb > 0 else float("nan")


@dataclass
class Alignment:
    """CKA between every row and every column representation, over minibatches."""

    sums: dict[tuple[str, str], NDArray[np.float64]] = field(default_factory=dict)
    """By (row, column): sums of hsic(row, column), hsic(row, row), hsic(column, column); and the number of batches."""

    def add(self, row: str, features_ND: Floats, columns: Mapping[str, Floats]) -> None:
        """Add a batch: features of the same N tokens, of the row and of each column. Ignored if N < 4."""
        if len(features_ND) < MIN_TOKENS:
            return
        own = Centred.of(features_ND)
        for name, other in columns.items():
            values = [*(hsic(*pair) for pair in _pairs(own, Centred.of(other))), 1.0]
            self.sums[row, name] = self.sums.get((row, name), np.zeros(4)) + values

    def merge(self, other: Alignment) -> None:
        for key, values in other.sums.items():
            self.sums[key] = self.sums.get(key, np.zeros(4)) + values

    def table(self) -> tuple[list[str], list[str], NDArray[np.float64]]:
        """Rows and columns in the order of their first batch, and CKA (rows, columns); NaN without tokens."""
        rows, columns = (list(dict.fromkeys(key[side] for key in self.sums)) for side in (0, 1))
        empty = np.full(4, np.nan)
        found = [[aligned(*self.sums.get((row, name), empty)[:3]) for name in columns] for row in rows]
        return rows, columns, np.array(found).reshape(len(rows), len(columns))


def _pairs(a: Centred, b: Centred) -> list[tuple[Centred, Centred]]:
    return [(a, b), (a, a), (b, b)]
