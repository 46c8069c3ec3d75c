"""What is drawn for a picture: by hash(seed, key, copy, epoch), never by arrival order or by who reads it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from curate.core.hashing import ranks_of_words
from distill.data.blend import Blend

SIZE, TEXT, AUGMENT = 0x512E, 0x7E87, 0xA063
"""Salts: what is drawn with one says nothing of the others."""


class Draws:
    """Numbers of rows of a blend, by epoch of their source."""

    def __init__(self, blend: Blend, seed: int) -> None:
        self._seed = seed
        self._words = blend.words
        self._copies = blend.integers("copy")

    def ranks(self, salt: int, rows: ArrayLike, epochs: ArrayLike) -> NDArray[np.uint64]:
        """Uniform 64-bit numbers (n,) for rows (n,) in epochs (n,)."""
        rows = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        epochs = np.broadcast_to(np.asarray(epochs, dtype=np.int64), rows.shape)
        return ranks_of_words(self._seed, self._words[rows], salt, self._copies[rows], epochs)


def choose(ranks: NDArray[np.uint64], weights: Sequence[float]) -> NDArray[np.int64]:
    """Places (n,) in `weights`, each as likely as its weight, for uniform 64-bit numbers (n,)."""
    ends = np.cumsum(np.asarray(weights, dtype=np.float64))
    at = ranks.astype(np.float64) / 2.0**64 * ends[-1]
    return np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1)
