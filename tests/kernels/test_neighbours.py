"""Nearest neighbours against a search by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curate.kernels.neighbours import knn_right, near_copies


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


def test_near_copies_are_one_cluster_in_any_number_of_steps_and_a_set_always_is() -> None:
    """A burst whose first and last photo are far apart, two copies without a vector, and other images."""
    rng = np.random.default_rng(0)
    angle = np.linspace(0, 2, 12)
    vectors = rng.standard_normal((40, 16)).astype(np.float32)
    vectors[:12] = 0
    vectors[:12, 0], vectors[:12, 1] = np.cos(angle), np.sin(angle)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[[20, 30]] = np.nan
    sets = np.arange(40)
    sets[30] = 20
    group = near_copies(vectors, sets)
    assert len({*group[:12].tolist()}) == 1 and group[20] == group[30] and len({*group.tolist()}) == 28
    assert near_copies(np.full((3, 4), np.nan, np.float32), np.array([5, 5, 9])).tolist() == [0, 0, 1]
