"""What can be done to a run: change its priority or its limits, stop it, kill it.

Stop and kill only write what was requested; the reconciler acts on it within seconds.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body
from sqlalchemy.orm import Session

from curate.core.errors import InputError
from curate.service.auth import audit
from curate.service.auth.audit import audited, recorded
from curate.service.auth.roles import Principal, Role
from curate.service.database.database import check_version, swapped
from curate.service.database.models import Submission
from curate.service.problems import ConflictProblem, InvalidProblem
from curate.service.rest.routing import IfMatch, InWorkspace, Router, Served, Who, etagged, problems
from curate.service.runs.finding import FoundRun, RunId, found
from curate.service.runs.shapes import ChangedRun, NewLimits, RunShape
from curate.service.runs.views import get_run
from curate.service.service import Service
from curate.service.states import State

router = Router(tags=["runs"])


@router.patch("/runs/{run}", responses=problems(403, 404, 409, 412))
@etagged
def change_run(
    service: Served,
    who: Who,
    id: RunId,
    order: ChangedRun,
    workspace: InWorkspace = None,
    if_match: IfMatch = None,
) -> RunShape:
    """Change the priority of a queued run."""
    # above 0 it takes an admin, to set it and to take it back
    one = seen(service, who, id, workspace, "run.change")
    name = one.place.name
    with audited(service, who, "run.change", workspace=name, target=id, priority=order.priority) as session:
        one = found(session, who, id, name, Role.OPERATOR)
        if one.row is None or one.state is not State.QUEUED:
            raise ConflictProblem(f"run {id}: is {one.state}; only the priority of a queued run can be changed")
        check_version(f"run {id}", one.row.version, if_match)
        who.check(Role.ADMIN if max(order.priority, one.row.priority) > 0 else Role.OPERATOR, one.place.id, name)
        if order.priority != one.row.priority:
            change_row(session, one.row, {"priority": order.priority})
    service.wake()
    return get_run(service, who, id, name)


@router.post("/runs/{run}/stop", status_code=202)
def stop_run(service: Served, who: Who, id: RunId, workspace: InWorkspace = None) -> RunShape:
    """Request it to commit its finished work and end. After its drain time it is killed."""
    return _request(service, who, id, workspace, "stop")


@router.post("/runs/{run}/kill", status_code=202)
def kill_run(service: Served, who: Who, id: RunId, workspace: InWorkspace = None) -> RunShape:
    """Request it to end at once. What was committed stays."""
    return _request(service, who, id, workspace, "kill")


def seen(service: Service, who: Principal, id: str, workspace: str | None, action: str) -> FoundRun:
    """A run to act on. That they cannot see it is recorded too."""
    with audit.rejections(service, who, action, workspace or "", id), service.database.read() as session:
        return found(session, who, id, workspace, Role.VIEWER)


def _request(service: Service, who: Principal, id: str, workspace: str | None, verb: str) -> RunShape:
    one = seen(service, who, id, workspace, f"run.{verb}")
    name = one.place.name
    if one.row is None:
        _request_foreign(service, who, one, verb)
        return get_run(service, who, id, name)
    with audited(service, who, f"run.{verb}", workspace=name, target=id) as session:
        one = found(session, who, id, name, Role.OPERATOR)
        row = one.row
        assert row is not None
        if one.over:
            raise ConflictProblem(f"run {id}: already {one.state}; only a run that has not ended can be stopped")
        if row.request not in ("kill", verb):
            values = {"request": verb, "requested": service.clock(), "requested_by": who.user}
            change_row(session, row, values)
    service.wake()
    return get_run(service, who, id, name)


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


@router.post("/runs/{run}/limit")
def limit_run(
    service: Served, who: Who, id: RunId, order: Annotated[NewLimits, Body()], workspace: InWorkspace = None
) -> dict[str, Any]:
    """Change limits of a running run. The answer has all that were changed so far."""
    one = seen(service, who, id, workspace, "run.limit")
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


def change_row(session: Session, row: Submission, values: dict[str, Any]) -> None:
    """Change the version that was read. Raises ConflictProblem if the reconciler or another user was first."""
    if not swapped(session, row, **values):
        raise ConflictProblem(f"run {row.id}: its state has just changed; look again, then repeat")
