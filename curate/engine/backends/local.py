"""The local backend: everything in this process, each lane a thread or a few. No Ray, no surprises, easy to debug."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from curate.core.contracts import Resources
from curate.engine.backends import Ended, Job, Looked, Tasks, Tell, Up
from curate.engine.workers.beat import TURNS
from curate.engine.workers.lanes import Node

MANY = 1 << 20
_left: list[threading.Thread] = []


def abandoned() -> int:
    """Threads of tasks that hung and still do. They are daemons, but what they have started may not be: a process with
    such threads ends by `os._exit`."""
    _left[:] = [thread for thread in _left if thread.is_alive()]
    return len(_left)


class LocalBackend:
    name = "local"
    apart = False
    shared = False
    queued = 0

    def nodes(self) -> Sequence[Node]:
        return [Node("local", MANY, MANY, 1 << 62)]

    def has_gpu(self) -> bool:
        return Path("/dev/nvidia0").exists()

    def most(self) -> Mapping[str, int]:
        return {"cpu": 1, "gpu": 1, "remote": 1}

    def size(self, resources: Resources) -> Resources:
        """One worker per lane takes whatever comes."""
        return Resources(1, 1 if resources.gpus else 0, 0, resources.remote)

    def start(self, lane: str, resources: Resources, units: int, tell: Tell) -> LocalWorker:
        return LocalWorker(lane, units, tell)

    def park(self, lane: str, resources: Resources, worker: Any) -> None:
        worker.kill()

    def parked(self, tell: Tell) -> Sequence[tuple[str, Resources, Any]]:
        return ()

    def lost(self, worker: Any) -> bool:
        return False

    def post(self, run: str, said: Mapping[str, float] | None, heard: Callable[[Mapping[str, Any]], None]) -> None:
        """Nobody shares a process."""

    def share(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        pass


class LocalWorker:
    """Some threads, started when they are needed."""

    node = "local"

    def __init__(self, lane: str, units: int, tell: Tell) -> None:
        self.lane, self.units, self.tell = lane, units, tell
        self.tasks = Tasks()
        self._jobs: queue.SimpleQueue[tuple[int, Job, Any] | None] = queue.SimpleQueue()
        self._threads: dict[threading.Thread, int | None] = {}
        """Thread -> ticket of the task in it."""
        self._open: set[int] = set()
        """Tickets of tasks that have not ended."""
        tell(Up(self))

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
            outcome, look = self.tasks.run(ticket, job, shared)
            if me not in self._threads:  # it hung, and was given up
                return
            self._threads[me] = None
            self._open.discard(ticket)
            self.tell(Ended(self, ticket, outcome, look))

    def look(self) -> None:
        self.tell(Looked(self, self.tasks.looks()))

    def call(self, function: Callable[[Any], Any], payload: Any) -> None:
        function(payload)

    def wind_down(self, tickets: Sequence[int] | None) -> None:
        self.tasks.wind_down(tickets)

    def flush(self) -> None:
        self.look()

    def end(self, ticket: int) -> bool:
        for thread, held in list(self._threads.items()):
            if held == ticket:
                self.tasks.abandon(ticket)
                del self._threads[thread]
                self._open.discard(ticket)
                _left.append(thread)
                if self.lane in TURNS:
                    TURNS[self.lane].free(thread.ident)
        return True

    def kill(self) -> None:
        """Threads without a task end; those with one are left alone."""
        for held in list(self._threads.values()):
            if held is not None:
                self.end(held)
            self._jobs.put(None)
