from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from curate.cluster.divide.cells import coarse_cells, sample_of
from curate.cluster.divide.level import CELL_ROWS, Divided, State, default_cells, divide
from curate.cluster.divide.probe import LeafIndex, nearest_leaf
from curate.cluster.divide.shares import shares
from curate.cluster.kmeans.lloyd import Settings
from curate.cluster.tree.level import LevelSettings, fit_level
from curate.core.group import MemoryGroup
from curate.kernels.nearest.search import nearest

COUNTS = st.integers(1, 12).flatmap(
    lambda cells: st.tuples(
        arrays(np.float64, cells, elements=st.floats(0, 1e6)),
        arrays(np.int64, cells, elements=st.integers(0, 40)),
        arrays(np.int64, cells, elements=st.integers(0, 40)),
    )
)


def in_parts(points: np.ndarray, parts: int, threads: int = 1) -> MemoryGroup:
    return MemoryGroup([{"vectors": part} for part in np.array_split(points, parts)], threads)


def level(leaves: int, rounds: int = 0, unit_norm: bool = False, seed: int = 0) -> LevelSettings:
    return LevelSettings(Settings(leaves, seed, 5, unit_norm), rounds)


def leaves_of(found: Divided) -> list[np.ndarray]:
    return [part["vectors"] for part in found.group.stored("leaves").parts]


def cells_of(centroids: np.ndarray, leaves: Sequence[np.ndarray]) -> LeafIndex:
    offsets = np.cumsum([0, *(len(part) for part in leaves)])
    return LeafIndex(centroids, offsets, lambda cell: leaves[cell])


# --- shares -----------------------------------------------------------------------------------------------------------


@given(counts=COUNTS, share=st.floats(0, 1))
def test_shares_sum_and_keep_their_bounds(counts: tuple[np.ndarray, ...], share: float) -> None:
    weights, distinct, rows = counts
    distinct = np.minimum(distinct, rows)
    least, most = int((rows > 0).sum()), int(rows.sum())
    if not most:
        return
    leaves = least + int(share * (most - least))
    given_ = shares(weights, distinct, rows, leaves)
    assert given_.sum() == leaves
    assert (given_[rows > 0] >= 1).all() and (given_ <= rows).all()
    if leaves <= np.maximum(distinct, rows > 0).sum():
        assert (given_ <= np.maximum(distinct, rows > 0)).all()


@given(weights=arrays(np.float64, 9, elements=st.floats(0.5, 1e3)), leaves=st.integers(1, 10_000))
def test_shares_are_within_one_of_proportion_if_no_bound_applies(weights: np.ndarray, leaves: int) -> None:
    ideal = weights / weights.sum() * leaves
    if ideal.min() < 1:
        return
    plenty = np.full(9, 1 << 20)
    assert (np.abs(shares(weights, plenty, plenty, leaves) - ideal) <= 1).all()


def test_shares_by_largest_remainder() -> None:
    plenty = np.full(3, 100)
    assert shares(np.array([2.6, 1.6, 5.8]), plenty, plenty, 10).tolist() == [3, 1, 6]
    assert shares(np.array([1.0, 1.0, 1.0]), plenty, plenty, 4).tolist() == [2, 1, 1]
    assert shares(np.array([0.0, 0.0, 9.0]), plenty, np.array([0, 5, 5]), 8).tolist() == [0, 3, 5]


@pytest.mark.parametrize("leaves", [1, 11])
def test_impossible_shares_are_rejected(leaves: int) -> None:
    with pytest.raises(ValueError, match=f"{leaves} leaves for 10 rows in 2 cells"):
        shares(np.ones(3), np.full(3, 5), np.array([5, 0, 5]), leaves)


# --- assignment -------------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 80), k=st.integers(1, 120), cells=st.integers(1, 15), d=st.integers(1, 8),
    whole=st.booleans(), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_a_probe_of_all_cells_is_brute_force(n: int, k: int, cells: int, d: int, whole: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def some(rows: int) -> np.ndarray:
        return (rng.integers(-2, 3, (rows, d)) if whole else rng.normal(size=(rows, d))).astype(np.float32)

    points, leaves = some(n), some(k)
    edges = np.sort(rng.integers(0, k + 1, cells - 1))  # some cells are empty
    ids, distances = nearest_leaf(points, cells_of(some(cells), np.split(leaves, edges)), cells)
    exact = ((points[:, None].astype(np.float64) - leaves[None]) ** 2).sum(-1)
    np.testing.assert_array_equal(ids, exact.argmin(axis=1))
    np.testing.assert_allclose(distances, exact.min(axis=1), rtol=1e-5)


def test_float64_decides_what_float32_cannot_distinguish() -> None:
    points = np.array([[1.0, 0.0]], dtype=np.float32)
    nearer = np.array([[1.0, 1.0]], dtype=np.float32)
    farther = np.array([[1.0 + 2.0**-14, 1.0]], dtype=np.float32)  # 1 + 2**-28 away
    for leaves in ([nearer, farther], [farther, nearer]):
        ids, distances = nearest_leaf(points, cells_of(np.zeros((2, 2), np.float32), leaves), 2)
        assert leaves[ids[0]] is nearer and distances[0] == 1


def test_a_probe_finds_the_nearest_leaf_of_the_nearest_cells_with_leaves() -> None:
    centroids = np.array([[0.0], [10.0], [20.0]], dtype=np.float32)
    empty = np.empty((0, 1), np.float32)
    points = np.array([[1.0], [12.0]], dtype=np.float32)
    leaves = [np.array([[-2.0]], np.float32), empty, np.array([[12.5], [22.0]], np.float32)]
    assert nearest_leaf(points, cells_of(centroids, leaves), 1)[0].tolist() == [0, 1]
    with pytest.raises(ValueError, match="no cell holds a leaf"):
        nearest_leaf(points, cells_of(centroids, [empty] * 3), 1)


def test_assignment_is_the_same_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3000, 24)).astype(np.float32)
    cells = cells_of(points[:12], np.array_split(points[100:500], 12))
    one, three = (nearest_leaf(points, cells, 4, threads) for threads in (1, 3))
    assert one[0].tobytes() == three[0].tobytes() and one[1].tobytes() == three[1].tobytes()
    assert len(nearest_leaf(points[:0], cells)[0]) == 0


# --- fit --------------------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    n=st.integers(1, 150), k=st.integers(1, 60), cells=st.integers(1, 10), parts=st.integers(1, 4),
    distinct=st.integers(1, 150), rounds=st.sampled_from([0, 2]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_the_requested_number_of_leaves(
    n: int, k: int, cells: int, parts: int, distinct: int, rounds: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(min(n, distinct), 3)).astype(np.float32)[rng.integers(min(n, distinct), size=n)]
    k = min(k, n)
    found = divide(in_parts(points, parts), level(k, rounds), min(cells, k))
    leaves = leaves_of(found)
    assert [len(part) for part in leaves] == np.diff(found.offsets).tolist() and found.offsets[-1] == k
    assert all(np.isfinite(part).all() for part in leaves)
    assert found.sizes.sum() == n and len(found.sizes) == k
    own, _ = nearest(points, found.centroids)
    assert found.group.rows == np.bincount(own, minlength=len(found.centroids)).tolist()
    _, squared = nearest_leaf(points, cells_of(found.centroids, leaves), 1)
    full = np.diff(found.offsets)[own] > 0
    assert full.all()  # a cell that has rows has leaves
    assert found.inertia == pytest.approx(float(squared.sum()), rel=1e-4, abs=1e-6)


def test_all_points_equal() -> None:
    found = divide(in_parts(np.ones((50, 4), np.float32), 3), level(9))
    assert found.inertia == 0 and found.sizes.max() == 50 and found.offsets[-1] == 9


@pytest.mark.parametrize(("leaves", "cells"), [(5, 6), (51, 3), (5, 0)])
def test_impossible_numbers_are_rejected(leaves: int, cells: int) -> None:
    with pytest.raises(ValueError, match=f"{leaves} leaves of 50 rows in {cells} cells"):
        divide(in_parts(np.eye(50, dtype=np.float32), 2), level(leaves), cells)


def test_hardly_worse_than_a_fit_in_one_piece() -> None:
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(60, 8)) * 4
    points = (groups[rng.choice(60, 8000, p=np.arange(1, 61) / 1830)] + rng.normal(size=(8000, 8))).astype(np.float32)
    whole = fit_level(in_parts(points, 2), level(200))
    found = divide(in_parts(points, 2), level(200))
    _, squared = nearest(points, np.concatenate(leaves_of(found)))
    assert squared.sum() < 1.12 * whole.inertia
    some, _ = nearest_leaf(points, cells_of(found.centroids, leaves_of(found)), 4)
    assert (some == nearest(points, np.concatenate(leaves_of(found)))[0]).mean() > 0.97


def test_the_result_depends_on_the_seed_not_on_threads() -> None:
    points = np.random.default_rng(1).normal(size=(4000, 10)).astype(np.float16)
    one, three, other = (
        divide(in_parts(points, 3, threads), level(64, 1, seed=seed)) for threads, seed in ((1, 0), (3, 0), (1, 1))
    )
    for a, b in zip(leaves_of(one), leaves_of(three), strict=True):
        assert a.tobytes() == b.tobytes() and a.dtype == np.float32
    assert one.centroids.tobytes() == three.centroids.tobytes() != other.centroids.tobytes()
    assert one.sizes.tobytes() == three.sizes.tobytes() and one.inertia == three.inertia


def test_resumes_from_any_checkpoint() -> None:
    points = np.random.default_rng(2).normal(size=(2000, 6)).astype(np.float32)
    states: list[State] = []
    whole = divide(in_parts(points, 2), level(49, 1), save=states.append)
    assert sorted({state.done for state in states}) == list(range(8)) and states[0].weights is None
    for state in states:
        again = divide(in_parts(points, 2), level(49, 1), begin=State.unpacked(state.packed()))
        assert again.sizes.tobytes() == whole.sizes.tobytes() and again.inertia == whole.inertia
        assert again.distances.tobytes() == whole.distances.tobytes()
        stored = again.group._stored.get("leaves", {})
        assert sorted(stored) == list(range(state.done, 7))  # cells fitted before are not fitted again
        for cell, held in stored.items():
            assert held["vectors"].tobytes() == leaves_of(whole)[cell].tobytes()


def test_directions_are_stored_in_the_precision_of_the_rows() -> None:
    points = np.random.default_rng(3).normal(size=(600, 16))
    points = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float16)
    leaves = leaves_of(divide(in_parts(points, 2), level(30, unit_norm=True)))
    assert all(part.dtype == np.float16 for part in leaves)
    lengths = np.linalg.norm(np.concatenate(leaves).astype(np.float32), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=2e-3)


def test_norms_stay_with_their_rows() -> None:
    rng = np.random.default_rng(3)
    directions = rng.normal(size=(400, 5)).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    norms = rng.uniform(1, 50, 400).astype(np.float32)
    held = [{"vectors": directions.astype(np.float16), "norms": norms}]
    leaves = np.concatenate(leaves_of(divide(MemoryGroup(held), level(40))))
    raw = directions * norms[:, None]
    assert leaves.dtype == np.float32 and nearest(raw, leaves)[1].sum() < 0.3 * raw.var(axis=0).sum() * 400
    same_direction = [{"vectors": np.ones((60, 2), np.float16), "norms": np.arange(1, 61, dtype=np.float32)}]
    assert (divide(MemoryGroup(same_direction), level(60), 3).sizes == 1).all()  # the rows differ only in their norms


def test_a_large_cell_is_fitted_on_a_sample_but_counts_all_rows() -> None:
    rng = np.random.default_rng(4)
    points = rng.normal(size=(3 * CELL_ROWS, 2)).astype(np.float32)
    found = divide(in_parts(points, 2), level(2), cells=1)
    assert found.sizes.sum() == len(points) and (found.sizes > 0).all()


# --- cells ------------------------------------------------------------------------------------------------------------


def test_cells_of_data_without_clusters_are_similar_in_size() -> None:
    points = np.random.default_rng(0).normal(size=(6000, 200)).astype(np.float32)
    centroids = coarse_cells(in_parts(points, 2), 30, Settings(30))
    sizes = np.bincount(nearest(points, centroids)[0], minlength=30)
    assert sizes.min() > 100 and sizes.max() < 400  # k-means from unshrunk rows gives cells of 3 to 390 rows


@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (10, 3), (333, 4), (1000, 2)])
def test_a_sample_has_the_requested_number_of_rows(rows: int, parts: int) -> None:
    points = np.arange(1000, dtype=np.float32)[:, None]
    sample = sample_of(in_parts(points, parts), rows, 0, "sample")
    drawn = np.concatenate([part["vectors"][:, 0] for part in sample.parts])
    assert len(drawn) == len(set(drawn.tolist())) == rows


def test_by_default_as_many_cells_as_leaves_per_cell() -> None:
    assert [default_cells(k) for k in (1, 2, 100, 65_536, 20_000_000)] == [1, 1, 10, 256, 4472]
