"""The workers of all lanes: started, replaced and let go, so that every lane that has work has somebody to do it."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from curate.core.contracts import Resources
from curate.engine.backends import Backend, Worker
from curate.engine.workers.calls import Call, Item
from curate.engine.workers.lanes import UNITS, Budget, Node, Room, Want, covers, divide, fair, fits

NODES_SECONDS = 5.0
"""Between two looks at the cluster's nodes."""
log = logging.getLogger("curate.scheduler")


@dataclass
class Run:
    """A payload in the hands of a worker."""

    call: Call
    item: Item
    since: float = 0.0
    """When it was begun; 0 while it is queued behind others."""
    look: dict[str, Any] = field(default_factory=dict)
    looked: float = 0.0
    """When the beat was last heard; 0 before that."""

    def idle(self, now: float) -> float:
        """Seconds in which it has finished no batch."""
        return self.look["idle"] + now - self.looked if self.looked else now - (self.since or now)


@dataclass(eq=False)
class Seat:
    """A worker, its place in its lane, and what it was given."""

    number: int
    lane: str
    resources: Resources
    worker: Worker
    since: float = field(default_factory=time.monotonic)
    up: bool = False
    leaving: bool = False
    """It gets nothing more, and is let go when it is idle."""
    runs: dict[int, Run] = field(default_factory=dict)
    """Ticket -> payload, oldest first."""
    asked: float = 0.0
    """When its beats were asked for and have not come; 0 when they have."""

    def __str__(self) -> str:
        return f"{self.lane} worker {self.number}"

    @property
    def units(self) -> int:
        return UNITS[self.lane]

    @property
    def ready(self) -> bool:
        """Whether it may be given more, as far as it has room."""
        return self.up and not self.leaving and not any(run.item.deaths for run in self.runs.values())

    def begin(self) -> None:
        """The first payloads run, the others are queued."""
        for run in itertools.islice(self.runs.values(), self.units):
            run.since = run.since or time.monotonic()


class Staff:
    """Seats of all lanes. Used by the scheduler's thread, but for `cluster`."""

    def __init__(self, backend: Backend, tell: Callable[[Any], None], welcome: Callable[[Seat], None]) -> None:
        self.backend, self._tell, self._welcome = backend, tell, welcome
        self.seats: list[Seat] = []
        self._of: dict[Worker, Seat] = {}
        self.dirty = False
        """Whether workers may be lacking, or in the way."""
        self.budget: Budget | None = None
        """What this run may take of a cluster that others want to use too."""
        self._done, self._took = 0.0, 0.0
        """When workers were last shared out, and how many seconds that took."""
        self._nodes: tuple[float, list[Node], dict[str, int]] = (0.0, [], {})

    def cluster(self) -> tuple[list[Node], dict[str, int]]:
        """(nodes, lane -> most workers), looked at every NODES_SECONDS."""
        then, nodes, most = self._nodes
        if not nodes or time.monotonic() - then > NODES_SECONDS:
            try:
                nodes, most = list(self.backend.nodes()), dict(self.backend.most())
            except Exception:  # whatever Ray raises for a moment: what it said before still holds
                if not nodes:
                    raise
                log.warning("the cluster does not say which nodes it has; those of before are taken", exc_info=True)
            self._nodes = time.monotonic(), nodes, most
        return nodes, most

    def slots(self, resources: Resources) -> int:
        """How many tasks with these resources can run at a time."""
        nodes, most = self.cluster()
        size = self.backend.size(resources)
        return min(fits(nodes, size), most.get(size.lane, 1 << 30)) * UNITS[size.lane]

    def of(self, worker: Worker) -> Seat | None:
        """The seat of a worker that is not let go."""
        return self._of.get(worker)

    # --- coming and going ---

    def take_over(self) -> None:
        """The workers that the last scheduler over this backend has left."""
        for lane, resources, worker in self.backend.parked(self._tell):
            self._welcome(self._add(lane, resources, worker, up=True))

    def leave_behind(self, whole: bool) -> None:
        """Idle workers to the backend, if the `whole` of it went well; the others are ended."""
        for seat in self.seats:
            if whole and seat.ready and not seat.runs:
                self.backend.park(seat.lane, seat.resources, seat.worker)
            else:
                seat.worker.kill()
        self.seats, self._of = [], {}

    def start(self, resources: Resources) -> None:
        lane = resources.lane
        self._add(lane, resources, self.backend.start(lane, resources, UNITS[lane], self._tell))

    def _add(self, lane: str, resources: Resources, worker: Worker, up: bool = False) -> Seat:
        """A seat with the lowest number that is free in its lane."""
        taken = {seat.number for seat in self.seats if seat.lane == lane}
        number = next(number for number in itertools.count() if number not in taken)
        self._of[worker] = seat = Seat(number, lane, resources, worker, up=up)
        self.seats.append(seat)
        return seat

    def dismiss(self, seat: Seat) -> None:
        seat.worker.kill()
        self.seats.remove(seat)
        del self._of[seat.worker]
        self.dirty = True

    def dismiss_idle(self) -> None:
        for seat in [seat for seat in self.seats if not seat.runs]:
            self.dismiss(seat)

    # --- sharing out ---

    def share_out(self, wants: Sequence[Want]) -> None:
        """Start the workers that are lacking, and let those go that are in the way. Done when something has changed,
        and every NODES_SECONDS, since nodes come and go; in a large cluster not all the time."""
        now = time.monotonic()
        if now - self._done < (5 * self._took if self.dirty else NODES_SECONDS):
            return
        self.dirty = False
        if wants:
            nodes, most = self.cluster()
            self._fill(nodes, wants, divide(nodes, wants, most, self.budget))
        self._done, self._took = time.monotonic(), time.monotonic() - now

    def _fill(self, nodes: list[Node], wants: Sequence[Want], target: list[int]) -> None:
        gpus = {node.id: node.gpus for node in nodes}
        # those on nodes with GPUs are the last to be kept where others will do: a worker with a GPU has to be there
        free = sorted((s for s in self.seats if not s.leaving), key=lambda s: gpus.get(s.worker.node, 0))
        lacking: list[Resources] = []
        for want, count in zip(wants, target, strict=True):
            same = [seat for seat in free if seat.resources == want.resources][:count]
            rest = [seat for seat in free if seat not in same and covers(seat.resources, want.resources)]
            # larger workers will do if there are enough of them: each start costs seconds
            kept = same + rest[: count - len(same)] if len(same) + len(rest) >= count else same
            free = [seat for seat in free if seat not in kept]
            lacking += [want.resources] * (count - len(kept))
        now, later = self._room(nodes, leaving=True), self._room(nodes)
        for size in lacking:
            if now.put(size):
                later.put(size)
                self.start(size)
                continue
            while not later.put(size) and free:  # those nobody wants make room, idle ones first
                free.sort(key=lambda seat: bool(seat.runs))
                self._let_go(free.pop(0))
                now, later = self._room(nodes, leaving=True), self._room(nodes)
                if now.put(size):
                    later.put(size)
                    self.start(size)
                    break
        if self.budget is not None:
            self._within_budget(free)
        for seat in [seat for seat in self.seats if seat.leaving and not seat.runs]:
            self.dismiss(seat)

    def _let_go(self, seat: Seat) -> None:
        """At once if it is idle, else when it is."""
        if seat.runs:
            seat.leaving = True
        else:
            self.dismiss(seat)

    def _within_budget(self, free: list[Seat]) -> None:
        """Let those go that nobody here wants, as far as the run holds more than its share."""
        left = replace(self.budget or Budget())
        for seat in self.seats:
            if seat not in free and not seat.leaving:
                left.spend(seat.resources)
        for seat in sorted(free, key=lambda seat: not seat.runs):
            if not left.spend(seat.resources):
                seat.leaving = True

    def _room(self, nodes: list[Node], leaving: bool = False) -> Room:
        """What is free beside the workers there are; with `leaving`, those that will go still count."""
        room = Room(nodes)
        for seat in self.seats:
            if leaving or not seat.leaving:
                room.put(seat.resources, seat.worker.node)
        return room

    # --- runs that share the cluster ---

    def wish(self, wants: Sequence[Want]) -> dict[str, float]:
        """CPUs and GPUs that this run could use."""
        nodes = self._nodes[1]
        cpus = sum(want.workers * want.resources.cpus for want in wants)
        gpus = sum(want.workers * want.resources.gpus for want in wants)
        return {"cpus": min(sum(n.cpus for n in nodes), cpus), "gpus": min(sum(n.gpus for n in nodes), gpus)}

    def hear(self, wishes: Mapping[str, Mapping[str, float]], mine: str) -> None:
        """What the runs of the cluster want: each may have the same, or what it wants if that is less."""
        before, self.budget = self.budget, None
        if any(wish["cpus"] or wish["gpus"] for run, wish in wishes.items() if run != mine):
            nodes = self._nodes[1]
            cpus = fair(sum(n.cpus for n in nodes), {run: wish["cpus"] for run, wish in wishes.items()}, mine)
            gpus = fair(sum(n.gpus for n in nodes), {run: wish["gpus"] for run, wish in wishes.items()}, mine)
            self.budget = Budget(cpus, gpus)
            if not any(wishes.get(mine, {}).values()):
                self.dismiss_idle()
        self.dirty |= self.budget != before
