"""How evenly rows are spread over clusters, in two numbers between 0 and 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def entropy(sizes: NDArray[np.int64]) -> float:
    """Shannon entropy of sizes (K,) over log K: 1 is perfectly even. 1 for a single cluster, 0 where nothing is."""
    total = sizes.sum()
    if total == 0:
        return 0.0
    if len(sizes) == 1:
        return 1.0
    share = sizes[sizes > 0] / total
    return float(max(0.0, -(share * np.log(share)).sum() / np.log(len(sizes))))


def gini(sizes: NDArray[np.int64]) -> float:
    """Gini coefficient of sizes (K,): 0 is perfectly even, 1 - 1/K is everything in one cluster."""
    total = sizes.sum()
    if total == 0:
        return 0.0
    rank = np.arange(1, len(sizes) + 1)
    return float(2 * (rank * np.sort(sizes)).sum() / (len(sizes) * total) - (len(sizes) + 1) / len(sizes))
