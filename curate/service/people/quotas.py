"""Quotas, and the audit."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field
from sqlalchemy import ColumnElement, or_, select, true

from curate.service.auth.audit import audited
from curate.service.auth.roles import Principal, Role
from curate.service.auth.tokens import PEOPLE
from curate.service.database.models import AuditEntry, Quota, User
from curate.service.people.users import FOUND, UserName, manages, user_row, workspace_names
from curate.service.rest.paging import decode, page_of
from curate.service.rest.routing import Limit, Router, Served, Who, after, problems
from curate.service.service import Service
from curate.service.shapes import Order, Page, Shape, Time

router = Router(tags=["people"])
Filter = Annotated[str | None, Field(max_length=64), Query()]


class QuotaShape(Shape):
    running: int | None = None
    queued: int | None = None
    gpu_hours: float | None = None
    """In the last 30 days."""


class NewQuota(Order):
    running: int | None = Field(default=None, ge=0, le=1_000_000)
    queued: int | None = Field(default=None, ge=0, le=1_000_000)
    gpu_hours: float | None = Field(default=None, ge=0, le=1e9)


class AuditShape(Shape):
    id: int
    time: Time
    user: str
    token_id: str | None
    action: str
    workspace: str
    target: str
    outcome: str
    request_id: str
    detail: dict[str, Any]


@router.get("/quotas")
def list_quotas(service: Served, who: Who) -> dict[str, QuotaShape]:
    """By user; the empty name is the default."""
    with service.database.read() as session:
        rows = session.execute(select(Quota, User.name).outerjoin(User, User.id == Quota.user_id))
        found = {name or "": QuotaShape.model_validate(quota) for quota, name in rows}
    return {name: quota for name, quota in sorted(found.items()) if manages(who) or name in ("", who.user)}


@router.put("/quotas", responses=problems(403))
def set_default_quota(service: Served, who: Who, order: NewQuota) -> QuotaShape:
    return _set(service, who, None, order)


@router.put("/users/{user}/quota", responses=FOUND)
def set_quota(service: Served, who: Who, user: UserName, order: NewQuota) -> QuotaShape:
    return _set(service, who, user, order)


def _set(service: Service, who: Principal, user: str | None, order: NewQuota) -> QuotaShape:
    limits = order.model_dump()
    with audited(service, who, "quota.set", target=user or "", alone=PEOPLE, **limits) as session:
        who.check_service()
        place = user_row(session, user).id if user else None
        same = Quota.user_id.is_(None) if place is None else Quota.user_id == place
        row = session.scalar(select(Quota).where(same))
        if row is None:
            row = Quota(user_id=place)
            session.add(row)
        for name, value in limits.items():
            setattr(row, name, value)
        return QuotaShape.model_validate(row)


@router.get("/audit")
def list_audit(
    service: Served,
    who: Who,
    workspace: Filter = None,
    user: Filter = None,
    action: Filter = None,
    cursor: Annotated[str | None, after(int)] = None,
    limit: Limit = 50,
) -> Page[AuditShape]:
    """Newest first: every write, whether it succeeded or not, and every failed login."""
    # admins of the service see all entries; others see their own, and those of workspaces that they are admin of
    wanted = {AuditEntry.workspace: workspace, AuditEntry.user: user, AuditEntry.action: action}
    conditions: list[ColumnElement[bool]] = [column == value for column, value in wanted.items() if value is not None]
    if cursor:
        conditions.append(AuditEntry.id < decode(cursor, int)[0])
    with service.database.read() as session:
        places = [name for place, name in workspace_names(session).items() if who.role(place) is Role.ADMIN]
        seen = true() if manages(who) else or_(AuditEntry.user == who.user, AuditEntry.workspace.in_(places))
        query = select(AuditEntry).where(seen, *conditions).order_by(AuditEntry.id.desc()).limit(limit + 1)
        return page_of(session.scalars(query).all(), limit, AuditShape.model_validate, "id")
