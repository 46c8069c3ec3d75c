"""Paired differences between two arms, with 95 % intervals of two kinds.

Over seeds: Student's t over the differences of the seeds' means (Student 1908). It holds what differs between
trainings, the test pictures being fixed; with three seeds it is wide, 4.3 standard errors. The verdict is its.

Over pictures: a percentile bootstrap (Efron 1979) over the test pictures, which all seeds share, pooled over them. It
holds what differs between test sets, the trainings being fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
    """Of an arm's mean score from the baseline's."""

    mean: float
    by_seed: tuple[float, ...]
    over_seeds: Interval | None
    """None for fewer than two seeds."""
    over_pictures: Interval

    @property
    def verdict(self) -> str:
        """higher or lower where the interval over seeds leaves out 0, else inconclusive."""
        if self.over_seeds is None or self.over_seeds[0] <= 0 <= self.over_seeds[1]:
            return "inconclusive"
        return "higher" if self.mean > 0 else "lower"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def paired(
    arm_SP: Scores, baseline_SP: Scores, counted_SP: NDArray[np.bool_] | None = None, seed: int = 0
) -> Difference:
    """Scores (seeds, pictures) of the same pictures by two arms, the same seed in the same row.

    counted: of which pictures the mean of a seed is taken (all of them by default); some in every seed.
    """
    arm, baseline = np.asarray(arm_SP, np.float64), np.asarray(baseline_SP, np.float64)
    counted = np.ones(arm.shape, dtype=bool) if counted_SP is None else counted_SP
    if arm.shape != baseline.shape or counted.shape != arm.shape or arm.ndim != 2:
        raise ValueError(
            f"scores of {arm.shape}, {baseline.shape}, {counted.shape}: expected three equal (seeds, pictures)"
        )
    if not counted.any(axis=1).all():
        raise ValueError("a seed without any picture that counts")
    difference = np.where(counted, arm - baseline, 0.0)
    by_seed = difference.sum(1) / counted.sum(1)
    interval = over_seeds(by_seed)
    return Difference(
        float(by_seed.mean()), tuple(map(float, by_seed)), interval, over_pictures(difference, counted, seed)
    )


def over_seeds(values: Sequence[float] | Scores) -> Interval | None:
    """Of the mean of (seeds,) values, by Student's t; None for fewer than two."""
    values = np.asarray(values, np.float64)
    count = len(values)
    if count < 2:
        return None
    half = student_t.ppf((1 + LEVEL) / 2, count - 1) * values.std(ddof=1) / np.sqrt(count)
    return float(values.mean() - half), float(values.mean() + half)


def over_pictures(values_SP: Scores, counted_SP: NDArray[np.bool_], seed: int = 0) -> Interval:
    """Of the mean over seeds of the means over counted pictures; values are 0 where they do not count."""
    rng = np.random.default_rng(seed)
    pictures = values_SP.shape[1]
    means = []
    for start in range(0, RESAMPLES, _CHUNK):
        many = min(_CHUNK, RESAMPLES - start)
        weight = rng.multinomial(pictures, np.full(pictures, 1 / pictures), size=many).astype(np.float64)
        counted = np.maximum(weight @ counted_SP.T.astype(np.float64), 1e-9)
        means.append((weight @ values_SP.T / counted).mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
