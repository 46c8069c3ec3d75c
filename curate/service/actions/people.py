"""Users, roles, tokens, quotas, and the audit. Admins of the service manage people; admins of a workspace give roles in
it; every user lists, makes and revokes their own tokens."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, delete, func, or_, select, true
from sqlalchemy.orm import Session

from curate.service.actions.places import workspace_row
from curate.service.auth import tokens as made_tokens
from curate.service.auth.audit import audited
from curate.service.auth.first import PEOPLE
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import AuditEntry, BrowserSession, Grant, Quota, Token, User, WorkspaceRow
from curate.service.problems import ConflictProblem, ForbiddenProblem, NotFoundProblem
from curate.service.rest.paging import decode, encode
from curate.service.service import Service
from curate.service.shapes.common import Page
from curate.service.shapes.people import (
    AuditShape,
    GrantShape,
    MadeToken,
    Me,
    NewGrant,
    NewQuota,
    NewToken,
    NewUser,
    QuotaShape,
    TokenShape,
    UserShape,
)

MOST_TOKENS = 200
"""Limit on valid tokens per user, and on tokens in a list."""

# --- users and roles --------------------------------------------------------------------------------------------------


def me(service: Service, who: Principal) -> Me:
    """The caller, with the roles that the token allows."""
    with service.database.read() as session:
        names = _names(session)
        token = session.get(Token, who.token_id)
    grants = [GrantShape(workspace=names[place], role=role) for place, role in who.roles.items() if place in names]
    if who.everywhere is not None:
        grants.insert(0, GrantShape(workspace=None, role=who.everywhere))
    expires = token.expires if token else None
    return Me.model_validate({"user": who.user, "token": who.token_id, "expires": expires, "grants": grants})


def users(service: Service, who: Principal) -> list[UserShape]:
    """Admins of the service see all users; others see themselves and the users of workspaces that they are admin of."""
    with service.database.read() as session:
        names = _names(session)
        grants: dict[int, list[GrantShape]] = {}
        for grant in session.scalars(select(Grant).order_by(Grant.workspace_id)):
            place = grant.workspace_id
            if _knows(who, grant):
                shape = GrantShape(workspace=names[place] if place else None, role=Role(grant.role))
                grants.setdefault(grant.user_id, []).append(shape)
        rows = session.scalars(select(User).order_by(User.name)).all()
    seen = {row.id for row in rows} if _manages(who) else grants.keys() | {who.user_id}
    return [_user(row, grants.get(row.id, [])) for row in rows if row.id in seen]


def add_user(service: Service, who: Principal, order: NewUser) -> UserShape:
    """The new user has no role and no token."""
    with audited(service, who, "user.add", target=order.name, alone=PEOPLE) as session:
        who.check_service()
        same = session.scalar(select(User.name).where(func.lower(User.name) == order.name.lower()))
        if same is not None or order.name.lower() == "service":
            raise ConflictProblem(f"user {order.name}: exists already, as {same or 'service'}; choose another name")
        row = User(name=order.name, created=service.clock())
        session.add(row)
        session.flush()
        return _user(row, [])


def set_disabled(service: Service, who: Principal, name: str, disabled: bool) -> UserShape:
    """A disabled user cannot log in. Their tokens are revoked, and stay so when they are allowed in again."""
    with audited(service, who, "user.disable" if disabled else "user.enable", target=name, alone=PEOPLE) as session:
        who.check_service()
        row = _row(session, name)
        if disabled and row.disabled is None:
            _check_last_admin(session, row)
            row.disabled = service.clock()
            for token in session.scalars(select(Token).where(Token.user_id == row.id, Token.revoked.is_(None))):
                _revoke(session, token, row.disabled)
        elif not disabled:
            row.disabled = None
        return _shape(session, who, row)


def set_grant(service: Service, who: Principal, name: str, order: NewGrant) -> UserShape:
    """Give a role in a workspace, or in the whole service. It replaces the user's earlier role there."""
    about = {"workspace": order.workspace or "", "target": name, "role": order.role.value}
    with audited(service, who, "grant.set", alone=PEOPLE, **about) as session:
        place = _place(session, who, order.workspace)
        row = _row(session, name)
        grant = _grant(session, row, place)
        if grant is None:
            session.add(Grant(user_id=row.id, workspace_id=place, role=order.role.value))
        else:
            if place is None and order.role is not Role.ADMIN:
                _check_last_admin(session, row)
            grant.role = order.role.value
        session.flush()
        return _shape(session, who, row)


def remove_grant(service: Service, who: Principal, name: str, workspace: str | None) -> UserShape:
    with audited(service, who, "grant.remove", workspace=workspace or "", target=name, alone=PEOPLE) as session:
        place = _place(session, who, workspace)
        row = _row(session, name)
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


def _manages(who: Principal) -> bool:
    return who.everywhere is Role.ADMIN


def _names(session: Session) -> dict[int, str]:
    """Workspace id -> name."""
    return {place: name for place, name in session.execute(select(WorkspaceRow.id, WorkspaceRow.name))}  # noqa: C416


def _row(session: Session, name: str) -> User:
    row = session.scalar(select(User).where(User.name == name))
    if row is None:
        raise NotFoundProblem(f"user {name}: not found; expected the name of an existing user")
    return row


def _grant(session: Session, user: User, place: int | None) -> Grant | None:
    same = Grant.workspace_id.is_(None) if place is None else Grant.workspace_id == place
    return session.scalar(select(Grant).where(Grant.user_id == user.id, same))


def _shape(session: Session, who: Principal, row: User) -> UserShape:
    """With the roles that the caller may know, as in `users`."""
    query = select(WorkspaceRow.name, Grant).select_from(Grant)
    query = query.outerjoin(WorkspaceRow, WorkspaceRow.id == Grant.workspace_id).where(Grant.user_id == row.id)
    found = session.execute(query).all()
    shown = [GrantShape(workspace=name, role=Role(grant.role)) for name, grant in found if _knows(who, grant)]
    return _user(row, shown)


def _knows(who: Principal, grant: Grant) -> bool:
    """Whether the caller may know a role: it is theirs, or they are admin where it is."""
    place = grant.workspace_id
    return _manages(who) or grant.user_id == who.user_id or (place is not None and who.role(place) is Role.ADMIN)


def _user(row: User, grants: list[GrantShape]) -> UserShape:
    about = {"name": row.name, "created": row.created, "disabled": row.disabled, "grants": grants}
    return UserShape.model_validate(about)


# --- tokens -----------------------------------------------------------------------------------------------------------


def tokens(service: Service, who: Principal, user: str | None = None) -> list[TokenShape]:
    """Newest first; without a user, the caller's. Only admins of the service see the tokens of others."""
    with service.database.read() as session:
        row = _own(session, who, user or who.user)
        query = select(Token).where(Token.user_id == row.id).order_by(Token.created.desc(), Token.id)
        return [_token(token, row) for token in session.scalars(query)]


def make_token(service: Service, who: Principal, user: str, order: NewToken) -> MadeToken:
    """Users make their own tokens, admins of the service make any. The new role is at most the caller's greatest. A
    user's own token ends no later than the one that makes it, also from a browser, where that one was exchanged for a
    session: otherwise a stolen token could be extended forever."""
    role = order.role or who.most
    about: dict[str, Any] = {"target": user, "role": role.value, "days": order.days}
    with audited(service, who, "token.make", alone=PEOPLE, **about) as session:
        row = _own(session, who, user)
        if not who.most.covers(role):
            raise ForbiddenProblem(f"role: you are {who.most} at most with this token, and cannot make one of {role}")
        if row.disabled is not None:
            raise ConflictProblem(f"user {user}: is disabled; enable them first")
        now = service.clock()
        valid = (Token.revoked.is_(None), or_(Token.expires.is_(None), Token.expires > now))
        if (session.scalar(select(func.count()).where(Token.user_id == row.id, *valid)) or 0) >= MOST_TOKENS:
            raise ConflictProblem(f"user {user}: has {MOST_TOKENS} tokens; revoke those that are not used any more")
        until = session.get_one(Token, who.token_id).expires if user == who.user else None
        token, text = made_tokens.made(row.id, now, role=role, days=order.days, until=until, label=order.label)
        session.add(token)
        session.flush()
        return MadeToken(**_token(token, row).model_dump(), token=text)


def revoke_token(service: Service, who: Principal, token_id: str) -> TokenShape:
    """Ends the token and its browser sessions at once."""
    with audited(service, who, "token.revoke", target=token_id, alone=PEOPLE) as session:
        token = session.get(Token, token_id)
        if token is None or (token.user_id != who.user_id and not _manages(who)):
            raise NotFoundProblem(f"token {token_id}: not found; `GET /api/v1/users/{who.user}/tokens` lists yours")
        if not who.token_role.covers(Role(token.role)):
            raise ForbiddenProblem(f"token {token_id}: is of the role {token.role}, and yours only {who.token_role}")
        if token.revoked is None:
            _revoke(session, token, service.clock())
        return _token(token, session.get_one(User, token.user_id))


def _revoke(session: Session, token: Token, now: float) -> None:
    token.revoked = now
    session.execute(delete(BrowserSession).where(BrowserSession.token_id == token.id))


def _own(session: Session, who: Principal, user: str) -> User:
    """The user. Raises ForbiddenProblem unless the caller is this user or an admin of the service."""
    if user != who.user:
        who.check_service()
    return _row(session, user)


def _token(token: Token, user: User) -> TokenShape:
    names = ("id", "label", "role", "created", "expires", "used", "revoked")
    return TokenShape(user=user.name, **{name: getattr(token, name) for name in names})


# --- quotas -----------------------------------------------------------------------------------------------------------


def quotas(service: Service, who: Principal) -> dict[str, QuotaShape]:
    """By user; "" is the default. Only admins of the service see the quotas of others."""
    with service.database.read() as session:
        rows = session.execute(select(Quota, User.name).outerjoin(User, User.id == Quota.user_id))
        found = {name or "": _quota(quota) for quota, name in rows}
    return {name: quota for name, quota in sorted(found.items()) if _manages(who) or name in ("", who.user)}


def set_quota(service: Service, who: Principal, user: str | None, order: NewQuota) -> QuotaShape:
    """Set the quota of a user, or without a user the default. None: no limit."""
    limits = order.model_dump()
    with audited(service, who, "quota.set", target=user or "", alone=PEOPLE, **limits) as session:
        who.check_service()
        place = _row(session, user).id if user else None
        same = Quota.user_id.is_(None) if place is None else Quota.user_id == place
        row = session.scalar(select(Quota).where(same))
        if row is None:
            row = Quota(user_id=place)
            session.add(row)
        for name, value in limits.items():
            setattr(row, name, value)
        return _quota(row)


def _quota(row: Quota) -> QuotaShape:
    return QuotaShape(running=row.running, queued=row.queued, gpu_hours=row.gpu_hours)


# --- audit ------------------------------------------------------------------------------------------------------------


def audit(
    service: Service,
    who: Principal,
    *,
    workspace: str | None = None,
    user: str | None = None,
    action: str | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[AuditShape]:
    """Newest first. Admins of the service see all entries; others see their own, and those of workspaces that they are
    admin of."""
    wanted = {AuditEntry.workspace: workspace, AuditEntry.user: user, AuditEntry.action: action}
    conditions: list[ColumnElement[bool]] = [column == value for column, value in wanted.items() if value is not None]
    if cursor:
        conditions.append(AuditEntry.id < decode(cursor, int)[0])
    with service.database.read() as session:
        places = [name for place, name in _names(session).items() if who.role(place) is Role.ADMIN]
        seen = true() if _manages(who) else or_(AuditEntry.user == who.user, AuditEntry.workspace.in_(places))
        query = select(AuditEntry).where(seen, *conditions).order_by(AuditEntry.id.desc()).limit(limit + 1)
        rows = session.scalars(query).all()
    items = [AuditShape.model_validate(row) for row in rows[:limit]]
    return Page(items=items, next=encode(items[-1].id) if len(rows) > limit else None)
