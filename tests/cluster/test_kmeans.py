from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.cluster.kmeans import cluster_sums, kmeans, spread, updated


def blobs(number: int, each: int, dim: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points (number * each, dim) in tight, far apart groups, and the group of each; in random order."""
    rng = np.random.default_rng(seed)
    centres = rng.permutation(np.eye(number, dim) if number <= dim else rng.normal(size=(number, dim))) * 100
    group = rng.permutation(np.repeat(np.arange(number), each))
    return (centres[group] + rng.normal(size=(len(group), dim))).astype(np.float32), group


def test_groups_far_apart_are_found() -> None:
    points, group = blobs(8, 50)
    found = kmeans(points, 8, seed=3)
    assert len(np.unique(np.stack([group, found.ids]), axis=1).T) == 8
    assert found.iterations < 30


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 80), k=st.integers(1, 12), d=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_settled_centroids_are_means_of_their_members(n: int, k: int, d: int, seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    found = kmeans(points, min(k, n), seed, iterations=200, tolerance=0)
    assert found.centroids.shape == (min(k, n), d) and found.centroids.dtype == np.float32
    for cluster in np.unique(found.ids):
        np.testing.assert_allclose(found.centroids[cluster], points[found.ids == cluster].mean(axis=0), atol=1e-4)
    exact = ((points - found.centroids[found.ids]) ** 2).sum(axis=1)
    np.testing.assert_allclose(found.distances, exact, atol=1e-4)
    assert found.inertia == pytest.approx(exact.sum(), abs=1e-3)
    assert len(np.unique(found.ids)) == min(k, n)  # all points differ: no cluster stays empty


def test_the_same_for_any_number_of_threads_and_another_for_another_seed() -> None:
    points, _ = blobs(40, 100, dim=20)
    one, three, other = kmeans(points, 25, 7, threads=1), kmeans(points, 25, 7, threads=3), kmeans(points, 25, 8)
    assert one.centroids.tobytes() == three.centroids.tobytes()
    assert one.ids.tobytes() == three.ids.tobytes() and one.inertia == three.inertia
    assert one.centroids.tobytes() != other.centroids.tobytes()


def test_more_iterations_never_cost_inertia() -> None:
    points = np.random.default_rng(0).normal(size=(500, 5)).astype(np.float32)
    inertia = [kmeans(points, 20, 1, iterations=n, tolerance=0).inertia for n in (0, 1, 2, 4, 8, 16)]
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(inertia))
    assert inertia[-1] < 0.9 * inertia[0]


def test_unit_norm_keeps_centroids_on_the_sphere() -> None:
    points = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    found = kmeans(points, 10, 0, unit_norm=True)
    np.testing.assert_allclose(np.linalg.norm(found.centroids, axis=1), 1, atol=1e-6)


def test_fewer_distinct_points_than_clusters_leave_clusters_empty() -> None:
    points = np.repeat(np.eye(3, dtype=np.float32), 10, axis=0)
    found = kmeans(points, 5, 0)
    assert found.inertia == 0 and len(np.unique(found.ids)) == 3
    assert np.isfinite(found.centroids).all()


def test_empty_clusters_start_anew_at_the_farthest_points() -> None:
    points = np.array([[0], [1], [50], [70]], dtype=np.float32)
    ids = np.zeros(4, dtype=np.int64)
    centroids, reseeded = updated(points, ids, np.array([0, 1, 50, 70], np.float32), np.zeros((3, 1), np.float32))
    assert centroids.ravel().tolist() == [30.25, 70, 50] and reseeded == 2


def test_opposite_directions_keep_their_centroid() -> None:
    points = np.array([[1, 0], [-1, 0]], dtype=np.float32)
    start = np.array([[0, 1]], dtype=np.float32)
    centroids, _ = updated(points, np.zeros(2, np.int64), np.full(2, 2, np.float32), start, unit_norm=True)
    assert centroids.tolist() == [[0, 1]]


def test_sums_are_in_double_precision() -> None:
    points = np.full((30_000, 1), 0.1, dtype=np.float32)
    ids = np.arange(30_000) % 2
    np.testing.assert_allclose(cluster_sums(points, ids, 3), np.array([[1500.0], [1500.0], [0]]), rtol=1e-7)


def test_the_start_spreads_over_distinct_points() -> None:
    points, group = blobs(8, 200)
    points[group == 0] = points[np.flatnonzero(group == 0)[0]]
    start = spread(points, 8, seed=1)
    assert len(np.unique(np.round(start / 100), axis=0)) == 8
    assert len(np.unique(spread(points[:20], 20, 0), axis=0)) == len(np.unique(points[:20], axis=0))


@pytest.mark.parametrize("clusters", [0, 4])
def test_clusters_beyond_the_points_are_refused(clusters: int) -> None:
    with pytest.raises(ValueError, match=f"{clusters} clusters of 3 points"):
        kmeans(np.eye(3, dtype=np.float32), clusters, 0)
