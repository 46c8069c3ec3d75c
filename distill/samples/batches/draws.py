"""Random draws for an image, by hash(seed, key, item, copy, epoch): the same for any order and number of readers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from curate.core.hashing import ranks_of_words
from distill.samples.sources.index import ITEM
from distill.samples.sources.mixture import Mixture

SIZE, TEXT, AUGMENT = 0x512E, 0x7E87, 0xA063
SECOND_TEXT, SENTENCE, SECOND_SENTENCE = 0x7E88, 0x5E27, 0x5E28
VIEW, SECOND_AUGMENT = 0xF2A3, 0xA064
"""Salts: draws with different salts are independent."""
_BLOCK = 1 << 20


class Draws:
    """Random numbers for rows of a mixture, by epoch of their source."""

    def __init__(self, mixture: Mixture, seed: int) -> None:
        self._mixture, self._seed = mixture, seed
        self._items = mixture.has(ITEM)

    def ranks(self, salt: int, rows: ArrayLike, epochs: ArrayLike) -> NDArray[np.uint64]:
        """Uniform 64-bit numbers (n,) for rows (n,) in epochs (n,)."""
        rows = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        epochs = np.broadcast_to(np.asarray(epochs, dtype=np.int64), rows.shape)
        which = self._mixture.take("copy", rows)
        if self._items:  # one key may have several rows: a row per text, and copies
            which = which + (self._mixture.take(ITEM, rows).clip(min=0) << 32)
        return ranks_of_words(self._seed, self._mixture.words_of(rows), salt, which, epochs)


def choose(ranks: NDArray[np.uint64], weights: Sequence[float]) -> NDArray[np.int64]:
    """Indices (n,) into `weights`, drawn with these weights, for uniform 64-bit numbers (n,)."""
    ends = np.cumsum(np.asarray(weights, dtype=np.float64))
    at = ranks.astype(np.float64) / 2.0**64 * ends[-1]
    return np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1)


def lowest(mixture: Mixture, among: NDArray[np.bool_], count: int, *, seed: int, salt: int) -> NDArray[np.int64]:
    """The `count` rows of lowest hash(seed, key) among those True in `among` (n,), lowest first."""
    rows, ranks = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
    for start in range(0, len(mixture), _BLOCK):
        mine = start + np.flatnonzero(among[start : start + _BLOCK])
        rows = np.concatenate([rows, mine])
        ranks = np.concatenate([ranks, ranks_of_words(seed, mixture.words_of(mine), salt)])
        kept = np.argsort(ranks, kind="stable")[:count]
        rows, ranks = rows[kept], ranks[kept]
    return rows
