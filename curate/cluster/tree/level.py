"""Hierarchical k-means with resampling (Vo et al. 2024, Automatic Data Curation for Self-Supervised Learning, 3.2-3.3).

k-means puts its centroids where the data are dense. Each resampling round clusters the few points nearest to each
centroid again; their density is flatter, so the centroids spread over the support of the data. Level 1 clusters
the points, level t the centroids of level t - 1.

What flattens is the new start of a round: drawn among the kept points, it has fewer centroids where these are crowded.
A round that continued from the previous centroids would not move, since each of them is the mean of its kept points
already. So every round restarts, for a few passes only, and all but the last use a share of the points only, in which
THIN_R points stand for r. But the last start is one draw of many uneven optima, which the levels above
would pass on: there a k-means over all inputs follows, from where the rounds have led to (a warm start); it evens the
clusters and keeps them where they are. docs/benchmarks.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.cluster.kmeans import assigned
from curate.cluster.kmeans.assigned import Kept, Thin
from curate.cluster.kmeans.lloyd import Settings, State, kmeans
from curate.core.group import Group
from curate.kernels.groups import position_in_group

ROUND_ITERATIONS = 2
"""Most passes of a k-means that a new start follows; Lloyd's alone."""
LAST_ITERATIONS = 3
"""Passes of the last round's, at most."""
THIN_R = 4
"""Rounds before the last look at a share of the rows only, in which a centroid keeps so many instead of r."""


@dataclass(frozen=True)
class LevelSettings:
    """One level; `r` None means half the mean cluster size, halves rounded up, as in the paper's web run (10, 5 and 3
    for means of 20, 10 and 5); r = 1 means no resampling."""

    kmeans: Settings
    rounds: int = 10
    r: int | None = None
    polish: bool = False
    """Whether a k-means over all inputs follows the rounds."""


@dataclass(frozen=True)
class LevelState:
    """All that the rest of a level depends on."""

    round: int = 0
    """0 is the first k-means, over all points."""
    base: NDArray[np.float32] | None = None
    """Centroids at the end of the round before: they say which points this one keeps."""
    run: State | None = None
    iterations: int = 0


@dataclass(frozen=True)
class Level:
    """Centroids (K, d), and what all points assigned to them amount to."""

    centroids: NDArray[np.float32]
    sizes: NDArray[np.int64]
    """(K,)"""
    inertia: float
    iterations: int
    resample: int
    rounds: int
    distances: NDArray[np.float32]
    """(101,): percentiles 0 .. 100 of the squared distances."""


def fit_level(
    group: Group,
    settings: LevelSettings,
    begin: LevelState | None = None,
    save: Callable[[LevelState], None] = lambda state: None,
) -> Level:
    """k-means, then `rounds` rounds on the `r` nearest of each cluster alone; ends with all points assigned."""
    rows, clusters = sum(group.rows), settings.kmeans.clusters
    r = max(1, (rows + clusters) // (2 * clusters)) if settings.r is None else settings.r
    rounds = settings.rounds if r > 1 else 0
    state = begin or LevelState()
    seeds = np.random.SeedSequence(settings.kmeans.seed).generate_state(rounds + 1, np.uint64)
    while state.round <= rounds + 1:
        of_round, kept, run = replace(settings.kmeans, seed=int(seeds[min(state.round, rounds)])), None, state.run
        thin = _thin(settings, r, rows) if state.round < rounds else None
        if state.round == rounds + 1:  # over all inputs again, from where the rounds have led to
            if not (rounds and settings.polish):
                break
            run = run or State(_there(state.base))
        elif rounds:
            passes = ROUND_ITERATIONS if state.round < rounds else LAST_ITERATIONS
            exchange = False if state.round < rounds else of_round.exchange
            of_round = replace(of_round, iterations=min(passes, of_round.iterations), exchange=exchange)
        if 0 < state.round <= rounds:
            nearest = nearest_rows(group, _there(state.base), THIN_R if thin else r, thin)
            if nearest.count < clusters:  # most clusters are empty: hardly more distinct points than clusters
                state = replace(state, round=rounds + 1)
                continue
            kept = nearest.kept
        done = kmeans(group, of_round, kept or thin, run, partial(_save_run, save, state))
        state = LevelState(state.round + 1, done.centroids, None, state.iterations + done.iteration)
        save(state)
    centroids = _there(state.base)
    sizes, inertia, distances = summary(group, centroids)
    return Level(centroids, sizes, inertia, state.iterations, r, rounds, distances)


def _thin(settings: LevelSettings, r: int, rows: int) -> Thin | None:
    """The share of the rows that rounds before the last look at; None is all of them."""
    if r <= THIN_R:
        return None
    drawn = rows * THIN_R / r
    enough = drawn - 6 * drawn**0.5 >= settings.kmeans.clusters  # six standard deviations: no draw falls short of it
    return Thin(THIN_R / r, settings.kmeans.seed) if enough else None


def _there(centroids: NDArray[np.float32] | None) -> NDArray[np.float32]:
    assert centroids is not None
    return centroids


def _save_run(save: Callable[[LevelState], None], state: LevelState, run: State) -> None:
    save(replace(state, run=run))


@dataclass(frozen=True)
class Nearest:
    kept: Kept
    count: int


def nearest_rows(group: Group, centroids: NDArray[np.float32], r: int, among: Thin | None = None) -> Nearest:
    """The r rows of each cluster (K) that are nearest to its centroid, over all parts; on equal distances the
    earlier part and place."""
    found = list(group.each(assigned.closest, centroids=centroids, kept=among, r=r))
    id, distance, place = (np.concatenate(piece) for piece in zip(*found, strict=True))
    part = np.repeat(np.arange(len(found)), [len(ids) for ids, _, _ in found])
    order = np.lexsort((place, part, distance, id))
    order = order[position_in_group(id[order]) < r]
    last = order[np.r_[np.diff(id[order]) != 0, True][: len(order)]]
    cut = Kept(
        centroids,
        np.full(len(centroids), -1, np.float32),
        np.full(len(centroids), -1, np.int64),
        np.full(len(centroids), -1, np.int64),
        among,
    )
    cut.distance[id[last]], cut.part[id[last]], cut.place[id[last]] = distance[last], part[last], place[last]
    return Nearest(cut, len(order))


def summary(group: Group, centroids: NDArray[np.float32]) -> tuple[NDArray[np.int64], float, NDArray[np.float32]]:
    """All rows assigned: sizes (K,), inertia, and percentiles (101,) of the squared distances."""
    sizes, inertia = np.zeros(len(centroids), np.int64), 0.0
    values: list[NDArray[np.float32]] = []
    weights: list[NDArray[np.float64]] = []
    for part_sizes, part_inertia, ordered, rows in group.each(assigned.members, centroids=centroids):
        sizes += part_sizes
        inertia += part_inertia
        values.append(ordered)
        weights.append(np.full(len(ordered), rows / max(1, len(ordered))))
    return sizes, inertia, percentiles(np.concatenate(values), np.concatenate(weights))


def percentiles(values: NDArray[np.float32], weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """(101,): the smallest value with at least p % of the weight at or below it. Zeros without weight."""
    if not len(values):
        return np.zeros(101, np.float32)
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    at = np.searchsorted(below, np.linspace(0, 1, 101) * below[-1] * (1 - 1e-12))
    return values[order][np.minimum(at, len(values) - 1)]


def level_settings(
    clusters: Sequence[int],
    seed: int = 0,
    rounds: int = 10,
    r: Sequence[int | None] | None = None,
    iterations: int = 30,
    unit_norm: bool = False,
) -> list[LevelSettings]:
    """Settings per level from lists of clusters and r, finest first; each level has its own seed."""
    seeds = np.random.SeedSequence(seed).generate_state(len(clusters), np.uint64)
    return [
        LevelSettings(Settings(k, int(own), iterations, unit_norm), rounds, near, polish=number > 0)
        for number, (k, own, near) in enumerate(zip(clusters, seeds, r or [None] * len(clusters), strict=True))
    ]


def packed(state: LevelState) -> dict[str, Any]:
    """A level's state as arrays and JSON-able values by name."""
    out: dict[str, Any] = {"round": state.round, "iterations": state.iterations}
    if state.base is not None:
        out["base"] = state.base
    if state.run is not None:
        run = state.run
        out |= {"run_centroids": run.centroids, "run_iteration": run.iteration, "run_settled": run.settled}
        out["run_previous"] = run.previous if np.isfinite(run.previous) else None
        if run.moves is not None:
            out["run_moves"] = run.moves
    return out


def level_state(saved: Mapping[str, Any]) -> LevelState | None:
    """The state that `packed` saved, or None if the level has not begun."""
    if "round" not in saved:
        return None
    run = None
    if "run_centroids" in saved:
        previous = saved["run_previous"]
        run = State(
            np.asarray(saved["run_centroids"]), int(saved["run_iteration"]), np.inf if previous is None else previous,
            saved.get("run_moves"), bool(saved["run_settled"]),
        )  # fmt: skip
    return LevelState(int(saved["round"]), saved.get("base"), run, int(saved["iterations"]))
