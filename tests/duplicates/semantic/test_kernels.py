"""Kernels of semantic duplicates, compared with float64 on all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.duplicates.semantic import kernels
from curate.duplicates.semantic.kernels import (
    best_within,
    cells_to_visit,
    cosines,
    first_within,
    greedy,
    unit_rows,
    within,
)
from curate.kernels.nearest.search import nearest


def clumps(seed: int, rows: int, dim: int = 6, around: int = 5, spread: float = 0.15) -> np.ndarray:
    """Unit rows (n, d) around a few directions, some of them identical."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(around, dim))
    vectors = centres[rng.integers(around, size=rows)] + rng.normal(size=(rows, dim)) * spread
    if rows > 3:
        vectors[rows // 2] = vectors[0]
    return unit_rows(vectors)


def exact(first: np.ndarray, second: np.ndarray, eps: float) -> np.ndarray:
    near = [[cosines(a[None], b[None])[0] > 1 - eps for b in second] for a in first]
    return np.array(near, dtype=bool).reshape(len(first), len(second))


CASES = given(st.integers(0, 10_000), st.integers(0, 40), st.floats(1e-7, 0.6))


@CASES
def test_within_equals_float64(seed: int, rows: int, eps: float) -> None:
    vectors = clumps(seed, rows)
    assert (within(vectors, vectors, eps) == exact(vectors, vectors, eps)).all()


def test_pairs_at_the_limit_equal_float64() -> None:
    vectors = clumps(1, 300, dim=96)
    products = vectors.astype(np.float64) @ vectors.T
    for value in products[0, 1:40]:  # a limit equal to a pair's cosine
        eps = 1 - float(value)
        assert (within(vectors[:1], vectors, eps)[0] == exact(vectors[:1], vectors, eps)[0]).all()


@CASES
@pytest.mark.parametrize("block", [4, 512])
def test_greedy_maps_each_row_to_its_first_kept_row(block: int, seed: int, rows: int, eps: float) -> None:
    vectors = clumps(seed, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "BLOCK_ROWS", block)
        patch.setattr(kernels, "KEEPERS_AT_ONCE", 3 * block)
        keeper = greedy(vectors, eps)
    near = exact(vectors, vectors, eps)
    kept = keeper == np.arange(rows)
    assert kept[keeper].all()
    for row in range(rows):
        before = [j for j in range(row) if kept[j] and near[row, j]]
        assert keeper[row] == (before[0] if before else row)


@CASES
def test_first_within_equals_a_full_search(seed: int, rows: int, eps: float) -> None:
    vectors, others = clumps(seed, rows), clumps(seed + 1, 17)
    near = exact(vectors, others, eps)
    expected = [int(row.argmax()) if row.any() else -1 for row in near]
    assert first_within(vectors, others, eps).tolist() == expected


@CASES
def test_best_within_equals_a_full_search(seed: int, rows: int, eps: float) -> None:
    vectors, others = clumps(seed, rows), clumps(seed, 17)
    found, cosine = best_within(vectors, others, eps)
    for row in range(rows):
        cosine_of = cosines(np.repeat(vectors[row : row + 1], len(others), axis=0), others)
        if cosine_of.max() > 1 - eps:
            assert found[row] == cosine_of.argmax() and cosine[row] == np.float32(cosine_of.max())
        else:
            assert found[row] == -1 and np.isnan(cosine[row])


def test_rows_without_a_direction_match_nothing() -> None:
    vectors = unit_rows(np.array([[0.0, 0], [np.nan, 1], [2, 0]]))
    assert np.isnan(vectors[:2]).all() and vectors[2].tolist() == [1, 0]
    assert best_within(vectors, vectors, 0.1)[0].tolist() == [-1, -1, 2]


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 9), st.floats(1e-6, 0.5))
def test_rows_within_eps_share_a_visited_cell(seed: int, rows: int, cells: int, eps: float) -> None:
    vectors = clumps(seed, rows, dim=4, around=7, spread=0.4)
    centroids = clumps(seed + 1, cells, dim=4, around=7, spread=0.4)
    home = nearest(vectors, centroids)[0]
    visits = np.zeros((rows, cells), dtype=bool)
    for row, cell in cells_to_visit(vectors, centroids, home, eps, None):
        visits[row, cell] = True
    assert not visits[np.arange(rows), home].any()
    first, second = np.nonzero(exact(vectors, vectors, eps))
    met = (home[first] == home[second]) | visits[first, home[second]]
    assert met.all()
    for most in (0, 1, 3):
        fewer = np.zeros_like(visits)
        for row, cell in cells_to_visit(vectors, centroids, home, eps, most):
            fewer[row, cell] = True
        assert (fewer.sum(axis=1) == np.minimum(visits.sum(axis=1), most)).all() and not (fewer & ~visits).any()


def test_ten_thousand_copies_are_compared_with_one_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[int] = []
    real = within

    def counted(first: np.ndarray, second: np.ndarray, eps: float) -> np.ndarray:
        products.append(first.shape[0] * second.shape[0])
        return real(first, second, eps)

    monkeypatch.setattr(kernels, "within", counted)
    keeper = greedy(clumps(3, 10_000, around=1, spread=0.005), 0.05)
    assert (keeper == 0).all()
    assert sum(products) <= kernels.BLOCK_ROWS**2 + 10_000
