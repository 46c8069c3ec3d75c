"""The local backend: every lane is a few threads of this process. Needs no Ray and is easy to debug."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from curate.core.contracts import Resources
from curate.engine.backends import ClusterNode, Notify, Snapshots, TaskEnded, WorkerUp
from curate.engine.tasks.job import Job
from curate.engine.tasks.running import Tasks
from curate.engine.tasks.turn import TURNS

MANY = 1 << 20
_hung: list[threading.Thread] = []


def abandoned() -> int:
    """Number of threads whose tasks hang. They are daemons, but threads that they started may not be, so a process
    with such threads must end by `os._exit`."""
    _hung[:] = [thread for thread in _hung if thread.is_alive()]
    return len(_hung)


class LocalBackend:
    name = "local"
    separate = False
    shared = False

    def trouble(self) -> str:
        return ""

    def nodes(self) -> Sequence[ClusterNode]:
        return [ClusterNode("local", MANY, MANY, 1 << 62)]

    def host(self) -> str:
        return "127.0.0.1"

    def has_gpu(self) -> bool:
        return Path("/dev/nvidia0").exists()

    def worker_limits(self) -> Mapping[str, int]:
        return {"cpu": 1, "gpu": 1, "remote": 1}

    def size(self, resources: Resources) -> Resources:
        """One worker per lane runs tasks of any size."""
        return Resources(1, 1 if resources.gpus else 0, 0, resources.remote)

    def start(self, lane: str, resources: Resources, units: int, notify: Notify, run: str = "") -> LocalWorker:
        return LocalWorker(lane, units, notify)

    def other_runs(self, run: str) -> Sequence[str]:
        return ()

    def share(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        pass


class LocalWorker:
    """Up to `units` threads, started when they are needed."""

    node = "local"

    def __init__(self, lane: str, units: int, notify: Notify) -> None:
        self.lane, self.units, self.notify = lane, units, notify
        self.tasks = Tasks()
        self._jobs: queue.SimpleQueue[tuple[int, Job, Any] | None] = queue.SimpleQueue()
        self._threads: dict[threading.Thread, int | None] = {}
        """Thread -> ticket of the task in it."""
        self._open: set[int] = set()
        """Tickets of tasks that have not ended."""
        notify(WorkerUp(self))

    def run(self, ticket: int, job: Job, shared: Any) -> None:
        self._open.add(ticket)
        self._jobs.put((ticket, job, shared))
        if len(self._threads) < min(self.units, len(self._open)):
            thread = threading.Thread(target=self._work, daemon=True, name=f"{self.lane} unit")
            self._threads[thread] = None
            thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while (taken := self._jobs.get()) is not None:
            ticket, job, shared = taken
            if me not in self._threads:
                return
            self._threads[me] = ticket
            outcome, snapshot = self.tasks.run(ticket, job, shared)
            if me not in self._threads:  # the task hung and was abandoned
                return
            self._threads[me] = None
            self._open.discard(ticket)
            self.notify(TaskEnded(self, ticket, outcome, snapshot))

    def request_snapshots(self) -> None:
        self.notify(Snapshots(self, self.tasks.snapshots()))

    def call(self, function: Callable[[Any], Any], payload: Any) -> None:
        function(payload)

    def wind_down(self, tickets: Sequence[int] | None) -> None:
        self.tasks.wind_down(tickets)

    def flush(self) -> None:
        self.request_snapshots()

    def end(self, ticket: int) -> bool:
        for thread, held in list(self._threads.items()):
            if held == ticket:
                self.tasks.abandon(ticket)
                del self._threads[thread]
                self._open.discard(ticket)
                _hung.append(thread)
                if self.lane in TURNS:
                    TURNS[self.lane].free(thread.ident)
        return True

    def kill(self) -> None:
        """End idle threads and abandon the tasks of the others."""
        for held in list(self._threads.values()):
            if held is not None:
                self.end(held)
            self._jobs.put(None)
