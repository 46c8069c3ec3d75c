"""Divide: fit a level of very many clusters by cells of the space, each cell independently.

A k-means of k leaves over n rows takes n k products per iteration. Here a coarse k-means cuts the space into about
sqrt(k) cells, rows are regrouped by cell, and the worker that holds a cell fits the cell's share of the leaves to the
cell's rows only. That takes n sqrt(k) products, and no process ever holds all leaves or their sums.

A pilot decides how many leaves each cell gets: the same fit, with resampling, on a sample and with a few leaves per
cell. A sampled row has the weight 1 / m if its pilot leaf has m rows, and a cell gets leaves in proportion to the
weight of its rows. The density of leaves in each region is then the same as in a fit in one piece. Leaves in proportion
to rows would differ: on `disc.npy` the inertia more than doubles, and resampling inside a cell cannot correct the
number of leaves per cell (`bench.cluster.divide` has the figures).

The rows are the rows of the pool or, above level 1, the centroids of the level below. In this module, a leaf is a
cluster of the level being fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from curate.cluster.divide.cells import coarse_cells, sample_of
from curate.cluster.divide.probe import LeafIndex, nearest_leaf
from curate.cluster.divide.shares import shares
from curate.cluster.kmeans import assigned
from curate.cluster.tree.level import LevelSettings, LevelState, fit_level, level_state, packed, percentiles
from curate.core.group import Group, MemoryGroup, Part
from curate.kernels.nearest.search import nearest
from curate.kernels.vectors import vectors_of

PILOTS = 8
"""Mean pilot leaves per cell."""
PILOT_ROWS = 32
"""Sampled rows per pilot leaf."""
PILOT_ITERATIONS = 10
CELL_ROWS = 256
"""Maximum rows per leaf that a cell is fitted on, drawn uniformly; more rows do not improve the leaves. This bounds a
worker's memory: CELL_ROWS x leaves of the cell x d numbers in float32."""
SAVES = 64
"""Number of checkpoints during the fit of the cells."""
CACHED_CELLS = 64
"""Cells whose leaves a worker caches during a search."""
_PILOT = "pilot_"


@dataclass(frozen=True)
class Divided:
    """A level fitted by cells. The leaf centroids are stored with the parts of `group`, under the `name` of the fit."""

    centroids: NDArray[np.float32]
    """Centroids (C, d) of the coarse cells."""
    offsets: NDArray[np.int64]
    """(C + 1,): cell c has the leaves offsets[c] .. offsets[c + 1] - 1."""
    group: Group
    """The rows, regrouped by cell."""
    sizes: NDArray[np.int64]
    """Rows (k,) of each leaf's cell that are nearest to the leaf."""
    inertia: float
    """Sum of squared distances of rows to the nearest leaf of their cell; probing more cells can only lower it."""
    distances: NDArray[np.float32]
    """Percentiles (101,) of these distances."""
    resample: int
    state: State
    """Last checkpoint, with all cells fitted."""


@dataclass(frozen=True)
class State:
    """Checkpoint from which the fit can resume. The names of the fields are stored."""

    centroids: NDArray[np.float32]
    pilot: LevelState | None = None
    """State of an unfinished pilot."""
    weights: NDArray[np.float64] | None = None
    """Weight of each cell (C,) in pilot leaves; None until the pilot is fitted."""
    done: int = 0
    """Number of fitted cells, in order. The fields below are about these cells."""
    sizes: NDArray[np.int64] | None = None
    inertia: float = 0.0
    values: NDArray[np.float32] | None = None
    """Order statistics of the distances; `counts` has the number of rows that each represents."""
    counts: NDArray[np.float64] | None = None

    def packed(self) -> dict[str, Any]:
        """Serialise the state: arrays and JSON values by name, for `unpacked`."""
        pilot = {} if self.pilot is None else {f"{_PILOT}{name}": value for name, value in packed(self.pilot).items()}
        own = {name: value for name, value in vars(self).items() if name != "pilot" and value is not None}
        return own | pilot

    @classmethod
    def unpacked(cls, saved: Mapping[str, Any]) -> Self:
        of_pilot = {name.removeprefix(_PILOT): value for name, value in saved.items() if name.startswith(_PILOT)}
        own = {name: value for name, value in saved.items() if not name.startswith(_PILOT)}
        return cls(**own, pilot=level_state(of_pilot))


def default_cells(leaves: int) -> int:
    """Default number of cells for `leaves`: equal to the mean number of leaves per cell."""
    return max(1, round(leaves**0.5))


def divide(
    group: Group,
    settings: LevelSettings,
    cells: int | None = None,
    begin: State | None = None,
    save: Callable[[State], None] = lambda state: None,
    name: str = "leaves",
    report: Callable[[float, str], None] | None = None,
) -> Divided:
    """Fit `settings.kmeans.clusters` leaves to the rows of `group`, in `cells` coarse cells (default: `default_cells`).

    Workers store the leaves of each cell as `vectors` under `name`: in the precision of the rows if `unit_norm`,
    otherwise in float32. Resumes from `begin`. `report` receives the fraction done and a description of the current
    step. Raises ValueError if there are more leaves than rows, or more cells than leaves.
    """
    rows, leaves = sum(group.rows), settings.kmeans.clusters
    cells = default_cells(leaves) if cells is None else cells
    if not 1 <= cells <= leaves <= rows:
        raise ValueError(f"divide: {leaves} leaves of {rows} rows in {cells} cells; give cells <= leaves <= rows")
    # half the mean cluster size over all cells; a cell's own mean would preserve the density
    r = max(1, (rows + leaves) // (2 * leaves)) if settings.r is None else settings.r
    settings = replace(settings, r=r)
    state = begin
    if state is None or state.weights is None:
        state = _run_pilot(group, settings, cells, name, state, save)
        save(state)
    assert state.weights is not None
    parts = by_cell(group, state.centroids, name)
    distinct = np.array(list(parts.each(count_distinct)), dtype=np.int64)
    share = shares(state.weights, distinct, np.array(parts.rows, dtype=np.int64), leaves)

    def report_cell(done: int) -> None:
        what = f"{int(share[:done].sum()):,} of {leaves:,} leaves, cell {done:,} of {cells:,}"
        (report or group.progress)(done / cells, what)

    state = _fit_cells(parts, settings, share, state, save, report_cell, name)
    offsets = np.concatenate([[0], np.cumsum(share)])
    assert state.values is not None and state.counts is not None and state.sizes is not None
    distances = percentiles(state.values, state.counts)
    return Divided(state.centroids, offsets, parts, state.sizes, state.inertia, distances, r, state)


def by_cell(group: Group, centroids: NDArray[np.float32], name: str) -> Group:
    """Regroup the rows of `group` by coarse cell: part c has the rows of cell c."""
    return group.partition(f"{name}-cells", to_cell, len(centroids), centroids=centroids)


def assign_leaves(
    group: Group, centroids: NDArray[np.float32], offsets: NDArray[np.int64], name: str, probe: int
) -> tuple[NDArray[np.int64], float]:
    """Assign each row of `group` to a leaf (n,) stored under `name`, as `cluster.assign` does with `probe` cells; also
    return the sum of the squared distances."""
    found = list(group.each(nearest_stored, centroids=centroids, offsets=offsets, name=name, probe=probe))
    inertia = 0.0
    for _, of_part in found:
        inertia += of_part
    return np.concatenate([ids for ids, _ in found]), inertia


def _fit_cells(
    parts: Group,
    settings: LevelSettings,
    share: NDArray[np.int64],
    state: State,
    save: Callable[[State], None],
    report: Callable[[int], None],
    name: str,
) -> State:
    """Fit the remaining cells, and save a checkpoint after every few."""
    every = -(-len(share) // SAVES)
    fresh: list[tuple[Any, ...]] = []
    results = parts.each(fit_cell, name=name, settings=settings, shares=share, done=state.done)
    for cell, figures in enumerate(results):
        if figures is not None:
            fresh.append(figures)
            report(cell + 1)
        if fresh and ((cell + 1) % every == 0 or cell + 1 == len(share)):
            state, fresh = _add_cells(state, fresh), []
            save(state)
    return state


def _add_cells(state: State, fresh: list[tuple[Any, ...]]) -> State:
    """Add the results of newly fitted cells to the state."""
    sizes, inertia, values, rows = zip(*fresh, strict=True)
    counts = [np.full(len(some), all_ / max(1, len(some))) for some, all_ in zip(values, rows, strict=True)]
    total = state.inertia
    for of_cell in inertia:  # cell by cell, so that checkpoints do not change the sum
        total += of_cell

    def joined(before: NDArray[Any] | None, more: Any) -> NDArray[Any]:
        return np.concatenate([*([] if before is None else [before]), *more])

    return replace(
        state, done=state.done + len(fresh), inertia=total, sizes=joined(state.sizes, sizes),
        values=joined(state.values, values), counts=joined(state.counts, counts),
    )  # fmt: skip


def _run_pilot(
    group: Group,
    settings: LevelSettings,
    cells: int,
    name: str,
    begin: State | None = None,
    save: Callable[[State], None] = lambda state: None,
) -> State:
    """Find the coarse cells, and fit the pilot for the weight of each cell."""
    leaves, total = settings.kmeans.clusters, sum(group.rows)
    pilots = min(PILOTS * cells, leaves)
    sample = sample_of(group, min(total, PILOT_ROWS * pilots), settings.kmeans.seed, f"{name}-sample")
    if begin is None:
        begin = State(coarse_cells(sample, cells, settings.kmeans))
        save(begin)
    centroids, rows = begin.centroids, sum(sample.rows)
    # the same fraction of a leaf's rows as in the fit in one piece
    r = max(1, round((settings.r or 1) * (rows / pilots) / (total / leaves)))
    of_pilot = replace(
        settings.kmeans, clusters=pilots, exchange=False, iterations=min(PILOT_ITERATIONS, settings.kmeans.iterations)
    )

    def save_round(pilot: LevelState) -> None:
        if pilot.run is None:
            save(replace(begin, pilot=pilot))

    pilot = fit_level(sample, replace(settings, kmeans=of_pilot, r=r), begin.pilot, save_round)
    weights = np.zeros(cells)
    for votes in sample.each(vote, pilot=pilot.centroids, sizes=pilot.sizes, centroids=centroids):
        weights += votes
    return State(centroids, weights=weights)


# --- steps ------------------------------------------------------------------------------------------------------------


def vote(part: Part, shared: Mapping[str, Any]) -> NDArray[np.float64]:
    """Weight (C,) of the part's rows in each coarse cell, in pilot leaves."""
    x = vectors_of(part.arrays)
    leaf, _ = nearest(x, shared["pilot"], part.threads)
    cell, _ = nearest(x, shared["centroids"], part.threads)
    votes = np.bincount(cell, 1 / shared["sizes"][leaf], minlength=len(shared["centroids"]))
    return np.asarray(votes, dtype=np.float64)


def to_cell(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], Mapping[str, NDArray[Any]]]:
    return nearest(vectors_of(part.arrays), shared["centroids"], part.threads)[0], part.arrays


def nearest_stored(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], float]:
    """Nearest leaf (n,) of each row among the leaves that all parts have stored, and the sum of squared distances."""

    @lru_cache(CACHED_CELLS)
    def leaves(cell: int) -> NDArray[np.float32]:
        return vectors_of(part.stored(shared["name"], cell))[:]

    cells = LeafIndex(shared["centroids"], shared["offsets"], leaves)
    ids, distances = nearest_leaf(vectors_of(part.arrays), cells, shared["probe"], part.threads)
    return ids, float(distances.sum(dtype=np.float64))


def count_distinct(part: Part, shared: Mapping[str, Any]) -> int:
    """Number of distinct rows, by a 64-bit hash."""
    whole = [array.reshape(part.rows, -1) for array in part.arrays.values()] if part.rows else []
    return len({hash(tuple(piece.tobytes() for piece in row)) for row in zip(*whole, strict=True)})


def fit_cell(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], float, NDArray[np.float32], int] | None:
    """Fit and store a cell's leaves; return `assigned.members` of all its rows, or None if the cell is done already."""
    if part.index < shared["done"]:
        return None
    settings, leaves = shared["settings"], int(shared["shares"][part.index])
    held = part.arrays["vectors"]
    dtype = held.dtype if settings.kmeans.unit_norm else np.dtype(np.float32)
    if not leaves:
        part.store(shared["name"], {"vectors": np.empty((0, held.shape[1]), dtype)})
        return np.zeros(0, np.int64), 0.0, np.zeros(0, np.float32), 0
    seed = int(np.random.SeedSequence([settings.kmeans.seed, part.index]).generate_state(1, np.uint64)[0])
    inside = MemoryGroup([_subsample(part.arrays, CELL_ROWS * leaves, seed)], part.threads)
    found = fit_level(inside, replace(settings, kmeans=replace(settings.kmeans, clusters=leaves, seed=seed)))
    stored = {"vectors": found.centroids.astype(dtype)}
    part.store(shared["name"], stored)
    return assigned.members(replace(part, memo={}), {"centroids": vectors_of(stored)[:]})


def _subsample(arrays: Mapping[str, NDArray[Any]], most: int, seed: int) -> Mapping[str, NDArray[Any]]:
    """The arrays, or a sample of `most` rows if they have more."""
    total = len(arrays["vectors"])
    if total <= most:
        return arrays
    rows = np.sort(np.random.default_rng(seed).choice(total, most, replace=False))
    return {name: array[rows] for name, array in arrays.items()}
