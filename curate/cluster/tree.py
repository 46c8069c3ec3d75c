"""A tree of centroids, level by level, over a group: what `cluster.fit` does besides reading parameters.

Level 1 clusters the rows, level t the centroids of level t - 1. Where level 1 has very many leaves it is fitted by
cells (`curate.cluster.divide`), and its centroids stay in files by cell, for the level above too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.cluster import assigned
from curate.cluster.divide import State as DivideState
from curate.cluster.divide import divide
from curate.cluster.hierarchy import Level, LevelSettings, LevelState, fit_level, level_settings, level_state, packed
from curate.cluster.sizes import entropy, gini
from curate.cluster.spread import variance
from curate.core.group import Group

__all__ = ["Tree", "ancestors", "fit_tree", "level_settings"]

LEAVES = "leaves"
"""Name of the files of the leaves by cell."""
_DIVIDE = "divide_"


@dataclass(frozen=True)
class Tree:
    """Levels, finest first. `centroids[t]` is (K_t, d), None where they lie in files by cell; `parents[t]` (K_t,) names
    a cluster of level t + 1; `sizes[t]` (K_t,) counts the points below."""

    centroids: tuple[NDArray[np.float32] | None, ...]
    parents: tuple[NDArray[np.int64], ...]
    sizes: tuple[NDArray[np.int64], ...]
    levels: tuple[dict[str, Any], ...]
    distances: NDArray[np.float32]
    """(101,): percentiles of the points' squared distances to their leaf's centroid."""
    dim: int
    variance: float
    """Mean squared distance of the points to their mean."""
    cells: NDArray[np.float32] | None = None
    """(C, d), and `offsets` (C + 1,): where level 1 was fitted by cells."""
    offsets: NDArray[np.int64] | None = None


def fit_tree(group: Group, levels: Sequence[LevelSettings], cells: int = 1, resume: bool = False) -> Tree:
    """Rows of `group` -> a tree with a level per settings, finest first; the first in `cells` cells if more than one.

    Saves its state in the group between passes; with `resume` it goes on from there.
    """
    saved = (group.restored() if resume else None) or {}
    done: dict[str, Any] = {name: value for name, value in saved.items() if not _of_level(name)}
    done = {"level": 0, "told": [], **done}
    if "variance" not in done:
        done["variance"] = variance(group)
    below, stopped = group, done["level"]
    for number in range(len(levels)):
        begun = saved if number == stopped else {}
        if number == 0 and cells > 1:
            below = _divided(group, levels[0], cells, done, begun)
        else:
            if number and not (number == 1 and cells > 1):
                below = group.scatter(f"level-{number}", {"vectors": done[f"centroids_{number}"]})
            if number == done["level"]:
                _fitted(group, below, levels, number, done, begun)
    count = range(1, len(levels) + 1)
    return Tree(
        tuple(done.get(f"centroids_{t}") for t in count),
        tuple(done[f"parents_{t}"] for t in count[:-1]),
        tuple(done[f"sizes_{t}"] for t in count),
        tuple(done["told"]),
        done["distances"],
        int(done["dim"]),
        float(done["variance"]),
        done.get("cells"),
        done.get("offsets"),
    )


def _fitted(
    group: Group,
    inputs: Group,
    levels: Sequence[LevelSettings],
    number: int,
    done: dict[str, Any],
    begun: Mapping[str, Any],
) -> None:
    """Fit a level in one piece and note it in `done`."""
    tell = _teller(group, number, levels, sum(inputs.rows))

    def save(state: LevelState) -> None:
        tell(state)
        group.save({**done, **packed(state)})

    found = fit_level(inputs, levels[number], level_state(begun), save)
    done[f"centroids_{number + 1}"], done["dim"] = found.centroids, found.centroids.shape[1]
    if number == 0:
        members, done["distances"] = found.sizes, found.distances
    else:
        parents = np.concatenate(list(inputs.each(assigned.ids_of, centroids=found.centroids)))
        members = np.zeros(len(found.centroids), np.int64)
        np.add.at(members, parents, done[f"sizes_{number}"])
        done[f"parents_{number}"] = parents
    _note(done, number, int(sum(inputs.rows)), found, members)
    group.save(done)


def _divided(
    group: Group, settings: LevelSettings, cells: int, done: dict[str, Any], begun: Mapping[str, Any]
) -> Group:
    """Level 1 by cells -> the group of its leaves; notes the level in `done` unless it is there."""
    state = None
    if done["level"] > 0:  # every cell is fitted: only its groups are wanted
        begun = done
    fields = {name.removeprefix(_DIVIDE): value for name, value in begun.items() if name.startswith(_DIVIDE)}
    if fields:
        state = DivideState(**fields)

    def save(state: DivideState) -> None:
        group.save({**done, **_prefixed(state)})

    found = divide(group, settings, cells, state, save, LEAVES)
    if done["level"] == 0:
        done |= {"cells": found.centroids, "offsets": found.offsets, "distances": found.distances}
        done |= {"dim": found.centroids.shape[1], **_prefixed(found.state)}
        level = Level(found.centroids, found.sizes, found.inertia, 0, found.resample, settings.rounds, found.distances)
        _note(done, 0, int(sum(group.rows)), level, found.sizes)
        group.save(done)
    return found.group.stored(LEAVES)


def _prefixed(state: DivideState) -> dict[str, Any]:
    return {f"{_DIVIDE}{name}": value for name, value in vars(state).items() if value is not None}


def _of_level(name: str) -> bool:
    """Whether a saved value belongs to a level that is not finished."""
    return name in ("round", "iterations", "base") or name.startswith("run_")


def _note(done: dict[str, Any], number: int, inputs: int, level: Level, members: NDArray[np.int64]) -> None:
    done[f"sizes_{number + 1}"] = members
    done["told"] = [*done["told"], {"level": number + 1, "inputs": inputs, **_summary(level, members)}]
    done["level"] = number + 1


def _teller(group: Group, number: int, levels: Sequence[LevelSettings], rows: int) -> Callable[[LevelState], None]:
    """Tells the group how far the tree is: rounds count alike, and the first level for nearly all."""
    share = [0.9, *[0.1 / max(1, len(levels) - 1)] * (len(levels) - 1)]
    rounds = levels[number].rounds + 1

    def tell(state: LevelState) -> None:
        inside = min(1.0, (state.round + (0.5 if state.run else 0)) / rounds)
        passes = state.iterations + (state.run.iteration if state.run else 0)
        what = f"level {number + 1} of {len(levels)}, round {min(state.round, rounds - 1)} of {rounds - 1}"
        group.tell(sum(share[:number]) + share[number] * inside, f"{what}, {passes} passes over {rows:,} rows")

    return tell


def _summary(level: Level, members: NDArray[np.int64]) -> dict[str, Any]:
    """What is told of a level; `members` (K,) counts the points under each cluster."""
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
        "entropy": entropy(members),
        "gini": gini(members),
    }


def ancestors(parents: Sequence[NDArray[np.int64]], leaves: int) -> NDArray[np.int64]:
    """(leaves, L): the cluster of each leaf at levels 1 .. L, from `parents` of levels 1 .. L - 1."""
    path = [np.arange(leaves, dtype=np.int64)]
    for parent in parents:
        path.append(parent[path[-1]])
    return np.stack(path, axis=1)
