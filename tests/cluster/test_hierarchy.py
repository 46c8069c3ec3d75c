import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.cluster.hierarchy import ancestors, closest_members, fit_level, fit_tree, position_in_group
from curate.cluster.nearest import nearest


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=40), st.integers(1, 9))
def test_closest_members(members: list[tuple[int, int]], r: int) -> None:
    ids, distances = np.array(members, dtype=np.int64).reshape(-1, 2).T
    wanted = set()
    for cluster in range(5):
        rows = [row for row in range(len(members)) if ids[row] == cluster]
        wanted |= set(sorted(rows, key=lambda row: (distances[row], row))[:r])
    assert closest_members(ids, distances.astype(np.float32), r).tolist() == sorted(wanted)


def test_position_in_group() -> None:
    assert position_in_group(np.array([4, 4, 4, 1, 9, 9])).tolist() == [0, 1, 2, 0, 0, 1]
    assert len(position_in_group(np.zeros(0, np.int64))) == 0


def test_a_tree_is_arrays_that_fit_together() -> None:
    points = np.random.default_rng(0).normal(size=(600, 5)).astype(np.float32)
    tree = fit_tree(points, [60, 12, 3], seed=0, rounds=2)
    assert [c.shape for c in tree.centroids] == [(60, 5), (12, 5), (3, 5)]
    assert [(p.shape, p.dtype) for p in tree.parents] == [((60,), np.int64), ((12,), np.int64)]
    for below, above, parent in zip(tree.centroids, tree.centroids[1:], tree.parents, strict=False):
        np.testing.assert_array_equal(parent, nearest(below, above)[0])
    leaves, distances = nearest(points, tree.centroids[0])
    assert tree.levels[0]["inertia"] == pytest.approx(distances.sum(), rel=1e-5)
    sizes = np.bincount(ancestors(tree.parents, 60)[leaves, 2], minlength=3)
    assert [level["clusters"] for level in tree.levels] == [60, 12, 3]
    assert [level["inputs"] for level in tree.levels] == [600, 60, 12]
    assert (tree.levels[2]["largest"], tree.levels[2]["smallest"]) == (sizes.max(), sizes.min())
    assert [level["resample"] for level in tree.levels] == [5, 3, 2]


def test_ancestors() -> None:
    assert ancestors([np.array([1, 0, 1]), np.array([0, 0])], 3).tolist() == [[0, 1, 0], [1, 0, 0], [2, 1, 0]]
    assert ancestors([], 2).tolist() == [[0], [1]]


def test_one_nearest_point_means_no_resampling() -> None:
    points = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    plain, single, resampled = (fit_level(points, 20, 0, rounds, r) for rounds, r in ((0, 9), (5, 1), (5, 9)))
    assert plain.centroids.tobytes() == single.centroids.tobytes() != resampled.centroids.tobytes()
    assert single.rounds == 0 and resampled.rounds == 5


def test_the_same_for_any_number_of_threads() -> None:
    points = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    one, two = (fit_tree(points, [40, 5], 3, rounds=2, threads=threads) for threads in (1, 2))
    for a, b in zip(one.centroids + one.parents, two.centroids + two.parents, strict=True):
        assert a.tobytes() == b.tobytes()
    assert one.levels == two.levels


def test_resampling_moves_centroids_out_of_the_crowd() -> None:
    rng = np.random.default_rng(0)
    crowd, rest = rng.normal(0, 0.02, (9000, 2)), rng.uniform(-1, 1, (1000, 2))
    points = np.concatenate([crowd, rest]).astype(np.float32)

    def in_the_crowd(rounds: int) -> int:
        return int((np.abs(fit_level(points, 200, 0, rounds).centroids) < 0.06).all(axis=1).sum())

    assert in_the_crowd(5) < in_the_crowd(0) / 2


def test_points_that_coincide_leave_clusters_empty() -> None:
    points = np.repeat(np.eye(4, dtype=np.float32), 25, axis=0)
    tree = fit_tree(points, [10, 3], seed=0, rounds=3)
    assert tree.levels[0]["empty"] == 6 and tree.levels[0]["inertia"] == 0
    assert np.isfinite(tree.centroids[0]).all()
