"""The scheduler: where the steps of a run have their payloads carried out, in lanes that are alive side by side.

Each step of the DAG is a thread of the driver. It opens calls here (`Scheduler.open`, or `map` for payloads that are
made on the way) and reads their outcomes. One thread of its own (`curate.engine.workers.dispatch`) owns the workers.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from curate.core.contracts import Resources
from curate.core.errors import CurateError
from curate.core.store.storage import Storage
from curate.engine.backends import HOW, Backend, How, Outcome
from curate.engine.record import logs
from curate.engine.record.events import Events
from curate.engine.workers.calls import END, Call, ahead_of
from curate.engine.workers.dispatch import Dispatch
from curate.engine.workers.meter import Meter


class Draining(threading.Event):
    """Once set, no further payload is started."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake

    def set(self) -> None:
        super().set()
        self._wake()


class Scheduler:
    """Thread-safe. `storage` and `run_id` say where logs go, `events` gets progress; `deadline` (seconds) is how long a
    unit may finish no batch, instead of what `Meter.limit` says."""

    def __init__(
        self,
        backend: Backend,
        *,
        storage: Storage | None = None,
        run_id: str = "",
        deadline: float | None = None,
        events: Events | None = None,
    ) -> None:
        self.backend, self.name = backend, backend.name
        self.meter = Meter(deadline)
        self.draining = Draining(lambda: self.post("wake"))
        """Once set, no further payload is started; those under way end."""
        self._inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._log = (storage.url, run_id) if storage is not None and run_id else None
        if self._log is not None:
            logs.attach(*self._log, "driver")
        self._dispatch = Dispatch(backend, self._inbox, self.draining, self.meter, events, run_id, self._log)
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def slots(self, resources: Resources) -> int:
        """How many tasks with these resources can run at a time. Raises CurateError where not even one can."""
        slots = self._dispatch.staff.slots(resources)
        if slots < 1:
            nodes, wanted = self._dispatch.staff.cluster()[0], self.backend.size(resources)
            cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
            have = f"{cpus:g} CPUs and {gpus:g} GPUs on {len(nodes)} node{'s' if len(nodes) != 1 else ''}"
            want = f"{wanted.cpus:g} CPUs and {wanted.gpus:g} GPUs on one node"
            raise CurateError(f"a stage needs {want}, the cluster has {have}; lower `threads` or add nodes")
        return slots

    def has_gpu(self) -> bool:
        """Whether there is a GPU where tasks run."""
        return self.backend.has_gpu()

    def open(
        self,
        function: Callable[..., Any],
        resources: Resources,
        how: How = HOW,
        inbox: queue.Queue[Any] | None = None,
        label: str = "",
    ) -> Call:
        """A call: payloads are put into it one by one. With `inbox`, that queue gets (call, Outcome) for each payload
        that ends and (call, None) after the last; an outcome with `fatal` is the last of its call."""
        ahead = ahead_of(self.slots(resources))
        size = self.backend.size(resources)
        call = Call(self.post, function, size, how, inbox, label or getattr(function, "__name__", "call"), ahead)
        self.post("open", call)
        return call

    def map(
        self,
        function: Callable[..., Any],
        payloads: Iterable[Any],
        resources: Resources,
        how: How = HOW,
        label: str = "",
    ) -> Iterator[Outcome]:
        """Outcomes as they come, in any order. Payloads are made in the thread that iterates, as workers can take
        them. What no other attempt can mend (a CurateError but StorageError) is raised."""
        rest = iter(list(payloads) if how.sticky else payloads)
        payload = next(rest, END)
        if payload is END or self.draining.is_set():
            return
        call = self.open(function, resources, how, label=label)
        try:
            while True:
                while payload is not END and (how.sticky or call.room()):
                    call.put(payload)
                    payload = END if call.over else next(rest, END)
                if payload is END:
                    call.close()
                found = call.next()
                if found is END:
                    return
                yield found
        finally:
            call.cancel()

    def broadcast(self, function: Callable[[Any], Any], payload: Any) -> None:
        """function(payload) in every worker that is up; nobody waits for it."""
        self.post("broadcast", function, payload)

    def release(self) -> None:
        """Let idle workers go: somebody we wait for may need what they hold."""
        self.post("release")

    def stop(self) -> None:
        """No further payload is started, tasks are told to wind down, and those that still run after
        `dispatch.GRACE_SECONDS` are ended. Calls then end with fewer outcomes than payloads. Returns at once; may be
        called again, and by a signal handler."""
        self.draining.set()
        self.post("stop")

    def close(self) -> None:
        """End what still runs, and the scheduler's thread. Idle workers stay with the backend, for the next scheduler
        over it, until that is closed."""
        if self._thread is not None:
            self.post("end")
            self._thread.join()
            self._thread = None
        if self._log is not None:
            logs.detach(*self._log)

    def post(self, *message: Any) -> None:
        """Say something to the scheduler's thread, which is started by the first call. Raises what has ended it."""
        if message[0] != "open":
            self._inbox.put(message)
            return
        with self._dispatch.opening:
            if self._dispatch.broken is not None:
                raise self._dispatch.broken
            self._inbox.put(message)
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._dispatch.serve, daemon=True, name="scheduler")
                self._thread.start()
