"""A Ray backend whose workers outlive their run, because each start takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curate.core.contracts import Resources
from curate.engine.backends import Notify, TaskEnded, WorkerUp
from curate.engine.backends.ray import RayBackend, RayWorker

Size = tuple[str, Resources]


class WarmRay(RayBackend):
    """A run gets the idle workers of the run before it if they have the right size; otherwise they end."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: list[tuple[Size, RayWorker]] = []

    def start(self, lane: str, resources: Resources, units: int, notify: Notify, run: str = "") -> RayWorker:
        size = (lane, resources)
        self.idle = [(of, worker) for of, worker in self.idle if not worker._dead.is_set()]
        same = [pair for pair in self.idle if pair[0] == size]
        if not same:
            self.release()
            return self._watched(super().start(lane, resources, units, notify, run), size)
        self.idle.remove(same[0])
        worker = same[0][1]
        worker.notify = self._noting(worker, notify)
        worker.notify(WorkerUp(worker, worker.node, worker.address))
        return worker

    def _watched(self, worker: RayWorker, size: Size) -> RayWorker:
        """The worker, which is kept in place of an end if it is idle."""
        ask = worker.run

        def run(ticket: int, *rest: Any) -> None:
            worker.tickets.add(ticket)
            ask(ticket, *rest)

        def kill() -> None:
            if worker.node and not (worker.tickets or worker.stopped or worker._dead.is_set()):
                worker.notify = lambda _: None
                self.idle.append((size, worker))
            else:
                RayWorker.kill(worker)

        def end(ticket: int) -> bool:
            RayWorker.kill(worker)
            return False

        stop = worker.wind_down

        def wind_down(tickets: Any) -> None:
            worker.stopped |= tickets is None  # it takes no tasks any more
            stop(tickets)

        changes: dict[str, Callable[..., Any]] = {"run": run, "kill": kill, "end": end, "wind_down": wind_down}
        for name, function in changes.items():
            setattr(worker, name, function)
        worker.tickets, worker.stopped = set(), False
        worker.notify = self._noting(worker, worker.notify)
        return worker

    def _noting(self, worker: RayWorker, notify: Notify) -> Notify:
        def told(event: Any) -> None:
            if isinstance(event, TaskEnded):
                worker.tickets.discard(event.ticket)
            elif isinstance(event, WorkerUp):
                worker.address = event.name
            notify(event)

        return told

    def release(self) -> None:
        """End the idle workers."""
        for _, worker in self.idle:
            RayWorker.kill(worker)
        self.idle = []

    def close(self) -> None:
        self.release()
        super().close()
