"""k-means over a group: the same for the same seed and rows, for any number of workers and threads, on any backend.

Every part sums its rows per cluster in float64 and in row order, the driver adds parts in order, and assignments
are exact, so nothing depends on which worker computes a part. Two kinds of iteration:

- Lloyd's: all rows to their nearest centroid, centroids to the means of their rows.
- Exchange (Hartigan 1975; Telgarsky & Vattani 2010, Hartigan's method): a row changes its cluster where the total
  inertia falls, both centroids moving along. Where clusters have few rows this finds much better optima than Lloyd's,
  whose every fixed point with a possible exchange it leaves; where they have many the two are the same, and only
  Lloyd's is run. See `curate.cluster.kmeans.exchange`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from curate.cluster.kmeans import assigned, exchange
from curate.cluster.kmeans.assigned import Some, means_of
from curate.core.group import Group
from curate.kernels.nearest.search import nearest

TOLERANCE = 1e-3
"""Lloyd's iterations end when one lowers the inertia by less than this share of it."""
EXCHANGE_TOLERANCE = 1e-2
"""The same for exchange; where it pays, Lloyd's end as soon as they gain less than this."""
EXCHANGE_ROWS = 64
"""Mean rows per cluster up to which exchange pays: it gains about one part in as many."""
MOST_EXCHANGE_ROWS = 1 << 21
"""Rows up to which exchange is done: the driver holds who has moved."""


@dataclass(frozen=True)
class Settings:
    clusters: int
    seed: int = 0
    iterations: int = 30
    """Passes over the rows at most, of both kinds together."""
    unit_norm: bool = False
    """Keep centroids at unit length (spherical k-means), for rows that have it."""
    tolerance: float = TOLERANCE
    exchange: bool | None = None
    """Whether to exchange; None means if clusters have at most EXCHANGE_ROWS rows on average."""


@dataclass(frozen=True)
class State:
    """Between two passes: all that the rest of a k-means depends on."""

    centroids: NDArray[np.float32]
    """(K, d)"""
    iteration: int = 0
    previous: float = np.inf
    """Inertia that the last pass found; infinite where it says nothing."""
    moves: NDArray[np.int64] | None = None
    """(m, 3): (part, row, cluster) of the rows that exchange has moved since the assignment to `centroids`; None while
    Lloyd's iterations last."""
    settled: bool = False
    """Whether another pass of the same kind is not worth it."""


Save = Callable[[State], None]


def kmeans(
    group: Group, settings: Settings, kept: Some = None, begin: State | None = None, save: Save | None = None
) -> State:
    """The state after the last pass, with centroids that are means, for the rows of `group` or those `kept`.

    Resumes from `begin`, or draws a start (`curate.cluster.kmeans.lloyd`); `save` is called between passes. An empty
    cluster restarts at the row farthest from its centroid; it stays empty only where there are fewer distinct rows than
    clusters. Raises ValueError for more clusters than rows.
    """
    rows = sum(group.each(assigned.count_rows, kept=kept))
    if not 1 <= settings.clusters <= rows:
        raise ValueError(f"kmeans: {settings.clusters} clusters of {rows} points; give 1 to {rows}")
    pays = rows <= min(EXCHANGE_ROWS * settings.clusters, MOST_EXCHANGE_ROWS)
    pays = pays if settings.exchange is None else settings.exchange
    state = begin or State(start(group, settings.clusters, settings.seed, kept))
    while not state.settled and state.iteration < settings.iterations:
        state = (_lloyd if state.moves is None else _exchange)(group, settings, kept, state, pays)
        if save is not None:
            save(state)
    if state.moves is not None:
        total, counts, _ = exchange.sums_now(group, kept, state.centroids, state.moves)
        return replace(state, centroids=means_of(total, counts, state.centroids, settings.unit_norm), moves=None)
    return state


def _lloyd(group: Group, settings: Settings, kept: Some, state: State, pays: bool) -> State:
    total, counts, inertia = _sums(group, state.centroids, kept)
    gained = _gained(state.previous, inertia)
    if gained <= (max(EXCHANGE_TOLERANCE, settings.tolerance) if pays else settings.tolerance):
        if not pays or inertia == 0:
            return replace(state, settled=True)
        return replace(state, previous=inertia, moves=np.empty((0, 3), np.int64))
    centroids, reseeded = _means(group, settings, kept, state.centroids, total, counts)
    return State(centroids, state.iteration + 1, np.inf if reseeded else inertia)


def _exchange(group: Group, settings: Settings, kept: Some, state: State, pays: bool) -> State:
    assert state.moves is not None
    moves, inertia = exchange.exchanged(group, settings.unit_norm, kept, state.centroids, state.moves)
    settled = _gained(state.previous, inertia) <= max(EXCHANGE_TOLERANCE, settings.tolerance)
    return replace(state, iteration=state.iteration + 1, previous=inertia, moves=moves, settled=settled)


def _gained(previous: float, inertia: float) -> float:
    """Share of the inertia that the last pass removed; 1 if unknown."""
    if inertia == 0:
        return 0.0
    return (previous - inertia) / previous if np.isfinite(previous) else 1.0


def _sums(
    group: Group, centroids: NDArray[np.float32], kept: Some
) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    """Sums (K, d) and counts (K,) per cluster and the inertia, added in part order."""
    total = np.zeros(centroids.shape)
    counts = np.zeros(len(centroids), dtype=np.int64)
    inertia = 0.0
    for part_total, part_counts, part_inertia in group.each(assigned.sums, centroids=centroids, kept=kept):
        total += part_total
        counts += part_counts
        inertia += part_inertia
    return total, counts, inertia


def _means(
    group: Group,
    settings: Settings,
    kept: Some,
    centroids: NDArray[np.float32],
    total: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.float32], int]:
    """New centroids (K, d), and the number of empty clusters that were restarted."""
    means = means_of(total, counts, centroids, settings.unit_norm)
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return means, 0
    found = list(group.each(assigned.farthest, centroids=centroids, kept=kept, number=len(empty)))
    distance = np.concatenate([distances for distances, _ in found])
    part = np.repeat(np.arange(len(found)), [len(places) for _, places in found])
    place = np.concatenate([places for _, places in found])
    order = np.argsort(-distance, kind="stable")[: len(empty)]
    order = order[distance[order] > 0]
    rows = list(group.each(assigned.taken, kept=kept, places=np.stack([part[order], place[order]], axis=1)))
    by_part = np.argsort(part[order], kind="stable")
    means[empty[: len(order)][by_part]] = np.concatenate(rows)
    return means, len(order)


ROWS_PER_CENTROID, LEAST_ROWS = 4, 1 << 16
"""Rows of the sample per centroid, and in all at least (all rows of a smaller pool)."""
GROWTH = 1.0
"""Centroids drawn at once, as a share of those already there."""


def start(group: Group, clusters: int, seed: int, kept: Some = None) -> NDArray[np.float32]:
    """Centroids (clusters, d), drawn from a uniform sample over all parts."""
    rows = np.array(list(group.each(assigned.count_rows, kept=kept)))
    size = min(int(rows.sum()), max(LEAST_ROWS, ROWS_PER_CENTROID * clusters))
    # each part's share, the rest to the first ones: a function of the parts' sizes
    numbers = np.diff(np.floor(np.cumsum(np.r_[0, rows]) * (size / max(1, rows.sum()))).astype(np.int64))
    numbers[: size - int(numbers.sum())] += 1
    numbers = np.minimum(numbers, rows)
    drawn = list(group.each(assigned.draw, kept=kept, seed=seed, numbers=numbers))
    return spread(np.concatenate(drawn), clusters, seed, group.threads)


def spread(points: NDArray[np.float32], clusters: int, seed: int, threads: int = 1) -> NDArray[np.float32]:
    """Start (clusters, d) among points (n, d): drawn in proportion to the squared distance to those drawn before."""
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
    """Weighted draw without replacement (Efraimidis & Spirakis 2006): the smallest of Exp(1) / weight.

    Points of weight 0 (they coincide with chosen ones) come last, those already taken never.
    """
    with np.errstate(divide="ignore"):
        order = rng.exponential(size=len(weights)) / weights
    order[taken] = np.nan  # sorts behind infinity
    best = np.argpartition(order, number - 1)[:number]
    return best[np.lexsort((best, order[best]))]
