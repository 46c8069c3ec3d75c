"""Divide: a level of very many clusters, fitted by cells of the space, independently of each other.

A k-means of k leaves over n rows costs n k products an iteration. Here a coarse k-means cuts the space into about
sqrt(k) cells, rows are regrouped by cell, and the worker that holds a cell fits the cell's share of the leaves to the
cell's rows alone: n sqrt(k) products, and no worker, nor the driver, ever holds all leaves or their sums.

A pilot decides how many leaves a cell gets: the same fit, with resampling, with a few leaves per cell, on a
sample. A row of the sample stands for 1 / m leaves where its pilot leaf has m rows; a cell gets what its rows stand
for. So leaves lie as densely in each region as a fit in one piece would lay them. Shares in proportion to rows do not:
on `disc.npy` they cost more than twice the inertia, and resampling inside of a cell cannot flatten what the shares have
fixed before (`bench.cluster.divide` has the figures).

The rows may be those of the pool or, for a level above the first, the centroids of the level below. What is called a
leaf here is a cluster of the level that is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from curate.cluster.divide.cells import coarse_cells, sample_of
from curate.cluster.divide.probe import Cells, nearest_leaf
from curate.cluster.divide.shares import shares
from curate.cluster.kmeans import assigned
from curate.cluster.tree.level import LevelSettings, LevelState, fit_level, level_state, packed, percentiles
from curate.core.group import Group, MemoryGroup, Part
from curate.kernels.nearest.search import nearest
from curate.kernels.vectors import vectors_of

PILOTS = 8
"""Leaves of the pilot per cell, on average."""
PILOT_ROWS = 32
"""Rows that the pilot reads per pilot leaf."""
PILOT_ITERATIONS = 10
CELL_ROWS = 256
"""Rows per leaf that a cell fits on at most, drawn uniformly; more do not make its leaves better. They bound the memory
of a worker: CELL_ROWS x leaves of the cell x d numbers in float32."""
SAVES = 64
"""Checkpoints while cells are fitted."""
HELD_CELLS = 64
"""Cells whose centroids a worker keeps in memory during a search."""
_PILOT = "pilot_"


@dataclass(frozen=True)
class Divided:
    """Leaves by cell; their centroids lie with the parts of `group`, stored under the name that was given."""

    centroids: NDArray[np.float32]
    """(C, d), one per coarse cell."""
    offsets: NDArray[np.int64]
    """(C + 1,): cell c holds the leaves offsets[c] .. offsets[c + 1] - 1."""
    group: Group
    """The rows by cell."""
    sizes: NDArray[np.int64]
    """Rows (k,) nearest to each leaf among the rows of its cell."""
    inertia: float
    """Sum of squared distances to the nearest leaf of the own cell: an upper bound of what more cells find."""
    distances: NDArray[np.float32]
    """(101,): percentiles of those distances."""
    resample: int
    state: State
    """The last checkpoint of `divide`, with all cells done."""


@dataclass(frozen=True)
class State:
    """All that the rest of the fit depends on."""

    centroids: NDArray[np.float32]
    pilot: LevelState | None = None
    """While the pilot is fitted."""
    weights: NDArray[np.float64] | None = None
    """Leaves that each cell (C,) stands for in the pilot, once that is done."""
    done: int = 0
    """Cells that are fitted: the first ones. What follows is theirs."""
    sizes: NDArray[np.int64] | None = None
    inertia: float = 0.0
    values: NDArray[np.float32] | None = None
    """Order statistics of the distances, and how many rows each stands for."""
    counts: NDArray[np.float64] | None = None

    def packed(self) -> dict[str, Any]:
        """Arrays and JSON-able values by name; `unpacked` makes a state of them again."""
        pilot = {} if self.pilot is None else {f"{_PILOT}{name}": value for name, value in packed(self.pilot).items()}
        own = {name: value for name, value in vars(self).items() if name != "pilot" and value is not None}
        return own | pilot

    @classmethod
    def unpacked(cls, saved: Mapping[str, Any]) -> Self:
        of_pilot = {name.removeprefix(_PILOT): value for name, value in saved.items() if name.startswith(_PILOT)}
        own = {name: value for name, value in saved.items() if not name.startswith(_PILOT)}
        return cls(**own, pilot=level_state(of_pilot))


def default_cells(leaves: int) -> int:
    """Number of cells for `leaves`: as many as a cell then has leaves."""
    return max(1, round(leaves**0.5))


def divide(
    group: Group,
    settings: LevelSettings,
    cells: int | None = None,
    begin: State | None = None,
    save: Callable[[State], None] = lambda state: None,
    name: str = "leaves",
    tell: Callable[[float, str], None] | None = None,
) -> Divided:
    """`settings.kmeans.clusters` leaves for the rows of `group`, in `cells` coarse cells (`default_cells`).

    Steps store the leaves of each cell as `vectors` under `name`: in the precision of the rows where they have unit
    length, else in float32. Resumes from `begin`; raises ValueError for more leaves than rows, or more cells than
    leaves. `tell` receives the share done and a description of the current step.
    """
    rows, leaves = sum(group.rows), settings.kmeans.clusters
    cells = default_cells(leaves) if cells is None else cells
    if not 1 <= cells <= leaves <= rows:
        raise ValueError(f"divide: {leaves} leaves of {rows} rows in {cells} cells; give cells <= leaves <= rows")
    # half the mean cluster size, of all rows: a cell's own mean would keep what is dense dense
    r = max(1, (rows + leaves) // (2 * leaves)) if settings.r is None else settings.r
    settings = replace(settings, r=r)
    state = begin
    if state is None or state.weights is None:
        state = _survey(group, settings, cells, name, state, save)
        save(state)
    assert state.weights is not None
    parts = by_cell(group, state.centroids, name)
    distinct = np.array(list(parts.each(count_distinct)), dtype=np.int64)
    share = shares(state.weights, distinct, np.array(parts.rows, dtype=np.int64), leaves)

    def tell_cell(done: int) -> None:
        what = f"{int(share[:done].sum()):,} of {leaves:,} leaves, cell {done:,} of {cells:,}"
        (tell or group.progress)(done / cells, what)

    state = _fit_cells(parts, settings, share, state, save, tell_cell, name)
    offsets = np.concatenate([[0], np.cumsum(share)])
    assert state.values is not None and state.counts is not None and state.sizes is not None
    distances = percentiles(state.values, state.counts)
    return Divided(state.centroids, offsets, parts, state.sizes, state.inertia, distances, r, state)


def by_cell(group: Group, centroids: NDArray[np.float32], name: str) -> Group:
    """The rows of `group` by coarse cell: part c holds those of cell c."""
    return group.partition(f"{name}-cells", to_cell, len(centroids), centroids=centroids)


def assigned_to(
    group: Group, centroids: NDArray[np.float32], offsets: NDArray[np.int64], name: str, probe: int
) -> tuple[NDArray[np.int64], float]:
    """The nearest leaf (n,) of each row of `group` among those of the `probe` nearest cells, stored under `name`, as
    `cluster.assign` finds it; and the sum of the squared distances."""
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
    tell: Callable[[int], None],
    name: str,
) -> State:
    """Fit the remaining cells; results arrive one at a time."""
    every = -(-len(share) // SAVES)
    fresh: list[tuple[Any, ...]] = []
    results = parts.each(fit_cell, name=name, settings=settings, shares=share, done=state.done)
    for cell, figures in enumerate(results):
        if figures is not None:
            fresh.append(figures)
            tell(cell + 1)
        if fresh and ((cell + 1) % every == 0 or cell + 1 == len(share)):
            state, fresh = _with(state, fresh), []
            save(state)
    return state


def _with(state: State, fresh: list[tuple[Any, ...]]) -> State:
    """The state with the figures of further cells."""
    sizes, inertia, values, rows = zip(*fresh, strict=True)
    counts = [np.full(len(some), all_ / max(1, len(some))) for some, all_ in zip(values, rows, strict=True)]
    total = state.inertia
    for of_cell in inertia:  # cell by cell, so that a checkpoint between two changes nothing
        total += of_cell

    def joined(before: NDArray[Any] | None, more: Any) -> NDArray[Any]:
        return np.concatenate([*([] if before is None else [before]), *more])

    return replace(
        state, done=state.done + len(fresh), inertia=total, sizes=joined(state.sizes, sizes),
        values=joined(state.values, values), counts=joined(state.counts, counts),
    )  # fmt: skip


def _survey(
    group: Group,
    settings: LevelSettings,
    cells: int,
    name: str,
    begin: State | None = None,
    save: Callable[[State], None] = lambda state: None,
) -> State:
    """Coarse centroids, and what each cell's rows stand for in the pilot."""
    leaves, total = settings.kmeans.clusters, sum(group.rows)
    pilots = min(PILOTS * cells, leaves)
    sample = sample_of(group, min(total, PILOT_ROWS * pilots), settings.kmeans.seed, f"{name}-sample")
    if begin is None:
        begin = State(coarse_cells(sample, cells, settings.kmeans))
        save(begin)
    centroids, rows = begin.centroids, sum(sample.rows)
    # as many of a leaf's rows as the fit in one piece would keep
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
    """Leaves (C,) that the part's rows stand for, by coarse cell."""
    x = vectors_of(part.arrays)
    leaf, _ = nearest(x, shared["pilot"], part.threads)
    cell, _ = nearest(x, shared["centroids"], part.threads)
    votes = np.bincount(cell, 1 / shared["sizes"][leaf], minlength=len(shared["centroids"]))
    return np.asarray(votes, dtype=np.float64)


def to_cell(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], Mapping[str, NDArray[Any]]]:
    return nearest(vectors_of(part.arrays), shared["centroids"], part.threads)[0], part.arrays


def nearest_stored(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], float]:
    """Ids (n,) of the part's rows among leaves that other parts have stored, and the sum of their squared distances."""

    @lru_cache(HELD_CELLS)
    def leaves(cell: int) -> NDArray[np.float32]:
        return vectors_of(part.stored(shared["name"], cell))[:]

    cells = Cells(shared["centroids"], shared["offsets"], leaves)
    ids, distances = nearest_leaf(vectors_of(part.arrays), cells, shared["probe"], part.threads)
    return ids, float(distances.sum(dtype=np.float64))


def count_distinct(part: Part, shared: Mapping[str, Any]) -> int:
    """Rows that differ from each other, by a 64-bit hash."""
    whole = [array.reshape(part.rows, -1) for array in part.arrays.values()] if part.rows else []
    return len({hash(tuple(piece.tobytes() for piece in row)) for row in zip(*whole, strict=True)})


def fit_cell(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[np.int64], float, NDArray[np.float32], int] | None:
    """Store a cell's share of the leaves; return `assigned.members` of all its rows, None if the cell is done."""
    if part.index < shared["done"]:
        return None
    settings, leaves = shared["settings"], int(shared["shares"][part.index])
    held = part.arrays["vectors"]
    kept = held.dtype if settings.kmeans.unit_norm else np.dtype(np.float32)
    if not leaves:
        part.store(shared["name"], {"vectors": np.empty((0, held.shape[1]), kept)})
        return np.zeros(0, np.int64), 0.0, np.zeros(0, np.float32), 0
    seed = int(np.random.SeedSequence([settings.kmeans.seed, part.index]).generate_state(1, np.uint64)[0])
    inside = MemoryGroup([_thinned(part.arrays, CELL_ROWS * leaves, seed)], part.threads)
    found = fit_level(inside, replace(settings, kmeans=replace(settings.kmeans, clusters=leaves, seed=seed)))
    stored = {"vectors": found.centroids.astype(kept)}
    part.store(shared["name"], stored)
    return assigned.members(replace(part, memo={}), {"centroids": vectors_of(stored)[:]})


def _thinned(arrays: Mapping[str, NDArray[Any]], most: int, seed: int) -> Mapping[str, NDArray[Any]]:
    """The arrays, or `most` rows of them."""
    total = len(arrays["vectors"])
    if total <= most:
        return arrays
    rows = np.sort(np.random.default_rng(seed).choice(total, most, replace=False))
    return {name: array[rows] for name, array in arrays.items()}
