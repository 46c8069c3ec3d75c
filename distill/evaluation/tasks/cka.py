"""Linear centred kernel alignment: similarity of two representations of the same tokens, up to rotation and scale.

Kornblith et al. 2019 (Sec. 3), by one of two estimates: `Covariances` of all tokens (AMoE, Eq. 8), or the unbiased HSIC
(Song et al. 2012, Eq. 5) averaged over minibatches (Nguyen et al. 2021, Sec. 3.1). By the first estimate, any two wide
representations of few tokens are similar.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

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


class Alignment(ABC):
    """CKA between every row and every column representation."""

    @abstractmethod
    def add(self, row: str, features_ND: Floats, columns: Mapping[str, Floats]) -> None:
        """Add a batch: features of the same N tokens, of the row and of each column."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add the batches of another rank."""

    @abstractmethod
    def values(self) -> dict[tuple[str, str], float]:
        """CKA by (row, column)."""


def table(values: Mapping[tuple[str, str], float]) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """CKA by (row, column) -> rows and columns in their first order, and CKA (rows, columns); NaN without tokens."""
    rows, columns = (list(dict.fromkeys(key[side] for key in values)) for side in (0, 1))
    found = [[values.get((row, name), np.nan) for name in columns] for row in rows]
    return rows, columns, np.array(found).reshape(len(rows), len(columns))


@dataclass
class Minibatches(Alignment):
    """Unbiased estimate, averaged over minibatches."""

    sums: dict[tuple[str, str], NDArray[np.float64]] = field(default_factory=dict)
    """By (row, column): sums of hsic(row, column), hsic(row, row), hsic(column, column); and the number of batches."""

    def add(self, row: str, features_ND: Floats, columns: Mapping[str, Floats]) -> None:
        """Ignored if N < 4."""
        if len(features_ND) < MIN_TOKENS:
            return
        own = Centred.of(features_ND)
        for name, other in columns.items():
            values = [*(hsic(*pair) for pair in _pairs(own, Centred.of(other))), 1.0]
            self.sums[row, name] = self.sums.get((row, name), np.zeros(4)) + values

    def merge(self, other: Self) -> None:
        for key, values in other.sums.items():
            self.sums[key] = self.sums.get(key, np.zeros(4)) + values

    def values(self) -> dict[tuple[str, str], float]:
        return {key: aligned(*own[:3]) for key, own in self.sums.items()}


@dataclass
class Moments:
    """Means and centred products of two representations of the same tokens, in float64."""

    count: int
    mean: tuple[NDArray[np.float64], NDArray[np.float64]]
    xx: NDArray[np.float64]
    xy: NDArray[np.float64]
    yy: NDArray[np.float64]

    @classmethod
    def of(cls, x_ND: Floats, y_NP: Floats) -> Moments:
        means = x_ND.mean(0, dtype=np.float64), y_NP.mean(0, dtype=np.float64)
        x, y = Centred.of(x_ND).x, Centred.of(y_NP).x
        return cls(len(x), means, x.T @ x, x.T @ y, y.T @ y)

    def __iadd__(self, other: Moments) -> Moments:
        total = self.count + other.count
        dx, dy = (theirs - own for own, theirs in zip(self.mean, other.mean, strict=True))
        share = self.count * other.count / total
        self.xx += other.xx + share * np.outer(dx, dx)
        self.xy += other.xy + share * np.outer(dx, dy)
        self.yy += other.yy + share * np.outer(dy, dy)
        self.mean = self.mean[0] + dx * other.count / total, self.mean[1] + dy * other.count / total
        self.count = total
        return self

    def cka(self) -> float:
        """AMoE, Eq. 8; NaN if one of the two is constant."""
        norms = np.linalg.norm(self.xx), np.linalg.norm(self.yy)
        return float(np.square(self.xy).sum() / norms[0] / norms[1]) if min(norms) > 0 else float("nan")


@dataclass
class Covariances(Alignment):
    """Linear CKA over all tokens of some pairs (row, column): exact, however the tokens are divided into batches."""

    pairs: Collection[tuple[str, str]]
    moments: dict[tuple[str, str], Moments] = field(default_factory=dict)

    def add(self, row: str, features_ND: Floats, columns: Mapping[str, Floats]) -> None:
        for name, other in columns.items():
            if len(features_ND) and (row, name) in self.pairs:
                self._add((row, name), Moments.of(features_ND, other))

    def merge(self, other: Self) -> None:
        for key, own in other.moments.items():
            self._add(key, own)

    def _add(self, key: tuple[str, str], own: Moments) -> None:
        if key in self.moments:
            self.moments[key] += own
        else:
            self.moments[key] = own

    def values(self) -> dict[tuple[str, str], float]:
        return {key: own.cka() for key, own in self.moments.items()}


def passes(rows: Mapping[str, int], columns: Mapping[str, int], most_bytes: int) -> list[frozenset[tuple[str, str]]]:
    """Pairs of rows and columns, divided so that the moments of each part take at most `most_bytes` (or are one pair).

    rows, columns: dimensions by name."""
    parts: list[set[tuple[str, str]]] = []
    taken = 0
    for row, x in rows.items():
        for column, y in columns.items():
            own = 8 * (x * x + x * y + y * y)
            if not parts or taken + own > most_bytes:
                parts.append(set())
                taken = 0
            parts[-1].add((row, column))
            taken += own
    return [frozenset(part) for part in parts]


def _pairs(a: Centred, b: Centred) -> list[tuple[Centred, Centred]]:
    return [(a, b), (a, a), (b, b)]
