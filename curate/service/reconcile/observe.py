"""What the workspace and the cluster say about a run, and for how long. Nothing is written here.

Durations are of this process' monotonic clock, since it first saw what they measure. A clock that jumps therefore ends
no run, and after a change of the leader every time-out begins again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from curate.api import Workspace
from curate.core.errors import CurateError
from curate.core.secrets import redact
from curate.service.database.models import Submission, TargetRow
from curate.service.reconcile.progress import Progress
from curate.service.reconcile.targets import Targets, discreet
from curate.service.states import Driver, Job, Record, Request, Seen, State

GONE_SECONDS = 10.0
"""A driver takes its lease only after it has written its record, and loses it a moment before it has ended."""
ERROR_CHARACTERS = 500


class Watch(Protocol):
    def look(self) -> bool | None: ...


class Heart:
    """Whether the driver of an attempt is alive. Between two beats it stays what it was."""

    def __init__(self, watch: Watch, clock: Callable[[], float] = time.monotonic) -> None:
        self._watch, self._clock = watch, clock
        self._alive = False
        self._gone: float | None = None
        """Since when it has no lease, or a stale one."""

    @property
    def beats(self) -> bool:
        """Whether it had a lease at the last look, so that it cannot have written a result."""
        return self._gone is None

    def look(self) -> Driver:
        alive = self._watch.look()
        if alive is not False:
            self._gone, self._alive = None, self._alive or bool(alive)
            return Driver.ALIVE if self._alive else Driver.UNSURE
        self._alive = False
        self._gone = self._clock() if self._gone is None else self._gone
        return Driver.DEAD if self._clock() - self._gone >= GONE_SECONDS else Driver.UNSURE


class Timers:
    """Name -> seconds since it holds without a break."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, tuple[object, float]] = {}

    def seconds(self, name: str, value: object) -> float:
        """Since `name` has had this value; None: it does not hold."""
        if value is None:
            self._since.pop(name, None)
            return 0.0
        known = self._since.get(name)
        if known is None or known[0] != value:
            known = self._since[name] = (value, self._clock())
        return self._clock() - known[1]


@dataclass
class Memory:
    """What this process remembers of a run between two passes."""

    clock: Callable[[], float] = time.monotonic
    timers: Timers = field(init=False)
    hearts: dict[str, Heart] = field(default_factory=dict)
    """Attempt -> its heart, for the current attempt and the previous one."""
    error: str = ""
    """Why the last action failed."""
    failures: int = 0
    """Actions and looks that failed in a row."""
    retry: float = 0.0
    """Leave it alone until then, unless what `failed_with` has is not true any more."""
    failed_with: tuple[str, bool] = ("", True)
    """At the last failure: the request, and whether its target answered."""
    thrown_back: int = 0
    """How often it went back into the queue because its target did not take it."""
    held: float = 0.0
    """Not to be submitted until then."""
    stopped: str = ""
    """The attempt that was requested to drain."""
    job_stopped: float | None = None
    """When its job was last requested to stop."""
    progress: Progress | None = None
    stages: int = 0
    """Number of its stages, once known."""
    look: float = 0.0
    """When to read its events again."""
    shown: dict[str, Any] = field(default_factory=dict)
    """What the list of runs has of its progress."""

    def __post_init__(self) -> None:
        self.timers = Timers(self.clock)


@dataclass(frozen=True)
class Run:
    """A submission with its surroundings, as read at the beginning of a pass."""

    row: Submission
    workspace: Workspace
    workspace_name: str
    target: TargetRow
    user: str
    tried: bool = False
    """For a queued run: whether its current attempt was submitting before."""

    @property
    def state(self) -> State:
        return State(self.row.state)

    @property
    def earlier_id(self) -> str | None:
        """The attempt before the current one."""
        return f"{self.row.id}-{self.row.attempt - 1}" if self.row.attempt > 1 else None


@dataclass(frozen=True)
class Look:
    """One look at an attempt."""

    job: Job = Job.UNKNOWN
    record: Record = Record.NONE
    driver: Driver = Driver.UNSURE
    detail: str = ""


def observe(run: Run, memory: Memory, targets: Targets, chosen: bool = False, why: str = "") -> Seen:
    """Everything that the decision about a run depends on. `chosen`, `why`: the queue's verdict. Raises CurateError if
    the workspace does not answer."""
    row, state, request = run.row, run.state, Request(run.row.request)
    look = Look() if state is State.QUEUED and not run.tried else _look(run, memory, targets)
    left = row.retries - row.lost + (1 if state is State.LOST else 0)
    timers = memory.timers
    return Seen(
        state=state,
        request=request,
        by=row.requested_by,
        job=look.job,
        record=look.record,
        driver=look.driver,
        tried=run.tried,
        earlier=_earlier(run, memory) if chosen else Driver.DEAD,
        seconds=timers.seconds("state", (row.attempt, state)),
        draining=timers.seconds("request", (row.attempt, request) if request else None),
        dead=timers.seconds("dead", row.attempt if look.driver is Driver.DEAD else None),
        silent=timers.seconds("silent", True if look.job is Job.UNREACHABLE else None),
        drain_seconds=row.drain_seconds,
        retries_left=max(0, left),
        chosen=chosen,
        detail=why if state is State.QUEUED and not look.detail else look.detail or memory.error,
    )


def _look(run: Run, memory: Memory, targets: Targets) -> Look:
    """One storage operation for a run whose driver is alive."""
    attempt, healthy = run.row.attempt_id, answers(run, targets)
    driver = Driver.UNSURE
    if run.state in (State.RUNNING, State.STOPPING, State.LOST):
        heart = _heart(run, memory, attempt)
        driver = heart.look()
        if heart.beats:
            return Look(Job.RUNNING if healthy else Job.UNREACHABLE, Record.OPEN, driver)
    job, words = (Job.UNREACHABLE, "") if run.state is State.LOST else _job(run, targets)
    found = run.workspace.attempt(attempt)
    if found.state == Record.NONE and run.state in (State.RUNNING, State.STOPPING, State.LOST):
        run.workspace.check()  # the files of a file system that is not mounted only seem to be gone
        found = run.workspace.attempt(attempt)
    record = Record(found.state)
    if record is Record.OPEN and driver is Driver.UNSURE:
        driver = _heart(run, memory, attempt).look()
    return Look(job, record, driver, _resumable(one_line(found.error)) or words)


def _earlier(run: Run, memory: Memory) -> Driver:
    """The driver of the previous attempt. DEAD also if that attempt has a result, or never began."""
    earlier = run.earlier_id
    if earlier is None:
        return Driver.DEAD
    run.workspace.check()
    if Record(run.workspace.attempt(earlier).state) is not Record.OPEN:
        return Driver.DEAD
    return _heart(run, memory, earlier).look()


def _heart(run: Run, memory: Memory, attempt: str) -> Heart:
    kept = {run.row.attempt_id, run.earlier_id}
    memory.hearts = {name: heart for name, heart in memory.hearts.items() if name in kept}
    if attempt not in memory.hearts:
        memory.hearts[attempt] = Heart(run.workspace.heartbeat(attempt), memory.clock)
    return memory.hearts[attempt]


def answers(run: Run, targets: Targets) -> bool:
    """Whether its cluster does, as of the last check; True before the first."""
    health = targets.health(run.target.name)
    return health is None or health.healthy


def _job(run: Run, targets: Targets) -> tuple[Job, str]:
    """What the cluster says about the job, and its own words. A cluster known not to answer is not asked."""
    health = targets.health(run.target.name)
    if health is not None and not health.healthy:
        return Job.UNREACHABLE, discreet(run.target, health.error)
    try:
        found = targets.cluster(run.target).info(run.row.attempt_id)
    except CurateError as error:
        return Job.UNREACHABLE, one_line(discreet(run.target, str(error)))
    if found is None:
        return Job.UNKNOWN, ""
    if found.status not in list(Job):
        return Job.UNREACHABLE, one_line(f"its cluster reports the unknown status {found.status!r}")
    job = Job(found.status)
    return job, _last_line(discreet(run.target, found.message)) if job.ended else ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else ""


def _resumable(error: str) -> str:
    """The engine speaks to people at a command line; here they resume a run."""
    error = error.replace("with a new --run-id or none, ", "")
    return error.replace("the same command resumes from there", "resume it to continue from there")


def one_line(text: str) -> str:
    return redact(" ".join(text.split()))[:ERROR_CHARACTERS]
