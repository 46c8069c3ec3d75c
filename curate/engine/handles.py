"""Runs as they are waited for: in a thread of this process, or in another process, known by what it writes down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

from rich.console import Console

from curate.core.recipe.pipeline import Pipeline
from curate.core.store.lease import Watch
from curate.core.store.storage import Storage
from curate.engine import detach
from curate.engine.backends import Backend
from curate.engine.context import Counts, Options
from curate.engine.record.runs import Run as Record
from curate.engine.record.status import Status
from curate.engine.run import Result
from curate.engine.run import run as carry_out

ASK_SECONDS = 15.0
"""Between two questions to a cluster."""
STARTING_SECONDS = 10.0
"""How long a run without result and heartbeat is taken to be about to start."""


class Task:
    """A run in a thread of this process. `guard` is entered around it."""

    def __init__(self, backend: Backend, guard: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.backend, self.guard = backend, guard
        self._future: Future[Result] = Future()
        self._stopping = threading.Event()

    def start(self, *words: Any) -> None:
        threading.Thread(target=self._carry_out, args=words, name="curate-run", daemon=True).start()

    def _carry_out(self, pipeline: Pipeline, url: str, options: Options, run_id: str, console: Console | None) -> None:
        try:
            with self.guard(), closing(self.backend):
                about = {"engine": self.backend, "options": options, "run_id": run_id, "console": console}
                found = carry_out(pipeline, url, **about, stop=self._stopping)  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 - raised by `wait`, whatever it is
            self._future.set_exception(error)
        else:
            self._future.set_result(found)

    def stop(self) -> None:
        """May be called in a signal handler."""
        self._stopping.set()

    def done(self) -> bool:
        return self._future.done()

    def wait(self, timeout: float | None) -> Result:
        if timeout is not None and not futures.wait([self._future], timeout).done:
            raise TimeoutError(f"the run is still going after {timeout:g} s")
        return self._future.result()

    def status(self, run_id: str) -> Status:
        """Of a run that has no record yet, or has failed before it could have one."""
        error = self._future.exception() if self._future.done() else None
        return Status(run_id, "failed" if error else "starting", error=str(error or ""))


class Ended:
    """Whether a run in another process has ended, by its result or a heart that has stood still; never by another
    host's clock."""

    def __init__(self, storage: Storage, run_id: str) -> None:
        self.storage, self.run_id = storage, run_id
        self._watch: Watch | None = None
        self._asked = time.monotonic()
        """When the cluster was last asked for the job of a submission."""
        self._gone: float | None = None
        """Since when there has been neither result nor lease."""

    def __call__(self) -> bool:
        """Raises InputError where there is no such run."""
        if self.storage.exists(f"runs/{self.run_id}/result.json"):
            return True
        now = time.monotonic()
        ask = now - self._asked > ASK_SECONDS
        waiting = detach.status(self.storage, self.run_id, ask)
        if waiting is not None:
            self._asked = now if ask else self._asked
            return waiting.ended
        path = Record.load(self.storage, self.run_id).lease
        self._watch = self._watch or Watch(self.storage, path)
        if self._watch.look() is not False:
            self._gone = None
            return False
        self._gone = now if self._gone is None else self._gone
        return self.storage.exists(path) or now - self._gone > STARTING_SECONDS


def result_of(record: Record) -> Result:
    """What a run in another process has left."""
    assert record.result is not None
    outputs = {name: record.storage.url_of(output["base"]) for name, output in record.outputs.items()}
    counts = {name: Counts(**found) for name, found in record.counts().items()}
    ops = {name: op for name, op in record.ops().items() if name in outputs}
    return Result(record.run_id, outputs, record.ledger(), ops, record.seconds, record.reused(), counts)
