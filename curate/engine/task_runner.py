"""Runs the tasks of a run's steps, and lets steps wait for one another."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from curate.core.contracts import Resources, Stage
from curate.core.errors import RESUMES, CurateError, DrainedError, StageError
from curate.core.recipe.pipeline import Pipeline
from curate.engine.backends import CALL_DEFAULTS, CallOptions
from curate.engine.record.events import Events
from curate.engine.tasks.job import Outcome
from curate.engine.workers.scheduler import Scheduler

POLL_SECONDS = 0.5
"""Between two checks of a waiting step whether the run has failed."""


class TaskRunner:
    """Thread-safe: each step of a run is a thread."""

    def __init__(self, pipeline: Pipeline, backend: Scheduler, events: Events) -> None:
        self.backend = backend
        self.failed = threading.Event()
        """A step failed or the run must stop: the other steps end as soon as they can."""
        self._pipeline, self._events = pipeline, events
        self._lock, self._checked = threading.Lock(), False

    def run(
        self,
        function: Callable[..., Any],
        payloads: Iterable[Any],
        resources: Resources,
        options: CallOptions = CALL_DEFAULTS,
        label: str = "",
    ) -> Iterator[Outcome]:
        """Outcomes in any order. Raises DrainedError if the run must stop before all payloads are done. Payloads may be
        an iterator, which is read as workers become free."""
        rest = iter(payloads)
        first = next(rest, None)
        if first is None:
            return
        self.check_resources()
        begun = ended = 0

        def counted() -> Iterator[Any]:
            nonlocal begun
            for payload in itertools.chain([first], rest):
                begun += 1
                yield payload

        whole = counted()
        for outcome in self.backend.map(function, whole, resources, options, label):
            ended += 1
            if outcome.error:
                self._events.emit("failure", task=function.__name__, index=outcome.index, error=outcome.error)
            yield outcome
        left = len(payloads) - ended if isinstance(payloads, Sized) else begun - ended
        if left or next(whole, None) is not None:
            raise drained(left)

    def each(
        self, function: Callable[[Any], Any], payloads: Iterable[Any], stage: Stage, what: str
    ) -> Iterator[tuple[int, Any]]:
        """(index of the payload, value) in any order. Raises StageError if a task fails."""
        for outcome in self.run(function, payloads, stage.resources(), label=what):
            if outcome.error:
                raise StageError(f"{what}: {outcome.error}; fix the cause and rerun the same command")
            yield outcome.index, outcome.value

    def must(self, function: Callable[[Any], Any], payloads: Iterable[Any], stage: Stage, what: str) -> list[Any]:
        """Values in payload order, for global steps. Raises StageError if a task fails."""
        return [value for _, value in sorted(self.each(function, payloads, stage, what), key=lambda found: found[0])]

    def wait(self, event: threading.Event) -> None:
        """Wait for an event of another step. Raises DrainedError if the run ends first."""
        while not event.wait(POLL_SECONDS):
            if self.failed.is_set():
                raise drained()

    def get(self, inbox: queue.Queue[Any]) -> Any:
        """The next message. Raises DrainedError if the run ends first."""
        while True:
            try:
                return inbox.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if self.failed.is_set():
                    raise drained() from None

    def check_resources(self) -> None:
        """Check once, when the backend is first needed, that no stage needs more resources than exist."""
        with self._lock:
            if self._checked:
                return
            self.backend.has_gpu()  # connect here: an unreachable cluster is not a stage error
            for node in self._pipeline.nodes.values():
                try:
                    self.backend.slots(node.stage.resources())
                except CurateError as error:
                    raise node.fail(str(error)) from None
            self._checked = True


def drained(tasks: int = 0) -> DrainedError:
    """The error of a run that must stop, with so many tasks to do."""
    what = f"stopped with {tasks:,} tasks to do" if tasks else "stopped"
    return DrainedError(f"{what}; {RESUMES}")
