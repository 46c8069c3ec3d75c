"""Targets: the Ray clusters that runs are submitted to. Only admins of the whole service change them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from curate.service.auth.audit import audited
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import Submission, TargetRow, WorkspaceRow
from curate.service.places.workspaces import CHANGED, change, count, target_row
from curate.service.problems import ConflictProblem, NotFoundProblem
from curate.service.reconcile.targets import Health
from curate.service.rest.paging import paged
from curate.service.rest.routing import SEEN, ByName, IfMatch, Limit, Router, Served, Who, etagged
from curate.service.service import Service
from curate.service.shapes import NAME, Name, Order, Page, Shape, Time
from curate.service.states import ACTIVE

router = Router(tags=["places"])
TargetName = Annotated[str, Path(alias="target", pattern=NAME)]


class TargetShape(Shape):
    name: str
    address: str
    token: str
    """A reference, never the token."""
    max_runs: int
    max_gpus: int
    active: int
    """Runs of the service on it."""
    created: Time
    version: int
    health: Health | None
    """None before the first check."""


class NewTarget(Order):
    name: Name
    address: str = Field(pattern=r"^https?://[^\s/@]+$", max_length=1000, examples=["http://ray-head:8265"])
    token: str = Field(default="", pattern=r"^$|^(env:[A-Za-z_][A-Za-z0-9_]*|file:\S.*)$", max_length=500)
    max_runs: int = Field(default=4, ge=1, le=10_000)
    max_gpus: int = Field(default=0, ge=0, le=1_000_000)
    """GPUs that a cluster with an autoscaler can scale up to; 0: no more than it has."""


class ChangedTarget(Order):
    address: str | None = Field(default=None, pattern=r"^https?://[^\s/@]+$", max_length=1000)
    token: str | None = Field(default=None, pattern=r"^$|^(env:[A-Za-z_][A-Za-z0-9_]*|file:\S.*)$", max_length=500)
    max_runs: int | None = Field(default=None, ge=1, le=10_000)
    max_gpus: int | None = Field(default=None, ge=0, le=1_000_000)


def targets(service: Service, who: Principal) -> list[TargetShape]:
    """All of them, for everybody with a role anywhere: the names to submit to."""
    if not who.has(Role.VIEWER):
        return []
    with service.database.read() as session:
        rows = session.scalars(select(TargetRow).order_by(TargetRow.name))
        active = _active(session)
        return [_target(service, who, row, active.get(row.id, 0)) for row in rows]


@router.get("/targets")
def list_targets(service: Served, who: Who, cursor: ByName = None, limit: Limit = 50) -> Page[TargetShape]:
    return paged(targets(service, who), cursor, limit, name=str)


@router.get("/targets/{target}", responses=SEEN)
@etagged
def get_target(service: Served, who: Who, name: TargetName) -> TargetShape:
    if not who.has(Role.VIEWER):
        raise NotFoundProblem(f"target {name}: not found; `GET /api/v1/targets` lists them")
    with service.database.read() as session:
        row = target_row(session, name)
        return _target(service, who, row, _active(session).get(row.id, 0))


@router.post("/targets", status_code=201)
def add_target(service: Served, who: Who, order: NewTarget) -> TargetShape:
    """`token` is a reference, env:NAME or file:PATH, which the service reads."""
    with audited(service, who, "target.add", target=order.name, address=order.address) as session:
        who.check_service()
        if session.scalar(select(TargetRow).where(TargetRow.name == order.name)) is not None:
            raise ConflictProblem(f"target {order.name}: exists already; choose another name, or change it")
        row = TargetRow(**order.model_dump(), created=service.clock())
        session.add(row)
        session.flush()
        return _target(service, who, row, 0)


@router.patch("/targets/{target}", responses=CHANGED)
@etagged
def change_target(
    service: Served, who: Who, name: TargetName, order: ChangedTarget, if_match: IfMatch = None
) -> TargetShape:
    values = {field: value for field, value in order.model_dump().items() if value is not None}
    with audited(service, who, "target.change", target=name, fields=sorted(values)) as session:
        who.check_service()
        row = target_row(session, name)
        active = _active(session).get(row.id, 0)
        if "address" in values and values["address"] != row.address and active:
            raise ConflictProblem(f"target {name}: {active} runs are on it; change its address once they have ended")
        change(session, row, values, if_match)
        return _target(service, who, row, active)


@router.delete("/targets/{target}", status_code=204, responses=CHANGED)
def remove_target(service: Served, who: Who, name: TargetName) -> None:
    with audited(service, who, "target.remove", target=name) as session:
        who.check_service()
        row = target_row(session, name)
        used = session.scalar(select(WorkspaceRow.name).where(WorkspaceRow.target == name).limit(1))
        if used is not None:
            raise ConflictProblem(f"target {name}: workspace {used} uses it; give that another target first")
        known = count(session, Submission.target_id == row.id)
        if known:
            raise ConflictProblem(f"target {name}: {known} runs were submitted to it, whose records name it")
        session.delete(row)


@router.post("/targets/{target}/check")
def check_target(service: Served, who: Who, name: TargetName) -> TargetShape:
    """Ask the cluster now, for at most a few seconds."""
    who.check_anywhere(Role.OPERATOR)
    with service.database.read() as session:
        row = target_row(session, name)
        active = _active(session).get(row.id, 0)
    service.targets.check(row)
    return _target(service, who, row, active)


def _target(service: Service, who: Principal, row: TargetRow, active: int) -> TargetShape:
    """Only admins see where a cluster is, and which token the service uses."""
    shown = who.everywhere is Role.ADMIN
    about = {field: getattr(row, field) for field in ("name", "max_runs", "max_gpus", "created", "version")}
    about |= {field: getattr(row, field) if shown else "" for field in ("address", "token")}
    health = service.targets.health(row.name)
    if health is not None and health.error and not shown:  # names the address, or where the token is
        health = health.model_copy(update={"error": "it does not answer as it should; admins of the service see why"})
    return TargetShape.model_validate({**about, "active": active, "health": health})


def _active(session: Session) -> dict[int, int]:
    """Target -> runs that occupy it."""
    counted = select(Submission.target_id, func.count()).where(Submission.state.in_(ACTIVE))
    return {row[0]: row[1] for row in session.execute(counted.group_by(Submission.target_id))}
