from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_rel

from bench.ablations import statistics
from bench.ablations.statistics import over_images, over_seeds, paired


def scores(rng: np.random.Generator, seeds: int = 3, images: int = 400, gain: float = 0.0) -> np.ndarray:
    return (rng.random((seeds, images)) < 0.5 + gain).astype(float)


def test_interval_over_seeds_is_scipys_paired_t() -> None:
    rng = np.random.default_rng(0)
    arm, baseline = rng.normal(1.0, 0.3, 3), rng.normal(0.5, 0.3, 3)
    expected = ttest_rel(arm, baseline).confidence_interval(0.95)
    assert over_seeds(arm - baseline) == pytest.approx((expected.low, expected.high))


def test_interval_over_images_is_close_to_the_normal_one() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.2, 1.0, (3, 1000))
    low, high = over_images(values, np.ones(values.shape, bool))
    half = 1.96 * values.mean(0).std() / np.sqrt(1000)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_only_seeds_that_agree_give_a_verdict() -> None:
    rng = np.random.default_rng(2)
    baseline = scores(rng)
    steady = baseline + np.array([0.10, 0.11, 0.12])[:, None]
    unsteady = baseline + np.array([0.30, -0.10, 0.20])[:, None]
    assert paired(steady, baseline).verdict == "higher"
    assert paired(baseline, steady).verdict == "lower"
    assert paired(unsteady, baseline).verdict == "inconclusive"
    assert paired(steady[:1], baseline[:1]).verdict == "inconclusive"
    assert paired(steady, baseline).by_seed == pytest.approx([0.10, 0.11, 0.12])


def test_the_mean_covers_only_counted_images() -> None:
    rng = np.random.default_rng(3)
    baseline = scores(rng)
    counted = np.arange(400) < np.array([50, 100, 200])[:, None]
    arm = np.where(counted, baseline + 0.25, baseline - 5.0)
    found = paired(arm, baseline, counted)
    assert found.mean == pytest.approx(0.25)
    assert found.over_images == pytest.approx((0.25, 0.25))
    with pytest.raises(ValueError, match="without an image"):
        paired(arm, baseline, counted & (np.arange(3)[:, None] > 0))


def test_intervals_cover_the_true_difference_at_their_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 95 % of the intervals of each kind, for 200 pairs of arms that differ by 0.1 on average."""
    monkeypatch.setattr(statistics, "RESAMPLES", 250)
    rng = np.random.default_rng(4)
    hits = np.zeros(2)
    for _ in range(200):
        found = paired(rng.normal(0.1, 1.0, (3, 120)), np.zeros((3, 120)))
        assert found.over_seeds is not None
        hits += [low <= 0.1 <= high for low, high in (found.over_seeds, found.over_images)]
    assert (hits / 200 > 0.89).all() and (hits / 200 < 0.995).all()
