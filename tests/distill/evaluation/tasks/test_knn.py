import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.evaluation.tasks.knn import knn_votes, unit


@given(st.integers(2, 40), st.integers(1, 30), st.integers(0, 1000))
def test_votes_equal_the_definition(count, k, seed):
    rng = np.random.default_rng(seed)
    train, test = rng.normal(size=(count, 6)), rng.normal(size=(7, 6))
    labels = rng.integers(0, 3, count)
    votes = knn_votes(train, labels, test, classes=3, k=k, temperature=0.07)
    for row in range(7):
        cos = train @ test[row] / np.linalg.norm(train, axis=1) / np.linalg.norm(test[row])
        nearest = np.argsort(-cos)[:k]
        expected = np.bincount(labels[nearest], np.exp((cos[nearest] - 1) / 0.07), minlength=3)
        assert votes[row] == pytest.approx(expected, rel=1e-3, abs=1e-12)


def test_many_rows_are_cut_without_loss():
    rng = np.random.default_rng(0)
    train = rng.normal(size=(30, 4))
    test = np.concatenate([train] * 80)
    votes = knn_votes(train, np.arange(30), test, classes=30, k=1, temperature=0.07)
    assert np.array_equal(votes.argmax(1), np.tile(np.arange(30), 80))


def test_a_zero_row_stays_zero():
    assert unit(np.zeros((1, 3))).tolist() == [[0, 0, 0]]
