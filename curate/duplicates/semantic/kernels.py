"""Pairs of unit vectors within eps, decided as in float64, and the rows to keep: the arithmetic of duplicates.

A product in float32 of two unit vectors is off by less than (d + 8) 2^-24 for any order of its sums (Higham 2002,
section 3.1, with Cauchy-Schwarz). Pairs closer than that to the limit are decided again in float64, so the outcome is
that of exact arithmetic, for any block size, number of threads and BLAS. All pairs are never listed: rows are compared
with those kept so far, a block at a time, and widened from halves as they are needed (`Points`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from curate.kernels.vectors import Points

BLOCK_ROWS = 512
KEEPERS_AT_ONCE = 8192
_DOUBTS_AT_ONCE = 4096

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def unit_rows(vectors_ND: NDArray[np.floating]) -> Floats:
    """Rows as float32 of unit length; a row without a direction becomes NaN."""
    vectors = np.array(vectors_ND, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
        vectors /= np.where(lengths > 0, lengths, np.nan)
    return vectors


def cosines(first_ND: Floats, second_ND: Floats) -> NDArray[np.float64]:
    """Cosine (n,) of each pair of rows, in float64, the same for a pair wherever it stands."""
    return (first_ND.astype(np.float64) * second_ND).sum(axis=1)


def within(first_MD: Floats, second_KD: Floats, eps: float) -> NDArray[np.bool_]:
    """(M, K): whether cos > 1 - eps. Unit rows."""
    limit, margin = 1 - eps, (first_MD.shape[1] + 8) * 2.0**-24
    products = first_MD @ second_KD.T
    near = products > np.float32(limit - 2 * margin)
    rows, columns = np.nonzero(near)
    doubtful = products[rows, columns] <= limit + margin
    rows, columns = rows[doubtful], columns[doubtful]
    for start in range(0, len(rows), _DOUBTS_AT_ONCE):
        r, c = rows[start : start + _DOUBTS_AT_ONCE], columns[start : start + _DOUBTS_AT_ONCE]
        near[r, c] = cosines(first_MD[r], second_KD[c]) > limit
    return near


def first_within(vectors_ND: Points, others_KD: Points, eps: float) -> Ints:
    """Place (n,) of the first of the others within eps of each vector; -1 if there is no such place."""
    found = np.full(len(vectors_ND), -1, dtype=np.int64)
    for start in range(0, len(vectors_ND), BLOCK_ROWS):
        rest = np.arange(start, min(start + BLOCK_ROWS, len(vectors_ND)))
        for at in range(0, len(others_KD), KEEPERS_AT_ONCE):
            near = within(vectors_ND[rest], others_KD[at : at + KEEPERS_AT_ONCE], eps)
            hit = near.any(axis=1)
            found[rest[hit]] = at + near[hit].argmax(axis=1)
            rest = rest[~hit]
            if not len(rest):
                break
    return found


def greedy(vectors_ND: Points, eps: float) -> Ints:
    """Rows in order of priority -> the place (n,) of the first kept row within eps; a kept row names itself.

    A row is kept when no kept row before it lies within eps (SemDeDup, Abbas et al. 2023, section 3, against kept rows
    only): every other row has a kept one within eps, and no two kept rows lie within eps of each other. Copies of one
    image cost a row of products with a single keeper each.
    """
    keeper = np.arange(len(vectors_ND))
    places, kept, count = np.empty(len(vectors_ND), dtype=np.int64), np.empty((0, vectors_ND.shape[1]), np.float32), 0
    for start in range(0, len(vectors_ND), BLOCK_ROWS):
        block = np.arange(start, min(start + BLOCK_ROWS, len(vectors_ND)))
        found = first_within(vectors_ND[block], kept[:count], eps)
        keeper[block[found >= 0]] = places[found[found >= 0]]
        rest = block[found < 0]
        vectors = vectors_ND[rest]
        keeper[rest] = rest[_greedy_inside(within(vectors, vectors, eps))]
        free = keeper[rest] == rest
        new = rest[free]
        if count + len(new) > len(kept):
            kept = np.concatenate([kept, np.empty((max(len(kept), BLOCK_ROWS), kept.shape[1]), np.float32)])
        places[count : count + len(new)], kept[count : count + len(new)] = new, vectors[free]
        count += len(new)
    return keeper


def _greedy_inside(near_NN: NDArray[np.bool_]) -> Ints:
    """The same within one block whose pairs are known."""
    keeper = np.arange(len(near_NN))
    free = np.ones(len(near_NN), dtype=bool)
    for row in range(len(near_NN)):
        if free[row]:
            followers = near_NN[row] & free
            followers[: row + 1] = False
            keeper[followers], free[followers] = row, False
    return keeper


def pairs_within(first_MD: Points, second_KD: Points, eps: float) -> Iterator[tuple[Ints, Ints]]:
    """All pairs (places in first, places in second) with cos > 1 - eps: for rows that were thinned out before."""
    for start in range(0, len(first_MD), BLOCK_ROWS):
        block = first_MD[start : start + BLOCK_ROWS]
        for at in range(0, len(second_KD), KEEPERS_AT_ONCE):
            near = within(block, second_KD[at : at + KEEPERS_AT_ONCE], eps)
            rows, columns = np.nonzero(near)
            yield rows + start, columns + at


def best_within(vectors_ND: Floats, others_KD: Floats, eps: float) -> tuple[Ints, NDArray[np.float32]]:
    """The nearest of the others within eps of each vector: its place (n,), the lowest among equals or -1, and its
    cosine (n,), NaN without a match. Rows of NaN are near nothing."""
    found, cosine = np.full(len(vectors_ND), -1, dtype=np.int64), np.full(len(vectors_ND), -np.inf)
    vectors, others = np.nan_to_num(vectors_ND), np.nan_to_num(others_KD)
    for rows, columns in pairs_within(vectors, others, eps):
        for start in range(0, len(rows), _DOUBTS_AT_ONCE):
            r, c = rows[start : start + _DOUBTS_AT_ONCE], columns[start : start + _DOUBTS_AT_ONCE]
            value = cosines(vectors[r], others[c])
            order = np.lexsort((-c, value))  # the last of a row is its best
            last = order[np.argsort(r[order], kind="stable")]
            last = last[np.append(r[last][1:] != r[last][:-1], True)]
            better = last[value[last] > cosine[r[last]]]
            found[r[better]], cosine[r[better]] = c[better], value[better]
    return found, np.where(found >= 0, cosine, np.nan).astype(np.float32)


def cells_to_visit(
    vectors_ND: Floats, centroids_KD: Floats, home_N: Ints, eps: float, most: int | None
) -> Iterator[tuple[Ints, Ints]]:
    """(rows, cells): cells that a row must visit apart from its own to meet all rows within eps;
    at most the `most` nearest.

    Let a be the nearest centroid of x and b that of y. g(x) = |x - b|^2 - |x - a|^2 is linear with slope 2 (a - b) and
    g(y) <= 0, so that |x - y| <= r gives g(x) <= 2 r |a - b|: x need not visit cells where that does not hold. Unit
    vectors within eps are at most r = sqrt(2 eps) apart. In float64: the choice must not depend on the order of sums.
    """
    if most == 0 or len(centroids_KD) < 2:
        return
    centroids = centroids_KD.astype(np.float64)
    squared = np.einsum("kd,kd->k", centroids, centroids)
    reach = 2 * np.sqrt(2 * eps + 1e-6)
    step = max(1, (1 << 22) // len(centroids))
    for start in range(0, len(vectors_ND), step):
        vectors, home = vectors_ND[start : start + step].astype(np.float64), home_N[start : start + step]
        rows = np.arange(len(vectors))
        gap = squared - 2 * vectors @ centroids.T
        gap -= gap[rows, home][:, None]
        apart = np.sqrt(np.maximum(squared[home][:, None] + squared - 2 * centroids[home] @ centroids.T, 0))
        gap[gap > reach * apart + 1e-6] = np.inf
        gap[rows, home] = np.inf
        if most is not None and most < gap.shape[1]:
            places = np.argsort(np.round(gap, 12), axis=1, kind="stable")[:, :most]
            thinned = np.full_like(gap, np.inf)
            np.put_along_axis(thinned, places, np.take_along_axis(gap, places, axis=1), axis=1)
            gap = thinned
        where, cells = np.nonzero(np.isfinite(gap))
        yield where + start, cells
