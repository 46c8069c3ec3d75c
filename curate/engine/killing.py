"""The end of a driver that was requested to end at once (`curate stop --kill`): its process kills itself.

Nothing is committed, but what was committed before stays, so that the same command resumes from there. The workers of
the process end with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator

from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.engine.record import logs, stop

CHECK_SECONDS = 1.0
FLUSH_SECONDS = 1.0
"""Time limit for publishing the last events and log lines."""
log = logging.getLogger("curate.run")


@contextlib.contextmanager
def killed_on_request(storage: Storage, run_id: str, flush: Callable[[], None]) -> Iterator[None]:
    """End this process soon after a request to kill the run, even if its other threads hang."""
    end_if_requested(storage, run_id)  # it never begins
    over = threading.Event()

    def watch() -> None:
        while not over.wait(CHECK_SECONDS):
            end_if_requested(storage, run_id, flush)

    thread = threading.Thread(target=watch, daemon=True, name="kill")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(CHECK_SECONDS)  # it may wait for the file system


def end_if_requested(storage: Storage, run_id: str, flush: Callable[[], None] = lambda: None) -> None:
    """End this process if a kill was requested."""
    with contextlib.suppress(Exception):  # the file system may fail for a moment; the next check tries again
        if (request := stop.kill_requested(storage, run_id)) is not None:
            log.warning("run %s: killed, as %s on %s requested", run_id, request.get("user"), request.get("host"))
            _end(storage, run_id, flush)


def _end(storage: Storage, run_id: str, flush: Callable[[], None]) -> None:
    def last() -> None:
        storage.remove_file(lease.lease_path(f"runs/{run_id}"))  # others see at once that its driver is gone
        flush()
        logs.flush()

    thread = threading.Thread(target=last, daemon=True, name="last words")
    thread.start()
    thread.join(FLUSH_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
