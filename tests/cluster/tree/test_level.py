from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.cluster.kmeans.assigned import closest_members
from curate.cluster.kmeans.lloyd import Settings, kmeans
from curate.cluster.tree.level import (
    Level,
    LevelSettings,
    fit_level,
    level_settings,
    level_state,
    nearest_rows,
    packed,
    percentiles,
)
from curate.cluster.tree.levels import Tree, ancestors, fit_tree
from curate.core.group import MemoryGroup
from curate.kernels.nearest.search import nearest


def held(points: np.ndarray, parts: int = 1, threads: int = 1) -> MemoryGroup:
    return MemoryGroup([{"vectors": part} for part in np.array_split(points, parts)], threads)


def tree_of(points: np.ndarray, clusters: list[int], rounds: int, threads: int = 1, cells: int = 1) -> Tree:
    return fit_tree(held(points, 2, threads), level_settings(clusters, 0, rounds), [cells])


def level_of(points: np.ndarray, clusters: int, rounds: int, r: int | None = None) -> Level:
    return fit_level(held(points, 2), LevelSettings(Settings(clusters), rounds, r))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=40), st.integers(1, 9))
def test_closest_members(members: list[tuple[int, int]], r: int) -> None:
    ids, distances = np.array(members, dtype=np.int64).reshape(-1, 2).T
    wanted = set()
    for cluster in range(5):
        rows = [row for row in range(len(members)) if ids[row] == cluster]
        wanted |= set(sorted(rows, key=lambda row: (distances[row], row))[:r])
    assert closest_members(ids, distances.astype(np.float32), r).tolist() == sorted(wanted)


def test_the_arrays_of_a_tree_are_consistent() -> None:
    points = np.random.default_rng(0).normal(size=(600, 5)).astype(np.float32)
    tree = tree_of(points, [60, 12, 3], rounds=2)
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
    plain, single, resampled = (level_of(points, 20, rounds, r) for rounds, r in ((0, 9), (5, 1), (5, 9)))
    assert plain.centroids.tobytes() == single.centroids.tobytes() != resampled.centroids.tobytes()
    assert single.rounds == 0 and resampled.rounds == 5


def test_the_result_does_not_depend_on_threads() -> None:
    points = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    one, two = (tree_of(points, [40, 5], rounds=2, threads=threads) for threads in (1, 2))
    for a, b in zip(one.centroids + one.parents, two.centroids + two.parents, strict=True):
        assert a.tobytes() == b.tobytes()
    assert one.levels == two.levels


def test_resampling_moves_centroids_out_of_dense_regions() -> None:
    rng = np.random.default_rng(0)
    crowd, rest = rng.normal(0, 0.02, (9000, 2)), rng.uniform(-1, 1, (1000, 2))
    points = np.concatenate([crowd, rest]).astype(np.float32)

    def in_the_crowd(rounds: int) -> int:
        return int((np.abs(level_of(points, 200, rounds).centroids) < 0.06).all(axis=1).sum())

    assert in_the_crowd(5) < in_the_crowd(0) / 2


def test_coinciding_points_leave_clusters_empty() -> None:
    points = np.repeat(np.eye(4, dtype=np.float32), 25, axis=0)
    tree = tree_of(points, [10, 3], rounds=3)
    assert tree.levels[0]["empty"] == 6 and tree.levels[0]["inertia"] == 0
    assert np.isfinite(tree.centroids[0]).all()


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_nearest_rows_over_all_parts(rows: list[tuple[int, int]], r: int, parts: int) -> None:
    """Points on a line near their centroids, given as (cluster, distance)."""
    ids, distances = np.array(rows, dtype=np.int64).T
    centroids = (np.arange(5) * 100).astype(np.float32)[:, None]
    points = (centroids[ids] + distances[:, None]).astype(np.float32)
    group = held(points, parts)
    kept, count = nearest_rows(group, centroids, r)
    offsets = np.cumsum([0, *group.rows])
    mine = np.concatenate([kept.rows(group._part(part)) + offsets[part] for part in range(parts)])
    assert mine.tolist() == closest_members(ids, distances.astype(np.float32) ** 2, r).tolist()
    assert count == len(mine)


def test_the_published_schedule() -> None:
    """Every round is a whole k-means by Lloyd's iterations on the r points nearest to each centroid, and the last one's
    centroids are the result (Vo et al. 2024, section 3.3)."""
    points = np.random.default_rng(0).normal(size=(1200, 3)).astype(np.float32)
    [wanted] = level_settings([40], 3, 2, [6], 25, published=True)
    seeds = np.random.SeedSequence(wanted.kmeans.seed).generate_state(3, np.uint64)
    rows = points
    for seed in seeds.tolist():
        centroids = kmeans(held(rows), Settings(40, seed, 25, exchange=False)).centroids
        ids, distances = nearest(points, centroids)
        rows = points[closest_members(ids, distances, 6)]
    assert fit_level(held(points), wanted).centroids.tobytes() == centroids.tobytes()


def test_the_published_schedule_has_its_own_defaults() -> None:
    points = np.random.default_rng(0).normal(size=(800, 3)).astype(np.float32)
    tree = fit_tree(held(points, 2), level_settings([80, 8, 2], 0, 3, published=True))
    assert [level["resample"] for level in tree.levels] == [1, 5, 2]
    assert [level["rounds"] for level in tree.levels] == [0, 3, 3]
    given = fit_tree(held(points, 2), level_settings([80, 8, 2], 0, 3, [4, 3, 1], published=True))
    assert [level["resample"] for level in given.levels] == [4, 3, 1]


@pytest.mark.parametrize(("polish", "published"), [(True, False), (False, False), (False, True)])
@pytest.mark.long
def test_a_level_resumes_from_any_state(polish: bool, published: bool) -> None:
    points = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    wanted = LevelSettings(Settings(100, 5), rounds=3, polish=polish, published=published)
    saved: list[dict[str, object]] = []
    whole = fit_level(held(points, 2), wanted, save=lambda state: saved.append(packed(state)))
    assert len(saved) > 8
    for state in saved[::3]:
        again = fit_level(held(points, 2), wanted, level_state(state))
        assert again.centroids.tobytes() == whole.centroids.tobytes()
        assert (again.iterations, again.inertia) == (whole.iterations, whole.inertia)


def test_a_tree_resumes_from_any_state() -> None:
    points = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    wanted = level_settings([64, 12, 3], 0, rounds=2)

    class Remembering(MemoryGroup):
        def save(self, state: Mapping[str, Any]) -> None:
            states.append(dict(state))

    states: list[dict[str, Any]] = []
    group = Remembering([{"vectors": part} for part in np.array_split(points, 2)])
    whole = fit_tree(group, wanted, resume=True)
    assert len(states) > 12
    for state in states[:: max(1, len(states) // 12)]:
        group._state = state
        again = fit_tree(group, wanted, resume=True)
        for one, other in zip(
            whole.centroids + whole.parents + whole.sizes, again.centroids + again.parents + again.sizes, strict=True
        ):
            assert (one is None and other is None) or one.tobytes() == other.tobytes()
        assert whole.levels == again.levels and whole.distances.tobytes() == again.distances.tobytes()


def test_the_arrays_of_a_tree_by_cells_are_consistent() -> None:
    points = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    tree = tree_of(points, [64, 12, 3], rounds=2, cells=8)
    assert tree.centroids[0] is None and sorted(tree.divided) == ["cells", "offsets"]
    assert (
        tree.divided["cells"].shape == (8, 8) and tree.divided["offsets"][-1] == 64 and tree.parents[0].shape == (64,)
    )
    assert tree.sizes[0].sum() == tree.sizes[1].sum() == tree.sizes[2].sum() == 2000


def by_cell(group: MemoryGroup, name: str) -> np.ndarray:
    return np.concatenate([held["vectors"] for _, held in sorted(group._stored[name].items())])


@pytest.mark.long
@settings(max_examples=15)
@given(
    n=st.integers(60, 400), cells=st.tuples(st.integers(1, 6), st.integers(2, 6)), rounds=st.sampled_from([0, 2]),
    parts=st.integers(1, 3), seed=st.integers(0, 1000),
)  # fmt: skip
def test_a_level_above_by_cells(n: int, cells: tuple[int, int], rounds: int, parts: int, seed: int) -> None:
    """The parent of every input is its nearest cluster, because the probe covers all cells."""
    points = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    group = held(points, parts)
    tree = fit_tree(group, level_settings([40, 12, 3], seed, rounds), cells)
    below = by_cell(group, "leaves") if cells[0] > 1 else tree.centroids[0]
    middle = by_cell(group, "centroids_2")
    assert tree.centroids[1] is None and below is not None and np.isfinite(middle).all()
    assert (below.shape, middle.shape) == ((40, 4), (12, 4))
    assert tree.divided["offsets_2"][-1] == 12 and tree.divided["cells_2"].shape == (cells[1], 4)
    np.testing.assert_array_equal(tree.parents[0], nearest(below, middle)[0])
    np.testing.assert_array_equal(tree.parents[1], nearest(middle, tree.centroids[2])[0])
    np.testing.assert_array_equal(tree.sizes[1], np.bincount(tree.parents[0], tree.sizes[0], 12))
    assert tree.sizes[1].sum() == tree.sizes[2].sum() == n
    assert tree.levels[1]["inertia"] == pytest.approx(float(nearest(below, middle)[1].sum()), rel=1e-5, abs=1e-9)


@pytest.mark.long
def test_a_level_above_by_cells_is_hardly_worse_than_in_one_piece() -> None:
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(40, 8)) * 3
    points = (groups[rng.integers(40, size=6000)] + rng.normal(size=(6000, 8))).astype(np.float32)
    whole, divided = (
        fit_tree(held(points, 2), level_settings([1500, 150, 5], 0, 2), cells).levels[1]["inertia"]
        for cells in ((1, 1), (1, 12))
    )
    assert divided < 1.1 * whole


@pytest.mark.parametrize("cells", [(8, 4), (1, 4), (8, 1)])
@pytest.mark.long
def test_a_tree_by_cells_resumes_from_any_state(cells: tuple[int, int]) -> None:
    points = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    wanted = level_settings([64, 20, 3], 0, rounds=2)

    class Remembering(MemoryGroup):
        def save(self, state: Mapping[str, Any]) -> None:
            states.append(dict(state))

    states: list[dict[str, Any]] = []
    group = Remembering([{"vectors": part} for part in np.array_split(points, 2)])
    whole = fit_tree(group, wanted, cells, resume=True)
    assert len(states) > 20
    for state in states[:: len(states) // 20]:
        group._state = state
        again = fit_tree(group, wanted, cells, resume=True)
        assert whole.levels == again.levels and whole.distances.tobytes() == again.distances.tobytes()
        assert [array.tobytes() for array in whole.parents] == [array.tobytes() for array in again.parents]
        assert {name: array.tobytes() for name, array in whole.divided.items()} == {
            name: array.tobytes() for name, array in again.divided.items()
        }


def test_percentiles() -> None:
    values = np.arange(11, dtype=np.float32)
    assert percentiles(values, np.ones(11))[[0, 50, 100]].tolist() == [0, 5, 10]
    assert percentiles(values, np.r_[np.zeros(10), 1.0])[50] == 10
    assert not percentiles(values[:0], np.ones(0)).any()


@pytest.mark.parametrize(("clusters", "r"), [(400, 20), (100, 200), (1990, 6), (1, 1500), (3, 7)])
def test_rounds_never_sample_fewer_rows_than_clusters(clusters: int, r: int) -> None:
    points = np.random.default_rng(0).standard_normal((2000, 4)).astype(np.float32)
    wanted = LevelSettings(Settings(clusters, iterations=2), rounds=2, r=r)
    assert fit_level(MemoryGroup([{"vectors": points}]), wanted).sizes.sum() == len(points)
