"""Lanes: `cpu`, `gpu` and `remote`, each with its own workers, which run side by side and share a cluster.

A worker of the cpu lane runs one unit at a time. One of the gpu lane runs two: one computes while the other reads and
publishes. One of the remote lane runs several, which all wait for an endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from curate.core.contracts import Resources
from curate.engine.backends import ClusterNode

UNITS = {"cpu": 1, "gpu": 2, "remote": 4}
"""Units that one worker runs at a time, by lane."""


@dataclass(frozen=True)
class Demand:
    """Number of workers of one size that have work to do."""

    resources: Resources
    workers: int


def fits(nodes: Sequence[ClusterNode], resources: Resources) -> int:
    """How many workers of this size fit on empty nodes; a worker that needs no resources fits once."""
    if not resources.cpus and not resources.gpus:
        return 1
    return sum(_times(node.cpus, node.gpus, node.memory_bytes, resources) for node in nodes)


def _times(cpus: float, gpus: float, memory: float, wanted: Resources) -> int:
    pairs = ((cpus, wanted.cpus), (gpus, wanted.gpus), (memory, wanted.memory_bytes))
    return int(min((has / need + 1e-9 for has, need in pairs if need), default=1 << 30))


class FreeResources:
    """Free resources of each node while workers are placed."""

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        nodes = sorted(nodes, key=lambda node: node.gpus)  # workers without a GPU go to nodes without one first
        self._free = [(node.cpus, node.gpus, node.memory_bytes) for node in nodes]
        self._index = {node.id: index for index, node in enumerate(nodes)}

    def put(self, resources: Resources, node: str = "") -> bool:
        """Place a worker on its node (if that has gone, nowhere), or on the first node with room. False if none has."""
        if node:
            if node in self._index:
                self._take(self._index[node], resources)
            return True
        for index, (cpus, gpus, memory) in enumerate(self._free):
            if _times(cpus, gpus, memory, resources):
                self._take(index, resources)
                return True
        return False

    def _take(self, index: int, resources: Resources) -> None:
        cpus, gpus, memory = self._free[index]
        self._free[index] = (cpus - resources.cpus, gpus - resources.gpus, memory - resources.memory_bytes)


@dataclass
class Budget:
    """Resources that a run may take of a cluster."""

    cpus: float = math.inf
    gpus: float = math.inf

    def workers(self, resources: Resources) -> int:
        """How many workers of this size it is enough for."""
        pairs = ((self.cpus, resources.cpus), (self.gpus, resources.gpus))
        return int(min(1 << 30, *((has / need + 1e-9 if need else 1 << 30) for has, need in pairs)))

    def spend(self, resources: Resources) -> bool:
        if resources.cpus > self.cpus + 1e-9 or resources.gpus > self.gpus + 1e-9:
            return False
        self.cpus, self.gpus = self.cpus - resources.cpus, self.gpus - resources.gpus
        return True


def allocate(
    nodes: Sequence[ClusterNode], demands: Sequence[Demand], limits: Mapping[str, int] | None = None,
    budget: Budget | None = None,
) -> list[int]:  # fmt: skip
    """Workers for each demand. Each lane gets one first, then each demand, as far as they fit; then GPUs are given out,
    the scarcest resource; then CPUs, to the demand that holds the fewest. `limits`: lane -> maximum number of workers.
    """
    free, got = FreeResources(nodes), [0] * len(demands)
    held = dict.fromkeys(UNITS, 0)
    left = replace(budget) if budget else Budget()

    def give(number: int) -> bool:
        demand = demands[number]
        lane = demand.resources.lane
        full = got[number] >= demand.workers or held[lane] >= (limits or {}).get(lane, 1 << 30)
        if full or (got[number] and not demand.resources.cpus and not demand.resources.gpus):
            return False
        if not left.workers(demand.resources) or not free.put(demand.resources):
            return False
        left.spend(demand.resources)
        got[number] += 1
        held[lane] += 1
        return True

    for number, demand in enumerate(demands):
        if not held[demand.resources.lane]:
            give(number)
    for number in range(len(demands)):
        if not got[number]:
            give(number)
    for number, demand in enumerate(demands):
        while demand.resources.gpus and give(number):
            pass
    unmet = [number for number, demand in enumerate(demands) if not demand.resources.gpus]
    while unmet:
        number = min(unmet, key=lambda n: got[n] * demands[n].resources.cpus)
        if not give(number):
            unmet.remove(number)
    return got


def covers(has: Resources, wanted: Resources) -> bool:
    """Whether a worker of one size can run tasks of another."""
    same = has.lane == wanted.lane and has.gpus == wanted.gpus
    return same and has.cpus >= wanted.cpus and has.memory_bytes >= wanted.memory_bytes
