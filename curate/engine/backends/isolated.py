"""One payload in a process of its own, which may die of it without taking anything along."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from curate.core.errors import CurateError
from curate.engine.backends import Outcome, attempt

START_METHOD = "forkserver"
PRELOADED = ["curate.engine.passes.task", "curate.cli", "ray"]
"""What a server process imports once (as far as it is there), so that a payload costs a fork of it and no imports."""


def run_isolated(function: Callable[[Any], Any], payload: Any, index: int) -> Outcome:
    """Not in a pool of processes: its workers would outlive a driver that is killed. This one ends with its payload."""
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
