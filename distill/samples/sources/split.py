"""Which samples are held out: whole duplicate sets, by hash, so that no near-duplicate straddles the line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import hashed_words, rank_below, ranks_of_words
from distill.samples.sources.index import SETS
from distill.samples.sources.mixture import Blend

_SALT = 0x7E57
_BLOCK = 1 << 20


def held_out(
    keys: Sequence[str], duplicate_sets: Sequence[str | None] | None, *, seed: int, fraction: float
) -> NDArray[np.bool_]:
    """True (n,) for test samples. A sample without a duplicate set stands alone; copies of a key stay together."""
    sets = keys if duplicate_sets is None else [name or key for name, key in zip(duplicate_sets, keys, strict=True)]
    return _lowest(hashed_words(SETS, sets), seed, fraction)


def held_out_rows(blend: Blend, *, seed: int, fraction: float) -> NDArray[np.bool_]:
    """`held_out` of a blend, by what its index holds: True (n,)."""
    test = np.zeros(len(blend), dtype=bool)
    for start in range(0, len(blend) if fraction > 0 else 0, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(blend)))
        test[rows] = _lowest(blend.sets_of(rows), seed, fraction)
    return test


def _lowest(sets_n2: NDArray[np.uint64], seed: int, fraction: float) -> NDArray[np.bool_]:
    return rank_below(ranks_of_words(seed, sets_n2, _SALT), fraction)
