from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.duplicates.reference import hash_index
from curate.duplicates.reference.hash_index import HashIndex


def hashes(rng: np.random.Generator, rows: int) -> np.ndarray:
    """(n, 32): copies of three hashes with some bits flipped."""
    centres = np.random.default_rng(0).integers(0, 2, (3, 256), dtype=np.uint8)
    bits = centres[rng.integers(3, size=rows)] ^ (rng.random((rows, 256)) < rng.choice([0, 0.01, 0.05], (rows, 1)))
    return np.packbits(bits.astype(np.uint8), axis=1)


def brute(queries: np.ndarray, known: np.ndarray, most: int) -> tuple[list[int], list[int]]:
    if not len(known):
        return [-1] * len(queries), [0] * len(queries)
    bits = np.unpackbits(queries[:, None] ^ known[None], axis=2).sum(axis=2).astype(int)
    best = bits.argmin(axis=1) if len(queries) else np.empty(0, int)
    least = bits[np.arange(len(queries)), best]
    return np.where(least <= most, best, -1).tolist(), np.where(least <= most, least, 0).tolist()


@given(st.integers(0, 10_000), st.integers(0, 30), st.integers(0, 30), st.integers(0, 70))
@pytest.mark.parametrize("pairs", [7, 1 << 20])
def test_the_nearest_hash_equals_that_of_a_full_search(pairs: int, seed: int, rows: int, known: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    queries, reference = hashes(rng, rows), hashes(rng, known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_index, "_PAIRS_AT_ONCE", pairs)
        place, bits = HashIndex(reference, most).nearest(queries)
    assert (place.tolist(), bits.tolist()) == brute(queries, reference, most)
