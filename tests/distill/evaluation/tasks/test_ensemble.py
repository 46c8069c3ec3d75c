import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from curate.core.errors import InputError
from curate.kernels.evenness import entropy
from distill.evaluation.tasks.ensemble import fused, shares, weights


@given(st.integers(0, 1000), st.integers(1, 3), st.floats(0.01, 2.0), st.floats(0.0, 10.0))
def test_the_fused_score_is_the_papers_sum(seed, heads, temperature, gamma):
    """AMoE, section 4: q = softmax(s / tau), alpha proportional to exp(-gamma H(q)), and the sum of alpha s."""
    scores = np.random.default_rng(seed).normal(size=(heads, 4, 5))
    found = fused(list(scores), temperature, gamma)
    for row in range(4):
        q = [np.exp(one[row] / temperature) / np.exp(one[row] / temperature).sum() for one in scores]
        alpha = [np.exp(-gamma * -sum(p * np.log(p) for p in own if p > 0)) for own in q]
        expected = sum(weight * one[row] for weight, one in zip(alpha, scores, strict=True)) / sum(alpha)
        assert found[row] == pytest.approx(expected)
    assert (found <= scores.max(0) + 1e-9).all() and (found >= scores.min(0) - 1e-9).all()


def test_scores_are_fused_and_not_probabilities():
    """The head that is a little more certain has scores on a smaller scale: the sum of scores follows the other."""
    small, large = np.array([[0.03, 0.0, 0.0]]), np.array([[0.0, 0.9, 0.89]])
    alpha = weights([small, large], 0.01, 0.1)[:, 0]
    assert alpha[0] > 0.4
    assert fused([small, large], 0.01, 0.1).argmax() == 1
    probabilities = [softmax(one / 0.01, axis=1)[0] for one in (small, large)]
    assert (alpha[0] * probabilities[0] + alpha[1] * probabilities[1]).argmax() == 0


def test_uncertain_heads_do_not_underflow():
    even = np.full((1, 20_000), 0.5)
    assert weights([even, even], 0.01, 200.0)[:, 0] == pytest.approx([0.5, 0.5])


def test_votes_as_shares():
    assert shares(np.array([[1.0, 3.0], [0.0, 0.0]])).tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert entropy(np.array([[1.0, 0.0]])) == pytest.approx([0.0])


def test_heads_of_different_labels_are_one_line():
    with pytest.raises(InputError, match="they score 3, 2 classes, expected the same labels for each; score every"):
        fused([np.ones((1, 3)), np.ones((1, 2))], 0.01, 5.0)
