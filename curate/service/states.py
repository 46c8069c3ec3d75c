"""The state machine of a run, as one function of what was seen.

queued -> submitting -> starting -> running -> stopping -> done | failed | stopped | killed | lost

The workspace is the truth: a result that the driver has written decides, whatever Ray says. Ray's word counts only
where the workspace has none: a job that ended before the run began, or a driver that died. A cluster that does not
answer proves nothing by itself; the driver's lease does.

A run has attempts, which are the engine's runs `<run>-<n>` and Ray's jobs of the same name. `decide` looks at the
current one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    SUBMITTING = "submitting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    KILLED = "killed"
    LOST = "lost"

    @property
    def ended(self) -> bool:
        return self in ENDED

    @property
    def active(self) -> bool:
        """Whether it occupies its target."""
        return self in (State.SUBMITTING, State.STARTING, State.RUNNING, State.STOPPING)


ENDED = frozenset({State.DONE, State.FAILED, State.STOPPED, State.KILLED, State.LOST})
RESUMABLE = ENDED - {State.DONE}
ACTIVE = [state.value for state in State if state.active]
"""Values of the states in which a run occupies its target."""


class Job(StrEnum):
    """What the target says about the job of an attempt."""

    UNREACHABLE = "unreachable"
    """The cluster does not answer."""
    UNKNOWN = "unknown"
    """It answers, and does not know the job."""
    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"
    SUCCEEDED = "succeeded"

    @property
    def ended(self) -> bool:
        return self in (Job.STOPPED, Job.FAILED, Job.SUCCEEDED)


class Record(StrEnum):
    """What the workspace says about an attempt."""

    NONE = "none"
    """The driver has written nothing yet."""
    REFUSED = "refused"
    """The driver could not begin the run."""
    OPEN = "open"
    """It began, and has no result."""
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class Driver(StrEnum):
    """Whether the driver of an open record is alive, by its lease. Means nothing for any other record."""

    ALIVE = "alive"
    DEAD = "dead"
    UNSURE = "unsure"
    """Not watched for long enough."""


class Action(StrEnum):
    """What the reconciler has to do. Every action may be repeated."""

    NONE = "none"
    SUBMIT = "submit"
    """Let a driver of the attempt before end at once; then submit the job of the current one, unless the cluster knows
    it."""
    STOP = "stop"
    """Request the driver to drain, by a file in the workspace."""
    KILL = "kill"
    """Request the driver to end at once, by a file in the workspace, and stop the job."""
    NEXT_ATTEMPT = "next attempt"
    """Let a driver of the current attempt that may still appear end at once; then count one attempt more."""


class Request(StrEnum):
    """What people have requested of a run."""

    NONE = ""
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True)
class Timeouts:
    """Seconds after which a state ends by itself."""

    submitting: float = 120.0
    starting: float = 960.0
    """Ray itself gives up a job that it cannot place after 900 s."""
    silent: float = 120.0
    """Without an answer of the cluster before the run began; or with a dead driver while Ray reports a running job."""
    killing: float = 60.0
    """Between killing a run and taking it as killed."""


@dataclass(frozen=True)
class Seen:
    """Everything that a decision depends on.

    The record was read after the job and the driver, because a driver writes its result before it ends. Times are in
    seconds of the observer's monotonic clock since it first saw this: a clock that jumps ends no run, and a new
    observer only lets a run have its time again.
    """

    state: State
    request: Request = Request.NONE
    job: Job = Job.UNKNOWN
    record: Record = Record.NONE
    driver: Driver = Driver.UNSURE
    tried: bool = False
    """Whether a job of the current attempt may have been submitted although the run is queued."""
    earlier: Driver = Driver.DEAD
    """The driver of the attempt before; DEAD if there is none."""
    seconds: float = 0.0
    """In the current state."""
    draining: float = 0.0
    """Since the request."""
    dead: float = 0.0
    """Since the driver was seen dead."""
    silent: float = 0.0
    """Since the cluster stopped to answer."""
    drain_seconds: float = 60.0
    retries_left: int = 0
    chosen: bool = False
    """For a queued run: the queue lets it start."""
    detail: str = ""
    """The driver's or Ray's own words, for `reason`; for a queued run, why it waits."""
    by: str = ""
    """Who has requested it."""


@dataclass(frozen=True)
class Step:
    """The next state, what to do to get there, and why, in one line."""

    state: State
    action: Action = Action.NONE
    reason: str = ""


def decide(seen: Seen, limits: Timeouts | None = None) -> Step:
    """The next step of a run. An ended run is unchanged; only a lost one may turn out to be alive, or be
    resubmitted."""
    limits = limits or Timeouts()
    if seen.state.ended and seen.state is not State.LOST:
        return Step(seen.state)
    if seen.record in _RESULTS:
        return Step(_RESULTS[seen.record], reason="" if seen.record is Record.DONE else seen.detail)
    return _DECIDE[seen.state](seen, limits)


_RESULTS = {
    Record.DONE: State.DONE,
    Record.FAILED: State.FAILED,
    Record.REFUSED: State.FAILED,
    Record.STOPPED: State.STOPPED,
}
_UNDER_WAY = (Job.PENDING, Job.RUNNING)
TAKES = "waits until its target takes the job"


def _queued(seen: Seen, limits: Timeouts) -> Step:
    if seen.record is Record.OPEN:  # the cluster took the job although the call that submitted it failed
        return Step(State.RUNNING)
    if seen.request:
        return _stopping(seen, limits) if seen.tried else Step(_given_up(seen), reason="ended before it was submitted")
    if seen.tried and seen.job in _UNDER_WAY:
        return Step(State.STARTING)
    if not seen.chosen:
        return Step(State.QUEUED, reason=seen.detail)
    if seen.earlier is not Driver.DEAD:
        return Step(State.QUEUED, reason="waits until the driver of its last attempt has ended")
    return Step(State.SUBMITTING, Action.SUBMIT, TAKES)


def _submitting(seen: Seen, limits: Timeouts) -> Step:
    if seen.request:
        return _stopping(seen, limits)
    if seen.record is Record.OPEN:
        return Step(State.RUNNING)
    if seen.job not in (Job.UNKNOWN, Job.UNREACHABLE):
        return Step(State.STARTING)
    if seen.seconds > limits.submitting:
        return Step(State.QUEUED, reason=seen.detail or "its target does not take the job")
    return Step(State.SUBMITTING, Action.SUBMIT, seen.detail or TAKES)


def _starting(seen: Seen, limits: Timeouts) -> Step:
    if seen.request:
        return _stopping(seen, limits)
    if seen.record is Record.OPEN:
        return Step(State.RUNNING)
    if seen.job.ended:
        return Step(State.FAILED, reason=_words("its job ended before the run began", seen))
    if seen.job is Job.UNKNOWN:
        return Step(State.LOST, reason="the cluster no longer knows its job")
    if seen.job is Job.UNREACHABLE and seen.silent > limits.silent:
        return Step(State.LOST, reason=_words("its target does not answer", seen))
    if seen.seconds > limits.starting:
        return Step(State.FAILED, Action.KILL, f"it did not start within {limits.starting:.0f} s")
    return Step(State.STARTING, reason=_words("its target does not answer", seen) if _silent(seen) else "")


def _running(seen: Seen, limits: Timeouts) -> Step:
    if seen.request:
        return _stopping(seen, limits)
    if seen.record is Record.NONE:
        if seen.job in _UNDER_WAY or (_silent(seen) and seen.silent <= limits.silent):
            return Step(State.RUNNING, reason="its record is missing from the workspace")
        return Step(State.LOST, reason="its record is missing from the workspace")
    if seen.driver is not Driver.DEAD:
        return Step(State.RUNNING, reason="its target does not answer" if _silent(seen) else "")
    if seen.job is Job.STOPPED:
        return Step(State.KILLED, reason="its job was stopped through Ray, and its driver died")
    alive = seen.job in _UNDER_WAY
    if alive and seen.dead <= limits.silent:
        return Step(State.RUNNING, reason="its driver's heartbeat has stopped")
    return Step(State.LOST, Action.KILL if alive else Action.NONE, _words("its driver died", seen))


def _stopping(seen: Seen, limits: Timeouts) -> Step:
    """Also for a run in another state that is requested to stop."""
    drain = 0.0 if seen.request is Request.KILL else seen.drain_seconds
    requested = f"requested by {seen.by}" if seen.by else ""
    if seen.record is Record.NONE:  # nothing to drain
        if seen.job.ended or seen.job is Job.UNKNOWN or seen.draining > limits.killing:
            return Step(_given_up(seen), Action.KILL, "ended before the run began")
        return Step(State.STOPPING, Action.KILL, requested)
    late = seen.request is Request.KILL or seen.draining > drain
    if seen.driver is Driver.DEAD:
        if seen.job not in _UNDER_WAY:
            return Step(State.KILLED, reason=_killed(seen, late))
        if seen.draining > drain + limits.killing:
            return Step(State.KILLED, Action.KILL, _killed(seen, late))
    if late:
        return Step(State.STOPPING, Action.KILL, "its drain time is over" if drain else requested)
    return Step(State.STOPPING, Action.STOP, requested)


def _given_up(seen: Seen) -> State:
    """State of a run that ends on request before its driver began."""
    return State.KILLED if seen.request is Request.KILL else State.STOPPED


def _killed(seen: Seen, late: bool) -> str:
    if seen.request is Request.KILL:
        return "killed on request"
    return f"killed: it did not drain within {seen.drain_seconds:.0f} s" if late else "its driver died as it drained"


def _lost(seen: Seen, limits: Timeouts) -> Step:
    if seen.record is Record.OPEN and seen.driver is Driver.ALIVE:  # its heartbeat came back
        return Step(State.RUNNING)
    if not seen.retries_left:
        return Step(State.LOST)
    if seen.record is Record.OPEN and seen.driver is Driver.UNSURE:
        action = Action.KILL if seen.request else Action.NONE
        return Step(State.LOST, action, "waits until its old driver has lost its lease")
    if seen.request:
        return Step(_given_up(seen), Action.KILL, "ended before it was resubmitted")
    return Step(State.QUEUED, Action.NEXT_ATTEMPT, "lost; resubmitted")


def _silent(seen: Seen) -> bool:
    return seen.job is Job.UNREACHABLE


def _words(text: str, seen: Seen) -> str:
    return f"{text}: {seen.detail}" if seen.detail else text


_DECIDE = {
    State.QUEUED: _queued,
    State.SUBMITTING: _submitting,
    State.STARTING: _starting,
    State.RUNNING: _running,
    State.STOPPING: _stopping,
    State.LOST: _lost,
}
