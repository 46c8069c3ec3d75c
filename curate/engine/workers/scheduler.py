"""The scheduler runs the payloads of a run's steps, in lanes that work side by side.

Each step of the DAG is a thread of the driver. It opens calls here (`Scheduler.open`, or `map` for payloads made
lazily) and reads their outcomes. A separate thread (`curate.engine.workers.dispatch`) owns the workers.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from curate.core.contracts import Resources
from curate.core.errors import CurateError
from curate.core.store.storage import Storage
from curate.engine.backends import CALL_DEFAULTS, Backend, CallOptions
from curate.engine.record import logs
from curate.engine.record.events import Events
from curate.engine.tasks.job import Outcome
from curate.engine.workers.allocation import Allocated
from curate.engine.workers.calls import END, Call, ahead_of
from curate.engine.workers.dispatch import Dispatcher
from curate.engine.workers.lanes import Budget
from curate.engine.workers.limiter import Limiter
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
    """Thread-safe. Logs are published under `storage` and `run_id`, progress goes to `events`; `deadline` (seconds)
    replaces the limits of `Meter.limit` for units that finish no batch; `budget` bounds what its workers take."""

    def __init__(
        self,
        backend: Backend,
        *,
        storage: Storage | None = None,
        run_id: str = "",
        deadline: float | None = None,
        events: Events | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.backend, self.separate = backend, backend.separate
        self.meter = Meter(deadline)
        self.draining = Draining(lambda: self.post("wake"))
        """Once set, no further payload is started; running ones end."""
        self._inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._log = (storage.url, run_id) if storage is not None and run_id else None
        if self._log is not None:
            logs.attach(*self._log, "driver")
        self._dispatcher = Dispatcher(
            backend, self._inbox, self.draining, self.meter, events, run_id, self._log, budget or Budget()
        )
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._limiter: Limiter | None = None

    def slots(self, resources: Resources) -> int:
        """How many tasks with these resources can run at a time. Raises CurateError if none can."""
        slots = self._dispatcher.workers.slots(resources)
        if slots < 1:
            nodes, wanted = self._dispatcher.workers.cluster()[0], self.backend.size(resources)
            budget = self._dispatcher.workers.budget
            cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
            have = f"{cpus:g} CPUs and {gpus:g} GPUs on {len(nodes)} node{'s' if len(nodes) != 1 else ''}"
            want = f"{wanted.cpus:g} CPUs and {wanted.gpus:g} GPUs on one node"
            if not budget.workers(wanted):
                few = "cpus" if wanted.cpus > budget.cpus else "gpus"
                most = f"{getattr(budget, few):g} {few[:-1].upper()}s; raise --{few}"
                raise CurateError(
                    f"a stage needs {want}, the run may take {most}{', or lower `threads`' * (few == 'cpus')}"
                )
            raise CurateError(f"a stage needs {want}, the cluster has {have}; lower `threads` or add nodes")
        return slots

    def allocated(self) -> Allocated:
        """What its workers have occupied so far."""
        return self._dispatcher.workers.allocation.so_far()

    def has_gpu(self) -> bool:
        """Whether any node has a GPU that the run may take."""
        return self._dispatcher.workers.budget.gpus > 0 and self.backend.has_gpu()

    def open(
        self,
        function: Callable[..., Any],
        resources: Resources,
        options: CallOptions = CALL_DEFAULTS,
        inbox: queue.Queue[Any] | None = None,
        label: str = "",
    ) -> Call:
        """Open a call, which takes payloads one by one. `inbox` receives (call, Outcome) for each finished payload and
        (call, None) after the last; an outcome with `fatal` is the last of its call."""
        ahead = ahead_of(self.slots(resources))
        size = self.backend.size(resources)
        call = Call(self.post, function, size, options, inbox, label or getattr(function, "__name__", "call"), ahead)
        self.post("open", call)
        return call

    def map(
        self,
        function: Callable[..., Any],
        payloads: Iterable[Any],
        resources: Resources,
        options: CallOptions = CALL_DEFAULTS,
        label: str = "",
    ) -> Iterator[Outcome]:
        """Outcomes in any order. Payloads are made in the iterating thread, as workers become free. Raises any
        CurateError but StorageError, because another attempt cannot succeed."""
        rest = iter(list(payloads) if options.sticky else payloads)
        payload = next(rest, END)
        if payload is END or self.draining.is_set():
            return
        call = self.open(function, resources, options, label=label)
        try:
            while True:
                while payload is not END and (options.sticky or call.room()):
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
        """Run function(payload) in every worker that is up, without waiting for it."""
        self.post("broadcast", function, payload)

    @property
    def limiter(self) -> Limiter:
        """The run's limiter, which the first use starts."""
        with self._guard:
            if self._limiter is None:
                self._limiter = Limiter(self.backend.host())
            return self._limiter

    @property
    def has_limiter(self) -> bool:
        return self._limiter is not None

    def release(self) -> None:
        """End idle workers: the run that this one waits for may need their resources."""
        self.post("release")

    def stop(self) -> None:
        """Start no further payload, tell tasks to wind down, and end those that still run after
        `dispatch.GRACE_SECONDS`. Calls then end with fewer outcomes than payloads. Returns at once; safe to repeat
        and to call from a signal handler."""
        self.draining.set()
        self.post("stop")

    def close(self) -> None:
        """End running tasks, the workers and the scheduler's thread."""
        if self._thread is not None:
            self.post("end")
            self._thread.join()
            self._thread = None
        if self._limiter is not None:
            self._limiter.close()  # it still knows what was spent
        if self._log is not None:
            logs.detach(*self._log)

    def post(self, *message: Any) -> None:
        """Send a message to the scheduler's thread, which the first call starts. Raises the error that ended it."""
        if message[0] != "open":
            self._inbox.put(message)
            return
        with self._dispatcher.opening:
            if self._dispatcher.broken is not None:
                raise self._dispatcher.broken
            self._inbox.put(message)
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._dispatcher.serve, daemon=True, name="scheduler")
                self._thread.start()
