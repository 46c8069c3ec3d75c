import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.evaluation.tasks.cka import Centred, Covariances, Minibatches, Moments, cka, hsic, passes, table


def unbiased(k, m):
    """HSIC_1 of Song et al. 2012, Eq. 5, with the whole matrices."""
    n = len(k)
    k, m, one = k - np.diag(np.diag(k)), m - np.diag(np.diag(m)), np.ones(n)
    middle = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return (np.trace(k @ m) + middle - 2 / (n - 2) * one @ k @ m @ one) / (n * (n - 3))


def test_hsic_equals_the_definition():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(9, 5)), rng.normal(size=(9, 12)) + 4
    assert hsic(Centred.of(a), Centred.of(b)) == pytest.approx(unbiased(a @ a.T, b @ b.T))


def test_cka_ignores_rotation_scale_and_shift_and_is_near_0_for_unrelated_features():
    rng = np.random.default_rng(3)
    a = rng.normal(size=(40, 10))
    rotation = np.linalg.qr(rng.normal(size=(10, 10)))[0]
    assert cka(a, 7 * a @ rotation + 3) == pytest.approx(1.0)
    unrelated = [cka(rng.normal(size=(30, 200)), rng.normal(size=(30, 200))) for _ in range(20)]
    assert abs(np.mean(unrelated)) < 0.05
    assert np.isnan(cka(a, np.ones((40, 2))))


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_cka_does_not_depend_on_the_scale_of_features(scale):
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(40, 6)), rng.normal(size=(40, 9))
    b[:, :6] += a
    assert cka(scale * a, b) == pytest.approx(cka(a, b), rel=1e-9)
    assert cka(scale * a, scale * b) == pytest.approx(cka(a, b), rel=1e-9)
    assert np.isnan(cka(scale * a, np.full((40, 2), scale / 3)))


def test_alignment_over_batches():
    rng = np.random.default_rng(4)
    one, two = Minibatches(), Minibatches()
    for part in (one, two):
        for _ in range(3):
            a = rng.normal(size=(50, 6))
            part.add(
                "expert 0", a, {"same": a, "noisy": a + rng.normal(size=a.shape), "other": rng.normal(size=(50, 3))}
            )
        part.add("expert 1", a[:3], {"same": a[:3]})
    one.merge(two)
    rows, columns, values = table(one.values())
    assert (rows, columns) == (["expert 0"], ["same", "noisy", "other"])
    assert values[0, 0] == pytest.approx(1.0)
    assert values[0, 0] > values[0, 1] > 0.3 > values[0, 2]
    assert one.sums["expert 0", "same"][3] == 6


def equation_8(x, y):
    """AMoE, Eq. 8, as printed."""

    def cov(a, b):
        return a.T @ b - np.outer(a.sum(0), b.sum(0)) / len(a)

    return np.linalg.norm(cov(x, y)) ** 2 / np.linalg.norm(cov(x, x)) / np.linalg.norm(cov(y, y))


@given(st.integers(0, 1000), st.integers(2, 30), st.integers(1, 7))
def test_covariances_of_all_tokens_give_equation_8_however_they_are_divided(seed, count, size):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(count, 4)) + 5, rng.normal(size=(count, 6)) - 3
    y[:, :4] += x
    ranks = [Covariances([("a", "b")]), Covariances([("a", "b")])]
    for number, start in enumerate(range(0, count, size)):
        ranks[number % 2].add("a", x[start : start + size], {"b": y[start : start + size], "other": y})
    ranks[0].merge(ranks[1])
    assert ranks[0].values() == {("a", "b"): pytest.approx(equation_8(x, y))}


def test_constant_features_have_no_similarity():
    assert np.isnan(Moments.of(np.ones((5, 2)), np.arange(10.0).reshape(5, 2)).cka())


def test_pairs_are_divided_so_that_their_covariances_fit_into_memory():
    rows, columns = {"a": 2, "b": 3}, {"x": 4, "y": 1}
    both = passes(rows, columns, 10_000)
    assert both == [{("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")}]
    size = {key: 8 * (rows[key[0]] ** 2 + columns[key[1]] ** 2 + rows[key[0]] * columns[key[1]]) for key in both[0]}
    parts = passes(rows, columns, 300)
    assert sorted(key for part in parts for key in part) == sorted(both[0])
    assert all(sum(size[key] for key in part) <= 300 for part in parts)
    assert len(passes(rows, columns, 1)) == 4
