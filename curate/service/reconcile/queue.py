"""Which waiting run starts next, and why the others wait: `choose` decides from the facts alone, and what follows it
finds them in the database and the targets.

Runs start by priority, then by how long they wait. A run that may not start does not block later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from curate.service.database.models import Change, IndexedRun, Quota, Submission, TargetRow, User
from curate.service.reconcile.targets import discreet
from curate.service.states import ACTIVE, State

if TYPE_CHECKING:
    from curate.service.reconcile.observe import Memory, Run
    from curate.service.reconcile.targets import Targets

QUOTA = "the quota of GPU-hours"
"""Who stops a run whose user has none left."""
QUOTA_SECONDS = 30 * 86_400.0


@dataclass(frozen=True)
class Waiting:
    """A queued run."""

    id: str
    user: str
    target: str
    priority: int = 0
    queued: float = 0.0
    """Since when it waits."""
    needs: Mapping[str, Any] = field(default_factory=dict)
    """{"gpus": most per task, "stage": the stage that needs them}."""
    held: str = ""
    """Why it may not start now; "" if the queue decides."""

    @property
    def order(self) -> tuple[int, float, str]:
        return -self.priority, self.queued, self.id


@dataclass(frozen=True)
class Active:
    """A run that occupies its target."""

    user: str
    target: str


@dataclass(frozen=True)
class UserQuota:
    """What one user may use. None: no limit."""

    running: int | None = None
    gpu_hours: float | None = None
    used: float = 0.0
    """GPU-hours of the last 30 days."""

    @property
    def spent(self) -> str:
        """Why they may use no GPU any more; "" if they may."""
        if self.gpu_hours is None or self.used < self.gpu_hours:
            return ""
        return f"has used {self.used:.1f} of {self.gpu_hours:g} GPU-hours in 30 days"


@dataclass(frozen=True)
class TargetState:
    """A target. `gpus`: all that it has; None before it has answered for the first time."""

    max_runs: int
    healthy: bool = True
    error: str = ""
    gpus: float | None = None
    max_gpus: float = 0.0
    """GPUs that it can scale up to."""


@dataclass(frozen=True)
class Verdict:
    start: bool
    why: str
    """Why it waits, in one line; "" if it starts."""


def choose(
    waiting: Iterable[Waiting],
    active: Iterable[Active],
    quotas: Mapping[str, UserQuota],
    targets: Mapping[str, TargetState],
) -> dict[str, Verdict]:
    """Run -> verdict. `quotas`: by user; a user without one has no limits."""
    running: Counter[tuple[str, str]] = Counter()
    for busy in active:
        running["target", busy.target] += 1
        running["user", busy.user] += 1
    found: dict[str, Verdict] = {}
    for run in sorted(waiting, key=lambda run: run.order):
        why = run.held or _blocked(run, running, quotas.get(run.user, UserQuota()), targets.get(run.target))
        if not why:
            running["target", run.target] += 1
            running["user", run.user] += 1
        found[run.id] = Verdict(not why, why)
    return found


def _blocked(run: Waiting, running: Counter[tuple[str, str]], quota: UserQuota, target: TargetState | None) -> str:
    """Why a run may not start, beginning with what lasts longest; "" if it may."""
    if target is None:
        return f"waits: target {run.target} does not exist"
    return (
        _unfit(run, target)
        or _over_quota(run, quota, running["user", run.user])
        or _full(run.target, running["target", run.target], target.max_runs)
    )


def _unfit(run: Waiting, target: TargetState) -> str:
    gpus = float(run.needs.get("gpus") or 0)
    if not target.healthy:
        error = f" ({target.error})" if target.error else ""
        return f"waits: target {run.target} does not answer{error}"
    if target.gpus is None:
        return f"waits: target {run.target} has not been checked yet"
    most = max(target.gpus, target.max_gpus)
    if gpus <= most:
        return ""
    stage = run.needs.get("stage")
    has = "no GPU" if most == 0 else f"{most:g} GPU{'s' if most != 1 else ''}"
    return f"waits: target {run.target} has {has}, {f'its stage {stage}' if stage else 'it'} needs {gpus:g}"


def _over_quota(run: Waiting, quota: UserQuota, running: int) -> str:
    if quota.spent:
        return f"waits: {run.user} {quota.spent}"
    if quota.running is not None and running >= quota.running:
        return f"waits: {run.user} has {running} of {quota.running} runs under way"
    return ""


def _full(name: str, running: int, most: int) -> str:
    return f"waits: target {name} has {running} of {most} runs under way" if running >= most else ""


# --- the facts --------------------------------------------------------------------------------------------------------


def verdicts(
    runs: Sequence[Run], memories: Mapping[str, Memory], quotas: Mapping[str, UserQuota], targets: Targets
) -> dict[str, Verdict]:
    """Queued run -> verdict."""
    waiting = [_waiting(run, memories[run.row.id]) for run in runs if run.state is State.QUEUED and not run.row.request]
    active = [Active(run.user, run.target.name) for run in runs if run.state.active]
    return choose(waiting, active, quotas, places((run.target for run in runs), targets))


def on_gpus(runs: Iterable[Run], memories: Mapping[str, Memory]) -> list[Run]:
    """Running runs whose current attempt has used GPUs."""
    return [
        run
        for run in runs
        if run.state is State.RUNNING and memories[run.row.id].shown.get("gpu_hours", 0.0) > run.row.gpu_hours
    ]


def _waiting(run: Run, memory: Memory) -> Waiting:
    row = run.row
    held = f"waits before the next try: {row.reason}" if memory.clock() < memory.held else ""
    return Waiting(row.id, run.user, run.target.name, row.priority, row.queued, row.needs, held)


def places(rows: Iterable[TargetRow], targets: Targets) -> dict[str, TargetState]:
    """What the queue has to know about targets."""
    found: dict[str, TargetState] = {}
    for row in rows:
        health = targets.health(row.name)
        if health is None:
            found[row.name] = TargetState(row.max_runs)
        else:
            error = discreet(row, health.error)
            found[row.name] = TargetState(row.max_runs, health.healthy, error, health.gpus, row.max_gpus)
    return found


def allowances(session: Session, users: Iterable[str], now: float) -> dict[str, UserQuota]:
    """User -> what they may use, with the GPU-hours of the last 30 days."""
    chosen = select(User.name, Quota).join_from(Quota, User, Quota.user_id == User.id, isouter=True)
    quotas: dict[str | None, Quota] = {key: value for key, value in session.execute(chosen)}  # noqa: C416
    found = {user: quotas.get(user) or quotas.get(None) for user in users}
    limited = [user for user, quota in found.items() if quota is not None and quota.gpu_hours is not None]
    used = gpu_hours(session, limited, now - QUOTA_SECONDS)
    return {
        user: UserQuota(quota.running, quota.gpu_hours, used.get(user, 0.0))
        for user, quota in found.items()
        if quota is not None
    }


def gpu_hours(session: Session, users: Sequence[str], since: float) -> dict[str, float]:
    """User -> GPU-hours of their attempts that ended after a time, or are under way."""
    if not users:
        return {}
    mine = (Submission.user_id == User.id, User.name.in_(users))
    ended = select(User.name, func.sum(Change.gpu_hours)).where(
        *mine, Change.submission_id == Submission.id, Change.time >= since, Change.gpu_hours != 0
    )
    now = select(User.name, func.sum(IndexedRun.gpu_hours - Submission.gpu_hours)).where(
        *mine,
        Submission.state.in_(ACTIVE),
        IndexedRun.workspace_id == Submission.workspace_id,
        IndexedRun.id == Submission.id,
    )
    used: Counter[str] = Counter()
    for chosen in (ended, now):
        used.update({user: hours for user, hours in session.execute(chosen.group_by(User.name))})  # noqa: C416
    return dict(used)


def tried(session: Session, rows: Iterable[Submission]) -> set[str]:
    """Queued runs whose current attempt was submitting before."""
    attempts = {row.id: row.attempt for row in rows if row.state == State.QUEUED}
    if not attempts:
        return set()
    same = (Change.submission_id == Submission.id, Change.attempt == Submission.attempt)
    chosen = (
        select(Submission.id)
        .join(Change, Change.submission_id == Submission.id)
        .where(*same, Submission.state == State.QUEUED.value, Change.after == State.SUBMITTING.value)
        .distinct()
    )
    return set(session.scalars(chosen))
