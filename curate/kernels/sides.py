"""A split of rows into two sides by hash: whole duplicate sets, so that no near-duplicates are on both."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import hashed_words, rank_below, ranks_of_words

_SETS, _SALT = "duplicate_set", 0x7E57


def words_of_sets(names: Iterable[str]) -> NDArray[np.uint64]:
    """Names of sets (keys, for rows without one) as words (n, 2)."""
    return hashed_words(_SETS, names)


def held_out(sets_n2: NDArray[np.uint64], seed: int, fraction: float) -> NDArray[np.bool_]:
    """True (n,) for rows whose set is among those held out, about `fraction` of the sets."""
    return rank_below(ranks_of_words(seed, sets_n2, _SALT), fraction)
