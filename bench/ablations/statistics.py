"""Paired differences between two arms, with 95 % intervals of two kinds.

Over seeds: Student's t over the differences of the seeds' means (Student 1908). It covers the variation between
trainings, for fixed test images; with three seeds it is wide, 4.3 standard errors. The verdict uses this interval.

Over images: a percentile bootstrap (Efron 1979) over the test images, which all seeds share, pooled over the seeds. It
covers the variation between test sets, for fixed trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

LEVEL = 0.95
RESAMPLES = 4000
_CHUNK = 250

Scores = NDArray[np.floating]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """Difference between an arm's mean score and the baseline's."""

    mean: float
    by_seed: tuple[float, ...]
    over_seeds: Interval | None
    """None with fewer than two seeds."""
    over_images: Interval

    @property
    def verdict(self) -> str:
        """higher or lower if the interval over seeds excludes 0, otherwise inconclusive."""
        if self.over_seeds is None or self.over_seeds[0] <= 0 <= self.over_seeds[1]:
            return "inconclusive"
        return "higher" if self.mean > 0 else "lower"


def paired(
    arm_SP: Scores, baseline_SP: Scores, counted_SP: NDArray[np.bool_] | None = None, seed: int = 0
) -> Difference:
    """Scores (seeds, images) of the same images by two arms, with the same seed in the same row.

    counted: images of a seed that enter its mean (default: all); at least one in every seed.
    """
    arm, baseline = np.asarray(arm_SP, np.float64), np.asarray(baseline_SP, np.float64)
    counted = np.ones(arm.shape, dtype=bool) if counted_SP is None else counted_SP
    if arm.shape != baseline.shape or counted.shape != arm.shape or arm.ndim != 2:
        raise ValueError(
            f"scores of {arm.shape}, {baseline.shape}, {counted.shape}: expected three equal (seeds, images)"
        )
    if not counted.any(axis=1).all():
        raise ValueError("a seed without an image that counts")
    difference = np.where(counted, arm - baseline, 0.0)
    by_seed = difference.sum(1) / counted.sum(1)
    interval = over_seeds(by_seed)
    return Difference(
        float(by_seed.mean()), tuple(map(float, by_seed)), interval, over_images(difference, counted, seed)
    )


def over_seeds(values: Sequence[float] | Scores) -> Interval | None:
    """Interval of the mean of (seeds,) values, by Student's t; None with fewer than two."""
    values = np.asarray(values, np.float64)
    count = len(values)
    if count < 2:
        return None
    half = student_t.ppf((1 + LEVEL) / 2, count - 1) * values.std(ddof=1) / np.sqrt(count)
    return float(values.mean() - half), float(values.mean() + half)


def over_images(values_SP: Scores, counted_SP: NDArray[np.bool_], seed: int = 0) -> Interval:
    """Interval of the mean over seeds of the means over counted images; values that do not count are 0."""
    rng = np.random.default_rng(seed)
    images = values_SP.shape[1]
    means = []
    for start in range(0, RESAMPLES, _CHUNK):
        many = min(_CHUNK, RESAMPLES - start)
        weight = rng.multinomial(images, np.full(images, 1 / images), size=many).astype(np.float64)
        counted = np.maximum(weight @ counted_SP.T.astype(np.float64), 1e-9)
        means.append((weight @ values_SP.T / counted).mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
