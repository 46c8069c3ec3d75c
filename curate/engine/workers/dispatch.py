"""The scheduler's thread: hands payloads to workers, hears how they end, and ends what hangs."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from curate.core.contracts import Resources
from curate.core.errors import CurateError
from curate.engine.backends import ATTEMPTS, Backend, Down, Ended, Job, Looked, Outcome, Up
from curate.engine.record.events import Events
from curate.engine.workers.beat import Doing
from curate.engine.workers.calls import END, Call, Item, ahead_of
from curate.engine.workers.lanes import UNITS, Want, covers
from curate.engine.workers.meter import Meter
from curate.engine.workers.staff import NODES_SECONDS, Run, Seat, Staff

LOOK_SECONDS = 2.0
"""Between two looks at the beats of a worker."""
START_SECONDS = 600.0
"""How long to wait for the first worker: an autoscaling cluster takes minutes to add a node."""
ABSENT_SECONDS = 20.0
"""After how long others take over what was meant for a worker that is not up."""
GRACE_SECONDS = 5.0
"""How long a task may go on after it was told to stop."""
FAREWELL_SECONDS = 3.0
"""How long workers may take to publish their logs in the end."""
STALE_SECONDS = 60.0
"""A scheduler that did not look for so long was stopped itself, and ends nobody for it."""
TOLD_SECONDS = 2.0
"""Between two events of progress of a stage."""
POST_SECONDS = 5.0
"""Between two posts to the runs that share the cluster."""
MOVES = 10
"""How often a payload may lose the node it runs on."""
TICKETS = itertools.count(1)
"""Numbers of jobs, in this process: a worker may pass from one scheduler to the next."""
log = logging.getLogger("curate.scheduler")


class Dispatch:
    """Owns the calls and the staff. Everything it learns comes through `inbox`: what steps ask, what workers tell."""

    def __init__(
        self,
        backend: Backend,
        inbox: queue.SimpleQueue[tuple[Any, ...]],
        draining: threading.Event,
        meter: Meter,
        events: Events | None,
        run_id: str,
        where: tuple[str, str] | None,
    ) -> None:
        self.backend, self._inbox, self._draining = backend, inbox, draining
        self.meter, self._events, self._run_id, self._log = meter, events, run_id, where
        self.staff = Staff(backend, lambda event: inbox.put(("heard", event)), self._welcome)
        self.broken: BaseException | None = None
        """What has ended the thread, besides `end`."""
        self.opening = threading.Lock()
        """Held while a call is posted, and while the thread ends: no call is posted to a thread that has ended."""
        self._me = f"{run_id}-{uuid.uuid4().hex[:8]}"
        self._calls: list[Call] = []
        self._failed_starts = dict.fromkeys(UNITS, 0)
        self._stop_at: float | None = None
        """When those that still run are ended."""
        self._tended = self._told = time.monotonic()
        self._sized = time.monotonic()
        self._posted = 0.0

    def serve(self) -> None:
        try:
            self.staff.take_over()
            while self._turn():
                pass
        except BaseException as error:  # steps would wait for ever for a thread that has ended
            log.exception("the scheduler has failed")
            with self.opening:
                self.broken = error  # steps must not wait for a thread that has ended
            with contextlib.suppress(queue.Empty):
                while True:
                    message = self._inbox.get_nowait()
                    if message[0] == "open":
                        self._calls.append(message[1])
            for call in list(self._calls):
                call.tell(Outcome(-1, fatal=error))
                self._over(call)
        finally:
            self.staff.leave_behind(whole=self.broken is None)

    def _turn(self) -> bool:
        """Hear what there is to hear, then act on it. False at the end."""
        with contextlib.suppress(queue.Empty):
            message = self._inbox.get(timeout=self._patience())
            while True:
                if message[0] == "end":
                    self._farewell()
                    return False
                getattr(self, f"_on_{message[0]}")(*message[1:])
                message = self._inbox.get_nowait()
        self._tend()
        self._say()
        if self._draining.is_set():
            self._drain()
        else:
            self.staff.share_out(self._wants())
            self._relent()
            self._alone()
            self._resize()
            for lane in UNITS:
                self._hand_out(lane)
        for call in list(self._calls):
            work = call.work
            if work.dropped or ((work.closed or self._draining.is_set()) and not work.waiting and not work.running):
                self._over(call)
        return True

    def _patience(self) -> float | None:
        """Seconds until something has to be looked at."""
        if self._stop_at is not None or (self.staff.dirty and not self._draining.is_set()):
            return 0.1
        if any(seat.runs for seat in self.staff.seats):
            return self._look_seconds() / 4
        if self._calls:
            return 1.0
        return POST_SECONDS if self.backend.shared and self.staff.seats else None

    def _look_seconds(self) -> float:
        return LOOK_SECONDS if self.meter.deadline is None else min(LOOK_SECONDS, self.meter.deadline / 2)

    def _farewell(self) -> None:
        """Let tasks wind down that a failed run has left, have workers publish their logs, and take back what this run
        wants of the cluster."""
        for call in list(self._calls):
            self._on_cancel(call)
        silent = [seat for seat in self.staff.seats if seat.up]
        with contextlib.suppress(Exception):  # the cluster may be gone
            for seat in silent:
                seat.worker.flush()
            began = time.monotonic()
            while (silent and time.monotonic() - began < FAREWELL_SECONDS) or (
                any(seat.runs for seat in self.staff.seats) and time.monotonic() - began < GRACE_SECONDS
            ):
                with contextlib.suppress(queue.Empty):
                    message = self._inbox.get(timeout=0.1)
                    if message[0] == "heard":
                        self._on_heard(message[1])
                        if isinstance(message[1], (Looked, Down)):
                            silent = [seat for seat in silent if seat.worker is not message[1].worker]
            if self._posted:
                self.backend.post(self._me, None, lambda _: None)

    # --- what steps ask ----------------------------------------------------------------------------------------------

    def _on_wake(self) -> None:
        pass

    def _on_open(self, call: Call) -> None:
        self._calls.append(call)

    def _on_put(self, call: Call, item: Item) -> None:
        if not call.over and not call.work.dropped:
            self.staff.dirty |= call.work.waiting < call.work.ahead
            call.work.add(item)

    def _on_close(self, call: Call) -> None:
        call.work.closed = True

    def _on_cancel(self, call: Call) -> None:
        call.work.dropped = True
        call.work.clear()
        for seat in self.staff.seats:
            tickets = [ticket for ticket, run in seat.runs.items() if run.call is call]
            if tickets:
                seat.worker.wind_down(tickets)

    def _on_broadcast(self, function: Callable[[Any], Any], payload: Any) -> None:
        for seat in self.staff.seats:
            if seat.up:
                seat.worker.call(function, payload)

    def _on_release(self) -> None:
        self.staff.dismiss_idle()

    def _on_stop(self) -> None:
        if self._stop_at is None:
            self._stop_at = time.monotonic() + GRACE_SECONDS
            for seat in self.staff.seats:
                seat.leaving = True
                seat.worker.wind_down(None)

    def _on_shares(self, wishes: Mapping[str, Mapping[str, float]]) -> None:
        self.staff.hear(wishes, self._me)

    # --- what workers tell -------------------------------------------------------------------------------------------

    def _on_heard(self, event: Up | Down | Ended | Looked) -> None:
        seat = self.staff.of(event.worker)
        if seat is None:  # it was let go
            return
        if isinstance(event, Up):
            log.debug("%s is up on %s", seat, event.name or "this machine")
            seat.up, self._failed_starts[seat.lane] = True, 0
            self._welcome(seat)
        elif isinstance(event, Ended):
            self._ended(seat, event)
        elif isinstance(event, Looked):
            self._looked(seat, event)
        else:
            self._down(seat, event)

    def _welcome(self, seat: Seat) -> None:
        self.meter.units[seat.lane] = sum(s.units for s in self.staff.seats if s.lane == seat.lane and s.up)

    def _ended(self, seat: Seat, event: Ended) -> None:
        run = seat.runs.pop(event.ticket, None)
        if run is None:
            return
        seat.begin()
        self.staff.dirty |= seat.leaving
        call, item, outcome = run.call, run.item, event.outcome
        call.work.running -= 1
        self.meter.hear(seat.lane, event.look.get("told", {}))
        if not event.look.get("batches"):
            call.work.times.append(time.monotonic() - run.since)
        if outcome.elsewhere:
            item.avoid.add(seat.worker)
            item.refusals += 1
            others = (s for s in self.staff.seats if s.ready and s.worker not in item.avoid)
            if item.refusals < ATTEMPTS and any(covers(other.resources, call.resources) for other in others):
                log.warning("%s %d goes to another worker: %s", call.label, item.index, outcome.error)
                self._again(call, item)
                return
        self._deliver(call, outcome)

    def _looked(self, seat: Seat, event: Looked) -> None:
        seat.asked = 0.0
        for ticket, look in event.looks.items():
            self.meter.hear(seat.lane, look["told"])
            if ticket in seat.runs:
                seat.runs[ticket].look, seat.runs[ticket].looked = dict(look), time.monotonic()

    def _down(self, seat: Seat, event: Down) -> None:
        """A worker's process has died: what it ran is tried again, with a bound."""
        moved = False
        with contextlib.suppress(Exception):  # nobody says: then it is the process
            moved = self.backend.lost(seat.worker)
        units = ", ".join(f"{run.call.label} {run.item.index}" for run in seat.runs.values()) or "nothing"
        what = "its node has died" if moved else event.why
        log.warning("%s is down, with %s under way: %s", seat, units, what)
        runs = list(seat.runs.values())
        self.staff.dismiss(seat)
        if not seat.up and not moved:
            self._failed_starts[seat.lane] += 1
            if event.fatal or self._failed_starts[seat.lane] >= ATTEMPTS:
                error = CurateError(f"Ray workers cannot start ({event.why}); is this package on every node?")
                for call in self._calls:
                    if call.resources.lane == seat.lane:
                        self._deliver(call, Outcome(-1, fatal=event.fatal or error))
        for number, run in reversed(list(enumerate(runs))):
            run.call.work.running -= 1
            if number >= seat.units:  # it was not begun
                self._again(run.call, run.item)
            else:
                self._lost(run.call, run.item, moved)

    def _lost(self, call: Call, item: Item, moved: bool) -> None:
        if moved:
            item.moves += 1
            over, error = item.moves >= MOVES, f"the node of its worker died {MOVES} times"
        else:
            item.deaths += 1
            over, error = item.deaths >= ATTEMPTS, "the worker process died"
        if over:
            self._deliver(call, Outcome(item.index, error=error, crashed=not moved))
        else:
            self._again(call, item)

    def _again(self, call: Call, item: Item) -> None:
        if not call.work.dropped and not self._draining.is_set():
            call.work.add(item, first=True)
            self.staff.dirty = True

    def _deliver(self, call: Call, outcome: Outcome) -> None:
        if not call.work.dropped:
            call.work.settle(outcome.index)
            call.tell(outcome)
            if outcome.fatal is not None:
                self._on_cancel(call)

    def _over(self, call: Call) -> None:
        call.over, call.shared = True, None
        self._calls.remove(call)
        call.tell(END)

    # --- looking after tasks -----------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Nothing more is started; after the grace, what still runs is ended."""
        for call in self._calls:
            call.work.clear()
        if self._stop_at is not None and time.monotonic() > self._stop_at:
            for seat in [seat for seat in self.staff.seats if seat.runs]:
                log.warning("%s is ended: it did not stop in %.0f s", seat, GRACE_SECONDS)
                for run in seat.runs.values():
                    run.call.work.running -= 1
                self.staff.dismiss(seat)
            self._stop_at = None

    def _tend(self) -> None:
        """Ask for beats, and end what hangs."""
        now = time.monotonic()
        if now - self._tended < self._look_seconds() / 8:
            return
        slept, self._tended = now - self._tended > STALE_SECONDS, now
        for seat in [seat for seat in self.staff.seats if seat.runs and seat.up]:
            if slept:  # what was last heard says nothing
                for run in seat.runs.values():
                    run.looked, run.look["idle"] = now, 0.0
            first = next(iter(seat.runs.values()))
            if not seat.asked and now - max(first.looked, first.since) > self._look_seconds():
                seat.asked = now
                seat.worker.look()
            for ticket, run in list(seat.runs.items())[: seat.units]:
                if run.idle(now) <= self.meter.least:
                    continue
                stage = run.look.get("stage")
                limit = self.meter.limit(stage, run.look["pace"]) if stage else None
                if run.idle(now) > (limit or self.meter.silent_limit(run.call.work.times)):
                    self._hung(seat, ticket, stage or run.call.label, run.idle(now))
                    break

    def _hung(self, seat: Seat, ticket: int, stage: str, idle: float) -> None:
        """End a task that hangs. One that said at which rows it was is its step's matter; others are tried again."""
        run = seat.runs.pop(ticket)
        call, item, doing = run.call, run.item, run.look.get("doing")
        rows = f" (rows {min(doing.rows)}-{max(doing.rows)} of its unit)" if doing is not None and doing.rows else ""
        error = f"hung: {stage} finished no batch for {idle:,.0f} s{rows}"
        log.error("%s %d, %s: %s; it is ended", call.label, item.index, seat, error, extra={"stage": stage})
        call.work.running -= 1
        if not seat.worker.end(ticket):
            for other in reversed(seat.runs.values()):
                other.call.work.running -= 1
                self._again(other.call, other.item)
            self.staff.dismiss(seat)
        item.deaths += 1
        if (doing is not None and doing.rows) or item.deaths >= ATTEMPTS:
            hung = doing or Doing(stage, (), time.monotonic() - idle)
            self._deliver(call, Outcome(item.index, error=error, hung=hung))
        else:
            self._again(call, item)

    def _say(self) -> None:
        """Now and then: progress to the record, and what this run wants to those it shares the cluster with."""
        now = time.monotonic()
        if self._events is not None and now - self._told > TOLD_SECONDS:
            self._told = now
            for said in self.meter.moved():
                self._events.emit("progress", **said)
        if self.backend.shared and now - self._posted > POST_SECONDS:
            self._posted = now
            wish = self.staff.wish(self._wants())
            self.backend.post(self._me, wish, lambda wishes: self._inbox.put(("shares", wishes)))

    # --- handing out -------------------------------------------------------------------------------------------------

    def _wants(self) -> list[Want]:
        """Workers that would have work, by size, in the order in which calls came."""
        payloads: dict[Resources, int] = {}
        for call in self._calls:
            count = call.work.waiting + call.work.running
            if count:
                payloads[call.resources] = payloads.get(call.resources, 0) + count
        return [Want(size, -(-count // UNITS[size.lane])) for size, count in payloads.items()]

    def _hand_out(self, lane: str) -> None:
        """Payloads to workers, the oldest call's first: to those that have a unit free, then one more to each if there
        are enough, so that none waits for its next."""
        calls = [call for call in self._calls if call.work.waiting and call.resources.lane == lane]
        if not calls:
            return
        seats = [seat for seat in self.staff.seats if seat.lane == lane]
        for depth in (UNITS[lane], UNITS[lane] + self.backend.queued):
            ready = sorted((s for s in seats if s.ready and len(s.runs) < depth), key=lambda seat: len(seat.runs))
            for call in calls if ready else ():
                if depth == UNITS[lane] or call.work.waiting >= len(seats):
                    self._feed(call, ready, seats, depth)

    def _feed(self, call: Call, ready: list[Seat], seats: list[Seat], depth: int) -> None:
        work, absent = call.work, set[int]()
        if call.how.sticky:
            if not work.closed:  # only then is it known how many there are
                return
            if not work.homes:
                able = sorted(seat.number for seat in seats if covers(seat.resources, call.resources))
                work.settle_on(able[: max(1, work.waiting)])
            up, since = {seat.number for seat in seats if seat.ready}, {seat.number: seat.since for seat in seats}
            late = time.monotonic() - ABSENT_SECONDS
            # who is not there and has no successor is not waited for, once it is known who is to be started
            gone = float("inf") if self.staff.dirty else 0.0
            absent = {home for home in work.homes if home not in up and since.get(home, gone) < late}
        for seat in ready:
            while covers(seat.resources, call.resources) and seat.ready and len(seat.runs) < depth:
                item = work.take(seat.number, seat.worker, absent)
                if item is None:
                    break
                if item.deaths and seat.runs:  # it may take others along
                    work.add(item, first=True)
                    break
                self._give(seat, call, item)

    def _give(self, seat: Seat, call: Call, item: Item) -> None:
        ticket, unit = next(TICKETS), f"{call.label} {item.index}"
        again, item.given = item.given, True
        where = (*self._log, f"{seat.lane}-{seat.number}") if self._log and self.backend.apart else None
        isolated = call.how.isolated
        job = Job(call.function, item.payload, item.index, unit, seat.lane, isolated, self._run_id, again, where)
        seat.runs[ticket] = Run(call, item)
        seat.begin()
        call.work.running += 1
        try:
            if call.how.shared is not None and call.shared is None:
                call.shared = self.backend.share(call.how.shared)
            seat.worker.run(ticket, job, call.shared)
        except Exception as error:  # noqa: BLE001 - what cannot travel to a worker is the step's mistake
            del seat.runs[ticket]
            call.work.running -= 1
            self._deliver(call, Outcome(item.index, fatal=error))

    def _relent(self) -> None:
        """What avoids each worker that is there or on its way goes back to them."""
        for call in self._calls:
            if call.work.waiting:
                able = [s.worker for s in self.staff.seats if not s.leaving and covers(s.resources, call.resources)]
                if able:
                    call.work.relent(able)

    def _resize(self) -> None:
        """Nodes come and go: more payloads may be made ahead, or fewer."""
        if time.monotonic() - self._sized > NODES_SECONDS:
            self._sized = time.monotonic()
            for call in self._calls:
                call.work.ahead = ahead_of(self.staff.slots(call.resources))

    def _alone(self) -> None:
        """Say so when no worker comes up for very long: the cluster is full."""
        now = time.monotonic()
        for call in self._calls:
            work, wanted = call.work, call.resources
            if not work.waiting or any(s.up and covers(s.resources, wanted) for s in self.staff.seats):
                work.since = now
            elif now - work.since > START_SECONDS:
                what = f"{wanted.cpus:g} CPUs and {wanted.gpus:g} GPUs"
                error = f"no worker with {what} could be placed in {START_SECONDS:.0f} s"
                self._deliver(call, Outcome(-1, fatal=CurateError(f"{error}; wait for other jobs, or lower `threads`")))
