"""How evenly images are distributed over clusters or labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curate.kernels.evenness import entropy_bits, gini


@dataclass(frozen=True)
class Spread:
    groups: int
    """Non-empty groups."""
    empty: int
    total: int
    largest: int
    median: float
    """Median size of the non-empty groups."""
    entropy_bits: float
    effective: float
    """2 ** entropy: the number of equal groups that would have the same entropy."""
    gini: float


def spread(sizes: NDArray[np.int64]) -> Spread:
    """`sizes` (K,) of all compared groups, including empty ones."""
    held = sizes[sizes > 0]
    bits = entropy_bits(sizes)
    return Spread(
        groups=len(held),
        empty=len(sizes) - len(held),
        total=int(held.sum()),
        largest=int(held.max(initial=0)),
        median=float(np.median(held)) if len(held) else 0.0,
        entropy_bits=bits,
        effective=float(2**bits) if len(held) else 0.0,
        gini=gini(sizes),
    )
