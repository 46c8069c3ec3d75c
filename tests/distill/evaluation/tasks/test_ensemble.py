import numpy as np
import pytest

from curate.kernels.evenness import entropy
from distill.evaluation.tasks.ensemble import combined, probabilities, shares, weights


def test_certain_heads_weigh_more():
    certain, uncertain = np.array([[0.98, 0.01, 0.01]]), np.array([[0.2, 0.5, 0.3]])
    alpha = weights([certain, uncertain], 5.0)
    expected = np.exp(-5 * np.array([entropy(certain)[0], entropy(uncertain)[0]]))
    assert alpha[:, 0] == pytest.approx(expected / expected.sum())
    assert combined([certain, uncertain], 5.0).argmax() == 0
    assert combined([certain, uncertain], 0.0)[0] == pytest.approx((certain[0] + uncertain[0]) / 2)


def test_uncertain_heads_do_not_underflow():
    even = np.full((1, 20_000), 1 / 20_000)
    assert weights([even, even], 200.0)[:, 0] == pytest.approx([0.5, 0.5])


def test_votes_as_probabilities():
    assert shares(np.array([[1.0, 3.0], [0.0, 0.0]])).tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert probabilities(np.array([[0.1, 0.1]]), 0.01)[0] == pytest.approx([0.5, 0.5])
    assert entropy(np.array([[1.0, 0.0]])) == pytest.approx([0.0])
