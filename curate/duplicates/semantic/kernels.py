"""Kernels of semantic duplicates: pairs of unit vectors within eps, with float64 accuracy, and the rows to keep.

The float32 product of two unit vectors has an error below (d + 8) 2^-24 for any summation order (Higham 2002, section
3.1, with Cauchy-Schwarz). Pairs closer than that to the limit are recomputed in float64, so the result does not depend
on block size, number of threads or BLAS. The kernels never list all pairs: they compare rows with the rows kept so far,
one block at a time, and convert float16 to float32 as needed (`Points`).
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
    """Rows as float32, scaled to unit length; a row without a direction becomes NaN."""
    vectors = np.array(vectors_ND, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
        vectors /= np.where(lengths > 0, lengths, np.nan)
    return vectors


def cosines(first_ND: Floats, second_ND: Floats) -> NDArray[np.float64]:
    """Cosine (n,) of each pair of rows, in float64. The result for a pair does not depend on its position."""
    return (first_ND.astype(np.float64) * second_ND).sum(axis=1)


def within(first_MD: Floats, second_KD: Floats, eps: float) -> NDArray[np.bool_]:
    """(M, K): whether cos > 1 - eps. Expects unit rows."""
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
    """Index (n,) of the first of the others within eps of each vector, or -1."""
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
    """Rows in order of priority -> index (n,) of the first kept row within eps; a kept row maps to itself.

    A row is kept if no kept row before it is within eps (SemDeDup, Abbas et al. 2023, section 3, but compared with kept
    rows only). So every dropped row has a kept row within eps, and no two kept rows are within eps of each other. Many
    copies of one image are cheap, because each is compared with a single keeper.
    """
    keeper = np.arange(len(vectors_ND))
    places, kept, count = np.empty(len(vectors_ND), dtype=np.int64), np.empty((0, vectors_ND.shape[1]), np.float32), 0
    for start in range(0, len(vectors_ND), BLOCK_ROWS):
        block = np.arange(start, min(start + BLOCK_ROWS, len(vectors_ND)))
        found = first_within(vectors_ND[block], kept[:count], eps)
        keeper[block[found >= 0]] = places[found[found >= 0]]
        rest = block[found < 0]
        vectors = vectors_ND[rest]
        keeper[rest] = rest[_greedy_in_block(within(vectors, vectors, eps))]
        free = keeper[rest] == rest
        new = rest[free]
        if count + len(new) > len(kept):
            kept = np.concatenate([kept, np.empty((max(len(kept), BLOCK_ROWS), kept.shape[1]), np.float32)])
        places[count : count + len(new)], kept[count : count + len(new)] = new, vectors[free]
        count += len(new)
    return keeper


def _greedy_in_block(near_NN: NDArray[np.bool_]) -> Ints:
    """`greedy` within one block, given which pairs are within eps (n, n)."""
    keeper = np.arange(len(near_NN))
    free = np.ones(len(near_NN), dtype=bool)
    for row in range(len(near_NN)):
        if free[row]:
            followers = near_NN[row] & free
            followers[: row + 1] = False
            keeper[followers], free[followers] = row, False
    return keeper


def pairs_within(first_MD: Points, second_KD: Points, eps: float) -> Iterator[tuple[Ints, Ints]]:
    """All pairs (index in first, index in second) with cos > 1 - eps. Thin the rows first: there may be many pairs."""
    for start in range(0, len(first_MD), BLOCK_ROWS):
        block = first_MD[start : start + BLOCK_ROWS]
        for at in range(0, len(second_KD), KEEPERS_AT_ONCE):
            near = within(block, second_KD[at : at + KEEPERS_AT_ONCE], eps)
            rows, columns = np.nonzero(near)
            yield rows + start, columns + at


def best_within(vectors_ND: Floats, others_KD: Floats, eps: float) -> tuple[Ints, NDArray[np.float32]]:
    """Nearest of the others within eps of each vector: index (n,), the lowest among equals, and cosine (n,). Without a
    match they are -1 and NaN. Rows of NaN match nothing."""
    found, cosine = np.full(len(vectors_ND), -1, dtype=np.int64), np.full(len(vectors_ND), -np.inf)
    vectors, others = np.nan_to_num(vectors_ND), np.nan_to_num(others_KD)
    for rows, columns in pairs_within(vectors, others, eps):
        for start in range(0, len(rows), _DOUBTS_AT_ONCE):
            r, c = rows[start : start + _DOUBTS_AT_ONCE], columns[start : start + _DOUBTS_AT_ONCE]
            value = cosines(vectors[r], others[c])
            order = np.lexsort((-c, value))  # the last entry of a row is its best match
            last = order[np.argsort(r[order], kind="stable")]
            last = last[np.append(r[last][1:] != r[last][:-1], True)]
            better = last[value[last] > cosine[r[last]]]
            found[r[better]], cosine[r[better]] = c[better], value[better]
    return found, np.where(found >= 0, cosine, np.nan).astype(np.float32)


def cells_to_visit(
    vectors_ND: Floats, centroids_KD: Floats, home_N: Ints, eps: float, most: int | None
) -> Iterator[tuple[Ints, Ints]]:
    """(rows, cells): other cells to search for rows within eps of a row, at most the `most` nearest.

    Let a be the nearest centroid of x, and b the nearest centroid of y. g(x) = |x - b|^2 - |x - a|^2 is linear with
    slope 2 (a - b), and g(y) <= 0, so |x - y| <= r implies g(x) <= 2 r |a - b|. Cells that violate this cannot have
    such a y. Unit vectors within eps are at most r = sqrt(2 eps) apart. Computed in float64, because the result must
    not depend on the summation order.
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
