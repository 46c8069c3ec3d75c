"""Win rates and paired differences, with intervals of 95 %."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUANTILE = 1.959964
"""The 97.5 % quantile of the standard normal distribution."""
RESAMPLES = 1000
_AT_ONCE = 2_000_000
"""Values that are resampled at a time."""


@dataclass(frozen=True)
class Interval:
    """A figure and the ends of its interval."""

    value: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high


def wilson(wins: int, trials: int) -> Interval | None:
    """Share of wins with the score interval (Wilson 1927), which also holds for few trials and shares near 0 or 1.
    None without trials."""
    if not trials:
        return None
    share, z = wins / trials, QUANTILE
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    # rounding must not put a share of 0 or 1 outside of its interval
    return Interval(share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)))


def mean_interval(values: NDArray[np.floating], seed: int = 0) -> Interval | None:
    """Mean of values (n,) with a percentile bootstrap interval (Efron 1979). None without values."""
    count = len(values)
    if not count:
        return None
    random = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // count)
    means = [
        values[random.integers(0, count, (min(step, RESAMPLES - start), count))].mean(axis=1)
        for start in range(0, RESAMPLES, step)
    ]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))


@dataclass(frozen=True)
class Paired:
    """Means of a measure of two texts of the same samples, and of its difference b − a."""

    pairs: int
    a: float
    b: float
    difference: Interval


def paired(a: NDArray[np.floating], b: NDArray[np.floating], seed: int = 0) -> Paired | None:
    """Values (n,) of the same samples; pairs with a NaN are left out. None without pairs."""
    both = np.isfinite(a) & np.isfinite(b)
    difference = mean_interval((b - a)[both], seed)
    return (
        None
        if difference is None
        else Paired(int(both.sum()), float(a[both].mean()), float(b[both].mean()), difference)
    )


@dataclass(frozen=True)
class Wins:
    """Verdicts over samples: how often `a` and `b` are better, and the samples without a winner."""

    a: int
    b: int
    ties: int
    inconsistent: int = 0
    """Samples whose verdict changed with the order of the texts."""

    @property
    def judged(self) -> int:
        return self.a + self.b + self.ties + self.inconsistent

    @property
    def rate(self) -> Interval | None:
        """Share of the samples with a winner in which `b` wins."""
        return wilson(self.b, self.a + self.b)
