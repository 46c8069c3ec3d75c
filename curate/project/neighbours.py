"""Moves points of a sample so that nearest neighbours stay close: the method `neighbours` of `project.fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

EXACT_ROWS = 20_000
"""Rows up to which every pair is compared; above, those of the nearest cells."""
PROBED = 8
NEGATIVES = 5
"""Random points that a point is moved away from, per neighbour that it is moved to."""
STEPS = 16
"""Moves per epoch, each by a share of the edges, so that no point is moved by all of its edges at once."""
START, FARTHEST = 10.0, 4.0
"""Largest coordinate at the start, and the largest move along an axis by one edge, as in umap-learn."""


def index_of(vectors: NDArray[np.float32]) -> Any:
    """A faiss index of rows (m, d) of unit length by inner product, on one thread."""
    import faiss

    faiss.omp_set_num_threads(1)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    if len(vectors) <= EXACT_ROWS:
        flat.add(vectors)
        return flat
    index = faiss.IndexIVFFlat(flat, vectors.shape[1], round(len(vectors) ** 0.5), faiss.METRIC_INNER_PRODUCT)
    index.nprobe = PROBED
    index.train(vectors)
    index.add(vectors)
    return index


def spread(
    vectors: NDArray[np.float32],
    start: NDArray[np.float32],
    neighbours: int,
    epochs: int,
    seed: int,
    progress: Callable[[float, str], None] = lambda done, text: None,
) -> NDArray[np.float32]:
    """Points (m, 2) of rows (m, d) of unit length, moved from their places `start` (m, 2)."""
    progress(0.0, f"neighbours of {len(vectors):,} rows")
    heads, tails, weights = graph(vectors, min(neighbours, len(vectors) - 1))
    points = (start * (START / max(float(np.abs(start).max(initial=0)), 1e-12))).astype(np.float32)
    rng = np.random.default_rng(seed)
    points += rng.normal(scale=1e-3, size=points.shape).astype(np.float32)  # equal rows have to part
    for epoch in range(epochs):
        progress(epoch / epochs, f"epoch {epoch + 1} of {epochs}")
        chosen = rng.permutation(np.flatnonzero(rng.random(len(weights), np.float32) < weights))
        for some in np.array_split(chosen, STEPS):
            _move(points, heads[some], tails[some], np.float32(1 - epoch / epochs), rng)
    return points


def _move(
    points: NDArray[np.float32], heads: NDArray[np.int64], tails: NDArray[np.int64], rate: np.float32,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Moves both ends of edges together, and the heads away from random points: the gradient of the cross entropy of
    1 / (1 + d^2) (McInnes et al. 2018, appendix C, with a = b = 1)."""
    apart = points[heads] - points[tails]
    square = np.einsum("ed,ed->e", apart, apart)
    pull = np.clip(apart * (-2 / (1 + square))[:, None], -FARTHEST, FARTHEST)
    others = points[rng.integers(len(points), size=(len(heads), NEGATIVES))]
    away = points[heads][:, None] - others
    square = np.einsum("end,end->en", away, away)
    push = np.clip(away * (2 / ((0.001 + square) * (1 + square)))[:, :, None], -FARTHEST, FARTHEST).sum(axis=1)
    for axis in (0, 1):
        moved = np.bincount(heads, pull[:, axis] + push[:, axis], len(points))
        moved -= np.bincount(tails, pull[:, axis], len(points))
        points[:, axis] += rate * moved.astype(np.float32)


def graph(
    vectors: NDArray[np.float32], neighbours: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Edges (head, tail) of nearest neighbours and their weights relative to the largest, (e,) each: the fuzzy union of
    McInnes et al. 2018, section 3.1."""
    if neighbours < 1:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    rows = len(vectors)
    cosine, ids = index_of(vectors).search(vectors, neighbours + 1)
    own = (ids == np.arange(rows)[:, None]) | (ids < 0)
    own[:, -1] |= ~own.any(axis=1)  # an equal row may be listed in its place
    keep = np.argsort(own, axis=1, kind="stable")[:, :neighbours]
    ids = np.take_along_axis(ids, keep, 1)
    distance = np.sqrt(np.maximum(2 - 2 * np.take_along_axis(cosine, keep, 1), 0)).astype(np.float64)
    valid = ids >= 0
    distance[~valid] = np.inf
    strength = _strengths(distance)
    head = np.repeat(np.arange(rows), neighbours)[valid.ravel()]
    one = sparse.coo_matrix((strength[valid], (head, ids[valid])), shape=(rows, rows)).tocsr()
    both = (one + one.T - one.multiply(one.T)).tocoo()
    weights = (both.data / max(both.data.max(initial=0), 1e-12)).astype(np.float32)
    return both.row.astype(np.int64), both.col.astype(np.int64), weights


def _strengths(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(-(d - nearest) / width) (m, k) of distances (m, k), with the widths at which they sum to log2 of k."""
    beyond = distance - distance.min(axis=1, keepdims=True)
    low, high = np.zeros(len(distance)), np.full(len(distance), 1e3)
    for _ in range(48):
        middle = (low + high) / 2
        much = np.exp(-beyond / middle[:, None]).sum(axis=1) > np.log2(distance.shape[1])
        low, high = np.where(much, low, middle), np.where(much, middle, high)
    return np.exp(-beyond / np.maximum(high, 1e-3)[:, None])
