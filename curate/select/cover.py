"""A greedy cover of a cluster: few rows that stand for all of its rows.

The sum over a cluster's rows of their best similarity to a taken row is a facility location function. It is monotone
and submodular, so that repeatedly taking the row of largest gain comes within 1 - 1/e of the best set
(Nemhauser et al. 1978); the best of a few random candidates does nearly as well (Mirzasoleiman et al. 2015).

Vectors are rounded to whole numbers, small enough that float32 adds their products without error: the rows taken do not
depend on threads or on the order of additions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import ranks_of_words

CANDIDATES = 24
MOST_ROWS = 1024
"""Rows that are covered together: similarities take the square of it in memory and time."""
SKETCH_ROWS, SKETCH_DIMS = 256, 128
"""Rows of a part and numbers of a row, a byte each, in a cover of sketches."""
NO_DIRECTION = -128
"""First number of the sketch of a vector that is not finite."""
LENGTH_BITS = 10
"""The longest vector has fewer than 2**10 units, so that squared distances are below 2**24, which float32 holds."""


def parts(
    words_M2: NDArray[np.uint64], quota: int, seed: int, most_rows: int = MOST_ROWS
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """A cluster of more than `most_rows` is divided by hash into parts of equal size: (rows, quota). Quotas add up
    to min(quota, M), and a larger quota gives no part less. words: the rows' keys."""
    rows = np.argsort(ranks_of_words(seed, words_M2), kind="stable")
    found = np.array_split(rows, max(1, -(-len(rows) // most_rows)))  # the first may have a row more
    share, rest = divmod(min(quota, len(rows)), len(found))
    yield from ((part, share + (number < rest)) for number, part in enumerate(found))


def cover(
    vectors_MD: NDArray[np.float32],
    words_M2: NDArray[np.uint64],
    quota: int,
    seed: int,
    candidates: int = CANDIDATES,
) -> NDArray[np.int64]:
    """Rows (quota,) that cover a part; `quota` is at most M. A larger quota takes the same rows and more.

    Rows with NaN or infinity come last. words: the rows' keys; the first one seeds the candidates. The order of the
    rows counts: give them as `parts` does.
    """
    finite_M = np.isfinite(vectors_MD).all(axis=1)
    rows, others = np.flatnonzero(finite_M), np.flatnonzero(~finite_M)
    if quota >= len(rows):
        return np.append(rows, others[: quota - len(rows)])
    return rows[_greedy(_similarity(vectors_MD[rows]), _draws(words_M2[:1], quota, candidates, seed))]


def sketches(vectors_MD: NDArray[np.float32]) -> NDArray[np.int8]:
    """Unit vectors -> 128 random projections of each (M, 128), in 1/32 of their standard deviation (Achlioptas 2003:
    signs suffice). Distances among them are those among the vectors, give or take a tenth. Sums of whole numbers that
    float32 holds: they depend on no order."""
    words_D2 = np.stack([np.arange(vectors_MD.shape[1], dtype=np.uint64)] * 2, axis=1)
    bits = np.stack([ranks_of_words(0, words_D2, half) for half in range(SKETCH_DIMS // 64)], axis=1)
    signs_DS = 2.0 * np.unpackbits(bits.view(np.uint8), axis=1).astype(np.float32) - 1
    finite_M = np.isfinite(vectors_MD.sum(axis=1))
    whole_MD = vectors_MD * np.float32(1024)
    whole_MD[~finite_M] = 0
    sums_MS = np.rint(whole_MD, out=whole_MD) @ signs_DS
    found = np.clip(np.rint(sums_MS / np.float32(32), out=sums_MS), -127, 127, out=sums_MS).astype(np.int8)
    found[~finite_M] = NO_DIRECTION
    return found


def _draws(word_12: NDArray[np.uint64], steps: int, candidates: int, seed: int) -> NDArray[np.uint64]:
    """Random words (steps, candidates)."""
    number = np.arange(steps * candidates)
    return ranks_of_words(seed, np.broadcast_to(word_12, (len(number), 2)), number).reshape(steps, candidates)


def _greedy(similarity_MM: NDArray[np.float32], draws: NDArray[np.uint64]) -> NDArray[np.int64]:
    """At each step, the one of its candidates that raises the sum of the best similarities most."""
    best_M = np.full(len(similarity_MM), similarity_MM.min(), dtype=np.float32)
    left = np.arange(len(similarity_MM))
    taken = np.empty(len(draws), dtype=np.int64)
    for step, draw in enumerate(draws):
        last = len(left) - step - 1
        places = (draw % np.uint64(last + 1)).astype(np.int64)
        raised = np.maximum(similarity_MM[left[places]], best_M)
        first = int(np.argmax(raised.sum(axis=1, dtype=np.float64)))
        best_M = raised[first]
        taken[step] = left[places[first]]
        left[places[first]] = left[last]
    return taken


def _similarity(vectors_MD: NDArray[np.float32]) -> NDArray[np.float32]:
    """Minus half of the squared distances (M, M), in units. For unit vectors they order rows as cosines do."""
    centred = vectors_MD - vectors_MD.mean(axis=0, dtype=np.float64)
    longest = float(np.sqrt(np.einsum("md,md->m", centred, centred).max()))
    units = np.rint(np.ldexp(centred, LENGTH_BITS - int(np.frexp(longest)[1]))).astype(np.float32)
    products = units @ np.ascontiguousarray(units.T)  # numpy multiplies an array by its own view more slowly
    halves = np.diag(products) / 2
    return products - halves[:, None] - halves[None, :]
