"""What is drawn for a picture: by hash(seed, key, item, copy, epoch), never by arrival order or by who reads it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from curate.core.hashing import ranks_of_words
from distill.samples.sources.index import ITEM
from distill.samples.sources.mixture import Blend

SIZE, TEXT, AUGMENT = 0x512E, 0x7E87, 0xA063
"""Salts: what is drawn with one says nothing of the others."""
_BLOCK = 1 << 20


class Draws:
    """Numbers of rows of a blend, by epoch of their source."""

    def __init__(self, blend: Blend, seed: int) -> None:
        self._blend, self._seed = blend, seed
        self._items = blend.has(ITEM)

    def ranks(self, salt: int, rows: ArrayLike, epochs: ArrayLike) -> NDArray[np.uint64]:
        """Uniform 64-bit numbers (n,) for rows (n,) in epochs (n,)."""
        rows = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        epochs = np.broadcast_to(np.asarray(epochs, dtype=np.int64), rows.shape)
        which = self._blend.take("copy", rows)
        if self._items:  # several rows may have one key: of each of its texts, and copies of each
            which = which + (self._blend.take(ITEM, rows).clip(min=0) << 32)
        return ranks_of_words(self._seed, self._blend.words_of(rows), salt, which, epochs)


def choose(ranks: NDArray[np.uint64], weights: Sequence[float]) -> NDArray[np.int64]:
    """Places (n,) in `weights`, each as likely as its weight, for uniform 64-bit numbers (n,)."""
    ends = np.cumsum(np.asarray(weights, dtype=np.float64))
    at = ranks.astype(np.float64) / 2.0**64 * ends[-1]
    return np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1)


def lowest(blend: Blend, among: NDArray[np.bool_], count: int, *, seed: int, salt: int) -> NDArray[np.int64]:
    """Rows of lowest hash(seed, key), at most `count`, lowest first, of those that are True in `among` (n,)."""
    rows, ranks = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
    for start in range(0, len(blend), _BLOCK):
        mine = start + np.flatnonzero(among[start : start + _BLOCK])
        rows = np.concatenate([rows, mine])
        ranks = np.concatenate([ranks, ranks_of_words(seed, blend.words_of(mine), salt)])
        kept = np.argsort(ranks, kind="stable")[:count]
        rows, ranks = rows[kept], ranks[kept]
    return rows
