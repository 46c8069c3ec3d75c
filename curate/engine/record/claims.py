"""What a run is about to read, so that gc keeps it.

A run records each folder that it is about to read, waits while gc holds its lease, and only then reads. So gc never
removes an output that a run has found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.task_runner import drained

LEASE = "gc"


def wait(storage: Storage, over: Callable[[], bool] = lambda: False) -> None:
    """Wait until no gc is running, or until `over()`."""
    path = lease.lease_path(LEASE)
    while not over() and lease.is_alive(storage, path):
        time.sleep(lease.POLL_SECONDS)


def keep(ctx: Context, folders: Iterable[Mapping[str, str]]) -> None:
    """Record the folders that this run is about to read (`stage`, `base`, `path` of facts, `mask`), so that gc keeps
    them; then wait for a running gc. The run reads nothing there before that."""
    for folder in folders:
        ctx.events.emit("build", **folder)
    ctx.events.flush()
    wait(ctx.storage, lambda: ctx.tasks.failed.is_set() or ctx.backend.draining.is_set())
    if ctx.tasks.failed.is_set() or ctx.backend.draining.is_set():
        raise drained()


@contextmanager
def exclusive(storage: Storage) -> Iterator[None]:
    """Hold gc's lease."""
    with lease.hold(storage, LEASE, lambda: False):
        yield
