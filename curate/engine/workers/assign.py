"""Assign the payloads of calls to workers, lane by lane."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from curate.core.contracts import Resources
from curate.engine.backends import Backend
from curate.engine.tasks.job import Job, Outcome
from curate.engine.workers.calls import Call, Payload, ahead_of
from curate.engine.workers.lanes import UNITS, Demand, covers
from curate.engine.workers.worker_set import NODES_SECONDS, Assignment, WorkerSet, WorkerSlot

ABSENT_SECONDS = 20.0
"""After this long, other workers take over payloads meant for a worker that is not up."""
TICKETS = itertools.count(1)
"""Numbers of jobs in this process: a worker may pass from one scheduler to the next."""


class Assigner:
    """Hands payloads to workers; `deliver` receives the outcome of a payload that cannot be sent to any worker."""

    def __init__(
        self,
        backend: Backend,
        workers: WorkerSet,
        calls: list[Call],
        run_id: str,
        log: tuple[str, str] | None,
        deliver: Callable[[Call, Outcome], None],
    ) -> None:
        self.backend, self.workers, self.calls = backend, workers, calls
        self._run_id, self._log, self._deliver = run_id, log, deliver
        self._sized = time.monotonic()

    def demands(self) -> list[Demand]:
        """Workers that would have work, by size, in the order in which calls were opened."""
        payloads: dict[Resources, int] = {}
        for call in self.calls:
            count = call.queue.waiting + call.queue.running
            if count:
                payloads[call.resources] = payloads.get(call.resources, 0) + count
        return [Demand(size, -(-count // UNITS[size.lane])) for size, count in payloads.items()]

    def assign(self) -> None:
        """Fill the workers of every lane."""
        self._forgive()
        self._resize()
        for lane in UNITS:
            self._fill_lane(lane)

    def _fill_lane(self, lane: str) -> None:
        """The oldest call's payloads first: to workers with a free unit, then one more to each if there are enough
        payloads, so that no worker waits for its next one."""
        calls = [call for call in self.calls if call.queue.waiting and call.resources.lane == lane]
        if not calls:
            return
        slots = [slot for slot in self.workers.all if slot.lane == lane]
        for depth in (UNITS[lane], UNITS[lane] + (1 if self.backend.separate else 0)):
            ready = sorted((s for s in slots if s.ready and len(s.tasks) < depth), key=lambda slot: len(slot.tasks))
            for call in calls if ready else ():
                if depth == UNITS[lane] or call.queue.waiting >= len(slots):
                    self._feed(call, ready, slots, depth)

    def _feed(self, call: Call, ready: list[WorkerSlot], slots: list[WorkerSlot], depth: int) -> None:
        queue, absent = call.queue, set[int]()
        if call.options.sticky:
            if not queue.closed:  # the number of payloads is known only then
                return
            if not queue.homes:
                able = sorted(slot.number for slot in slots if covers(slot.resources, call.resources))
                queue.set_homes(able[: max(1, queue.waiting)])
            absent = self._absent(queue.homes, slots)
        for slot in ready:
            while covers(slot.resources, call.resources) and slot.ready and len(slot.tasks) < depth:
                payload = queue.take(slot.number, slot.worker, absent)
                if payload is None:
                    break
                if payload.deaths and slot.tasks:  # it may take the other tasks down with it
                    queue.add(payload, first=True)
                    break
                self._give(slot, call, payload)

    def _absent(self, homes: list[int], slots: list[WorkerSlot]) -> set[int]:
        """Workers of a sticky call that others replace: not up for ABSENT_SECONDS, or gone without a successor."""
        up, since = {slot.number for slot in slots if slot.ready}, {slot.number: slot.since for slot in slots}
        late = time.monotonic() - ABSENT_SECONDS
        gone = float("inf") if self.workers.dirty else 0.0  # a successor may still be started
        return {home for home in homes if home not in up and since.get(home, gone) < late}

    def _give(self, slot: WorkerSlot, call: Call, payload: Payload) -> None:
        ticket, unit = next(TICKETS), f"{call.label} {payload.index}"
        again, payload.given = payload.given, True
        log = (*self._log, f"{slot.lane}-{slot.number}") if self._log and self.backend.separate else None
        isolated = call.options.isolated
        job = Job(call.function, payload.value, payload.index, unit, slot.lane, isolated, self._run_id, again, log)
        slot.tasks[ticket] = Assignment(call, payload)
        slot.begin()
        call.queue.running += 1
        try:
            if call.options.shared is not None and call.shared is None:
                call.shared = self.backend.share(call.options.shared)
            slot.worker.run(ticket, job, call.shared)
        except Exception as error:  # noqa: BLE001 - a payload that cannot be sent is an error of the step
            del slot.tasks[ticket]
            call.queue.running -= 1
            self._deliver(call, Outcome(payload.index, fatal=error))

    def _forgive(self) -> None:
        """Payloads that avoid every worker that is up or starting go back to them."""
        for call in self.calls:
            if call.queue.waiting:
                able = [s.worker for s in self.workers.all if not s.leaving and covers(s.resources, call.resources)]
                if able:
                    call.queue.forgive(able)

    def _resize(self) -> None:
        """Nodes come and go: calls may make more payloads ahead, or fewer."""
        if time.monotonic() - self._sized > NODES_SECONDS:
            self._sized = time.monotonic()
            for call in self.calls:
                call.queue.ahead = ahead_of(self.workers.slots(call.resources))
