"""How far two spreads of rows over the same clusters are apart, and how far chance alone would put them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 20


def divergences(fitted: NDArray[np.int64], new: NDArray[np.int64]) -> NDArray[np.float64]:
    """Part (K,) of each cluster in the Jensen-Shannon divergence, in bits, of the two spreads' shares (Lin 1991,
    eq. 4.1); they add up to it: 0 where the shares are equal, 1 where the two have no cluster in common."""
    p, q = (sizes / max(1, sizes.sum()) for sizes in (fitted, new))
    middle = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(share > 0, share * np.log2(share / middle), 0.0) for share in (p, q)]
    return (parts[0] + parts[1]) / 2


@dataclass(frozen=True)
class Shift:
    """Divergence of new rows from those fitted on, at one level. Bits."""

    bits: float
    chance_bits: float
    """Mean of DRAWS pairs of samples, as many rows each, from the shares of both together."""
    most_by_chance_bits: float

    @property
    def excess_bits(self) -> float:
        return max(0.0, self.bits - self.chance_bits)


def shift(fitted: NDArray[np.int64], new: NDArray[np.int64], seed: int) -> Shift:
    """Samples of one distribution differ too, the more so the fewer rows there are to a cluster: with 10 rows to each,
    by 0.07 bits and more. What chance makes of it is therefore drawn, not assumed."""
    together = (fitted + new).astype(np.float64)
    share = together / together.sum()
    rng = np.random.default_rng(seed)
    sizes = int(fitted.sum()), int(new.sum())
    drawn = [float(divergences(*(rng.multinomial(n, share) for n in sizes)).sum()) for _ in range(DRAWS)]
    return Shift(float(divergences(fitted, new).sum()), float(np.mean(drawn)), max(drawn))


def left_out(distance: NDArray[np.floating], fitted: NDArray[np.int64]) -> NDArray[np.float64]:
    """Squared distance (n,) of each row to the mean of its leaf without it; `fitted` (n,): rows the leaf was fitted on.

    Without x the mean of m rows moves away from it, and x - mean grows by m / (m - 1). A row alone in its leaf would
    lie in another one, and is infinitely far.
    """
    with np.errstate(divide="ignore"):
        grown = np.where(fitted > 0, fitted / (fitted - 1.0), 1.0) ** 2
    return np.where(fitted == 1, np.inf, distance * np.where(fitted == 1, 1.0, grown))


def far_limit(limit: float, expected: float, rows: int) -> float:
    """Share of far rows from which they are more than chance: `limit`, or three standard errors over `expected` where
    rows are so few that this is more."""
    return max(limit, expected + 3 * float(np.sqrt(expected * (1 - expected) / rows)))
