"""Totals over all shards from some of them, chosen at random, with a 95 % band.

A shard is a cluster: its rows resemble each other, so they count as fewer rows, by the design effect (Kish, Survey
Sampling, section 5.4). The band holds all totals at once in 95 of 100 samples: it is as wide as the greatest deviation
among them, by a multiplier bootstrap over shards (Montiel Olea and Plagborg-Møller, 2019).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 400
QUANTILE = 0.95
WIDER = 2.0
"""With few shards their spread is less certain: the band is wider by this over their number."""


def totals(
    counts: NDArray[np.int64], rows: NDArray[np.int64], all_shards: int, all_rows: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """counts (m, k): rows of each of the m shards read that have a property; rows (m,): all of their rows. Estimates of
    the totals (k,) over `all_shards` shards with `all_rows` rows, and the least and greatest that are likely."""
    seen, read = counts.sum(axis=0), max(1, int(rows.sum()))
    if len(rows) >= all_shards:
        found = seen.astype(np.float64)
        return found, found, found
    share = seen / read
    rest = counts - rows[:, None] * share
    few, left = max(1, len(rows) - 1), max(1e-12, 1.0 - read / all_rows)
    square = (rest**2).sum(axis=0)
    alike = square * len(rows) / few / read**2  # variance of a share if rows of a shard are alike
    alone = np.maximum(share * (1.0 - share), 1e-12) / read
    effect = np.maximum(alike / alone, 1.0)
    inner = effect[(share > 0.05) & (share < 0.95)]
    effect = np.maximum(effect, np.median(inner) if len(inner) else 1.0)  # few rows do not tell how alike they are
    units = rest / np.sqrt(np.maximum(square, 1e-12))
    draws = np.random.default_rng(0).standard_normal((RESAMPLES, len(rows))) @ units
    wide = float(np.quantile(np.abs(draws).max(axis=1, initial=0.0), QUANTILE))
    wide = max(wide, 1.96) * (1.0 + WIDER / few)
    size = read / effect / left
    middle = (share + wide**2 / (2.0 * size)) / (1.0 + wide**2 / size)  # the score interval (Wilson, 1927)
    reach = wide / (1.0 + wide**2 / size) * np.sqrt(share * (1.0 - share) / size + (wide / (2.0 * size)) ** 2)
    found = share * all_rows
    least, most = np.clip(middle - reach, 0, 1) * all_rows, np.clip(middle + reach, 0, 1) * all_rows
    least, most = np.maximum(least, seen), np.minimum(most, all_rows - (read - seen))
    return found, np.minimum(least, found), np.maximum(most, found)
