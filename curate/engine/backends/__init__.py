"""What the scheduler asks of a backend: machines, and workers that run payloads and say how each one ended."""

from __future__ import annotations

import errno
import logging
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from curate.core.contracts import Resources, Stage
from curate.core.errors import CurateError, StorageError
from curate.core.nouns import StoredArtifact
from curate.core.recipe.secrets import redact, redacted
from curate.core.store.storage import Storage
from curate.engine.record import logs
from curate.engine.workers import beat
from curate.engine.workers.beat import Beat, Doing
from curate.engine.workers.lanes import Node

ATTEMPTS = 3
"""How often a payload is tried before it is a failure."""
BACKOFF_SECONDS = 0.5
log = logging.getLogger("curate.tasks")
logging.getLogger("curate").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Outcome:
    """How payload `index` ended: a value, or why there is none. `crashed`: its process died, every time."""

    index: int
    value: Any = None
    error: str | None = None
    crashed: bool = False
    hung: Doing | None = None
    """It was ended because a batch (this one) did not end."""
    elsewhere: bool = False
    """The worker is at fault, such as by a full disk: another may fare better."""
    fatal: BaseException | None = None
    """No other attempt, of this payload or another, can mend it: the step that owns the call raises it."""


@dataclass(frozen=True)
class How:
    """How payloads are handed out."""

    isolated: bool = False
    """Each in a process that may die of it without taking others along."""
    sticky: bool = False
    """The same index goes to the same worker from call to call, while it lives."""
    window: int | None = None
    """At most so many payloads from the first unsettled one on are under way or settled, per worker."""
    shared: Any = None
    """A second argument of the function, the same for all payloads: sent once to each node."""


HOW = How()


@dataclass(frozen=True)
class Job:
    """One payload as a worker gets it."""

    function: Callable[..., Any]
    payload: Any
    index: int
    unit: str
    """What its log and its progress are called by."""
    lane: str
    isolated: bool = False
    run: str = ""
    again: bool = False
    """A worker has had it before, and may have begun it."""
    log: tuple[str, str, str] | None = None
    """Workspace, run and name of the worker under which its process logs, if that is not the scheduler's."""


# --- what workers tell the scheduler ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Up:
    """A worker runs, on this node."""

    worker: Worker
    node: str = ""
    name: str = ""


@dataclass(frozen=True)
class Down:
    """A worker has died, or could not start; `fatal` where no other would."""

    worker: Worker
    why: str
    fatal: CurateError | None = None


@dataclass(frozen=True)
class Ended:
    worker: Worker
    ticket: int
    outcome: Outcome
    look: Mapping[str, Any]
    """The last of the task's beat."""


@dataclass(frozen=True)
class Looked:
    worker: Worker
    looks: Mapping[int, Mapping[str, Any]]
    """Ticket -> beat, of the tasks that run."""


Tell = Callable[[Up | Down | Ended | Looked], None]


class Worker(Protocol):
    """A process, or some threads of this one, that runs jobs. No method waits; all may be called after its end."""

    node: str
    """Where it runs, once it is up."""

    def run(self, ticket: int, job: Job, shared: Any) -> None:
        """Start a job, or queue it behind those that run. It ends with `Ended`, or the worker with `Down`."""
        ...

    def look(self) -> None:
        """Ask how its tasks do; it answers with `Looked`."""
        ...

    def call(self, function: Callable[[Any], Any], payload: Any) -> None:
        """Run a short function beside its tasks; nothing comes back."""
        ...

    def wind_down(self, tickets: Sequence[int] | None) -> None:
        """Tell some tasks, or all and those that it may still get, to stop at the next border between batches."""
        ...

    def flush(self) -> None:
        """Have its process publish what it has logged; it answers with `Looked`."""
        ...

    def end(self, ticket: int) -> bool:
        """End one task that hangs; False where that takes the whole worker, which is then gone."""
        ...

    def kill(self) -> None: ...


class Backend(Protocol):
    name: str
    apart: bool
    """Whether workers are other processes."""
    shared: bool
    """Whether other runs may want the same machines."""
    queued: int
    """Jobs that a worker is given beyond those that run, so that it need not wait for the next."""

    def nodes(self) -> Sequence[Node]:
        """The machines there are now. Raises CurateError where the cluster cannot be reached."""
        ...

    def has_gpu(self) -> bool:
        """Whether there is a GPU where tasks run."""
        ...

    def most(self) -> Mapping[str, int]:
        """Lane -> workers that it may have, where the nodes alone do not say so."""
        ...

    def size(self, resources: Resources) -> Resources:
        """What a worker for such tasks is made with."""
        ...

    def start(self, lane: str, resources: Resources, units: int, tell: Tell) -> Worker:
        """A new worker that runs so many jobs at a time. It tells `Up` or `Down`."""
        ...

    def park(self, lane: str, resources: Resources, worker: Worker) -> None:
        """Keep an idle worker for the next scheduler, or end it."""
        ...

    def parked(self, tell: Tell) -> Sequence[tuple[str, Resources, Worker]]:
        """Take over the workers that are kept and live; they tell what there is to tell from now on."""
        ...

    def lost(self, worker: Worker) -> bool:
        """Whether a worker that has died did so because its node has."""
        ...

    def post(self, run: str, said: Mapping[str, float] | None, heard: Callable[[Mapping[str, Any]], None]) -> None:
        """Say to the other runs of the cluster what this one wants; `heard` is called with what all say, by run. None
        takes it back."""
        ...

    def share(self, value: Any) -> Any:
        """A handle of a value that many jobs read: what `Worker.run` takes as `shared`."""
        ...

    def close(self) -> None: ...


# --- inside a worker -------------------------------------------------------------------------------------------------


class Tasks:
    """The tasks that run in one worker."""

    def __init__(self) -> None:
        self._beats: dict[int, Beat] = {}
        self._stopping = False
        self._told: set[int] = set()
        """Tickets that are to stop, some of them before they begin."""

    def run(self, ticket: int, job: Job, shared: Any) -> tuple[Outcome, dict[str, Any]]:
        """(how it ended, the last look at its beat)."""
        if job.log is not None:
            logs.for_worker(job.log)
        mine = Beat(job.unit, job.lane)
        mine.run, mine.turn, mine.again = job.run, beat.turn(job.lane), job.again
        mine.stopping = self._stopping or ticket in self._told
        if ticket in self._told:
            self._told.discard(ticket)
            return Outcome(job.index, error="stopped before it began"), mine.look()
        self._beats[ticket] = mine
        try:
            with beat.beating(mine):
                log.debug("begins")
                outcome = perform(job, shared)
                log.debug("ends: %s", outcome.error or outcome.fatal or "well")
        finally:
            self._beats.pop(ticket, None)
        return outcome, mine.look()

    def looks(self) -> dict[int, dict[str, Any]]:
        return {ticket: mine.look() for ticket, mine in list(self._beats.items())}

    def abandon(self, ticket: int) -> None:
        mine = self._beats.get(ticket)
        if mine is not None:
            mine.stopping = mine.abandoned = True

    def wind_down(self, tickets: Sequence[int] | None) -> None:
        self._stopping |= tickets is None
        for ticket, mine in list(self._beats.items()):
            mine.stopping |= tickets is None or ticket in tickets
        self._told |= set(tickets or ()) - set(self._beats)


def perform(job: Job, shared: Any = None) -> Outcome:
    """Run a job; what it raises is in the outcome."""
    from curate.engine.backends.isolated import run_isolated

    try:
        if job.isolated:
            return run_isolated(job.function, job.payload, job.index)
        return attempted(job.function, job.payload, job.index, shared)
    except (CurateError, KeyboardInterrupt) as error:
        return Outcome(job.index, fatal=error)
    except BaseException as error:  # noqa: BLE001 - a thread that ends by it would leave its step waiting for ever
        return Outcome(job.index, fatal=CurateError(redact(f"{type(error).__name__}: {error}")))


def attempted(function: Callable[..., Any], payload: Any, index: int, shared: Any = None) -> Outcome:
    """The outcome after the last attempt. Raises what another attempt cannot mend: a CurateError but StorageError."""
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
        except Exception as error:  # noqa: BLE001 - what a shard can do wrong has no list; the bound and the ledger keep it honest
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


def attempt(function: Callable[..., Any], payload: Any, shared: Any = None) -> tuple[Any, str | None]:
    """(value, None), or (None, message) after the last attempt."""
    outcome = attempted(function, payload, 0, shared)
    return outcome.value, outcome.error


# --- stages that are set up ------------------------------------------------------------------------------------------

_ready: dict[str, dict[str, tuple[Stage, Stage]]] = {}
"""Lane -> place -> the stage as it was given, and its copy after `setup`."""
_locks: dict[str, threading.RLock] = {}
_keeping: WeakKeyDictionary[Beat, set[str]] = WeakKeyDictionary()
"""Places that running tasks have asked to keep."""
_guard = threading.Lock()


def set_up(
    key: str, stage: Stage, ports: Mapping[str, str], storage: Storage, keep: frozenset[str] = frozenset()
) -> Stage:
    """The stage after its `setup`, once per process, lane, workspace and fingerprint; those that are neither in `keep`
    nor kept by another task of the lane are let go.

    Runtime parameters are no part of a fingerprint, so the stage as it was written is compared too."""
    mine = beat.current()
    place, wanted = storage.url_of(key), {storage.url_of(name) for name in keep}
    with _guard:
        lock, ready = _locks.setdefault(mine.lane, threading.RLock()), _ready.setdefault(mine.lane, {})
        _keeping.setdefault(mine, set()).update(wanted, [place])
    with mine.setting_up(stage.op), lock:
        mine.moved = time.monotonic()  # waiting for others is over
        if place not in ready or ready[place][0] != stage:
            with _guard:
                kept = set().union(*(places for task, places in _keeping.items() if task.lane == mine.lane))
            for old in [name for name in ready if name not in kept or name == place]:
                del ready[old]
            fresh = stage.model_copy(deep=True)
            fresh.setup({port: StoredArtifact(storage, base) for port, base in ports.items()})
            ready[place] = stage, fresh
        return ready[place][1]
