"""Modes of a sample, and what a Gaussian of its moments misses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distill.teachers.modes import principal, shape_of, valley

ONE_MODE = {
    "normal": lambda random, shape: random.normal(size=shape),
    "long tails": lambda random, shape: random.standard_t(3, size=shape),
    "uniform": lambda random, shape: random.uniform(size=shape),
    "skewed": lambda random, shape: random.exponential(size=shape),
}


@settings(max_examples=20)
@given(st.sampled_from(sorted(ONE_MODE)), st.sampled_from([30, 200, 1000]), st.integers(0, 2**31))
def test_samples_with_one_mode_have_no_valley(name, count, seed):
    x = ONE_MODE[name](np.random.default_rng(seed), (count, 12)) * np.logspace(0, 2, 12) + 50.0
    found = shape_of(x)
    assert found.valley < 0.1
    assert not found.multimodal


@pytest.mark.parametrize(("share", "modes"), [(0.5, 2), (0.1, 2), (0.33, 3)])
def test_separate_modes_are_found_in_any_direction(share, modes):
    """Half of the variance or more lies between the modes, so that PHI-S leaves less than half within them."""
    random = np.random.default_rng(0)
    number = random.choice(modes, size=1500, p=[share] * (modes - 1) + [1 - share * (modes - 1)])
    x = random.normal(size=(1500, 16))
    x[:, 3] += 20.0 * number
    turned = x @ np.linalg.qr(random.normal(size=(16, 16))).Q * 1e-3 + 7.0
    for found in (shape_of(x), shape_of(turned)):
        assert found.valley > 0.2
        assert found.multimodal
        assert found.within < 0.75
        assert found.distance > 0.05
    assert shape_of(turned).within == pytest.approx(shape_of(x).within, rel=1e-6)


def test_the_variance_within_two_modes_by_hand():
    x = np.repeat([[0.0, 0.0], [10.0, 0.0]], 300, axis=0)
    x[:, 1] = np.tile(np.linspace(-1.0, 1.0, 300), 2)
    x[:, 0] += 1e-3 * np.random.default_rng(0).normal(size=600)
    assert shape_of(x).within == pytest.approx(1 / 76, rel=0.01)  # of 25 + 1 / 3, 1 / 3 lies within


def test_equal_vectors_have_no_modes():
    found = shape_of(np.full((50, 8), 3.0))
    assert (found.valley, found.within, found.distance) == (0.0, 1.0, 0.0)
    assert valley(np.ones(9)) == (0.0, 1.0)


def test_fewer_vectors_than_dimensions():
    assert shape_of(np.random.default_rng(0).normal(size=(5, 64))).valley == 0.0


def test_directions_have_a_fixed_sign():
    x = np.random.default_rng(0).normal(size=(40, 6))
    x -= x.mean(0)
    assert np.allclose(principal(x, 3), principal(-x, 3))
    assert principal(x, 3).shape == (6, 3)
