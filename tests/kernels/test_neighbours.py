"""Nearest neighbours against a search by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curate.kernels.neighbours import knn_right


def by_hand(vectors: np.ndarray, label: np.ndarray, references: np.ndarray, row: int, neighbours: int) -> float:
    others = [place for place in references.tolist() if place != row]
    nearest = sorted(others, key=lambda place: float(np.sum((vectors[place] - vectors[row]) ** 2)))[:neighbours]
    votes = [int(label[place]) for place in nearest]
    return float(bool(votes) and max(votes, key=votes.count) == label[row])


@given(st.integers(2, 40), st.integers(1, 6), st.booleans(), st.integers(0, 2**32 - 1))
def test_most_of_the_nearest_decide_and_the_nearest_a_tie(count: int, neighbours: int, apart: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    label, cut = rng.integers(0, 3, count), count // 2
    references = np.arange(cut, count) if apart else np.arange(count)
    tests = np.arange(cut) if apart else np.arange(count)
    found = knn_right(vectors, label, references, tests, neighbours)
    assert found.tolist() == [by_hand(vectors, label, references, row, neighbours) for row in tests.tolist()]
