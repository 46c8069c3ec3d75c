"""Registrations: what recipes may use although it lies outside. Only admins of the whole service change them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from curate.service.auth.audit import audited
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import Registration, WorkspaceRow
from curate.service.places.workspaces import CHANGED, workspace_row
from curate.service.policy.rules import check_registration
from curate.service.problems import ConflictProblem, NotFoundProblem
from curate.service.rest.paging import paged
from curate.service.rest.routing import Limit, Router, Served, Who, Workspace, after
from curate.service.service import Service
from curate.service.shapes import NAME, Name, Order, Page, Shape, Time

router = Router(tags=["places"])
Kind = Literal["root", "endpoints", "file", "encoder", "op", "secret", "proxy", "network"]


class RegistrationShape(Shape):
    workspace: str | None
    kind: Kind
    name: str
    value: str
    created: Time


class NewRegistration(Order):
    workspace: Name | None = None
    kind: Kind
    name: Name
    value: str = Field(min_length=1, max_length=1000)


def registrations(service: Service, who: Principal, workspace: str | None = None) -> list[RegistrationShape]:
    """Those of the whole service, and of one workspace or all that they may see. Only admins of the service see what
    they stand for."""
    if not who.has(Role.VIEWER):
        return []
    with service.database.read() as session:
        names = {row.id: row.name for row in session.scalars(select(WorkspaceRow)) if who.role(row.id) is not None}
        if workspace is not None:
            row = workspace_row(session, who, workspace, Role.VIEWER)
            names = {row.id: row.name}
        order = (Registration.kind, Registration.name, Registration.id)
        rows = session.scalars(select(Registration).order_by(*order))
        return [
            _registration(who, row, names.get(row.workspace_id) if row.workspace_id else None)
            for row in rows
            if row.workspace_id is None or row.workspace_id in names
        ]


@router.get("/registrations")
def list_registrations(
    service: Served,
    who: Who,
    workspace: Workspace = None,
    cursor: Annotated[str | None, after(str, str, str)] = None,
    limit: Limit = 50,
) -> Page[RegistrationShape]:
    """What recipes may use although it lies outside of the workspace."""
    return paged(registrations(service, who, workspace), cursor, limit, kind=str, name=str, workspace=str)


@router.post("/registrations", status_code=201)
def register(service: Served, who: Who, order: NewRegistration) -> RegistrationShape:
    about: dict[str, Any] = {"workspace": order.workspace or "", "target": f"{order.kind} {order.name}"}
    with audited(service, who, "registration.add", **about) as session:
        who.check_service()
        place = workspace_row(session, who, order.workspace, Role.ADMIN) if order.workspace else None
        if _registered(session, place, order.kind, order.name) is not None:
            where = f" in workspace {place.name}" if place else ""
            raise ConflictProblem(f"{order.kind} {order.name}: registered already{where}; remove it first to change it")
        check_registration(order.kind, order.value)
        row = Registration(
            workspace_id=place.id if place else None, kind=order.kind, name=order.name, value=order.value,
            created=service.clock(),
        )  # fmt: skip
        session.add(row)
        session.flush()
        return _registration(who, row, order.workspace)


@router.delete("/registrations/{kind}/{name}", status_code=204, responses=CHANGED)
def unregister(
    service: Served, who: Who, kind: Kind, name: Annotated[str, Path(pattern=NAME)], workspace: Workspace = None
) -> None:
    with audited(service, who, "registration.remove", workspace=workspace or "", target=f"{kind} {name}") as session:
        who.check_service()
        place = workspace_row(session, who, workspace, Role.ADMIN) if workspace else None
        row = _registered(session, place, kind, name)
        if row is None:
            raise NotFoundProblem(f"{kind} {name}: not registered; `GET /api/v1/registrations` lists what is")
        session.delete(row)


def _registered(session: Session, place: WorkspaceRow | None, kind: str, name: str) -> Registration | None:
    where = Registration.workspace_id.is_(None) if place is None else Registration.workspace_id == place.id
    return session.scalar(select(Registration).where(where, Registration.kind == kind, Registration.name == name))


def _registration(who: Principal, row: Registration, workspace: str | None) -> RegistrationShape:
    about = {field: getattr(row, field) for field in ("kind", "name", "created")}
    value = row.value if who.everywhere is Role.ADMIN else ""
    return RegistrationShape.model_validate({**about, "workspace": workspace, "value": value})
