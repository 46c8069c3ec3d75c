"""Splits off the test samples: whole duplicate sets, by hash, so that no near-duplicates are on both sides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from curate.kernels.sides import held_out as lowest
from curate.kernels.sides import words_of_sets
from distill.samples.sources.mixture import Mixture

_BLOCK = 1 << 20


def held_out(
    keys: Sequence[str], duplicate_sets: Sequence[str | None] | None, *, seed: int, fraction: float
) -> NDArray[np.bool_]:
    """True (n,) for test samples. Copies of a key stay together; a sample without a duplicate set is its own set."""
    sets = keys if duplicate_sets is None else [name or key for name, key in zip(duplicate_sets, keys, strict=True)]
    return lowest(words_of_sets(sets), seed, fraction)


def held_out_rows(mixture: Mixture, *, seed: int, fraction: float) -> NDArray[np.bool_]:
    """`held_out` of a mixture, from its index: True (n,) for test samples."""
    test = np.zeros(len(mixture), dtype=bool)
    for start in range(0, len(mixture) if fraction > 0 else 0, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(mixture)))
        test[rows] = lowest(mixture.sets_of(rows), seed, fraction)
    return test


def trained(mixture: Mixture, rows: NDArray[np.int64], *, seed: int, fraction: float) -> NDArray[np.bool_]:
    """True (n,) for those of rows (n,) that are trained on: not held out, and of the kinds and natural sizes that their
    source is limited to."""
    found = mixture.within_limits(rows)
    return found & ~lowest(mixture.sets_of(rows), seed, fraction) if fraction > 0 else found
