import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.cluster.nearest import BLOCK_ROWS, distances_to, nearest


def squared(points: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """(n, K) squared distances in float64."""
    return ((points[:, None].astype(np.float64) - centroids[None]) ** 2).sum(-1)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 60), k=st.integers(1, 80), d=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_nothing_is_nearer(n: int, k: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, centroids = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=(k, d)).astype(np.float32)
    ids, distances = nearest(points, centroids)
    assert ids.dtype == np.int64 and distances.dtype == np.float32
    exact = squared(points, centroids)
    np.testing.assert_allclose(exact[np.arange(n), ids], exact.min(axis=1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(distances, exact[np.arange(n), ids], rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 60), k=st.integers(1, 1500), d=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_ties_go_to_the_lowest_id(n: int, k: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(-2, 3, (n, d)).astype(np.float32)
    centroids = rng.integers(-2, 3, (k, d)).astype(np.float32)
    np.testing.assert_array_equal(nearest(points, centroids)[0], squared(points, centroids).argmin(axis=1))


@pytest.mark.parametrize("dim", [3, 64, 301])
def test_identical_centroids_count_as_the_first(dim: int) -> None:
    rng = np.random.default_rng(dim)
    centroids = rng.normal(size=(300, dim)).astype(np.float32)
    points = rng.normal(size=(500, dim)).astype(np.float32)
    ids, _ = nearest(points, np.concatenate([centroids, centroids, centroids[::-1]]))
    assert ids.max() < 300


def test_the_same_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3 * BLOCK_ROWS + 17, 70)).astype(np.float32)
    for direct in (True, False):
        one, two, three = (nearest(points, points[:200], threads, direct) for threads in (1, 2, 3))
        for a, b, c in zip(one, two, three, strict=True):
            assert a.tobytes() == b.tobytes() == c.tobytes()


def test_distances_do_not_cancel_far_from_the_origin() -> None:
    points = np.array([[1000.25, 1000.0]], dtype=np.float32)
    assert nearest(points, np.array([[1000.0, 1000.0]], dtype=np.float32))[1].tolist() == [0.0625]


def test_no_points_and_no_centroids() -> None:
    empty = np.empty((0, 4), dtype=np.float32)
    ids, distances = nearest(empty, np.ones((2, 4), np.float32))
    assert len(ids) == len(distances) == len(distances_to(empty, empty, ids)) == 0
    with pytest.raises(ValueError, match="no centroids"):
        nearest(np.ones((2, 4), np.float32), empty)
