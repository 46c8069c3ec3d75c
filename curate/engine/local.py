"""The local backend: everything in this process, one payload after the other. No Ray, no surprises, easy to debug."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from curate.core.errors import CurateError
from curate.core.stage import Resources
from curate.engine.backend import Outcome, attempt

START_METHOD = "forkserver"
PRELOADED = ["curate.engine.passes"]
"""What a server process imports once, so that each isolated payload costs a fork of it and no imports."""


class LocalBackend:
    name = "local"

    def __init__(self) -> None:
        self.draining = threading.Event()

    def slots(self, resources: Resources) -> int:
        return 1

    def map(
        self,
        function: Callable[[Any], Any],
        payloads: Sequence[Any],
        resources: Resources,
        *,
        isolated: bool = False,
    ) -> Iterator[Outcome]:
        for index, payload in enumerate(payloads):
            if self.draining.is_set():
                return
            if isolated:
                yield _in_child(function, payload, index)
            else:
                value, error = attempt(function, payload)
                yield Outcome(index, value, error)

    def close(self) -> None:
        pass


def _in_child(function: Callable[[Any], Any], payload: Any, index: int) -> Outcome:
    """One payload in a process that ends with it; not a pool, whose workers outlive a driver that is killed."""
    context = multiprocessing.get_context(START_METHOD)
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs, dict(os.environ), function, payload), daemon=True)
    child.start()
    theirs.close()
    try:
        value, error, fatal = ours.recv()
    except EOFError:
        return Outcome(index, error="the worker process died", crashed=True)
    finally:
        child.join()
        ours.close()
    if fatal is not None:
        raise fatal
    return Outcome(index, value, error)


def _child(pipe: Connection, environment: dict[str, str], function: Callable[[Any], Any], payload: Any) -> None:
    os.environ.update(environment)
    try:
        pipe.send((*attempt(function, payload), None))
    except CurateError as fatal:
        pipe.send((None, None, fatal))
