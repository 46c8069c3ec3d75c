"""Fit a tree of centroids over a group, level by level.

Level 1 clusters the rows, level t the centroids of level t - 1. A level of very many clusters is fitted by cells
(`curate.cluster.divide.level`). Its centroids stay in one file per cell, and the level above reads them from there. No
process then holds all sums, inputs or centroids of the level; the driver holds a few numbers per input and cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.cluster.divide.level import State as DivideState
from curate.cluster.divide.level import assign_leaves, by_cell, divide
from curate.cluster.divide.probe import PROBE
from curate.cluster.kmeans import assigned
from curate.cluster.tree.level import Level, LevelSettings, LevelState, fit_level, level_settings, level_state, packed
from curate.cluster.tree.spread import variance
from curate.core.group import Group
from curate.kernels.evenness import evenness, gini

__all__ = ["Tree", "ancestors", "fit_tree", "level_settings"]

LEAVES = "leaves"
"""Name of the files that hold the leaves by cell; the files of a level t above are `centroids_t`."""
_DIVIDE = "divide_"


@dataclass(frozen=True)
class Tree:
    """Levels of a tree, finest first. `centroids[t]` is (K_t, d), or None if they are in files by cell. `parents[t]`
    (K_t,) is the parent's index at level t + 1. `sizes[t]` (K_t,) is the number of points below."""

    centroids: tuple[NDArray[np.float32] | None, ...]
    parents: tuple[NDArray[np.int64], ...]
    sizes: tuple[NDArray[np.int64], ...]
    levels: tuple[dict[str, Any], ...]
    distances: NDArray[np.float32]
    """Percentiles (101,) of the points' squared distances to their leaf's centroid."""
    dim: int
    variance: float
    """Mean squared distance of the points to their mean."""
    divided: Mapping[str, NDArray[Any]]
    """`cells_t` (C, d) and `offsets_t` (C + 1,) of each level t fitted by cells; level 1 has no suffix."""


def fit_tree(group: Group, levels: Sequence[LevelSettings], cells: Sequence[int] = (), resume: bool = False) -> Tree:
    """Fit a tree to the rows of `group`, with one level for each of `levels`, finest first.

    Level t is fitted in `cells[t - 1]` cells if that is more than one. Saves the state in the group after every pass;
    with `resume`, continues from the saved state.
    """
    saved = (group.restored() if resume else None) or {}
    done: dict[str, Any] = {name: value for name, value in saved.items() if not _is_level_state(name)}
    done = {"level": 0, "told": [], **done}
    if "variance" not in done:
        done["variance"] = variance(group)
    inputs, stopped = group, done["level"]
    for number in range(len(levels)):
        begun = saved if number == stopped else {}
        if number < len(cells) and cells[number] > 1:
            inputs = _fit_by_cells(group, inputs, levels, number, cells[number], done, begun)
            continue
        if number == done["level"]:
            _fit_whole(group, inputs, levels, number, done, begun)
        if number + 1 < len(levels):
            inputs = group.scatter(f"level-{number + 1}", {"vectors": done[f"centroids_{number + 1}"]})
    count = range(1, len(levels) + 1)
    return Tree(
        tuple(done.get(f"centroids_{t}") for t in count),
        tuple(done[f"parents_{t}"] for t in count[:-1]),
        tuple(done[f"sizes_{t}"] for t in count),
        tuple(done["told"]),
        done["distances"],
        int(done["dim"]),
        float(done["variance"]),
        {name: value for name, value in done.items() if name.startswith(("cells", "offsets"))},
    )


def _fit_whole(
    group: Group,
    inputs: Group,
    levels: Sequence[LevelSettings],
    number: int,
    done: dict[str, Any],
    begun: Mapping[str, Any],
) -> None:
    """Fit a level in one piece and record it in `done`."""
    report = _progress_reporter(group, number, levels, sum(inputs.rows))

    def save(state: LevelState) -> None:
        report(state)
        group.save({**done, **packed(state)})

    found = fit_level(inputs, levels[number], level_state(begun), save)
    done[f"centroids_{number + 1}"], done["dim"] = found.centroids, found.centroids.shape[1]
    if number == 0:
        members, done["distances"] = found.sizes, found.distances
    else:
        parents = np.concatenate(list(inputs.each(assigned.ids_of, centroids=found.centroids)))
        members = _record_parents(parents, len(found.centroids), number, done)
    _record_level(done, number, int(sum(inputs.rows)), found, members)
    group.save(done)


def _fit_by_cells(
    group: Group,
    inputs: Group,
    levels: Sequence[LevelSettings],
    number: int,
    cells: int,
    done: dict[str, Any],
    begun: Mapping[str, Any],
) -> Group:
    """Fit a level by cells, unless `done` contains it, and record it in `done`; return the group of its centroids."""
    name, suffix = (f"centroids_{number + 1}", f"_{number + 1}") if number else (LEAVES, "")
    if done["level"] > number:
        return by_cell(inputs, done[f"cells{suffix}"], name).stored(name)
    fields = {name.removeprefix(_DIVIDE): value for name, value in begun.items() if name.startswith(_DIVIDE)}
    share = _progress_shares(levels)

    def save(state: DivideState) -> None:
        group.save({**done, **{f"{_DIVIDE}{name}": value for name, value in state.packed().items()}})

    def report(part: float, text: str) -> None:
        group.progress(sum(share[:number]) + share[number] * part, f"level {number + 1} of {len(levels)}, {text}")

    begin = DivideState.unpacked(fields) if fields else None
    found = divide(inputs, levels[number], cells, begin, save, name, report)
    done |= {f"cells{suffix}": found.centroids, f"offsets{suffix}": found.offsets}
    members, inertia = found.sizes, found.inertia
    if number == 0:
        done |= {"distances": found.distances, "dim": found.centroids.shape[1]}
    else:
        parents, inertia = assign_leaves(inputs, found.centroids, found.offsets, name, PROBE)
        members = _record_parents(parents, levels[number].kmeans.clusters, number, done)
    level = Level(found.centroids, members, inertia, 0, found.resample, levels[number].rounds, found.distances)
    _record_level(done, number, int(sum(inputs.rows)), level, members)
    group.save(done)
    return found.group.stored(name)


def _record_parents(parents: NDArray[np.int64], clusters: int, number: int, done: dict[str, Any]) -> NDArray[np.int64]:
    """Record the parents of level `number`; return the number of points (clusters,) below each cluster one level up."""
    members = np.zeros(clusters, np.int64)
    np.add.at(members, parents, done[f"sizes_{number}"])
    done[f"parents_{number}"] = parents
    return members


def _is_level_state(name: str) -> bool:
    """Whether a saved value is the state of an unfinished level."""
    return name in ("round", "iterations", "base") or name.startswith(("run_", _DIVIDE))


def _progress_shares(levels: Sequence[LevelSettings]) -> list[float]:
    """Fraction of the progress that each level counts for; nearly all work is in the first."""
    return [0.9, *[0.1 / max(1, len(levels) - 1)] * (len(levels) - 1)]


def _record_level(done: dict[str, Any], number: int, inputs: int, level: Level, members: NDArray[np.int64]) -> None:
    done[f"sizes_{number + 1}"] = members
    done["told"] = [*done["told"], {"level": number + 1, "inputs": inputs, **_summary(level, members)}]
    done["level"] = number + 1


def _progress_reporter(
    group: Group, number: int, levels: Sequence[LevelSettings], rows: int
) -> Callable[[LevelState], None]:
    """Return a function that reports the tree's progress to the group; all rounds of a level count the same."""
    share, rounds = _progress_shares(levels), levels[number].rounds + 1

    def report(state: LevelState) -> None:
        inside = min(1.0, (state.round + (0.5 if state.run else 0)) / rounds)
        passes = state.iterations + (state.run.iteration if state.run else 0)
        what = f"level {number + 1} of {len(levels)}, round {min(state.round, rounds - 1)} of {rounds - 1}"
        group.progress(sum(share[:number]) + share[number] * inside, f"{what}, {passes} passes over {rows:,} rows")

    return report


def _summary(level: Level, members: NDArray[np.int64]) -> dict[str, Any]:
    """Summarise a level; `members` (K,) is the number of points below each cluster."""
    return {
        "clusters": len(members),
        "inertia": level.inertia,
        "iterations": level.iterations,
        "rounds": level.rounds,
        "resample": level.resample,
        "smallest": int(members.min()),
        "median": float(np.median(members)),
        "largest": int(members.max()),
        "empty": int((members == 0).sum()),
        "entropy": evenness(members),
        "gini": gini(members),
    }


def ancestors(parents: Sequence[NDArray[np.int64]], leaves: int) -> NDArray[np.int64]:
    """Clusters (leaves, L) of each leaf at levels 1 .. L, from the `parents` of levels 1 .. L - 1."""
    path = [np.arange(leaves, dtype=np.int64)]
    for parent in parents:
        path.append(parent[path[-1]])
    return np.stack(path, axis=1)
