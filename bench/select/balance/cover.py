"""A greedy cover of a cluster: few rows that stand for all of its rows.

The sum over a cluster's rows of their best similarity to a taken row is a facility location function. It is monotone
and submodular, so that repeatedly taking the row of largest gain comes within 1 - 1/e of the best set
(Nemhauser et al. 1978); the best of a few random candidates does nearly as well (Mirzasoleiman et al. 2015).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import ranks_of_words

CANDIDATES = 24
MOST_ROWS = 1024
"""Rows that are covered together: similarities take the square of it in memory and time."""


def cover(
    vectors_MD: NDArray[np.float32], words_M2: NDArray[np.uint64], quota: int, seed: int, most_rows: int = MOST_ROWS
) -> NDArray[np.int64]:
    """Rows (min(quota, M),) that cover a cluster. A larger quota takes the same rows and more.

    vectors: finite, of unit length, or raw (their squared distances count). words: the rows' keys, which make the
    result independent of the order of the rows. A cluster of more than `most_rows` is divided by hash into parts of
    equal size; each is covered by its share.
    """
    rows = np.argsort(ranks_of_words(seed, words_M2), kind="stable")
    parts = np.array_split(rows, max(1, -(-len(rows) // most_rows)))  # the first may have a row more
    share, rest = divmod(min(quota, len(rows)), len(parts))
    taken = [
        part[_cover(vectors_MD[part], words_M2[part[:1]], share + (number < rest), seed)]
        for number, part in enumerate(parts)
        if share + (number < rest)
    ]
    return np.concatenate(taken) if taken else np.zeros(0, dtype=np.int64)


def _cover(vectors_MD: NDArray[np.float32], word_12: NDArray[np.uint64], quota: int, seed: int) -> NDArray[np.int64]:
    count = len(vectors_MD)
    if quota == count:
        return np.arange(count)
    similarity_MM = _similarity(vectors_MD)
    best_M = np.full(count, -np.inf, dtype=np.float32)
    steps = np.arange(quota * CANDIDATES)
    draws = ranks_of_words(seed, np.broadcast_to(word_12, (len(steps), 2)), steps).reshape(quota, CANDIDATES)
    left = np.arange(count)
    taken = np.empty(quota, dtype=np.int64)
    for step, draw in enumerate(draws):
        last = count - step - 1
        places = (draw % np.uint64(last + 1)).astype(np.int64)
        raised = np.maximum(similarity_MM[left[places]], best_M)
        first = int(np.argmax(raised.sum(axis=1)))
        best_M = raised[first]
        taken[step] = left[places[first]]
        left[places[first]] = left[last]
    return taken


def _similarity(vectors_MD: NDArray[np.float32]) -> NDArray[np.float32]:
    """Minus half of the squared distances (M, M); for unit vectors they are the cosines minus 1."""
    products = vectors_MD @ vectors_MD.T
    halves = np.diag(products) / 2
    return products - halves[:, None] - halves[None, :]
