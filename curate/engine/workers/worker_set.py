"""The workers of all lanes: started, replaced and ended, so that every lane that has work has a worker."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from curate.core.contracts import Resources
from curate.core.errors import some
from curate.engine.backends import Backend, ClusterNode, Notify, Worker
from curate.engine.tasks.beat import BatchStats
from curate.engine.workers.allocation import Allocation
from curate.engine.workers.calls import Call, Payload
from curate.engine.workers.lanes import UNITS, Budget, Demand, FreeResources, allocate, covers, fits

NODES_SECONDS = 5.0
"""Between two queries of the cluster's nodes."""
LATE_SECONDS = 60.0
IDLE_SECONDS = 30.0
"""After which idle workers of a cluster that others may use are ended, if the run has no work for any."""
log = logging.getLogger("curate.scheduler")


@dataclass
class Assignment:
    """A payload assigned to a worker."""

    call: Call
    payload: Payload
    since: float = 0.0
    """When it started; 0 while it waits behind others."""
    snapshot: dict[str, Any] = field(default_factory=dict)
    snapshot_at: float = 0.0
    """When the last snapshot arrived; 0 before the first."""
    reported: dict[str, BatchStats] = field(default_factory=dict)
    """Stats of all snapshots, by stage."""

    def idle(self, now: float) -> float:
        """Seconds since it finished a batch."""
        return self.snapshot["idle"] + now - self.snapshot_at if self.snapshot_at else now - (self.since or now)


@dataclass(eq=False)
class WorkerSlot:
    """A worker, its number in its lane, and the payloads assigned to it."""

    number: int
    lane: str
    resources: Resources
    worker: Worker
    since: float = field(default_factory=time.monotonic)
    up: bool = False
    leaving: bool = False
    """It gets no further payloads and is ended when it is idle."""
    tasks: dict[int, Assignment] = field(default_factory=dict)
    """Ticket -> payload, oldest first."""
    idle_since: float = field(default_factory=time.monotonic)
    """When it ended its last payload; while it has none."""
    asked: float = 0.0
    """When snapshots were requested; 0 once they have arrived."""

    def __str__(self) -> str:
        return f"{self.lane} worker {self.number}"

    @property
    def units(self) -> int:
        return UNITS[self.lane]

    @property
    def ready(self) -> bool:
        """Whether it accepts payloads. It accepts none while it runs one that killed a worker before."""
        return self.up and not self.leaving and not any(task.payload.deaths for task in self.tasks.values())

    def begin(self) -> None:
        """The first `units` payloads run, the rest wait."""
        for task in itertools.islice(self.tasks.values(), self.units):
            task.since = task.since or time.monotonic()


class WorkerSet:
    """Workers of all lanes. Used by the scheduler's thread; only `cluster` and `slots` may be called by others."""

    def __init__(
        self, backend: Backend, notify: Notify, on_up: Callable[[WorkerSlot], None], run_id: str, budget: Budget
    ) -> None:
        self.backend, self._notify, self._on_up, self._run = backend, notify, on_up, run_id
        self.budget = budget
        """What this run may take of the cluster."""
        self.all: list[WorkerSlot] = []
        self.allocation = Allocation()
        self._of: dict[Worker, WorkerSlot] = {}
        self._named = set[WorkerSlot]()
        self.dirty = False
        """Whether workers may be missing or superfluous."""
        self._balanced, self._took = 0.0, 0.0
        """When workers were last rebalanced, and how many seconds that took."""
        self._nodes: tuple[float, list[ClusterNode], dict[str, int]] = (0.0, [], {})

    def cluster(self) -> tuple[list[ClusterNode], dict[str, int]]:
        """(nodes, lane -> maximum number of workers), queried every NODES_SECONDS."""
        then, nodes, limits = self._nodes
        if not nodes or time.monotonic() - then > NODES_SECONDS:
            try:
                nodes, limits = list(self.backend.nodes()), dict(self.backend.worker_limits())
            except Exception:  # Ray may raise anything for a moment; its last answer still holds
                if not nodes:
                    raise
                log.warning("cannot list the cluster's nodes; the last list is used", exc_info=True)
            self._nodes = time.monotonic(), nodes, limits
        return nodes, limits

    def slots(self, resources: Resources) -> int:
        """How many tasks with these resources can run at a time."""
        nodes, limits = self.cluster()
        size = self.backend.size(resources)
        return min(fits(nodes, size), limits.get(size.lane, 1 << 30), self.budget.workers(size)) * UNITS[size.lane]

    def of(self, worker: Worker) -> WorkerSlot | None:
        """The slot of a worker; None if it was dismissed."""
        return self._of.get(worker)

    # --- start and end ---

    def release(self) -> None:
        """End all workers."""
        for slot in self.all:
            slot.worker.kill()
            self.allocation.end(slot)
        self.all, self._of = [], {}

    def start(self, resources: Resources) -> None:
        lane = resources.lane
        worker = self.backend.start(lane, resources, UNITS[lane], self._notify, self._run)
        taken = {slot.number for slot in self.all if slot.lane == lane}
        number = next(number for number in itertools.count() if number not in taken)
        self._of[worker] = slot = WorkerSlot(number, lane, resources, worker)
        self.all.append(slot)
        self.allocation.begin(slot, resources)

    def dismiss(self, slot: WorkerSlot) -> None:
        slot.worker.kill()
        self.allocation.end(slot)
        self.all.remove(slot)
        del self._of[slot.worker]
        self.dirty = True

    def dismiss_idle(self, seconds: float = 0.0) -> None:
        """End the workers that have had no payload for so long; those that start have waited for none."""
        before = time.monotonic() - seconds
        for slot in [slot for slot in self.all if not slot.tasks and (slot.up or not seconds)]:
            if slot.idle_since <= before:
                self.dismiss(slot)

    def late(self) -> list[str]:
        """A line for each worker that is not up after LATE_SECONDS, once."""
        before = time.monotonic() - LATE_SECONDS
        late = [slot for slot in self.all if not slot.up and slot.since < before and slot not in self._named]
        self._named.update(late)
        why = f"is not up after {LATE_SECONDS:.0f} s: {self.holders(self.others()) if late else ''}"
        return [
            f"{slot} waits for {slot.resources.cpus:g} CPUs, {slot.resources.gpus:g} GPUs; it {why}" for slot in late
        ]

    def others(self) -> Sequence[str]:
        """The other runs that have workers on the cluster, as far as it answers."""
        try:
            return self.backend.other_runs(self._run)
        except Exception:  # noqa: BLE001 - Ray may raise anything for a moment
            return ()

    def holders(self, runs: Sequence[str]) -> str:
        """The runs that may have what this one waits for."""
        if runs:
            return f"{some(runs)} use{'s' if len(runs) == 1 else ''} the cluster"
        return "its node starts it slowly, or jobs of others use the cluster"

    # --- rebalancing ---

    def rebalance(self, demands: Sequence[Demand]) -> None:
        """Start missing workers and end superfluous ones. Runs after a change, and every NODES_SECONDS because nodes
        come and go; less often on a large cluster, where it takes long."""
        now = time.monotonic()
        if now - self._balanced < (5 * self._took if self.dirty else NODES_SECONDS):
            return
        self.dirty = False
        if demands:
            nodes, limits = self.cluster()
            self._fill(nodes, demands, allocate(nodes, demands, limits, self.budget))
        self._balanced, self._took = time.monotonic(), time.monotonic() - now

    def _fill(self, nodes: list[ClusterNode], demands: Sequence[Demand], target: list[int]) -> None:
        free = FreeResources(nodes)
        for slot in sorted(self.all, key=lambda slot: not slot.up):
            if not free.put(slot.resources, slot.worker.node):  # the node that had room for it has gone: Ray would wait
                self.dismiss(slot)
        gpus = {node.id: node.gpus for node in nodes}
        # workers on nodes with GPUs are kept last if others will do, because a GPU worker needs that node
        spare = sorted((slot for slot in self.all if not slot.leaving), key=lambda slot: gpus.get(slot.worker.node, 0))
        missing: list[Resources] = []
        for demand, count in zip(demands, target, strict=True):
            same = [slot for slot in spare if slot.resources == demand.resources][:count]
            rest = [slot for slot in spare if slot not in same and covers(slot.resources, demand.resources)]
            # larger workers will do if there are enough of them, because each start costs seconds
            kept = same + rest[: count - len(same)] if len(same) + len(rest) >= count else same
            spare = [slot for slot in spare if slot not in kept]
            missing += [demand.resources] * (count - len(kept))
        now, later = self._free(nodes, leaving=True), self._free(nodes)
        for size in missing:
            if self._start(size, now):
                later.put(size)
                continue
            while not (self._left().workers(size) and later.put(size)) and spare:  # they make room, idle ones first
                spare.sort(key=lambda slot: bool(slot.tasks))
                self._retire(spare.pop(0))
                now, later = self._free(nodes, leaving=True), self._free(nodes)
                if self._start(size, now):
                    later.put(size)
                    break
        for slot in [slot for slot in self.all if slot.leaving and not slot.tasks]:
            self.dismiss(slot)

    def _retire(self, slot: WorkerSlot) -> None:
        """End a worker now if it is idle, otherwise once it is."""
        if slot.tasks:
            slot.leaving = True
        else:
            self.dismiss(slot)

    def _start(self, size: Resources, free: FreeResources) -> bool:
        """Start a worker if the nodes and the budget have room for it now."""
        room = bool(self._left().workers(size)) and free.put(size)
        if room:
            self.start(size)
        return room

    def _left(self) -> Budget:
        """The budget that no worker has; a worker about to end still counts."""
        cpus, gpus = (sum(getattr(slot.resources, what) for slot in self.all) for what in ("cpus", "gpus"))
        return Budget(self.budget.cpus - cpus, self.budget.gpus - gpus)

    def _free(self, nodes: list[ClusterNode], leaving: bool = False) -> FreeResources:
        """Resources that the workers leave free; with `leaving`, workers about to end still count."""
        free = FreeResources(nodes)
        for slot in self.all:
            if leaving or not slot.leaving:
                free.put(slot.resources, slot.worker.node)
        return free
