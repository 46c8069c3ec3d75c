"""The queue's view of the database and of the targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from curate.service.database.models import Change, IndexedRun, Quota, Submission, TargetRow, User
from curate.service.queue import Active, Allowance, Place, Verdict, Waiting, choose
from curate.service.reconcile.targets import discreet
from curate.service.states import State

if TYPE_CHECKING:
    from curate.service.reconcile.observe import Memory, Run
    from curate.service.reconcile.targets import Targets

QUOTA = "the quota of GPU-hours"
"""Who stops a run whose user has none left."""
QUOTA_SECONDS = 30 * 86_400.0
UNDER_WAY = tuple(state.value for state in State if state.active)


def verdicts(
    runs: Sequence[Run], memories: Mapping[str, Memory], quotas: Mapping[str, Allowance], targets: Targets
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


def places(rows: Iterable[TargetRow], targets: Targets) -> dict[str, Place]:
    """What the queue has to know about targets."""
    found: dict[str, Place] = {}
    for row in rows:
        health = targets.health(row.name)
        if health is None:
            found[row.name] = Place(row.max_runs)
        else:
            error = discreet(row, health.error)
            found[row.name] = Place(row.max_runs, health.healthy, error, health.gpus, row.max_gpus)
    return found


def allowances(session: Session, users: Iterable[str], now: float) -> dict[str, Allowance]:
    """User -> what they may use, with the GPU-hours of the last 30 days."""
    chosen = select(User.name, Quota).join_from(Quota, User, Quota.user_id == User.id, isouter=True)
    quotas: dict[str | None, Quota] = {key: value for key, value in session.execute(chosen)}  # noqa: C416
    found = {user: quotas.get(user) or quotas.get(None) for user in users}
    limited = [user for user, quota in found.items() if quota is not None and quota.gpu_hours is not None]
    used = gpu_hours(session, limited, now - QUOTA_SECONDS)
    return {
        user: Allowance(quota.running, quota.gpu_hours, used.get(user, 0.0))
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
        Submission.state.in_(UNDER_WAY),
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
