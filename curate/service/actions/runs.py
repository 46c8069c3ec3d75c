"""Submitting runs, and what can be done to them. What is shown of them is in `run_views` and `run_logs`.

Stop, kill and resume only write what was requested; the reconciler acts on it within seconds.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from curate.api import new_run_id
from curate.core.errors import InputError
from curate.service.actions import recipes
from curate.service.actions.finding import FoundRun, found
from curate.service.actions.places import target_row, workspace_row
from curate.service.actions.run_logs import events, logs, streamed
from curate.service.actions.run_page import run_page
from curate.service.actions.run_views import funnel, ledger, run, runs
from curate.service.actions.writes import recorded
from curate.service.auth import audit
from curate.service.auth.audit import audited
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import Change, IndexedRun, Quota, Submission, TargetRow, WorkspaceRow
from curate.service.problems import ChangedProblem, ConflictProblem, InvalidProblem, TooManyProblem
from curate.service.reconcile.index import indexed
from curate.service.reconcile.swap import swapped
from curate.service.service import Service
from curate.service.shapes.runs import ChangedRun, NewLimits, NewRun, RecipeOrder, RunShape
from curate.service.states import State

__all__ = [
    "change", "events", "funnel", "kill", "ledger", "limit", "logs", "resume", "run", "run_page", "runs", "stop",
    "streamed", "submit",
]  # fmt: skip
QUEUE = "queue"
"""Writers that count queued runs take turns."""
RETRY_SECONDS = 30.0


def submit(service: Service, who: Principal, order: NewRun) -> tuple[RunShape, bool]:
    """Into the queue. The run, and whether it is new: an order with an id is submitted once, however often it comes."""
    about: dict[str, Any] = {"workspace": order.workspace, "target": order.title}
    with audit.rejections(service, who, "run.submit", **about):
        with service.database.read() as session:
            place, _ = _place(session, who, order)
            known = _submitted(session, who, place, order)
        if known:
            return run(service, who, known, order.workspace), False
        admitted = recipes.admitted(service, who, order)
        named = {stage.stage for stage in admitted.stages}
        _check_retry(order, named)
        if order.options.to is not None and order.options.to not in named:
            raise InvalidProblem(f"options.to: {order.options.to}: not a stage of the recipe")
        with service.database.write(alone=QUEUE) as session:
            place, target = _place(session, who, order)
            known = _submitted(session, who, place, order)  # another request may have been faster
            if not known:
                _check_quota(session, who.user_id)
                row = _row(service, who, order, admitted, place, target)
                session.add(row)
                session.flush()  # before what refers to it
                session.add(Change(submission_id=row.id, time=row.created, attempt=1, before="", after=row.state))
                values = indexed(row, who.user, target.name) | {"stages": len(admitted.stages)}
                session.add(IndexedRun(**values))
                audit.record(session, who, "run.submit", workspace=place.name, target=row.id, title=order.title)
    service.wake()
    return run(service, who, known or row.id, order.workspace), not known


def digest(order: NewRun) -> str:
    """SHA-256 of an order, which tells whether a later one is the same."""
    return hashlib.sha256(json.dumps(order.model_dump(), sort_keys=True).encode()).hexdigest()


def _submitted(session: Session, who: Principal, place: WorkspaceRow, order: NewRun) -> str | None:
    """Id of the run if they have submitted this order before. Raises ConflictProblem if its id belongs to another run:
    of any workspace, or of this one without the service, also by the name of the attempt."""
    if order.id is None:
        return None
    row = session.get(Submission, order.id)
    if row is not None and (row.workspace_id, row.user_id, row.digest) == (place.id, who.user_id, digest(order)):
        return row.id
    names = [order.id, f"{order.id}-1"]
    same = or_(IndexedRun.id.in_(names), IndexedRun.attempt_id.in_(names))
    if row is not None or session.scalar(select(IndexedRun.id).where(IndexedRun.workspace_id == place.id, same)):
        raise ConflictProblem(f"id: {order.id} is that of another run or order; choose another id, or leave it out")
    return None


def _place(session: Session, who: Principal, order: NewRun) -> tuple[WorkspaceRow, TargetRow]:
    """Where it runs. Raises problems of rights and of names."""
    place = workspace_row(session, who, order.workspace, Role.ADMIN if order.priority > 0 else Role.OPERATOR)
    name = order.target or place.target
    if not name:
        raise InvalidProblem(f"target: workspace {place.name} has none; name one of `GET /api/v1/targets`")
    return place, target_row(session, name)


def _row(
    service: Service,
    who: Principal,
    order: NewRun,
    admitted: recipes.Admitted,
    place: WorkspaceRow,
    target: TargetRow,
) -> Submission:
    now, settings = service.clock(), service.settings
    return Submission(
        id=order.id or new_run_id(),
        workspace_id=place.id,
        target_id=target.id,
        user_id=who.user_id,
        digest=digest(order),
        title=order.title,
        recipe=order.recipe,
        sets=list(order.set),
        resolved=admitted.resolved,
        options=order.options.model_dump(),
        needs=admitted.needs,
        stages=[stage.model_dump() for stage in admitted.stages],
        priority=order.priority,
        retries=settings.retries if order.retries is None else order.retries,
        drain_seconds=order.drain_seconds or settings.drain_seconds,
        created=now,
        state=State.QUEUED.value,
        since=now,
        queued=now,
    )


def _check_retry(order: NewRun, stages: set[str]) -> None:
    unknown = sorted(order.options.retry.keys() - stages)
    if unknown:
        raise InvalidProblem(f"options.retry: {unknown[0]!r} is not a stage of the recipe; expected one of its stages")


def _check_quota(session: Session, user_id: int) -> None:
    """Raises TooManyProblem if a user has as many queued runs as they may."""
    quotas = {quota.user_id: quota for quota in session.scalars(select(Quota))}
    quota = quotas.get(user_id) or quotas.get(None)
    if quota is None or quota.queued is None:
        return
    mine = (Submission.user_id == user_id, Submission.state == State.QUEUED.value)
    queued = session.scalar(select(func.count()).select_from(Submission).where(*mine)) or 0
    if queued >= quota.queued:
        raise TooManyProblem(
            f"{queued} of your runs wait in the queue, your quota is {quota.queued}; wait, or stop one", RETRY_SECONDS
        )


def change(
    service: Service,
    who: Principal,
    id: str,
    order: ChangedRun,
    workspace: str | None = None,
    if_match: int | None = None,
) -> RunShape:
    """Change the priority of a queued run. Above 0 it takes an admin, to set it and to take it back."""
    one = _seen(service, who, id, workspace, "run.change")
    name = one.place.name
    with audited(service, who, "run.change", workspace=name, target=id, priority=order.priority) as session:
        one = found(session, who, id, name, Role.OPERATOR)
        if one.row is None or one.state is not State.QUEUED:
            raise ConflictProblem(f"run {id}: is {one.state}; only the priority of a queued run can be changed")
        if if_match is not None and if_match != one.row.version:
            raise ChangedProblem(f"run {id}: has version {one.row.version}, not {if_match}; read it again first")
        who.check(Role.ADMIN if max(order.priority, one.row.priority) > 0 else Role.OPERATOR, one.place.id, name)
        if order.priority != one.row.priority:
            _change(session, one.row, {"priority": order.priority})
    service.wake()
    return run(service, who, id, name)


# --- requests ---------------------------------------------------------------------------------------------------------


def stop(service: Service, who: Principal, id: str, workspace: str | None = None) -> RunShape:
    """Request it to commit its finished work and end. Repeating it changes nothing."""
    return _request(service, who, id, workspace, "stop")


def kill(service: Service, who: Principal, id: str, workspace: str | None = None) -> RunShape:
    """Request it to end at once. What was committed stays, and it can be resumed."""
    return _request(service, who, id, workspace, "kill")


def _seen(service: Service, who: Principal, id: str, workspace: str | None, action: str) -> FoundRun:
    """A run to act on. That they cannot see it is recorded too."""
    with audit.rejections(service, who, action, workspace or "", id), service.database.read() as session:
        return found(session, who, id, workspace, Role.VIEWER)


def _request(service: Service, who: Principal, id: str, workspace: str | None, verb: str) -> RunShape:
    one = _seen(service, who, id, workspace, f"run.{verb}")
    name = one.place.name
    if one.row is None:
        _request_foreign(service, who, one, verb)
        return run(service, who, id, name)
    with audited(service, who, f"run.{verb}", workspace=name, target=id) as session:
        one = found(session, who, id, name, Role.OPERATOR)
        row = one.row
        assert row is not None
        if one.over:
            raise ConflictProblem(f"run {id}: already {one.state}; only a run that has not ended can be stopped")
        if row.request not in ("kill", verb):
            values = {"request": verb, "requested": service.clock(), "requested_by": who.user}
            _change(session, row, values)
    service.wake()
    return run(service, who, id, name)


def _request_foreign(service: Service, who: Principal, one: FoundRun, verb: str) -> None:
    """Request it by a file that the driver reads, for a run that was started without the service."""
    with recorded(service, who, f"run.{verb}", one.place.name, one.id):
        who.check(Role.OPERATOR, one.place.id, one.place.name)
        if one.over:
            raise ConflictProblem(f"run {one.id}: already {one.state}; only a run that has not ended can be stopped")
        if verb == "kill":
            one.workspace.request_kill(one.attempt_id, who.user)
        else:
            one.workspace.request_stop(one.attempt_id, who.user)


def resume(service: Service, who: Principal, id: str, workspace: str | None = None) -> RunShape:
    """Its next attempt, with the same recipe, into the queue: finished work is reused. What the recipe may use is
    checked again."""
    one = _seen(service, who, id, workspace, "run.resume")
    name = one.place.name
    with audit.rejections(service, who, "run.resume", name, id):
        who.check(Role.OPERATOR, one.place.id, name)
        row = _resumable(one)
        order = RecipeOrder(workspace=name, recipe=row.recipe, set=row.sets)
        admitted = recipes.admitted(service, who, order)
        with service.database.write(alone=QUEUE) as session:
            one = found(session, who, id, name, Role.OPERATOR)
            row = _resumable(one)
            _check_quota(session, row.user_id)
            _queue_again(session, row, service.clock(), admitted)
            audit.record(session, who, "run.resume", workspace=name, target=id, attempt=row.attempt + 1)
    service.wake()
    return run(service, who, id, name)


def _resumable(one: FoundRun) -> Submission:
    """Raises ConflictProblem with the reason why it cannot be resumed."""
    if one.row is None:
        raise ConflictProblem(f"run {one.id}: started without the service; run its recipe again where it was started")
    if one.state is State.DONE:
        raise ConflictProblem(f"run {one.id}: done; submit its recipe again to run it on new data")
    if not one.resumable:
        raise ConflictProblem(f"run {one.id}: is {one.state}; it can be resumed once it has ended")
    return one.row


def _queue_again(session: Session, row: Submission, now: float, admitted: recipes.Admitted) -> None:
    attempt = row.attempt + 1
    values: dict[str, Any] = {
        "state": State.QUEUED.value, "reason": "", "since": now, "queued": now, "attempt": attempt, "lost": 0,
        "request": "", "requested": None, "requested_by": "", "ended": None, "alert": "",
        "seconds": row.seconds_until(now) or 0.0, "started": None,
        "resolved": admitted.resolved, "needs": admitted.needs,
        "stages": [stage.model_dump() for stage in admitted.stages],
    }  # fmt: skip
    _change(session, row, values)
    session.add(Change(submission_id=row.id, time=now, attempt=attempt, before=row.state, after=State.QUEUED.value))
    this = (IndexedRun.workspace_id == row.workspace_id, IndexedRun.id == row.id)
    shown = {"state": State.QUEUED.value, "reason": "", "attempt_id": f"{row.id}-{attempt}", "ended": None}
    session.execute(update(IndexedRun).where(*this).values(**shown, seconds=values["seconds"] or None, alert=""))


def _change(session: Session, row: Submission, values: dict[str, Any]) -> None:
    """Change the version that was read. Raises ConflictProblem if the reconciler or another user was first."""
    same = (Submission.id == row.id, Submission.version == row.version)
    if not swapped(session, update(Submission).where(*same).values(version=row.version + 1, **values)):
        raise ConflictProblem(f"run {row.id}: its state has just changed; look again, then repeat")


def limit(service: Service, who: Principal, id: str, order: NewLimits, workspace: str | None = None) -> dict[str, Any]:
    """Change limits of a running run. Returns all that were changed so far."""
    one = _seen(service, who, id, workspace, "run.limit")
    with recorded(service, who, "run.limit", one.place.name, id) as detail:
        who.check(Role.OPERATOR, one.place.id, one.place.name)
        limits = order.model_dump(exclude_unset=True)
        if not limits:
            raise InvalidProblem("limits: none given; name at least one limit to change")
        if one.state not in (State.RUNNING, State.STOPPING):
            raise ConflictProblem(f"run {id}: is {one.state}; only the limits of a running run can be changed")
        detail |= limits
        try:
            return one.workspace.run(one.attempt_id).limit(limits)
        except InputError as error:
            raise InvalidProblem(str(error)) from None
