"""What puts a run into the queue: submit and resume."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fastapi import Request, Response
from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from curate.api import new_run_id
from curate.service.auth import audit
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import Change, IndexedRun, Quota, Submission, TargetRow, WorkspaceRow
from curate.service.places.workspaces import target_row, workspace_row
from curate.service.problems import ConflictProblem, InvalidProblem, TooManyProblem
from curate.service.reconcile.index import indexed
from curate.service.rest.routing import CHECKS, InWorkspace, Router, Served, Who
from curate.service.runs import recipes
from curate.service.runs.control import change_row, seen
from curate.service.runs.finding import FoundRun, RunId, found
from curate.service.runs.shapes import NewRun, RecipeOrder, RunShape
from curate.service.runs.views import get_run
from curate.service.service import Service
from curate.service.states import State

router = Router(tags=["runs"])
QUEUE = "queue"
"""Writers that count queued runs take turns."""
RETRY_SECONDS = 30.0


REPEATED: dict[int | str, dict[str, Any]] = {
    200: {"model": RunShape, "description": "The same request was here before; the run as it is now."}
}


@router.post("/runs", status_code=202, dependencies=CHECKS, responses=REPEATED)
def submit_run(service: Served, who: Who, request: Request, response: Response, order: NewRun) -> RunShape:
    """Into the queue. If the answer may be lost, choose an `id` and repeat the request."""
    if "idempotency-key" in request.headers:  # ignoring it would submit a repeated request twice
        raise InvalidProblem("Idempotency-Key: not supported; choose the run's `id` in the body instead")
    run, new = submit(service, who, order)
    response.status_code = 202 if new else 200
    return run


def submit(service: Service, who: Principal, order: NewRun) -> tuple[RunShape, bool]:
    """Into the queue. The run, and whether it is new: an order with an id is submitted once, however often it comes."""
    about: dict[str, Any] = {"workspace": order.workspace, "target": order.title}
    with audit.rejections(service, who, "run.submit", **about):
        with service.database.read() as session:
            place, _ = _place(session, who, order)
            known = _submitted(session, who, place, order)
        if known:
            return get_run(service, who, known, order.workspace), False
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
    return get_run(service, who, known or row.id, order.workspace), not known


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


@router.post("/runs/{run}/resume", status_code=202, dependencies=CHECKS)
def resume_run(service: Served, who: Who, id: RunId, workspace: InWorkspace = None) -> RunShape:
    """Its next attempt, into the queue. Finished work is reused."""
    one = seen(service, who, id, workspace, "run.resume")
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
    return get_run(service, who, id, name)


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
    change_row(session, row, values)
    session.add(Change(submission_id=row.id, time=now, attempt=attempt, before=row.state, after=State.QUEUED.value))
    this = (IndexedRun.workspace_id == row.workspace_id, IndexedRun.id == row.id)
    shown = {"state": State.QUEUED.value, "reason": "", "attempt_id": f"{row.id}-{attempt}", "ended": None}
    session.execute(update(IndexedRun).where(*this).values(**shown, seconds=values["seconds"] or None, alert=""))
