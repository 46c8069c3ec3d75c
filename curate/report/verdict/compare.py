"""Is a selection better than a random sample of the same size?

Figures of both are compared by a paired bootstrap: rows are resampled, and a row in both samples has one weight in
both, so what the samples share cancels. An interval is the difference and 1.96 of its standard deviations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from curate.kernels.evenness import entropy, evenness
from curate.kernels.interval import LEAST, Figure, figure, resampled, shares
from curate.kernels.neighbours import knn_right

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

EVEN = 0.98
"""Evenness of the pool's labels from which they count as even: no selection could gain more than 2 %."""
CLOSE = 0.1
"""Bits of label entropy within which the whole interval must lie for a pool to be called balanced already."""
ENTROPY, SMALL = "label entropy", "share of the smaller half of labels"
SPACING, KNN = "distance to the nearest image", "accuracy of kNN"
NEARNESS = "similarity of other images to the sample"


@dataclass(frozen=True)
class Comparison:
    figures: dict[str, Figure]
    """Those for which there are enough rows."""
    samples: int
    """Number on either side, with copies."""
    even: bool
    """Whether the labels of the pool are even."""
    estimated_from: int | None = None
    """Labelled rows from whose clusters' quotas the label entropy was estimated, if it was."""

    @property
    def balanced(self) -> bool:
        """Whether the labels were balanced already: they are even, and the selection certainly changes little."""
        one = self.figures.get(ENTROPY)
        return self.even and one is not None and max(-one.low, one.high) <= CLOSE


def compare(
    copies: Integers,
    label: Integers,
    pool: Integers,
    vectors: NDArray[np.float32],
    held_out: Mask,
    test: Mask,
    group: Integers | None = None,
) -> Comparison | None:
    """Compare a selection with as many of the first rows. Rows are in random order: all that were selected, and at
    least as many of the pool's first as there are samples.

    copies: of each row (n,) in the selection; label: (n,), -1 without one; pool: rows of the whole pool by label (K,);
    vectors: (n, d), of unit length, NaN without one; held_out: rows (n,) that no test may refer to; test: those of them
    that test; group: (n,), numbers of clusters of near copies, whose tests are resampled as one. None if both samples
    are the same.
    """
    whole, rest = divmod(int(copies.sum()), max(len(label), 1))  # rows repeat once all are in the random sample
    sides = np.stack([copies, whole + (np.arange(len(label)) < rest)])
    if np.array_equal(*sides):
        return None
    weights = resampled(len(label))
    good = np.asarray(np.isfinite(vectors).all(axis=1))
    found = _label_figures(sides, label, pool, weights)
    apart = [_spacing(vectors, side) for side in _equally_many(sides, good)]
    found[SPACING] = _means(np.stack(apart), weights)
    for name, usable, measure in ((KNN, good & (label >= 0), partial(knn_right, vectors, label)),
                                  (NEARNESS, good, partial(_nearness, vectors))):  # fmt: skip
        tests, banks = np.flatnonzero(usable & test), _equally_many(sides, usable & ~held_out)
        whose = tests if group is None else group[tests]
        if (found[ENTROPY] or name != KNN) and min(len(np.unique(whose)), len(banks[0])) >= LEAST:
            found[name] = _means(np.stack([measure(bank, tests) for bank in banks]), weights[:, whose])
    figures = {name: one for name, one in found.items() if one is not None}
    return Comparison(figures, int(copies.sum()), evenness(pool[pool > 0]) >= EVEN)


def _equally_many(sides: Integers, usable: Mask) -> list[Integers]:
    """The usable rows of each side, each once; only the first of the larger side."""
    places = [np.flatnonzero((side > 0) & usable) for side in sides]
    return [side[: min(map(len, places))] for side in places]


def _label_figures(
    sides: Integers, label: Integers, pool: Integers, weights: NDArray[np.float32]
) -> dict[str, Figure | None]:
    """Entropy of labels in bits, and the share of samples with one of the smaller half of the pool's labels."""
    held = np.flatnonzero(pool)
    if len(held) < 2 or min(sides[:, label >= 0].sum(axis=1)) < LEAST:
        return {ENTROPY: None, SMALL: None}
    labels, parts = shares(sides, label, weights)
    small = np.isin(labels, held[np.argsort(pool[held], kind="stable")][: len(held) // 2])
    bits, rare = ([measure(part) for part in parts] for measure in (entropy, lambda part: part[:, small].sum(axis=1)))
    return {ENTROPY: figure(*(one / np.log(2) for one in bits)), SMALL: figure(*rare)}


def _means(values: Floats, weights: NDArray[np.float32]) -> Figure | None:
    """Compares the means of values (2, n), NaN for rows that a side lacks; None if one has fewer than LEAST."""
    inside = np.isfinite(values)
    if min(inside.sum(axis=1)) < LEAST:
        return None
    return figure(*((weights @ np.nan_to_num(values).T) / np.maximum(weights @ inside.T, 1)).T)


def _nearness(vectors: NDArray[np.float32], bank: Integers, tests: Integers) -> Floats:
    """Cosine of each test row to the nearest row of a bank. Where a selection has less of it than a random sample has,
    kNN falls more often than not; no label is needed to see that."""
    import faiss

    return faiss.knn(vectors[tests], vectors[bank], 1, metric=faiss.METRIC_INNER_PRODUCT)[0][:, 0].astype(np.float64)


def _spacing(vectors: NDArray[np.float32], inside: Integers) -> Floats:
    """Distance (n,) of each row of a sample to the nearest other one, NaN outside of it, less what the row takes from
    the distances of others, plus the mean of that: the jackknife's influence, whose variance is never too small (Efron
    and Stein 1981). Distances depend on each other: without this, a fifth of their intervals would be wrong."""
    import faiss

    apart = np.full(len(vectors), np.nan)
    if len(inside) >= LEAST:
        squares, places = faiss.knn(vectors[inside], vectors[inside], 3)
        other = places != np.arange(len(inside))[:, None]  # an equal vector may come before the row itself
        other[other.all(axis=1), 2] = False
        first, second = np.sqrt(np.maximum(squares[other], 0)).reshape(-1, 2).T
        taken = np.bincount(places[other].reshape(-1, 2)[:, 0], second - first, minlength=len(inside))
        apart[inside] = first - taken + taken.mean()
    return apart
