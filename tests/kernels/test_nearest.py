import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import CurateError
from curate.kernels.nearest import backends
from curate.kernels.nearest.search import BLOCK_ROWS, Ambiguity, distances_to, nearest


def squared(points: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """(n, K) squared distances in float64."""
    return ((points[:, None].astype(np.float64) - centroids[None]) ** 2).sum(-1)


BACKENDS = st.sampled_from(["faiss", "torch"])
"""torch's bfloat16 is exact on every processor, but slow on those without it."""


@given(
    n=st.integers(1, 60),
    k=st.integers(1, 120),
    d=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    offset=st.sampled_from([0.0, 10.0, 3000.0]),
    near=st.sampled_from([1.0, 1e-3, 1e-6]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    backend=BACKENDS,
)
def test_ids_are_those_of_brute_force_in_float64(
    n: int, k: int, d: int, seed: int, offset: float, near: float, scale: float, backend: str
) -> None:
    """Also far from the origin, where float32 cancels, and for almost equal centroids."""
    rng = np.random.default_rng(seed)
    points = ((rng.normal(size=(n, d)) + offset) * scale).astype(np.float32)
    centroids = ((near * rng.normal(size=(k, d)) + offset) * scale).astype(np.float32)
    ids, distances = nearest(points, centroids, backend=backend)
    assert ids.dtype == np.int64 and distances.dtype == np.float32
    exact = squared(points, centroids)
    np.testing.assert_array_equal(ids, exact.argmin(axis=1))
    np.testing.assert_allclose(distances, exact[np.arange(n), ids], rtol=1e-5)


@given(n=st.integers(1, 60), k=st.integers(1, 1500), d=st.integers(1, 6), seed=st.integers(0, 2**32 - 1), b=BACKENDS)
def test_ties_go_to_the_lowest_id(n: int, k: int, d: int, seed: int, b: str) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(-2, 3, (n, d)).astype(np.float32)
    centroids = rng.integers(-2, 3, (k, d)).astype(np.float32)
    ids = nearest(points, centroids, backend=b)[0]
    np.testing.assert_array_equal(ids, squared(points, centroids).argmin(axis=1))


def test_an_unknown_backend_is_one_line() -> None:
    with pytest.raises(CurateError, match=r"expected one of faiss, torch, .*, not 'fais'"):
        nearest(np.ones((2, 4), np.float32), np.ones((2, 4), np.float32), backend="fais")


def test_it_counts_the_rows_compared_in_float64() -> None:
    points = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    work = Ambiguity()
    nearest(points, np.repeat(points[:10], 30, axis=0), ambiguity=work)
    assert work.rows == 300 and work.full == 300  # each centroid occurs 30 times
    work = Ambiguity()
    nearest(points, points, ambiguity=work)
    assert work.full == 0


@pytest.mark.parametrize("dim", [3, 64, 301])
def test_identical_centroids_count_as_the_first(dim: int) -> None:
    rng = np.random.default_rng(dim)
    centroids = rng.normal(size=(300, dim)).astype(np.float32)
    points = rng.normal(size=(500, dim)).astype(np.float32)
    ids, _ = nearest(points, np.concatenate([centroids, centroids, centroids[::-1]]))
    assert ids.max() < 300


@pytest.mark.parametrize("columns", [1, 7, 100])
def test_scores_are_held_for_some_centroids_at_a_time(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((500, 32)).astype(np.float32)
    centroids = np.concatenate([points[:150] + np.float32(0.1), np.repeat(points[:3], 80, axis=0), points[:1]])
    wanted = nearest(points, centroids, backend="faiss")[0]
    monkeypatch.setattr(backends, "COLUMNS", columns)
    assert nearest(points, centroids, backend="torch")[0].tolist() == wanted.tolist()


def test_products_that_underflow_in_float32_are_compared_in_float64() -> None:
    rng = np.random.default_rng(0)
    points = (rng.standard_normal((500, 16)) * 1e-20).astype(np.float32)
    centroids = points[:50] * np.float32(1.1)
    for backend in ("faiss", "torch"):
        assert nearest(points, centroids, backend=backend)[0].tolist() == squared(points, centroids).argmin(1).tolist()


def test_the_same_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3 * BLOCK_ROWS + 17, 70)).astype(np.float32)
    one, two, three = (nearest(points, points[:200], threads) for threads in (1, 2, 3))
    for a, b, c in zip(one, two, three, strict=True):
        assert a.tobytes() == b.tobytes() == c.tobytes()


def test_distances_do_not_cancel_far_from_the_origin() -> None:
    points = np.array([[1000.25, 1000.0]], dtype=np.float32)
    assert nearest(points, np.array([[1000.0, 1000.0]], dtype=np.float32))[1].tolist() == [0.0625]


@pytest.mark.parametrize("backend", ["faiss", "torch"])
def test_read_only_arrays_give_no_warning(backend: str) -> None:
    points = np.arange(40, dtype=np.float32).reshape(10, 4)
    points.flags.writeable = False
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert nearest(points, points, backend=backend)[0].tolist() == list(range(10))
    finally:
        torch.set_warn_always(False)
    assert [str(one.message) for one in said] == []


def test_no_points_and_no_centroids() -> None:
    empty = np.empty((0, 4), dtype=np.float32)
    ids, distances = nearest(empty, np.ones((2, 4), np.float32))
    assert len(ids) == len(distances) == len(distances_to(empty, empty, ids)) == 0
    with pytest.raises(ValueError, match="no centroids"):
        nearest(np.ones((2, 4), np.float32), empty)
