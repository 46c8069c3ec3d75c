"""The 95 % interval of the difference between a figure of two samples, by a paired bootstrap.

Rows are resampled, and a row in both samples has one weight in both, so what the samples share cancels. An interval is
the difference and 1.96 of its standard deviations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.kernels.evenness import entropy

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

RESAMPLES = 400
LEAST = 20
"""A figure needs this many rows of each sample; below, its standard deviation is not to be trusted."""

MOST = 20_000
"""Rows that are resampled, chosen at random: each takes 5 kB for a moment."""


@dataclass(frozen=True)
class Figure:
    """A figure of both samples, and the 95 % interval of their difference. More is better."""

    selection: float
    random: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        return "better" if self.low > 0 else "worse" if self.high < 0 else "undecided"


def resampled(rows: int) -> NDArray[np.float32]:
    """(1 + RESAMPLES, rows): ones, then how often each resample draws a row."""
    weights = np.ones((1 + RESAMPLES, rows), np.float32)
    weights[1:] = np.random.default_rng(0).poisson(1.0, (RESAMPLES, rows))
    return weights


def shares(
    sides: NDArray[Any], label: Integers, weights: NDArray[np.float32]
) -> tuple[Integers, list[NDArray[np.float32]]]:
    """(labels (L,) that rows have, for each side the shares (1 + RESAMPLES, L) of its samples with each label).

    sides (2, n): how often each row counts; label (n,), -1 without one; weights of `resampled`."""
    order = np.argsort(label, kind="stable")[(label < 0).sum() :]
    labels, starts = np.unique(label[order], return_index=True)
    sizes = [np.add.reduceat(weights[:, order] * side[order].astype(np.float32), starts, axis=1) for side in sides]
    return labels, [size / np.maximum(size.sum(axis=1, keepdims=True), 1e-9) for size in sizes]


def figure(selection: Floats, random: Floats) -> Figure:
    """From the figures (1 + RESAMPLES,) of both sides, the observed ones first."""
    difference = selection - random
    half = 1.96 * difference[1:].std()
    return Figure(*map(float, (selection[0], random[0], difference[0] - half, difference[0] + half)))


def expected_entropy(label: Integers, weight: Floats, drawn: Floats | float = 1.0) -> Figure | None:
    """Label entropy, in bits, of a selection that takes a row as often as `weight` (n,) says, and of a random one, from
    rows with a label (n,) of which each stands for `drawn` rows. None if there are fewer than LEAST, or only one label.
    """
    if len(label) < LEAST or label.min(initial=0) == label.max(initial=0):
        return None
    some = np.random.default_rng(0).permutation(len(label))[:MOST]
    sides = np.stack([weight, np.broadcast_to(drawn, len(label))])[:, some]
    return figure(*(entropy(part) / np.log(2) for part in shares(sides, label[some], resampled(len(some)))[1]))
