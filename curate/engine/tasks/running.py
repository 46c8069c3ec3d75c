"""What runs inside a worker: its tasks, their attempts, and payloads isolated in a child process."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import platform
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkServerContext
from typing import Any, cast

from curate.core.errors import CurateError, StorageError
from curate.core.secrets import redact, redacted
from curate.engine.record import logs
from curate.engine.record.logs import LOGGER
from curate.engine.tasks import beat
from curate.engine.tasks.beat import Beat
from curate.engine.tasks.job import ATTEMPTS, Job, Outcome
from curate.engine.tasks.turn import turn

BACKOFF_SECONDS = 0.5
START_METHOD = "forkserver"
"""Tests use "fork"."""
PRELOADED = ["curate.engine.tasks.forking", "curate.engine.passes.run", "curate.cli", "ray"]
"""Modules that the fork server imports once (if they exist), so that a payload costs a fork and no imports. The first
makes it ignore SIGTERM."""
RELAY_SECONDS = 0.25
"""Between two snapshots that a child process sends of its beat."""
log = logging.getLogger("curate.tasks")
LOGGER.addHandler(logging.NullHandler())


class Tasks:
    """The tasks that run in one worker."""

    def __init__(self) -> None:
        self._beats: dict[int, Beat] = {}
        self._stopping = False
        self._to_stop: set[int] = set()
        """Tickets that must stop, some of them before they begin."""

    def run(self, ticket: int, job: Job, shared: Any) -> tuple[Outcome, dict[str, Any]]:
        """Run a job; returns (outcome, last snapshot of its beat). An exception becomes part of the outcome."""
        if job.log is not None:
            logs.for_worker(job.log)
        mine = Beat(job.unit, job.lane)
        mine.run, mine.turn, mine.again = job.run, turn(job.lane), job.again
        mine.stopping = self._stopping or ticket in self._to_stop
        if ticket in self._to_stop:
            self._to_stop.discard(ticket)
            return Outcome(job.index, error="stopped before it began"), mine.snapshot()
        self._beats[ticket] = mine
        with beat.beating(mine):
            log.debug("begins")
            try:
                if job.isolated:
                    outcome = run_isolated(job.function, job.payload, job.index)
                else:
                    outcome = run_attempts(job.function, job.payload, job.index, shared)
            except (CurateError, KeyboardInterrupt) as error:
                outcome = Outcome(job.index, fatal=error)
            except BaseException as error:  # noqa: BLE001 - the step would block forever on a thread that died
                outcome = Outcome(job.index, fatal=CurateError(redact(f"{type(error).__name__}: {error}")))
            finally:
                self._beats.pop(ticket, None)
            log.debug("ends: %s", outcome.error or outcome.fatal or "well")
        return outcome, mine.snapshot()

    def snapshots(self) -> dict[int, dict[str, Any]]:
        """Ticket -> snapshot of its beat."""
        return {ticket: mine.snapshot() for ticket, mine in list(self._beats.items())}

    def abandon(self, ticket: int) -> None:
        mine = self._beats.get(ticket)
        if mine is not None:
            mine.stopping = mine.abandoned = True

    def wind_down(self, tickets: Sequence[int] | None) -> None:
        self._stopping |= tickets is None
        for ticket, mine in list(self._beats.items()):
            mine.stopping |= tickets is None or ticket in tickets
        self._to_stop |= set(tickets or ()) - set(self._beats)


def run_attempts(function: Callable[..., Any], payload: Any, index: int, shared: Any = None) -> Outcome:
    """Outcome of the last attempt. A CurateError other than StorageError is raised: another attempt cannot help."""
    raised: Exception
    for number in range(1, ATTEMPTS + 1):
        try:
            return Outcome(index, function(payload) if shared is None else function(payload, shared))
        except StorageError as error:
            message, raised = redact(str(error)), error
            if _disk_is_full(error):
                log.warning("%s", message, exc_info=True)
                return Outcome(index, error=f"{message} (on {platform.node()})", elsewhere=True)
        except CurateError as error:
            redacted(error)
            raise
        except Exception as error:  # noqa: BLE001 - a shard can fail in any way; attempts and the ledger bound the damage
            message, raised = redact(f"{type(error).__name__}: {error}"), error
        log.warning("attempt %d of %d failed: %s", number, ATTEMPTS, message, exc_info=raised)
        if beat.current().stopping:
            break
        beat.current().again = True
        if number < ATTEMPTS:
            time.sleep(BACKOFF_SECONDS * 2 ** (number - 1))
    return Outcome(index, error=" ".join(message.split()))


def _disk_is_full(error: BaseException) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.ENOSPC


# --- one payload in a child process ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChildContext:
    """What a child process needs to know of its task."""

    unit: str
    lane: str
    run: str
    again: bool
    log_level: int


class LogRelay(logging.Handler):
    """Sends the child's log records, with secrets redacted, to its parent."""

    def __init__(self, pipe: Connection, sending: threading.Lock) -> None:
        super().__init__()
        self._pipe, self._sending = pipe, sending

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a message that cannot be formatted or sent must not end the task
            fields: dict[str, Any] = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname}
            fields |= {"created": record.created, "msg": redact(record.getMessage())}
            fields["stage"] = getattr(record, "stage", "") or beat.current().stage
            if record.exc_info and record.exc_info[0] is not None:
                fields["exc_text"] = redact("".join(traceback.format_exception(*record.exc_info)))
            with self._sending:
                self._pipe.send(("log", fields))


def run_isolated(function: Callable[[Any], Any], payload: Any, index: int) -> Outcome:
    """Run one payload in a child process, so that a crash takes nothing else down. Not in a process pool, whose workers
    would outlive a killed driver: this child ends with its payload, or with its parent."""
    context: ForkServerContext | ForkContext
    context = get_context("forkserver") if START_METHOD == "forkserver" else get_context("fork")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe()
    mine = beat.current()
    about = ChildContext(mine.unit, mine.lane, mine.run, mine.again, LOGGER.getEffectiveLevel())
    words = (theirs, dict(os.environ), about, function, payload, index)
    child = context.Process(target=_child, args=words, daemon=True)
    child.start()
    theirs.close()
    try:
        outcome = _supervise(ours, mine)
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


def _supervise(pipe: Connection, mine: Beat) -> Outcome:
    """Wait for the child's outcome; its beat and its log records are passed on meanwhile."""
    stop_sent = False
    while True:
        if mine.stopping and not stop_sent:
            stop_sent = True
            pipe.send("stop")
        if mine.abandoned:
            raise EOFError
        if pipe.poll(RELAY_SECONDS / 2):
            kind, value = pipe.recv()
            if kind == "outcome":
                return cast(Outcome, value)
            if kind == "log":
                LOGGER.handle(logging.makeLogRecord(value))
            else:
                mine.relay(value)


def _child(
    pipe: Connection,
    environment: dict[str, str],
    about: ChildContext,
    function: Callable[[Any], Any],
    payload: Any,
    index: int,
) -> None:
    # a drain sends SIGTERM to all processes of a run; this one ends when its parent says so. Programs that it starts do
    # not inherit a handler, as they would inherit SIG_IGN
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.environ.update(environment)
    mine, sending, over = Beat(about.unit, about.lane), threading.Lock(), threading.Event()
    mine.run, mine.again, mine.turn = about.run, about.again, turn(about.lane)
    LOGGER.handlers = [LogRelay(pipe, sending)]
    LOGGER.setLevel(about.log_level)
    threading.Thread(target=_relay, args=(pipe, mine, sending, over), daemon=True, name="relay").start()
    try:
        with beat.beating(mine):
            outcome = run_attempts(function, payload, index)
    except CurateError as fatal:
        outcome = Outcome(index, fatal=fatal)
    with sending:
        over.set()
        pipe.send(("beat", mine.snapshot()))
        pipe.send(("outcome", outcome))


def _relay(pipe: Connection, mine: Beat, sending: threading.Lock, over: threading.Event) -> None:
    """Send the beat every RELAY_SECONDS and receive the request to stop; end the process if the parent is gone."""
    while not over.wait(RELAY_SECONDS):
        try:
            with sending:
                if over.is_set():
                    return
                pipe.send(("beat", mine.snapshot()))
            if pipe.poll() and pipe.recv() == "stop":
                mine.stopping = True
        except (OSError, EOFError):
            os._exit(1)
