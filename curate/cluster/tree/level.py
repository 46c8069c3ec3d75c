"""Hierarchical k-means with resampling (Vo et al. 2024, Automatic Data Curation for Self-Supervised Learning, 3.2-3.3).

k-means places most centroids in dense regions. Each resampling round clusters only the few points nearest to each
centroid. These points have a flatter density, so the centroids spread over the support of the data. Level 1 clusters
the points, level t the centroids of level t - 1.

The new initial centroids of each round flatten the density: drawn among the nearest points, fewer of them fall into
crowded regions. A round that continued from the previous centroids would not move, since each is already the mean of
its nearest points. So every round restarts and runs for a few passes only. All rounds but the last use a sample of the
points, with SAMPLED_R points per centroid instead of r. The last restart ends in one of many uneven optima, which the
levels above would inherit. Above level 1, a k-means over all inputs therefore follows, with the centroids of the last
round as its start. It evens the cluster sizes and hardly moves the clusters. docs/benchmarks.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.cluster.kmeans import assigned
from curate.cluster.kmeans.assigned import NearestRows, RowSample
from curate.cluster.kmeans.lloyd import Settings, State, kmeans
from curate.core.group import Group
from curate.kernels.groups import position_in_group

ROUND_ITERATIONS = 2
"""Maximum passes of a round before the last; Lloyd's only."""
LAST_ITERATIONS = 3
"""Maximum passes of the last round."""
SAMPLED_R = 4
"""Rounds before the last sample the rows, so that each centroid has this many nearest rows instead of r."""


@dataclass(frozen=True)
class LevelSettings:
    """Settings of one level. `r` None means half the mean cluster size, rounded up at .5, as in the paper's web run
    (10, 5 and 3 for means of 20, 10 and 5). r = 1 means no resampling."""

    kmeans: Settings
    rounds: int = 10
    r: int | None = None
    polish: bool = False
    """Whether a k-means over all inputs follows the last round."""
    published: bool = False
    """Whether every round is a whole k-means on all of the nearest points, as in the paper."""


@dataclass(frozen=True)
class LevelState:
    """State between two passes, from which a level can resume."""

    round: int = 0
    """0 is the first k-means over all points."""
    base: NDArray[np.float32] | None = None
    """Centroids of the previous round; this round clusters the points nearest to them."""
    run: State | None = None
    iterations: int = 0


@dataclass(frozen=True)
class Level:
    """Centroids (K, d) of a level, and statistics of all points assigned to them."""

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
    """Run k-means, then `rounds` rounds on the `r` points nearest to each centroid; assign all points at the end."""
    rows, clusters = sum(group.rows), settings.kmeans.clusters
    r = max(1, (rows + clusters) // (2 * clusters)) if settings.r is None else settings.r
    rounds = settings.rounds if r > 1 else 0
    state = begin or LevelState()
    seeds = np.random.SeedSequence(settings.kmeans.seed).generate_state(rounds + 1, np.uint64)
    while state.round <= rounds + 1:
        of_round, nearest, run = replace(settings.kmeans, seed=int(seeds[min(state.round, rounds)])), None, state.run
        short = bool(rounds) and not settings.published
        sample = _round_sample(settings, r, rows) if short and state.round < rounds else None
        if state.round == rounds + 1:  # k-means over all inputs, from the centroids of the last round
            if not (rounds and settings.polish):
                break
            run = run or State(_required(state.base))
        elif short:
            passes = ROUND_ITERATIONS if state.round < rounds else LAST_ITERATIONS
            exchange = False if state.round < rounds else of_round.exchange
            of_round = replace(of_round, iterations=min(passes, of_round.iterations), exchange=exchange)
        if 0 < state.round <= rounds:
            nearest, count = nearest_rows(group, _required(state.base), SAMPLED_R if sample else r, sample)
            if count < clusters:  # most clusters are empty: there are hardly more distinct points than clusters
                state = replace(state, round=rounds + 1)
                continue
        done = kmeans(group, of_round, nearest or sample, run, partial(_save_run, save, state))
        state = LevelState(state.round + 1, done.centroids, None, state.iterations + done.iteration)
        save(state)
    centroids = _required(state.base)
    sizes, inertia, distances = summary(group, centroids)
    return Level(centroids, sizes, inertia, state.iterations, r, rounds, distances)


def _round_sample(settings: LevelSettings, r: int, rows: int) -> RowSample | None:
    """Sample of the rows for the rounds before the last; None means all rows."""
    if r <= SAMPLED_R:
        return None
    drawn = rows * SAMPLED_R / r
    enough = drawn - 6 * drawn**0.5 >= settings.kmeans.clusters  # six standard deviations: every sample is large enough
    return RowSample(SAMPLED_R / r, settings.kmeans.seed) if enough else None


def _required(centroids: NDArray[np.float32] | None) -> NDArray[np.float32]:
    assert centroids is not None
    return centroids


def _save_run(save: Callable[[LevelState], None], state: LevelState, run: State) -> None:
    save(replace(state, run=run))


def nearest_rows(
    group: Group, centroids: NDArray[np.float32], r: int, among: RowSample | None = None
) -> tuple[NearestRows, int]:
    """The r rows nearest to each centroid over all parts, and their number; on equal distances the earlier part and
    place wins."""
    found = list(group.each(assigned.closest, centroids=centroids, subset=among, r=r))
    id, distance, place = (np.concatenate(piece) for piece in zip(*found, strict=True))
    part = np.repeat(np.arange(len(found)), [len(ids) for ids, _, _ in found])
    order = np.lexsort((place, part, distance, id))
    order = order[position_in_group(id[order]) < r]
    last = order[np.r_[np.diff(id[order]) != 0, True][: len(order)]]
    nearest = NearestRows(
        centroids,
        np.full(len(centroids), -1, np.float32),
        np.full(len(centroids), -1, np.int64),
        np.full(len(centroids), -1, np.int64),
        among,
    )
    nearest.distance[id[last]], nearest.part[id[last]], nearest.place[id[last]] = (
        distance[last],
        part[last],
        place[last],
    )
    return nearest, len(order)


def summary(group: Group, centroids: NDArray[np.float32]) -> tuple[NDArray[np.int64], float, NDArray[np.float32]]:
    """Assign all rows; return sizes (K,), inertia, and percentiles (101,) of the squared distances."""
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
    """Weighted percentiles (101,): smallest value with at least p % of the weight at or below it, or 0."""
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
    published: bool = False,
) -> list[LevelSettings]:
    """Settings of each level, finest first, from lists of clusters and of r; each level has its own seed.

    published: the schedule of Vo et al. 2024. Their web run (appendix) has r = 1 at level 1 and half the mean cluster
    size above."""
    seeds = np.random.SeedSequence(seed).generate_state(len(clusters), np.uint64)
    r = r or [1 if published and number == 0 else None for number in range(len(clusters))]
    exchange = False if published else None
    return [
        LevelSettings(
            Settings(k, int(own), iterations, unit_norm, exchange=exchange),
            rounds, near, polish=number > 0 and not published, published=published,
        )
        for number, (k, own, near) in enumerate(zip(clusters, seeds, r, strict=True))
    ]  # fmt: skip


def packed(state: LevelState) -> dict[str, Any]:
    """Serialise a level's state: arrays and JSON values by name."""
    out: dict[str, Any] = {"round": state.round, "iterations": state.iterations}
    if state.base is not None:
        out["base"] = state.base
    if state.run is not None:
        run = state.run
        out |= {"run_centroids": run.centroids, "run_iteration": run.iteration, "run_settled": run.converged}
        out["run_previous"] = run.previous if np.isfinite(run.previous) else None
        if run.moves is not None:
            out["run_moves"] = run.moves
    return out


def level_state(saved: Mapping[str, Any]) -> LevelState | None:
    """Restore the state that `packed` serialised; None if the level has not started."""
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
