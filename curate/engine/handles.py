"""Waiting for runs: in a thread of this process, or in another process, observed through its files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

from rich.console import Console

from curate.core.recipe.pipeline import Pipeline
from curate.core.store.lease import HeartbeatWatch
from curate.core.store.storage import Storage
from curate.engine import detach
from curate.engine.backends import Backend
from curate.engine.record.runs import RunRecord
from curate.engine.record.status import Status
from curate.engine.run import Result, run
from curate.engine.state import Counts, Options

WAIT_SECONDS = 0.5
"""Longest wait that Ctrl-C cannot interrupt."""
ASK_SECONDS = 15.0
"""Between two queries of a cluster."""
STARTING_SECONDS = 10.0
"""A run without result and heartbeat counts as starting for this long."""


class LocalRun:
    """A run in a thread of this process, inside the context manager that `guard` returns."""

    def __init__(self, backend: Backend, guard: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.backend, self.guard = backend, guard
        self._future: Future[Result] = Future()
        self._stopping = threading.Event()

    def start(
        self,
        pipeline: Pipeline,
        url: str,
        options: Options,
        run_id: str,
        console: Console | None,
        submission: Mapping[str, str] | None = None,
    ) -> None:
        words = {"options": options, "run_id": run_id, "console": console, "submission": submission}
        threading.Thread(target=self._run, args=(pipeline, url, words), name="curate-run", daemon=True).start()

    def _run(self, pipeline: Pipeline, url: str, words: dict[str, Any]) -> None:
        try:
            with self.guard(), closing(self.backend):
                result = run(pipeline, url, engine=self.backend, stop=self._stopping, **words)
        except BaseException as error:  # noqa: BLE001 - raised again by `wait`
            self._future.set_exception(error)
        else:
            self._future.set_result(result)

    def stop(self) -> None:
        """Request the run to stop. Safe in a signal handler."""
        self._stopping.set()

    def done(self) -> bool:
        return self._future.done()

    def wait(self, timeout: float | None) -> Result:
        if timeout is not None and not futures.wait([self._future], timeout).done:
            raise TimeoutError(f"the run is still running after {timeout:g} s")
        while not futures.wait([self._future], WAIT_SECONDS).done:
            pass  # polars restarts waits that Ctrl-C interrupts, so that a longer wait would not notice it
        return self._future.result()

    def status(self, run_id: str) -> Status:
        """Status of a run without a record: it is starting, or failed before it could write one."""
        error = self._future.exception() if self._future.done() else None
        return Status(run_id, "failed" if error else "starting", error=str(error or ""))


class EndCheck:
    """Whether a run in another process has ended: it has a result, or its heartbeat has stopped. Never compares the
    clocks of two hosts."""

    def __init__(self, storage: Storage, run_id: str) -> None:
        self.storage, self.run_id = storage, run_id
        self._watch: HeartbeatWatch | None = None
        self._asked = time.monotonic()
        """When the cluster was last queried for the job of a submission."""
        self._gone: float | None = None
        """Since when neither a result nor a lease exists."""

    def __call__(self) -> bool:
        """Whether it has ended. Raises InputError if the run does not exist."""
        if self.storage.exists(f"runs/{self.run_id}/result.json"):
            return True
        now = time.monotonic()
        ask = now - self._asked > ASK_SECONDS
        waiting = detach.status(self.storage, self.run_id, ask)
        if waiting is not None:
            self._asked = now if ask else self._asked
            return waiting.ended
        path = RunRecord.load(self.storage, self.run_id).lease
        self._watch = self._watch or HeartbeatWatch(self.storage, path)
        if self._watch.look() is not False:
            self._gone = None
            return False
        self._gone = now if self._gone is None else self._gone
        return self.storage.exists(path) or now - self._gone > STARTING_SECONDS


def result_of(record: RunRecord) -> Result:
    """Result of a run in another process, from its record."""
    assert record.result is not None
    outputs = {name: record.storage.url_of(output["base"]) for name, output in record.outputs.items()}
    counts = {name: Counts(**found) for name, found in record.counts().items()}
    ops = {name: op for name, op in record.ops().items() if name in outputs}
    made = Result(record.run_id, outputs, record.ledger(), ops, record.seconds, record.reused(), counts)
    made.spend = record.spend()
    return made
