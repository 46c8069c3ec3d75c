"""How far a distribution is from the Gaussian of its mean and covariance, and whether it has several modes.

PHI-S describes features by these moments only. Where features have several modes (DINOv3's second register: AMoE,
section 6) the moments describe the gaps between the modes, and the variance within a mode is far below the intended 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DIRECTIONS = 8
"""Principal components that are searched for modes: distances between modes are variance, so they come first."""
VALLEY = 0.2
"""Features have several modes from this depth on. Ours; samples with one mode have no valley, even with long tails."""
_GRID = 512
_LEAST = 0.02
"""Least share of the vectors on each side of a valley, so that a few outliers are not a mode."""

_CERTAIN = 4.0
"""A valley counts as less deep by this many standard deviations (√n for n vectors), because tails have a noisy
density."""


@dataclass(frozen=True)
class Shape:
    """The shape of a sample (N, C)."""

    valley: float
    """Depth of the deepest valley of the density along a principal component: the share by which it is below the lower
    of the modes beside it. 0 without a valley, 1 between separate modes."""
    within: float
    """Share of the variance that is left within the two sides of that valley; 1 without a valley."""
    distance: float
    """Mean distance to the Gaussian of the same variance along the principal components, in standard deviations."""

    @property
    def multimodal(self) -> bool:
        return self.valley >= VALLEY


def shape_of(x_NC: Floats) -> Shape:
    """At least two vectors; constant ones have no valley and no distance."""
    x = x_NC - x_NC.mean(0)
    total = float(np.square(x).sum())
    if total <= 1e-12 * float(np.square(x_NC).sum()):
        return Shape(0.0, 1.0, 0.0)
    projected = x @ principal(x, DIRECTIONS)
    depths, places = zip(*(valley(own) for own in projected.T), strict=True)
    deepest = int(np.argmax(depths))
    high = projected[:, deepest] > places[deepest]
    within = sum(float(np.square(side - side.mean(0)).sum()) for side in (x[high], x[~high]) if len(side))
    distance = float(np.mean([_distance(own) for own in projected.T]))
    return Shape(depths[deepest], within / total if depths[deepest] else 1.0, distance)


def principal(x_NC: Floats, count: int) -> Floats:
    """The first principal directions (C, count), or as many as there are, of centred vectors; signs are fixed."""
    _, sizes, directions = np.linalg.svd(x_NC, full_matrices=False)
    found = directions[: min(count, int((sizes > 1e-9 * sizes[0]).sum()))]
    largest = np.take_along_axis(found, np.abs(found).argmax(1)[:, None], 1)
    fixed: Floats = (found * np.sign(largest)).T
    return fixed


def valley(values_N: Floats) -> tuple[float, float]:
    """(depth, place) of the deepest valley of a density estimate (Gaussian kernel, bandwidth of Silverman 1986)."""
    x = np.sort(values_N)
    quarter, three = np.quantile(x, [0.25, 0.75])
    spread = min(filter(None, (float(x.std()), float(three - quarter) / 1.34)), default=0.0)
    low, high = np.quantile(x, [_LEAST, 1 - _LEAST])
    if not spread or low == high:
        return 0.0, float(x[0])
    width = 0.9 * spread * len(x) ** -0.2
    grid = np.linspace(x[0], x[-1], _GRID)
    counts, edges = np.histogram(x, bins=min(1 << 14, max(_GRID, int(8 * (x[-1] - x[0]) / width))))
    centres, full = (edges[1:] + edges[:-1]) / 2, counts > 0
    density = np.zeros(_GRID)
    for place, count in zip(centres[full], counts[full], strict=True):
        density += count * np.exp(-0.5 * np.square((grid - place) / width))
    beside = np.minimum(np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1])
    inside = (grid >= low) & (grid <= high)
    sure = density + _CERTAIN * np.sqrt(beside)
    depth = np.where(inside, np.maximum(1 - sure / np.maximum(beside, 1e-300), 0.0), 0.0)
    deepest = int(depth.argmax())
    return float(depth[deepest]), float(grid[deepest])


def _distance(values_N: Floats) -> float:
    """Wasserstein distance to the normal distribution of the same mean and variance, in its standard deviations."""
    x = np.sort((values_N - values_N.mean()) / values_N.std())
    quantiles = [NormalDist().inv_cdf((place + 0.5) / len(x)) for place in range(len(x))]
    return float(np.abs(x - quantiles).mean())
