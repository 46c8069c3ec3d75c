"""Totals of all shards from some of them: the band holds the truth."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from curate.kernels.totals import totals

SHARDS, ROWS, THRESHOLDS = 300, 200, 100


def population(spread: float, seed: int) -> NDArray[np.int64]:
    """Rows of each shard that pass each of 100 thresholds (300, 100); `spread`: by how much shards differ."""
    rng = np.random.default_rng(seed)
    values = rng.normal(rng.normal(0, spread, (SHARDS, 1)), 1, (SHARDS, ROWS))
    return (values[:, :, None] >= np.linspace(-2.5, 3.5, THRESHOLDS)).sum(axis=1)


def test_all_shards_are_exact() -> None:
    counts = population(0.2, 0)
    rows = np.full(SHARDS, ROWS)
    for found in totals(counts, rows, SHARDS, SHARDS * ROWS):
        assert (found == counts.sum(axis=0)).all()


@pytest.mark.parametrize(
    ("spread", "read"),
    [
        (0.2, 16),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((0, 16), (1, 16), (0, 64), (0.2, 64), (1, 64))),
    ],
)
def test_the_band_holds_95_of_100_thresholds_in_95_of_100_samples(spread: float, read: int) -> None:
    counts, rows = population(spread, 1), np.full(read, ROWS)
    truth, rng = counts.sum(axis=0), np.random.default_rng(2)
    held = []
    for _ in range(100):
        chosen = rng.choice(SHARDS, read, replace=False)
        found, low, high = totals(counts[chosen], rows, SHARDS, SHARDS * ROWS)
        assert (low <= found).all() and (found <= high).all()
        held.append(((low <= truth) & (truth <= high)).sum())
    assert np.mean(np.array(held) >= 0.95 * THRESHOLDS) >= 0.95
    assert np.mean(np.array(held) == THRESHOLDS) >= 0.9


def test_what_was_seen_bounds_the_band() -> None:
    rows = np.full(16, ROWS)
    none = totals(np.zeros((16, 1), np.int64), rows, SHARDS, SHARDS * ROWS)
    assert none[0][0] == none[1][0] == 0 < none[2][0] < 0.01 * SHARDS * ROWS
    every = totals(rows[:, None], rows, SHARDS, SHARDS * ROWS)
    assert every[0][0] == every[2][0] == SHARDS * ROWS > every[1][0] > 0.99 * SHARDS * ROWS
