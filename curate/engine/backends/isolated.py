"""One payload in a process of its own, which may die of it without taking anything along."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from curate.core.errors import CurateError
from curate.core.recipe.secrets import redact
from curate.engine.backends import Outcome, attempted
from curate.engine.record.logs import LOGGER
from curate.engine.workers import beat

START_METHOD = "forkserver"
PRELOADED = ["curate.engine.passes.task", "curate.cli", "ray"]
"""What a server process imports once (as far as it is there), so that a payload costs a fork of it and no imports."""
RELAY_SECONDS = 0.25
"""Between two looks at the child's beat."""


@dataclass(frozen=True)
class Told:
    """What the child has to know of the task."""

    unit: str
    lane: str
    run: str
    again: bool
    level: int
    """Of its log."""


class Relayed(logging.Handler):
    """What the child logs, sent to its parent, whose log it is part of. Its secrets stay with it."""

    def __init__(self, pipe: Connection, sending: threading.Lock) -> None:
        super().__init__()
        self._pipe, self._sending = pipe, sending

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a message that cannot be formatted or sent must not end the task
            said: dict[str, Any] = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
            said |= {"created": record.created, "msg": redact(record.getMessage())}
            said["stage"] = getattr(record, "stage", "") or beat.current().stage
            if record.exc_info and record.exc_info[0] is not None:
                said["exc_text"] = redact("".join(traceback.format_exception(*record.exc_info)))
            with self._sending:
                self._pipe.send(("log", said))


def run_isolated(function: Callable[[Any], Any], payload: Any, index: int) -> Outcome:
    """Not in a pool of processes: its workers would outlive a driver that is killed. This one ends with its payload,
    or with us."""
    context = multiprocessing.get_context(START_METHOD)
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe()
    mine = beat.current()
    told = Told(mine.unit, mine.lane, mine.run, mine.again, LOGGER.getEffectiveLevel())
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
            if kind == "log":
                LOGGER.handle(logging.makeLogRecord(value))
            else:
                mine.relay(value)


def _child(
    pipe: Connection,
    environment: dict[str, str],
    told: Told,
    function: Callable[[Any], Any],
    payload: Any,
    index: int,
) -> None:
    os.environ.update(environment)
    mine, sending, over = beat.Beat(told.unit, told.lane), threading.Lock(), threading.Event()
    mine.run, mine.again, mine.turn = told.run, told.again, beat.turn(told.lane)
    LOGGER.handlers = [Relayed(pipe, sending)]
    LOGGER.setLevel(told.level)
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
