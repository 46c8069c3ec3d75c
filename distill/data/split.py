"""Which samples are held out: whole duplicate sets, by hash, so that no near-duplicate straddles the line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import make_key, rank_below, ranks

_SALT = 0x7E57


def held_out(
    keys: Sequence[str], duplicate_sets: Sequence[str | None] | None, *, seed: int, fraction: float
) -> NDArray[np.bool_]:
    """True (n,) for test samples. A sample without a duplicate set stands alone; copies of a key stay together."""
    sets = keys if duplicate_sets is None else [name or key for name, key in zip(duplicate_sets, keys, strict=True)]
    return rank_below(ranks(seed, [make_key("duplicate_set", name) for name in sets], _SALT), fraction)
