"""One payload in a process of its own, which may die of it without taking anything along."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from curate.core.errors import CurateError
from curate.engine import beat
from curate.engine.backends import Outcome, attempted

START_METHOD = "forkserver"
PRELOADED = ["curate.engine.passes.task", "curate.cli", "ray"]
"""What a server process imports once (as far as it is there), so that a payload costs a fork of it and no imports."""
RELAY_SECONDS = 0.25
"""Between two looks at the child's beat."""


def run_isolated(function: Callable[[Any], Any], payload: Any, index: int) -> Outcome:
    """Not in a pool of processes: its workers would outlive a driver that is killed. This one ends with its payload,
    or with us."""
    context = multiprocessing.get_context(START_METHOD)
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe()
    mine = beat.current()
    told = mine.unit, mine.lane
    child = context.Process(target=_child, args=(theirs, dict(os.environ), told, function, payload, index), daemon=True)
    child.start()
    theirs.close()
    try:
        outcome = _watched(ours, mine)
    except (EOFError, ConnectionError):
        return Outcome(index, error="the worker process died", crashed=True)
    finally:
        if mine.abandoned:
            child.kill()
        child.join()
        ours.close()
    if outcome.fatal is not None:
        raise outcome.fatal
    return outcome


def _watched(pipe: Connection, mine: beat.Beat) -> Outcome:
    """The child's outcome; until it is there, its beat is ours."""
    asked = False
    while True:
        if mine.stopping and not asked:
            asked = True
            pipe.send("stop")
        if mine.abandoned:
            raise EOFError
        if pipe.poll(RELAY_SECONDS / 2):
            kind, value = pipe.recv()
            if kind == "outcome":
                return value  # type: ignore[no-any-return]
            mine.relay(value)


def _child(
    pipe: Connection,
    environment: dict[str, str],
    told: tuple[str, str],
    function: Callable[[Any], Any],
    payload: Any,
    index: int,
) -> None:
    os.environ.update(environment)
    mine, sending, over = beat.Beat(*told), threading.Lock(), threading.Event()
    mine.turn = beat.turn(mine.lane)
    threading.Thread(target=_relay, args=(pipe, mine, sending, over), daemon=True, name="relay").start()
    try:
        with beat.beating(mine):
            outcome = attempted(function, payload, index)
    except CurateError as fatal:
        outcome = Outcome(index, fatal=fatal)
    with sending:
        over.set()
        pipe.send(("beat", mine.look()))
        pipe.send(("outcome", outcome))


def _relay(pipe: Connection, mine: beat.Beat, sending: threading.Lock, over: threading.Event) -> None:
    """Send the beat every second, and hear whether to stop; end the process if nobody listens any more."""
    while not over.wait(RELAY_SECONDS):
        try:
            with sending:
                if over.is_set():
                    return
                pipe.send(("beat", mine.look()))
            if pipe.poll() and pipe.recv() == "stop":
                mine.stopping = True
        except (OSError, EOFError):
            os._exit(1)
