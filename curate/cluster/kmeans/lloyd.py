"""k-means over a group.

The result depends on the seed and the rows only, not on the number of workers and threads or on the backend. Every part
sums its rows per cluster in float64 and in row order, the driver adds the parts in order, and assignments are exact.
There are two kinds of iteration:

- Lloyd's assigns every row to its nearest centroid and moves every centroid to the mean of its rows.
- Exchange (Hartigan 1975; Telgarsky & Vattani 2010, Hartigan's method) moves a row to another cluster if this lowers
  the total inertia, and updates both centroids. If clusters have few rows, it finds much better optima than Lloyd's: it
  leaves every fixed point of Lloyd's from which an exchange is possible. If clusters have many rows, the two agree, and
  only Lloyd's runs. See `curate.cluster.kmeans.exchange`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from curate.cluster.kmeans import assigned, exchange
from curate.cluster.kmeans.assigned import Subset, means_of
from curate.core.group import Group
from curate.kernels.nearest.search import nearest

TOLERANCE = 1e-3
"""Lloyd's iterations end when one lowers the inertia by less than this fraction."""
EXCHANGE_TOLERANCE = 1e-2
"""Tolerance of exchange. If exchange follows, Lloyd's iterations also end at this tolerance."""
EXCHANGE_ROWS = 64
"""Mean rows per cluster up to which exchange runs. With n rows per cluster it lowers the inertia by about 1 / n."""
MAX_EXCHANGE_ROWS = 1 << 21
"""Rows up to which exchange runs, because the driver holds all moves."""


@dataclass(frozen=True)
class Settings:
    clusters: int
    seed: int = 0
    iterations: int = 30
    """Maximum passes over the rows, both kinds together."""
    unit_norm: bool = False
    """Normalise centroids (spherical k-means); the rows must have unit length."""
    tolerance: float = TOLERANCE
    exchange: bool | None = None
    """Whether exchange runs; None means only if clusters have at most EXCHANGE_ROWS rows on average."""


@dataclass(frozen=True)
class State:
    """State between two passes, from which k-means can resume."""

    centroids: NDArray[np.float32]
    """(K, d)"""
    iteration: int = 0
    previous: float = np.inf
    """Inertia in the last pass; infinite if it is unknown."""
    moves: NDArray[np.int64] | None = None
    """Rows (m, 3) that exchange has moved since the assignment to `centroids`, as (part, row, cluster); None during
    Lloyd's iterations."""
    converged: bool = False
    """Whether the last pass gained less than the tolerance."""


Save = Callable[[State], None]


def kmeans(
    group: Group, settings: Settings, subset: Subset = None, begin: State | None = None, save: Save | None = None
) -> State:
    """Cluster the rows of `group`, or only `subset`; return the state after the last pass. Its centroids are means.

    Resumes from `begin`, or draws initial centroids (`start`). Calls `save` after every pass. An empty cluster restarts
    at the row farthest from its centroid; it stays empty only if there are fewer distinct rows than clusters. Raises
    ValueError if there are more clusters than rows.
    """
    rows = sum(group.each(assigned.count_rows, subset=subset))
    if not 1 <= settings.clusters <= rows:
        raise ValueError(f"kmeans: {settings.clusters} clusters of {rows} points; give 1 to {rows}")
    pays = rows <= min(EXCHANGE_ROWS * settings.clusters, MAX_EXCHANGE_ROWS)
    pays = pays if settings.exchange is None else settings.exchange
    state = begin or State(start(group, settings.clusters, settings.seed, subset))
    while not state.converged and state.iteration < settings.iterations:
        state = (_lloyd_pass if state.moves is None else _exchange_pass)(group, settings, subset, state, pays)
        if save is not None:
            save(state)
    if state.moves is not None:
        total, counts, _ = exchange.current_sums(group, subset, state.centroids, state.moves)
        return replace(state, centroids=means_of(total, counts, state.centroids, settings.unit_norm), moves=None)
    return state


def _lloyd_pass(group: Group, settings: Settings, subset: Subset, state: State, pays: bool) -> State:
    total, counts, inertia = _sums(group, state.centroids, subset)
    gained = _relative_gain(state.previous, inertia)
    if gained <= (max(EXCHANGE_TOLERANCE, settings.tolerance) if pays else settings.tolerance):
        if not pays or inertia == 0:
            return replace(state, converged=True)
        return replace(state, previous=inertia, moves=np.empty((0, 3), np.int64))
    centroids, reseeded = _means(group, settings, subset, state.centroids, total, counts)
    return State(centroids, state.iteration + 1, np.inf if reseeded else inertia)


def _exchange_pass(group: Group, settings: Settings, subset: Subset, state: State, pays: bool) -> State:
    assert state.moves is not None
    moves, inertia = exchange.exchange_pass(group, settings.unit_norm, subset, state.centroids, state.moves)
    converged = _relative_gain(state.previous, inertia) <= max(EXCHANGE_TOLERANCE, settings.tolerance)
    return replace(state, iteration=state.iteration + 1, previous=inertia, moves=moves, converged=converged)


def _relative_gain(previous: float, inertia: float) -> float:
    """Fraction by which the last pass lowered the inertia; 1 if unknown."""
    if inertia == 0:
        return 0.0
    return (previous - inertia) / previous if np.isfinite(previous) else 1.0


def _sums(
    group: Group, centroids: NDArray[np.float32], subset: Subset
) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    """Sums (K, d) and counts (K,) per cluster, and the inertia. Parts are added in order."""
    total = np.zeros(centroids.shape)
    counts = np.zeros(len(centroids), dtype=np.int64)
    inertia = 0.0
    for part_total, part_counts, part_inertia in group.each(assigned.sums, centroids=centroids, subset=subset):
        total += part_total
        counts += part_counts
        inertia += part_inertia
    return total, counts, inertia


def _means(
    group: Group,
    settings: Settings,
    subset: Subset,
    centroids: NDArray[np.float32],
    total: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.float32], int]:
    """Return the new centroids (K, d) and the number of empty clusters that restarted."""
    means = means_of(total, counts, centroids, settings.unit_norm)
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return means, 0
    found = list(group.each(assigned.farthest, centroids=centroids, subset=subset, number=len(empty)))
    distance = np.concatenate([distances for distances, _ in found])
    part = np.repeat(np.arange(len(found)), [len(places) for _, places in found])
    place = np.concatenate([places for _, places in found])
    order = np.argsort(-distance, kind="stable")[: len(empty)]
    order = order[distance[order] > 0]
    rows = list(group.each(assigned.rows_at, subset=subset, places=np.stack([part[order], place[order]], axis=1)))
    by_part = np.argsort(part[order], kind="stable")
    means[empty[: len(order)][by_part]] = np.concatenate(rows)
    return means, len(order)


ROWS_PER_CENTROID, MIN_SAMPLE_ROWS = 4, 1 << 16
"""Sampled rows per centroid, and the minimum sample; a smaller pool is used whole."""
GROWTH = 1.0
"""Centroids drawn at once, as a fraction of the centroids drawn before."""


def start(group: Group, clusters: int, seed: int, subset: Subset = None) -> NDArray[np.float32]:
    """Draw initial centroids (clusters, d) from a uniform sample of all parts."""
    rows = np.array(list(group.each(assigned.count_rows, subset=subset)))
    size = min(int(rows.sum()), max(MIN_SAMPLE_ROWS, ROWS_PER_CENTROID * clusters))
    # rows drawn from each part depend on the parts' sizes only; the first parts get the remainder
    numbers = np.diff(np.floor(np.cumsum(np.r_[0, rows]) * (size / max(1, rows.sum()))).astype(np.int64))
    numbers[: size - int(numbers.sum())] += 1
    numbers = np.minimum(numbers, rows)
    drawn = list(group.each(assigned.draw, subset=subset, seed=seed, numbers=numbers))
    return spread(np.concatenate(drawn), clusters, seed, group.threads)


def spread(points: NDArray[np.float32], clusters: int, seed: int, threads: int = 1) -> NDArray[np.float32]:
    """Draw initial centroids (clusters, d) from points (n, d), with probability proportional to the squared distance to
    the nearest centroid drawn before (k-means++)."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(points), size=1)
    distances = np.full(len(points), np.inf, dtype=np.float32)
    fresh = chosen
    while len(chosen) < clusters:
        distances = np.minimum(distances, nearest(points, points[fresh], threads)[1])
        distances[fresh] = 0
        batch = min(clusters - len(chosen), max(1, int(GROWTH * len(chosen))))
        fresh = _draw(distances, chosen, batch, rng)
        chosen = np.concatenate([chosen, fresh])
    return points[chosen]


def _draw(
    weights: NDArray[np.float32], taken: NDArray[np.int64], number: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Weighted sample without replacement: the smallest Exp(1) / weight (Efraimidis & Spirakis 2006).

    Points of weight 0, which coincide with chosen points, come last. Points in `taken` are never drawn.
    """
    with np.errstate(divide="ignore"):
        order = rng.exponential(size=len(weights)) / weights
    order[taken] = np.nan  # sorts after infinity
    best = np.argpartition(order, number - 1)[:number]
    return best[np.lexsort((best, order[best]))]
