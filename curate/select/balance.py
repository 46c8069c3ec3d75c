"""Kernels of balance by entries: how often a text is to go on, given how common what it says is.

Arrays by entry are (K,), by text (m,), by pair of text and entry (P,): `item` (P,), ascending, is the text of a pair.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


# --- MetaCLIP ---------------------------------------------------------------------------------------------------------


def take_probability(counts: Integers, threshold: Floats | float) -> Floats:
    """p = min(1, t / count) of entries with these counts >= 1 (MetaCLIP, section 3.4; t per language in MetaCLIP 2)."""
    return np.minimum(1.0, threshold / np.asarray(counts, dtype=np.float64))


def log_missed(probability: Floats) -> Floats:
    """log(1 - p), exact where p is small; -inf where p is 1."""
    with np.errstate(divide="ignore"):
        return np.log1p(-probability)


def any_probability(missed: Floats, item: Integers, items: int) -> Floats:
    """1 - prod(1 - p) over the entries of each text, of `log_missed(p)` (P,): the chance that any of them takes it; 0
    for a text of none, and exactly 1 where one of them is certain."""
    return -np.expm1(np.bincount(item, missed, minlength=items)) + 0.0


# --- ViSE -------------------------------------------------------------------------------------------------------------


def rarest(values: NDArray[np.int64], item: Integers, items: int, empty: int) -> NDArray[np.int64]:
    """Largest of the `values` (P,) of each text; `empty` for a text of none."""
    found = np.full(items, empty, dtype=np.int64)
    if len(item):
        starts = np.flatnonzero(np.r_[True, item[1:] != item[:-1]])
        found[item[starts]] = np.maximum.reduceat(values, starts)
    return found


def power_mean(counts: Integers, item: Integers, items: int, exponent: float) -> Floats:
    """The count (m,) that stands for a text under `repeat_factor` so that its factor is the mean of its entries': their
    power mean of order -exponent. NaN for a text of none."""
    times = np.bincount(item, minlength=items)
    sums = np.bincount(item, counts.astype(np.float64) ** -exponent, minlength=items)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (sums / times) ** (-1 / exponent)


def repeat_factor(
    counts: NDArray[np.generic], tail: float, head: float, exponent: float, least: float, most: float
) -> Floats:
    """Copies expected of a text by its `counts` > 0: (tail / count) ** exponent below `tail`, (head / count) **
    exponent above `head`, 1 between them, and always in `least` … `most`.

    Repeat factors are those of LVIS (Gupta et al. 2019, appendix B: r = max(1, sqrt(t / f)), an image by its rarest
    category), let below 1 for the head, as ViSE under-samples it.
    """
    known = np.asarray(counts, dtype=np.float64)
    below = np.where(known < tail, tail, np.where(known > head, head, known))
    return np.clip((below / known) ** exponent, least, most)


def solve_threshold(
    counts: NDArray[np.generic], items: Integers, target: float, exponent: float, least: float, most: float
) -> float:
    """The t, as head and tail in one, at which `items` (K,) texts with `counts` (K,) > 0 are expected to give `target`
    copies: some number from `least` to `most` for each of them. By bisection of log t, as far as doubles go."""
    values, place = np.unique(np.asarray(counts, dtype=np.float64)[items > 0], return_inverse=True)
    weights = np.bincount(place, items[items > 0])
    logs, floor, roof = np.log(values), np.log(max(least, 1e-300)), np.log(most)
    low = logs[0] + np.log(target / weights.sum()) / exponent  # the rarest give what all are to give on average
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
    """64-bit ranks -> numbers in [0, 1), 1 excluded, so that what is certain always happens."""
    return (ranks >> np.uint64(11)) * 2.0**-53


def drawn_copies(expected: Floats, draw: Floats) -> Integers:
    """Whole copies (m,): floor(expected), and one more where `draw` (m,), in [0, 1), falls below what is left. More is
    never fewer: a larger `expected` gives at least as many at the same draw."""
    whole = np.floor(expected)
    return (whole + (draw < expected - whole)).astype(np.int64)
