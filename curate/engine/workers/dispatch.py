"""The scheduler's thread: assigns payloads to workers, receives their outcomes, and ends tasks that hang."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from curate.core.errors import CurateError
from curate.engine.backends import Backend, Event, Snapshots, TaskEnded, WorkerDown, WorkerUp
from curate.engine.record.events import Events
from curate.engine.tasks.beat import BatchStats, RunningBatch
from curate.engine.tasks.job import ATTEMPTS, Outcome
from curate.engine.workers.assign import Assigner
from curate.engine.workers.calls import END, Call, Payload
from curate.engine.workers.lanes import Budget, covers
from curate.engine.workers.meter import Meter
from curate.engine.workers.worker_set import IDLE_SECONDS, Assignment, WorkerSet, WorkerSlot

SNAPSHOT_SECONDS = 2.0
"""Between two requests for a worker's snapshots."""
START_SECONDS = 600.0
"""Time limit for the first worker: an autoscaling cluster takes minutes to add a node."""
GRACE_SECONDS = 5.0
"""Time limit for a task to stop."""
FAREWELL_SECONDS = 3.0
"""Time limit for workers to publish their logs at the end."""
STALE_SECONDS = 60.0
"""A scheduler that did not run for this long was suspended itself; it ends no task for being silent."""
PROGRESS_SECONDS = 2.0
"""Between two progress events of a stage."""
NOTE_SECONDS = 9.0
"""Between two notes about the same thing."""
MOVES = 10
"""How often a payload may lose the node it runs on."""
log = logging.getLogger("curate.scheduler")


class Dispatcher:
    """Owns the calls and the workers. Messages from steps and events from workers both arrive in `inbox`."""

    def __init__(
        self,
        backend: Backend,
        inbox: queue.SimpleQueue[tuple[Any, ...]],
        draining: threading.Event,
        meter: Meter,
        events: Events | None,
        run_id: str,
        log: tuple[str, str] | None,
        budget: Budget,
    ) -> None:
        self.backend, self._inbox, self._draining = backend, inbox, draining
        self.meter, self._events = meter, events
        self.workers = WorkerSet(backend, lambda event: inbox.put(("event", event)), self._on_up, run_id, budget)
        self.broken: BaseException | None = None
        """Error that ended the thread."""
        self.opening = threading.Lock()
        """Held while a call is posted and while the thread ends, so that no call is posted to a dead thread."""
        self._calls: list[Call] = []
        self._assigner = Assigner(backend, self.workers, self._calls, run_id, log, self._deliver)
        self._failed_starts: dict[str, int] = {}
        self._trouble = ""
        self._stop_at: float | None = None
        """When tasks that still run are ended."""
        self._checked = self._emitted = time.monotonic()
        self._noted: dict[str, float] = {}
        """Name of a note -> when the next one with it is shown."""

    def serve(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # steps would block forever on a dead thread: every call gets the error
            log.error("the scheduler has failed: %s", error, exc_info=not isinstance(error, CurateError))
            with self.opening:
                self.broken = error
            with contextlib.suppress(queue.Empty):
                while True:
                    message = self._inbox.get_nowait()
                    if message[0] == "open":
                        self._calls.append(message[1])
            for call in list(self._calls):
                call.deliver(Outcome(-1, fatal=error))
                self._end_call(call)
        finally:
            self.workers.release()

    def _turn(self) -> bool:
        """Read all messages, then act on them. Returns False at the end."""
        with contextlib.suppress(queue.Empty):
            message = self._inbox.get(timeout=self._timeout())
            while True:
                if message[0] == "end":
                    self._farewell()
                    return False
                getattr(self, f"_on_{message[0]}")(*message[1:])
                message = self._inbox.get_nowait()
        self._check_tasks()
        self._emit_progress()
        if self._draining.is_set():
            self._drain()
        elif trouble := self.backend.trouble():
            if trouble != self._trouble:
                self._warn(trouble)
            self._trouble = trouble
        else:
            demands = self._assigner.demands()
            self.workers.rebalance(demands)
            self._check_starts()
            self._assigner.assign()
            if self.backend.shared and not demands:
                self.workers.dismiss_idle(IDLE_SECONDS)
        for call in list(self._calls):
            pending = call.queue
            ended = pending.closed or self._draining.is_set()
            if pending.dropped or (ended and not pending.waiting and not pending.running):
                self._end_call(call)
        return True

    def _timeout(self) -> float | None:
        """Seconds until something must be checked even without a message."""
        if self._stop_at is not None or (self.workers.dirty and not self._draining.is_set()):
            return 0.1
        if any(slot.tasks for slot in self.workers.all):
            return self._snapshot_seconds() / 4
        if self._calls:
            return 1.0
        return IDLE_SECONDS if self.backend.shared and self.workers.all else None

    def _snapshot_seconds(self) -> float:
        return SNAPSHOT_SECONDS if self.meter.deadline is None else min(SNAPSHOT_SECONDS, self.meter.deadline / 2)

    def _farewell(self) -> None:
        """Let the tasks of a failed run wind down, and have workers publish their logs."""
        for call in list(self._calls):
            self._on_cancel(call)
        silent = [slot for slot in self.workers.all if slot.up]
        with contextlib.suppress(Exception):  # the cluster may be gone
            for slot in silent:
                slot.worker.flush()
            began = time.monotonic()
            while (silent and time.monotonic() - began < FAREWELL_SECONDS) or (
                any(slot.tasks for slot in self.workers.all) and time.monotonic() - began < GRACE_SECONDS
            ):
                with contextlib.suppress(queue.Empty):
                    message = self._inbox.get(timeout=0.1)
                    if message[0] == "event":
                        self._on_event(message[1])
                        if isinstance(message[1], (Snapshots, WorkerDown)):
                            silent = [slot for slot in silent if slot.worker is not message[1].worker]

    # --- messages from steps -----------------------------------------------------------------------------------------

    def _on_wake(self) -> None:
        pass

    def _on_open(self, call: Call) -> None:
        self._calls.append(call)

    def _on_put(self, call: Call, payload: Payload) -> None:
        if not call.over and not call.queue.dropped:
            self.workers.dirty |= call.queue.waiting < call.queue.ahead
            call.queue.add(payload)

    def _on_close(self, call: Call) -> None:
        call.queue.closed = True

    def _on_cancel(self, call: Call) -> None:
        call.queue.dropped = True
        call.queue.clear()
        for slot in self.workers.all:
            tickets = [ticket for ticket, task in slot.tasks.items() if task.call is call]
            if tickets:
                slot.worker.wind_down(tickets)

    def _on_broadcast(self, function: Callable[[Any], Any], payload: Any) -> None:
        for slot in self.workers.all:
            if slot.up:
                slot.worker.call(function, payload)

    def _on_release(self) -> None:
        self.workers.dismiss_idle()

    def _on_stop(self) -> None:
        if self._stop_at is None:
            self._stop_at = time.monotonic() + GRACE_SECONDS
            for slot in self.workers.all:
                slot.leaving = True
                slot.worker.wind_down(None)

    # --- events from workers -----------------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        slot = self.workers.of(event.worker)
        if slot is None:  # already dismissed
            return
        if isinstance(event, WorkerUp):
            log.debug("%s is up on %s", slot, event.name or "this machine")
            slot.up, slot.idle_since, self._failed_starts[slot.lane] = True, time.monotonic(), 0
            self._on_up(slot)
        elif isinstance(event, TaskEnded):
            self._on_ended(slot, event)
        elif isinstance(event, Snapshots):
            self._on_snapshots(slot, event)
        else:
            self._on_down(slot, event)

    def _on_up(self, slot: WorkerSlot) -> None:
        self.meter.units[slot.lane] = sum(s.units for s in self.workers.all if s.lane == slot.lane and s.up)

    def _on_ended(self, slot: WorkerSlot, event: TaskEnded) -> None:
        task = slot.tasks.pop(event.ticket, None)
        if task is None:
            return
        slot.begin()
        slot.idle_since = time.monotonic()
        self.workers.dirty |= slot.leaving
        call, payload, outcome = task.call, task.payload, event.outcome
        call.queue.running -= 1
        self._tell(event.snapshot)
        self._measure(slot, task, event.snapshot.get("stats", {}))
        if not event.snapshot.get("batches"):
            call.queue.times.append(time.monotonic() - task.since)
        if outcome.elsewhere:
            payload.avoid.add(slot.worker)
            payload.refusals += 1
            others = (s for s in self.workers.all if s.ready and s.worker not in payload.avoid)
            if payload.refusals < ATTEMPTS and any(covers(other.resources, call.resources) for other in others):
                log.warning("%s %d goes to another worker: %s", call.label, payload.index, outcome.error)
                self.meter.lose(slot.lane, task.reported)
                self._requeue(call, payload)
                return
        self._deliver(call, outcome)

    def _on_snapshots(self, slot: WorkerSlot, event: Snapshots) -> None:
        slot.asked = 0.0
        for ticket, snapshot in event.snapshots.items():
            self._tell(snapshot)
            self._measure(slot, slot.tasks.get(ticket), snapshot["stats"])
            if ticket in slot.tasks:
                slot.tasks[ticket].snapshot, slot.tasks[ticket].snapshot_at = dict(snapshot), time.monotonic()

    def _tell(self, snapshot: Mapping[str, Any]) -> None:
        """Show the notes of a worker, which are in its log; others may have the same."""
        for name, text in snapshot.get("notes", {}).items():
            if time.monotonic() >= self._noted.get(name, 0.0):
                self._noted[name] = math.inf if name == text else time.monotonic() + NOTE_SECONDS
                if self._events is not None:
                    self._events.emit("warning", text=text)

    def _measure(self, slot: WorkerSlot, task: Assignment | None, stats: Mapping[str, BatchStats]) -> None:
        self.meter.add(slot.lane, stats)
        if task is not None:
            for stage, more in stats.items():
                task.reported.setdefault(stage, BatchStats()).add(more)

    def _on_down(self, slot: WorkerSlot, event: WorkerDown) -> None:
        """A worker's process died: its payloads are tried again, a bounded number of times."""
        moved = False
        with contextlib.suppress(Exception):  # if the cluster does not answer, the process is assumed to have died
            place = slot.worker.node
            moved = bool(place) and all(node.id != place for node in self.backend.nodes())
        units = ", ".join(f"{task.call.label} {task.payload.index}" for task in slot.tasks.values()) or "nothing"
        what = "its node has died" if moved else event.why
        log.warning("%s is down while running %s: %s", slot, units, what)
        tasks = list(slot.tasks.values())
        self.workers.dismiss(slot)
        if not slot.up and not moved:
            self._failed_starts[slot.lane] = self._failed_starts.get(slot.lane, 0) + 1
            if event.fatal or self._failed_starts[slot.lane] >= ATTEMPTS:
                error = CurateError(f"Ray workers cannot start ({event.why}); is this package on every node?")
                for call in self._calls:
                    if call.resources.lane == slot.lane:
                        self._deliver(call, Outcome(-1, fatal=event.fatal or error))
        for number, task in reversed(list(enumerate(tasks))):
            task.call.queue.running -= 1
            self.meter.lose(slot.lane, task.reported)
            if number >= slot.units:  # it had not started
                self._requeue(task.call, task.payload)
            else:
                self._retry_lost(task.call, task.payload, moved)

    def _retry_lost(self, call: Call, payload: Payload, moved: bool) -> None:
        if moved:
            payload.moves += 1
            over, error = payload.moves >= MOVES, f"the node of its worker died {MOVES} times"
        else:
            payload.deaths += 1
            over, error = payload.deaths >= ATTEMPTS, "the worker process died"
        if over:
            self._deliver(call, Outcome(payload.index, error=error, crashed=not moved))
        else:
            self._requeue(call, payload)

    def _requeue(self, call: Call, payload: Payload) -> None:
        if not call.queue.dropped and not self._draining.is_set():
            call.queue.add(payload, first=True)
            self.workers.dirty = True

    def _deliver(self, call: Call, outcome: Outcome) -> None:
        if not call.queue.dropped:
            call.queue.settle(outcome.index)
            call.deliver(outcome)
            if outcome.fatal is not None:
                self._on_cancel(call)

    def _end_call(self, call: Call) -> None:
        call.over, call.shared = True, None
        self._calls.remove(call)
        call.deliver(END)

    # --- supervision -------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Start nothing; after the grace period, end the tasks that still run."""
        for call in self._calls:
            call.queue.clear()
        if self._stop_at is not None and time.monotonic() > self._stop_at:
            for slot in [slot for slot in self.workers.all if slot.tasks]:
                log.warning("%s is ended: it did not stop in %.0f s", slot, GRACE_SECONDS)
                for task in slot.tasks.values():
                    task.call.queue.running -= 1
                self.workers.dismiss(slot)
            self._stop_at = None

    def _check_tasks(self) -> None:
        """Request snapshots, and end tasks that hang."""
        now = time.monotonic()
        if now - self._checked < self._snapshot_seconds() / 8:
            return
        suspended, self._checked = now - self._checked > STALE_SECONDS, now
        for slot in [slot for slot in self.workers.all if slot.tasks and slot.up]:
            if suspended:  # the last snapshots are out of date
                for task in slot.tasks.values():
                    task.snapshot_at, task.snapshot["idle"] = now, 0.0
            first = next(iter(slot.tasks.values()))
            if not slot.asked and now - max(first.snapshot_at, first.since) > self._snapshot_seconds():
                slot.asked = now
                slot.worker.request_snapshots()
            for ticket, task in list(slot.tasks.items())[: slot.units]:
                if task.idle(now) <= self.meter.least:
                    continue
                stage = task.snapshot.get("stage")
                limit = self.meter.limit(stage, task.snapshot["pace"]) if stage else None
                if task.idle(now) > (limit or self.meter.silent_limit(task.call.queue.times)):
                    self._end_hung(slot, ticket, stage or task.call.label, task.idle(now))
                    break

    def _end_hung(self, slot: WorkerSlot, ticket: int, stage: str, idle: float) -> None:
        """End a task that hangs. If its rows are known, its step handles them; otherwise it is tried again."""
        task = slot.tasks.pop(ticket)
        call, payload, batch = task.call, task.payload, task.snapshot.get("running")
        rows = f" (rows {min(batch.rows)}-{max(batch.rows)} of its unit)" if batch is not None and batch.rows else ""
        error = f"hung: {stage} finished no batch for {idle:,.0f} s{rows}"
        log.error("%s %d, %s: %s; it is ended", call.label, payload.index, slot, error, extra={"stage": stage})
        call.queue.running -= 1
        self.meter.lose(slot.lane, task.reported)
        if not slot.worker.end(ticket):
            for other in reversed(slot.tasks.values()):
                self.meter.lose(slot.lane, other.reported)
                other.call.queue.running -= 1
                self._requeue(other.call, other.payload)
            self.workers.dismiss(slot)
        payload.deaths += 1
        if (batch is not None and batch.rows) or payload.deaths >= ATTEMPTS:
            hung = batch or RunningBatch(stage, (), time.monotonic() - idle)
            self._deliver(call, Outcome(payload.index, error=error, hung=hung))
        else:
            self._requeue(call, payload)

    def _emit_progress(self) -> None:
        """Periodically record progress."""
        now = time.monotonic()
        if self._events is not None and now - self._emitted > PROGRESS_SECONDS:
            self._emitted = now
            for progress in self.meter.changed():
                self._events.emit("progress", **progress)
            if self.workers.all:
                self._events.emit("allocated", **self.workers.allocation.so_far().to_json())

    def _check_starts(self) -> None:
        """Name late workers. Fail a call for which none came up within START_SECONDS: the cluster is full."""
        now = time.monotonic()
        for text in self.workers.late():
            self._warn(text)
        for call in self._calls:
            pending, size = call.queue, call.resources
            mine = any(slot.tasks for slot in self.workers.all)  # what is missing may be what these have
            if mine or not pending.waiting or any(s.up and covers(s.resources, size) for s in self.workers.all):
                pending.since = now
            elif now - pending.since > START_SECONDS:
                what = f"{size.cpus:g} CPUs and {size.gpus:g} GPUs"
                error = f"no worker with {what} could be placed in {START_SECONDS:.0f} s"
                if others := self.workers.others():  # they end, or are stopped
                    pending.since = now
                    self._warn(f"{error}: {self.workers.holders(others)}; still waiting")
                    continue
                self._deliver(call, Outcome(-1, fatal=CurateError(f"{error}; wait for other jobs, or lower `threads`")))

    def _warn(self, text: str) -> None:
        log.warning(text)
        if self._events is not None:
            self._events.emit("warning", text=text)
