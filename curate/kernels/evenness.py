"""How evenly rows are distributed over clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def entropy(probabilities: NDArray[np.floating[Any]], axis: int = -1) -> NDArray[np.float64]:
    """Shannon entropy in nats along an axis. Zeros count as 0 log 0 = 0."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1))
    return np.asarray(-(probabilities * logs).sum(axis=axis), dtype=np.float64)


def entropy_bits(sizes: NDArray[np.int64]) -> float:
    """Shannon entropy in bits of the shares of sizes (K,): log2 K if all are equal, 0 if one has everything."""
    return float(max(0.0, entropy(_shares(sizes)) / np.log(2)))


def evenness(sizes: NDArray[np.int64]) -> float:
    """Shannon entropy of sizes (K,) over its maximum log K: 1 is perfectly even. 1 for a single cluster, 0 if empty."""
    if sizes.sum() == 0:
        return 0.0
    return 1.0 if len(sizes) == 1 else float(max(0.0, entropy(_shares(sizes)) / np.log(len(sizes))))


def gini(sizes: NDArray[np.int64]) -> float:
    """Gini coefficient of sizes (K,): 0 is perfectly even, 1 - 1/K is everything in one cluster."""
    total = sizes.sum()
    if total == 0:
        return 0.0
    rank = np.arange(1, len(sizes) + 1)
    return float(2 * (rank * np.sort(sizes)).sum() / (len(sizes) * total) - (len(sizes) + 1) / len(sizes))


def _shares(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Shares of the non-empty groups."""
    held = sizes[sizes > 0]
    return np.asarray(held / held.sum(), dtype=np.float64)
