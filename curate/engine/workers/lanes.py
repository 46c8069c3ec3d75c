"""Lanes: `cpu`, `gpu` and `remote`, each a pool of workers, alive side by side; and how they share out a cluster.

A worker of the cpu lane runs one unit at a time. One of the gpu lane runs two: one computes while the other reads and
publishes. One of the remote lane runs several, which all wait for an endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from curate.core.contracts import Resources

UNITS = {"cpu": 1, "gpu": 2, "remote": 4}
"""Units that one worker runs at a time, by lane."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, with what it has in all."""

    id: str
    cpus: float
    gpus: float = 0
    memory_bytes: float = 0


@dataclass(frozen=True)
class Want:
    """So many workers of one size would have work."""

    resources: Resources
    workers: int


def fits(nodes: Sequence[Node], resources: Resources) -> int:
    """How many workers of this size the nodes hold, if they hold nothing else; one that asks for nothing fits once."""
    if not resources.cpus and not resources.gpus:
        return 1
    return sum(_times(node.cpus, node.gpus, node.memory_bytes, resources) for node in nodes)


def _times(cpus: float, gpus: float, memory: float, wanted: Resources) -> int:
    pairs = ((cpus, wanted.cpus), (gpus, wanted.gpus), (memory, wanted.memory_bytes))
    return int(min((has / need + 1e-9 for has, need in pairs if need), default=1 << 30))


class Room:
    """What is free on each node while workers are laid out."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        nodes = sorted(nodes, key=lambda node: node.gpus)  # what needs no GPU leaves them to others, as far as it can
        self._free = [[node.cpus, node.gpus, node.memory_bytes] for node in nodes]
        self._index = {node.id: index for index, node in enumerate(nodes)}

    def put(self, resources: Resources, node: str = "") -> bool:
        """Lay a worker on its node, or on the first with room; False where there is none."""
        if node in self._index:
            self._take(self._index[node], resources)
            return True
        for index, free in enumerate(self._free):
            if _times(*free, resources):
                self._take(index, resources)
                return True
        return False

    def _take(self, index: int, resources: Resources) -> None:
        for place, size in enumerate((resources.cpus, resources.gpus, resources.memory_bytes)):
            self._free[index][place] -= size


@dataclass
class Budget:
    """What a run may take of a cluster that it shares."""

    cpus: float = math.inf
    gpus: float = math.inf

    def spend(self, resources: Resources) -> bool:
        if resources.cpus > self.cpus + 1e-9 or resources.gpus > self.gpus + 1e-9:
            return False
        self.cpus, self.gpus = self.cpus - resources.cpus, self.gpus - resources.gpus
        return True


def fair(total: float, wants: Mapping[str, float], mine: str) -> float:
    """What one of several may have of a total: all the same, and what some do not want goes to the others."""
    left, share = total, 0.0
    for place, (name, want) in enumerate(sorted(wants.items(), key=lambda item: (item[1], item[0]))):
        share = min(want, left / (len(wants) - place))
        if name == mine:
            return share if want > share else max(share, left / (len(wants) - place))
        left -= share
    return share


def divide(
    nodes: Sequence[Node], wants: Sequence[Want], most: Mapping[str, int] | None = None, budget: Budget | None = None
) -> list[int]:
    """Workers for each want. Each lane gets one first, then each want, as far as they fit; then GPUs are given out,
    which are dearest; then CPUs, to the want that has the fewest. `most`: lane -> workers it may have. The first
    worker of a lane may go over the budget."""
    room, got = Room(nodes), [0] * len(wants)
    held = dict.fromkeys(UNITS, 0)
    left = replace(budget) if budget else Budget()

    def give(number: int) -> bool:
        want = wants[number]
        lane = want.resources.lane
        full = got[number] >= want.workers or held[lane] >= (most or {}).get(lane, 1 << 30)
        if full or (got[number] and not want.resources.cpus and not want.resources.gpus):
            return False
        if (not left.spend(want.resources) and held[lane]) or not room.put(want.resources):
            return False
        got[number] += 1
        held[lane] += 1
        return True

    for number, want in enumerate(wants):
        if not held[want.resources.lane]:
            give(number)
    for number in range(len(wants)):
        if not got[number]:
            give(number)
    for number, want in enumerate(wants):
        while want.resources.gpus and give(number):
            pass
    open_ = [number for number, want in enumerate(wants) if not want.resources.gpus]
    while open_:
        number = min(open_, key=lambda n: got[n] * wants[n].resources.cpus)
        if not give(number):
            open_.remove(number)
    return got


def covers(has: Resources, wanted: Resources) -> bool:
    """Whether a worker of one size can do the work of another."""
    same = has.lane == wanted.lane and has.gpus == wanted.gpus
    return same and has.cpus >= wanted.cpus and has.memory_bytes >= wanted.memory_bytes
