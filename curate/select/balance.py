"""Kernels of balance by entries: the number of copies of a text, given how common its entries are.

Arrays by entry are (K,), by text (m,), by pair of text and entry (P,); `item` (P,), ascending, is the text of a pair.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


# --- MetaCLIP ---------------------------------------------------------------------------------------------------------


def take_probability(counts: Integers, threshold: Floats | float) -> Floats:
    """p = min(1, t / count) of entries with counts >= 1 (MetaCLIP, section 3.4; t per language in MetaCLIP 2)."""
    return np.minimum(1.0, threshold / np.asarray(counts, dtype=np.float64))


def log_missed(probability: Floats) -> Floats:
    """log(1 - p), accurate for small p; -inf for p = 1."""
    with np.errstate(divide="ignore"):
        return np.log1p(-probability)


def any_probability(missed: Floats, item: Integers, items: int) -> Floats:
    """1 - prod(1 - p) over each text's entries, from `log_missed(p)` (P,): the probability that any of them takes it.
    0 for a text without entries; exactly 1 if an entry has p = 1."""
    return -np.expm1(np.bincount(item, missed, minlength=items)) + 0.0


# --- ViSE -------------------------------------------------------------------------------------------------------------


def rarest(values: NDArray[np.int64], item: Integers, items: int, empty: int) -> NDArray[np.int64]:
    """Largest of the `values` (P,) of each text; `empty` for a text without any."""
    found = np.full(items, empty, dtype=np.int64)
    if len(item):
        starts = np.flatnonzero(np.r_[True, item[1:] != item[:-1]])
        found[item[starts]] = np.maximum.reduceat(values, starts)
    return found


def power_mean(counts: Integers, item: Integers, items: int, exponent: float) -> Floats:
    """The count (m,) for which `repeat_factor` is the mean of the factors of a text's entries: the power mean of their
    counts of order -exponent. NaN for a text without entries."""
    times = np.bincount(item, minlength=items)
    sums = np.bincount(item, counts.astype(np.float64) ** -exponent, minlength=items)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (sums / times) ** (-1 / exponent)


def repeat_factor(
    counts: NDArray[np.generic], tail: float, head: float, exponent: float, least: float, most: float
) -> Floats:
    """Expected copies of texts with `counts` > 0: (tail / count) ** exponent below `tail`, (head / count) ** exponent
    above `head`, 1 between them, and always within `least` … `most`.

    These are the repeat factors of LVIS (Gupta et al. 2019, appendix B: r = max(1, sqrt(t / f)), an image by its
    rarest category), extended below 1 for the head, which ViSE under-samples.
    """
    known = np.asarray(counts, dtype=np.float64)
    below = np.where(known < tail, tail, np.where(known > head, head, known))
    return np.clip((below / known) ** exponent, least, most)


def solve_threshold(
    counts: NDArray[np.generic], items: Integers, target: float, exponent: float, least: float, most: float
) -> float:
    """The t, as both head and tail, for which `items` (K,) texts with `counts` (K,) > 0 give `target` expected copies,
    `least` to `most` each. By bisection of log t, to the precision of doubles."""
    values, place = np.unique(np.asarray(counts, dtype=np.float64)[items > 0], return_inverse=True)
    weights = np.bincount(place, items[items > 0])
    logs, floor, roof = np.log(values), np.log(max(least, 1e-300)), np.log(most)
    low = logs[0] + np.log(target / weights.sum()) / exponent  # the rarest texts give the average that all should give
    high = logs[-1] + roof / exponent
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        expected = weights @ np.exp(np.clip(exponent * (middle - logs), floor, roof))
        low, high = (middle, high) if expected < target else (low, middle)
    return float(np.exp(min(high, 700.0)))  # e^709 is the largest double


# --- The draw ---------------------------------------------------------------------------------------------------------


def uniform(ranks: NDArray[np.uint64]) -> Floats:
    """64-bit ranks -> numbers in [0, 1). 1 is excluded, so that an event of probability 1 always happens."""
    return np.asarray((ranks >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def drawn_copies(expected: Floats, draw: Floats) -> Integers:
    """Copies (m,): floor(expected), plus one if `draw` (m,), in [0, 1), is below the fraction. Monotone: a larger
    `expected` gives at least as many copies for the same draw."""
    whole = np.floor(expected)
    return (whole + (draw < expected - whole)).astype(np.int64)
