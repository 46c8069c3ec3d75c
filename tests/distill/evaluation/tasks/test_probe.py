import numpy as np
import pytest

from curate.core.errors import InputError
from distill.evaluation.tasks.probe import STRENGTHS, Sums, fit, one_hot


def closed_form(x, y, penalty):
    mean_x, mean_y = x.mean(0), y.mean(0)
    x, y = x - mean_x, y - mean_y
    weight = np.linalg.solve(x.T @ x / len(x) + penalty * np.eye(x.shape[1]), x.T @ y / len(x))
    return weight, mean_y - mean_x @ weight


def test_a_probe_is_ridge_regression_with_the_best_cross_validated_error():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 8)) + 3
    labels = (x[:, 0] + 0.5 * rng.normal(size=60) > 3).astype(int) + (x[:, 1] > 4)
    y = one_hot(labels, 3)
    sums = Sums.empty(8, 3)
    for start in range(0, 60, 7):
        sums.add(x[start : start + 7], y[start : start + 7])
    linear = fit(sums)
    variance = np.var(x, axis=0).mean()
    weight, bias = closed_form(x, y, linear.strength * variance)
    assert linear.weight == pytest.approx(weight)
    assert linear.bias == pytest.approx(bias)

    def left_out(strength):
        """Generalised cross-validation by its definition, with the hat matrix."""
        z = x - x.mean(0)
        hat = z @ np.linalg.solve(z.T @ z + 60 * strength * variance * np.eye(8), z.T) + 1 / 60
        return np.square(y - hat @ y).mean() / (1 - np.trace(hat) / 60) ** 2

    assert linear.strength == STRENGTHS[np.argmin([left_out(strength) for strength in STRENGTHS])]


@pytest.mark.parametrize("rows", [20, 39, 40, 41, 42, 60, 200], ids=lambda rows: f"{rows} rows of 40 features")
@pytest.mark.parametrize("repeated", [False, True], ids=["distinct", "repeated"])
@pytest.mark.parametrize("noise", [0.1, 10])
def test_the_strength_is_that_of_a_dense_reference(rows, repeated, noise):
    """Also where a small penalty fits every row: the error and the remaining degrees of freedom both vanish there."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 40)) * np.logspace(0, -2, 40) + 5
    if repeated:
        x[: rows // 2] = x[rows // 2 : 2 * (rows // 2)]
    y = one_hot((x[:, 0] + noise * rng.normal(size=rows) > 5).astype(int) + (x[:, 1] > 5), 3)
    kernel = (x - x.mean(0)) @ (x - x.mean(0)).T / rows
    penalties = STRENGTHS * np.var(x, axis=0).mean()

    def left_out(penalty):
        """By the kernel of the rows: what is left of them is (K / penalty + 1)^-1, without their mean."""
        left = np.linalg.inv(kernel / penalty + np.eye(rows))
        return np.square(left @ (y - y.mean(0))).mean() / (np.trace(left) - 1) ** 2

    sums = Sums.empty(40, 3)
    sums.add(x, y)
    linear = fit(sums)
    best = np.argmin([left_out(penalty) for penalty in penalties])
    assert linear.strength == STRENGTHS[best]
    weight, bias = closed_form(x, y, penalties[best])
    assert linear(x) == pytest.approx(x @ weight + bias, abs=1e-6)


def test_a_probe_of_fewer_rows_than_features_or_of_constant_features_is_finite():
    rng = np.random.default_rng(1)
    sums = Sums.empty(30, 2)
    x = np.concatenate([rng.normal(size=(12, 20)), np.ones((12, 10))], axis=1)
    x[6:, 0] += 20
    sums.add(x, one_hot(np.arange(12) // 6, 2))
    scores = fit(sums)(x)
    assert np.isfinite(scores).all()
    assert scores.argmax(1).tolist() == [0] * 6 + [1] * 6


def test_a_probe_of_one_class_is_one_line():
    sums = Sums.empty(2, 3)
    sums.add(np.ones((4, 2)), one_hot(np.zeros(4, dtype=int), 3))
    with pytest.raises(InputError, match="needs 2 classes and 2 rows, not 1 and 4"):
        fit(sums)
