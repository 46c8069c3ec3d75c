"""Users and roles. Admins of the service manage people; admins of a workspace give roles in it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from curate.service.auth.audit import audited
from curate.service.auth.roles import Principal, Role
from curate.service.auth.tokens import PEOPLE
from curate.service.database.models import BrowserSession, Grant, Token, User, WorkspaceRow
from curate.service.places.workspaces import workspace_row
from curate.service.problems import ConflictProblem, NotFoundProblem
from curate.service.rest.paging import paged
from curate.service.rest.routing import ByName, Limit, Router, Served, Who, problems
from curate.service.service import Service
from curate.service.shapes import NAME, Name, Order, Page, Shape, Time

router = Router(tags=["people"])
UserName = Annotated[str, Path(alias="user", pattern=NAME)]
InPlace = Annotated[Name | None, Query(description="A workspace; none: the whole service.")]
FOUND = problems(403, 404)
WRITTEN = problems(403, 404, 409)


class GrantShape(Shape):
    workspace: str | None
    """None: the whole service."""
    role: Role
    see_pixels: bool = False
    """Whether they see images and videos there."""


class Me(Shape):
    user: str
    token: str
    """Id of the token."""
    expires: Time | None
    grants: list[GrantShape]


class UserShape(Shape):
    name: str
    created: Time
    disabled: Time | None
    grants: list[GrantShape]


class NewUser(Order):
    name: Name


class ChangedUser(Order):
    disabled: bool


class NewGrant(Order):
    workspace: Name | None = None
    role: Role = Field(strict=False)
    see_pixels: bool = False
    """Lets a viewer see images and videos. Operators and admins do in any case."""


@router.get("/me")
def get_me(service: Served, who: Who) -> Me:
    """The user of the token, and what the token may do."""
    with service.database.read() as session:
        names = workspace_names(session)
        token = session.get(Token, who.token_id)
    held: dict[int | None, Role] = {} if who.everywhere is None else {None: who.everywhere}
    grants = [
        _given(None if place is None else names[place], role, place in who.pixels)
        for place, role in (held | dict(who.roles)).items()
        if place is None or place in names
    ]
    expires = token.expires if token else None
    return Me.model_validate({"user": who.user, "token": who.token_id, "expires": expires, "grants": grants})


def users(service: Service, who: Principal) -> list[UserShape]:
    """Those that they may know."""
    with service.database.read() as session:
        grants = _grants(session, who)
        rows = session.scalars(select(User).order_by(User.name)).all()
    seen = {row.id for row in rows} if manages(who) else grants.keys() | {who.user_id}
    return [_user(row, grants.get(row.id, [])) for row in rows if row.id in seen]


@router.get("/users")
def list_users(service: Served, who: Who, cursor: ByName = None, limit: Limit = 50) -> Page[UserShape]:
    """Admins of the service see all users; others see themselves and the users of workspaces that they are admin of."""
    return paged(users(service, who), cursor, limit, name=str)


@router.post("/users", status_code=201, responses=WRITTEN)
def add_user(service: Served, who: Who, order: NewUser) -> UserShape:
    """A user without a role; give one, then make a token for them."""
    with audited(service, who, "user.add", target=order.name, alone=PEOPLE) as session:
        who.check_service()
        same = session.scalar(select(User.name).where(func.lower(User.name) == order.name.lower()))
        if same is not None or order.name.lower() == "service":
            raise ConflictProblem(f"user {order.name}: exists already, as {same or 'service'}; choose another name")
        row = User(name=order.name, created=service.clock())
        session.add(row)
        session.flush()
        return _user(row, [])


@router.patch("/users/{user}", responses=WRITTEN)
def change_user(service: Served, who: Who, name: UserName, order: ChangedUser) -> UserShape:
    """Disable or enable a user. Disabling revokes all tokens permanently."""
    action = "user.disable" if order.disabled else "user.enable"
    with audited(service, who, action, target=name, alone=PEOPLE) as session:
        who.check_service()
        row = user_row(session, name)
        if order.disabled and row.disabled is None:
            _check_last_admin(session, row)
            row.disabled = service.clock()
            for token in session.scalars(select(Token).where(Token.user_id == row.id, Token.revoked.is_(None))):
                revoke(session, token, row.disabled)
        elif not order.disabled:
            row.disabled = None
        return _shape(session, who, row)


@router.put("/users/{user}/grants", responses=WRITTEN)
def set_grant(service: Served, who: Who, name: UserName, order: NewGrant) -> UserShape:
    """Give a role in a workspace, or in the whole service. It replaces the user's earlier role there."""
    about = {"workspace": order.workspace or "", "target": name, "role": order.role.value}
    with audited(service, who, "grant.set", alone=PEOPLE, see_pixels=order.see_pixels, **about) as session:
        place = _place(session, who, order.workspace)
        row = user_row(session, name)
        grant = _grant(session, row, place)
        if grant is None:
            grant = Grant(user_id=row.id, workspace_id=place, role=order.role.value)
            session.add(grant)
        else:
            if place is None and order.role is not Role.ADMIN:
                _check_last_admin(session, row)
            grant.role = order.role.value
        grant.see_pixels = order.see_pixels
        session.flush()
        return _shape(session, who, row)


@router.delete("/users/{user}/grants", responses=WRITTEN)
def remove_grant(service: Served, who: Who, name: UserName, workspace: InPlace = None) -> UserShape:
    with audited(service, who, "grant.remove", workspace=workspace or "", target=name, alone=PEOPLE) as session:
        place = _place(session, who, workspace)
        row = user_row(session, name)
        grant = _grant(session, row, place)
        where = f"workspace {workspace}" if workspace else "the whole service"
        if grant is None:
            raise NotFoundProblem(f"user {name}: has no role in {where}; `GET /api/v1/users` lists roles")
        if place is None:
            _check_last_admin(session, row)
        session.delete(grant)
        session.flush()
        return _shape(session, who, row)


def _place(session: Session, who: Principal, workspace: str | None) -> int | None:
    """Id of a workspace in which the caller may give roles; None for the whole service."""
    if workspace is None:
        who.check_service()
        return None
    return workspace_row(session, who, workspace, Role.ADMIN).id


def _check_last_admin(session: Session, user: User) -> None:
    """Raises ConflictProblem if the service has no other admin."""
    admins = select(User.id).join(Grant, Grant.user_id == User.id)
    admins = admins.where(Grant.workspace_id.is_(None), Grant.role == Role.ADMIN.value, User.disabled.is_(None))
    if list(session.scalars(admins)) == [user.id]:
        raise ConflictProblem(f"user {user.name}: is the last admin of the service; make another user admin first")


def manages(who: Principal) -> bool:
    return who.everywhere is Role.ADMIN


def workspace_names(session: Session) -> dict[int, str]:
    """Workspace id -> name."""
    return {place: name for place, name in session.execute(select(WorkspaceRow.id, WorkspaceRow.name))}  # noqa: C416


def user_row(session: Session, name: str) -> User:
    row = session.scalar(select(User).where(User.name == name))
    if row is None:
        raise NotFoundProblem(f"user {name}: not found; expected the name of an existing user")
    return row


def _grant(session: Session, user: User, place: int | None) -> Grant | None:
    same = Grant.workspace_id.is_(None) if place is None else Grant.workspace_id == place
    return session.scalar(select(Grant).where(Grant.user_id == user.id, same))


def _grants(session: Session, who: Principal, user_id: int | None = None) -> dict[int, list[GrantShape]]:
    """User, or this one -> their roles that the caller may know."""
    query = select(Grant, WorkspaceRow.name).outerjoin(WorkspaceRow, WorkspaceRow.id == Grant.workspace_id)
    if user_id is not None:
        query = query.where(Grant.user_id == user_id)
    found: dict[int, list[GrantShape]] = {}
    for grant, name in session.execute(query.order_by(Grant.workspace_id)):
        if _knows(who, grant):
            found.setdefault(grant.user_id, []).append(_given(name, Role(grant.role), grant.see_pixels))
    return found


def _given(workspace: str | None, role: Role, see_pixels: bool) -> GrantShape:
    return GrantShape(workspace=workspace, role=role, see_pixels=see_pixels or role.covers(Role.OPERATOR))


def _shape(session: Session, who: Principal, row: User) -> UserShape:
    return _user(row, _grants(session, who, row.id).get(row.id, []))


def _knows(who: Principal, grant: Grant) -> bool:
    """Whether the caller may know a role: it is theirs, or they are admin where it is."""
    place = grant.workspace_id
    return manages(who) or grant.user_id == who.user_id or (place is not None and who.role(place) is Role.ADMIN)


def _user(row: User, grants: list[GrantShape]) -> UserShape:
    about = {"name": row.name, "created": row.created, "disabled": row.disabled, "grants": grants}
    return UserShape.model_validate(about)


def revoke(session: Session, token: Token, now: float) -> None:
    """End a token, and its browser sessions."""
    token.revoked = now
    session.execute(delete(BrowserSession).where(BrowserSession.token_id == token.id))
