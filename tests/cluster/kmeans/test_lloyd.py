from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.cluster.kmeans import assigned
from curate.cluster.kmeans.assigned import cluster_sums, means_of
from curate.cluster.kmeans.lloyd import Settings, State, kmeans, spread, start
from curate.core.group import MemoryGroup
from curate.kernels.nearest.search import nearest


def blobs(number: int, each: int, dim: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points (number * each, dim) in tight, distant groups, and the group of each point; in random order."""
    rng = np.random.default_rng(seed)
    centres = rng.permutation(np.eye(number, dim) if number <= dim else rng.normal(size=(number, dim))) * 100
    group = rng.permutation(np.repeat(np.arange(number), each))
    return (centres[group] + rng.normal(size=(len(group), dim))).astype(np.float32), group


def held(points: np.ndarray, parts: int = 1, threads: int = 1) -> MemoryGroup:
    return MemoryGroup([{"vectors": part} for part in np.array_split(points, parts)], threads)


def inertia(points: np.ndarray, centroids: np.ndarray) -> float:
    return float(nearest(points, centroids)[1].sum(dtype=np.float64))


def test_distant_groups_are_found() -> None:
    points, group = blobs(8, 50)
    found = kmeans(held(points), Settings(8, seed=3))
    ids, _ = nearest(points, found.centroids)
    assert len(np.unique(np.stack([group, ids]), axis=1).T) == 8
    assert found.converged and found.iteration < 30


@given(
    n=st.integers(1, 80),
    k=st.integers(1, 12),
    d=st.integers(1, 9),
    parts=st.integers(1, 3),
    exchange=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_converged_centroids_are_means_of_their_members(
    n: int, k: int, d: int, parts: int, exchange: bool, seed: int
) -> None:
    """At a fixed point of exchange, as at one of Lloyd's, every row is nearest to the mean of its cluster."""
    points = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    wanted = Settings(min(k, n), seed, 300, tolerance=0, exchange=exchange)
    found = kmeans(held(points, parts), wanted)
    if exchange:  # a last pass of Lloyd's, after exchange has converged
        found = kmeans(
            held(points, parts),
            Settings(min(k, n), seed, 300, tolerance=0, exchange=False),
            begin=State(found.centroids),
        )
    assert found.centroids.shape == (min(k, n), d) and found.centroids.dtype == np.float32
    ids, _ = nearest(points, found.centroids)
    for cluster in np.unique(ids):
        np.testing.assert_allclose(found.centroids[cluster], points[ids == cluster].mean(axis=0), atol=1e-4)
    assert len(np.unique(ids)) == min(k, n)  # all points differ: no cluster stays empty


def test_the_result_depends_on_the_seed_not_on_threads() -> None:
    points, _ = blobs(40, 100, dim=20)
    for exchange in (False, True):
        one, three = (
            kmeans(held(points, 3, threads), Settings(25, 7, exchange=exchange)).centroids for threads in (1, 3)
        )
        other = kmeans(held(points, 3), Settings(25, 8, exchange=exchange)).centroids
        assert one.tobytes() == three.tobytes() != other.tobytes()


def test_the_division_into_parts_changes_only_the_order_of_sums() -> None:
    points, _ = blobs(40, 100, dim=20)
    begin = State(points[:25])
    for exchange in (False, True):
        wanted = Settings(25, 7, exchange=exchange)
        one, four = (kmeans(held(points, parts), wanted, begin=begin) for parts in (1, 4))
        if not exchange:
            np.testing.assert_allclose(one.centroids, four.centroids, atol=1e-3)
        assert inertia(points, four.centroids) < 1.1 * inertia(points, one.centroids)


def test_more_passes_never_raise_the_inertia() -> None:
    points = np.random.default_rng(0).normal(size=(500, 5)).astype(np.float32)
    for exchange in (False, True):
        after = [
            inertia(points, kmeans(held(points), Settings(20, 1, n, tolerance=0, exchange=exchange)).centroids)
            for n in (0, 1, 2, 4, 8, 16)
        ]
        assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(after))
        assert after[-1] < 0.9 * after[0]


@pytest.mark.parametrize("unit_norm", [False, True])
def test_exchange_leaves_optima_of_lloyds(unit_norm: bool) -> None:
    points = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    if unit_norm:
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    lloyd, exchange = (
        kmeans(held(points), Settings(200, 3, 100, unit_norm, exchange=exchange)).centroids
        for exchange in (False, True)
    )
    assert inertia(points, exchange) < 0.98 * inertia(points, lloyd)


@pytest.mark.parametrize("unit_norm", [False, True])
def test_the_inertia_that_exchange_reports_is_correct(unit_norm: bool) -> None:
    """The reported inertia equals that of the rows and the means of their clusters after the moves."""
    points = np.random.default_rng(0).normal(size=(900, 6)).astype(np.float32)
    if unit_norm:
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    states: list[State] = []
    kmeans(held(points, 2), Settings(60, 0, unit_norm=unit_norm), save=states.append)
    last = states[-1]
    assert last.moves is not None and len(last.moves)
    ids = nearest(points, last.centroids)[0]
    rows = last.moves[:, 1] + np.where(last.moves[:, 0] == 1, 450, 0)
    ids[rows] = last.moves[:, 2]
    before = State(last.centroids).centroids
    means = means_of(cluster_sums(points, ids, 60), np.bincount(ids, minlength=60), before, unit_norm)
    assert last.previous == pytest.approx(((points - means[ids]) ** 2).sum(dtype=np.float64), rel=1e-6)


@pytest.mark.parametrize("exchange", [False, True])
def test_it_resumes_from_any_state(exchange: bool) -> None:
    points, _ = blobs(40, 100, dim=20)
    wanted = Settings(100, 7, exchange=exchange, tolerance=1e-6)
    states: list[State] = []
    used = held(points, 3)
    whole = kmeans(used, wanted, save=states.append)
    assert len(states) > 3
    for state in states:
        for group in (held(points, 3), used):  # the workers' memos do not affect the result
            assert kmeans(group, wanted, begin=state).centroids.tobytes() == whole.centroids.tobytes()


def test_unit_norm_keeps_centroids_on_the_sphere() -> None:
    points = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    found = kmeans(held(points), Settings(10, 0, unit_norm=True))
    np.testing.assert_allclose(np.linalg.norm(found.centroids, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("exchange", [False, True])
def test_fewer_distinct_points_than_clusters_leave_clusters_empty(exchange: bool) -> None:
    points = np.repeat(np.eye(3, dtype=np.float32), 10, axis=0)
    found = kmeans(held(points), Settings(5, exchange=exchange))
    assert inertia(points, found.centroids) == 0 and len(np.unique(nearest(points, found.centroids)[0])) == 3
    assert np.isfinite(found.centroids).all()


def test_empty_clusters_restart_at_the_farthest_points() -> None:
    points = np.array([[0], [1], [50], [70]], dtype=np.float32)
    begin = State(np.array([[30.0], [-1e6], [-2e6]], np.float32))
    found = kmeans(held(points, 2), Settings(3, iterations=1, exchange=False), begin=begin)
    assert found.centroids.ravel().tolist() == [30.25, 70, 0]


def test_opposite_directions_keep_their_centroid() -> None:
    sums, counts = np.zeros((1, 2)), np.array([2])
    assert means_of(sums, counts, np.array([[0, 1]], np.float32), unit_norm=True).tolist() == [[0, 1]]


def test_sums_are_in_double_precision() -> None:
    points = np.full((30_000, 1), 0.1, dtype=np.float32)
    ids = np.arange(30_000) % 2
    np.testing.assert_allclose(cluster_sums(points, ids, 3), np.array([[1500.0], [1500.0], [0]]), rtol=1e-7)


def test_the_start_spreads_over_distinct_points() -> None:
    points, group = blobs(8, 200)
    points[group == 0] = points[np.flatnonzero(group == 0)[0]]
    begin = spread(points, 8, seed=1)
    assert len(np.unique(np.round(begin / 100), axis=0)) >= 6
    assert len(np.unique(spread(points[:20], 20, 0), axis=0)) == len(np.unique(points[:20], axis=0))


def test_the_start_is_drawn_from_all_parts() -> None:
    points = np.arange(300_000, dtype=np.float32)[:, None]
    group = held(points, 4)
    drawn = np.concatenate(list(group.each(assigned.draw, seed=0, numbers=np.array([5, 0, 7, 9]))))
    assert np.all(np.diff(drawn.ravel()) > 0) and [
        np.sum((drawn >= a * 75_000) & (drawn < (a + 1) * 75_000)) for a in range(4)
    ] == [5, 0, 7, 9]
    assert len(np.unique(start(group, 500, 0))) == 500


@pytest.mark.parametrize("clusters", [0, 4])
def test_more_clusters_than_points_are_rejected(clusters: int) -> None:
    with pytest.raises(ValueError, match=f"{clusters} clusters of 3 points"):
        kmeans(held(np.eye(3, dtype=np.float32)), Settings(clusters))
