"""Tokens of users. Users make their own, admins of the service make any; the role is at most the caller's greatest."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import Field
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from curate.service.auth import tokens as made_tokens
from curate.service.auth.audit import audited
from curate.service.auth.roles import Principal, Role
from curate.service.auth.tokens import PEOPLE
from curate.service.database.models import Token, User
from curate.service.people.users import FOUND, WRITTEN, UserName, manages, revoke, user_row
from curate.service.problems import ConflictProblem, ForbiddenProblem, NotFoundProblem
from curate.service.rest.paging import paged
from curate.service.rest.routing import Limit, Router, Served, Who, after
from curate.service.service import Service
from curate.service.shapes import Order, Page, Shape, Text, Time

router = Router(tags=["people"])
MOST_TOKENS = 200
"""Limit on valid tokens per user, and on tokens in a list."""
TokenId = Annotated[str, Path(alias="token", pattern=r"^[0-9a-f]{8}$")]


class TokenShape(Shape):
    id: str
    user: str
    label: str
    role: Role
    """The most that it may do."""
    created: Time
    expires: Time | None
    used: Time | None
    revoked: Time | None


class NewToken(Order):
    label: Text = ""
    role: Role | None = Field(default=None, strict=False)
    """None: as much as the user who asks, with the token that asks."""
    days: float | None = Field(default=90, gt=0, le=3650)
    """None: it does not expire. A user's own token ends no later than the one that makes it."""


class MadeToken(TokenShape):
    token: str
    """Shown this once; only its digest is stored."""


def tokens(service: Service, who: Principal, user: str | None = None) -> list[TokenShape]:
    """Newest first; without a user, the caller's."""
    with service.database.read() as session:
        row = _own(session, who, user or who.user)
        query = select(Token).where(Token.user_id == row.id).order_by(Token.created.desc(), Token.id)
        return [_token(token, row) for token in session.scalars(query)]


@router.get("/users/{user}/tokens", responses=FOUND)
def list_tokens(
    service: Served,
    who: Who,
    user: UserName,
    cursor: Annotated[str | None, after(float, str)] = None,
    limit: Limit = 50,
) -> Page[TokenShape]:
    """Newest first. Only admins of the service see the tokens of others."""
    return paged(tokens(service, who, user), cursor, limit, newest=True, created=float, id=str)


@router.post("/users/{user}/tokens", status_code=201, responses=WRITTEN)
def make_token(service: Served, who: Who, user: UserName, order: NewToken) -> MadeToken:
    """The token is shown only in this answer. A user's own token ends no later than the one that makes it."""
    # also from a browser, where that one was exchanged for a session: a stolen token could be extended forever
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


@router.delete("/tokens/{token}", responses=FOUND)
def revoke_token(service: Served, who: Who, token_id: TokenId) -> TokenShape:
    """Ends the token and its browser sessions at once."""
    with audited(service, who, "token.revoke", target=token_id, alone=PEOPLE) as session:
        token = session.get(Token, token_id)
        if token is None or (token.user_id != who.user_id and not manages(who)):
            raise NotFoundProblem(f"token {token_id}: not found; `GET /api/v1/users/{who.user}/tokens` lists yours")
        if not who.token_role.covers(Role(token.role)):
            raise ForbiddenProblem(f"token {token_id}: is of the role {token.role}, and yours only {who.token_role}")
        if token.revoked is None:
            revoke(session, token, service.clock())
        return _token(token, session.get_one(User, token.user_id))


def _own(session: Session, who: Principal, user: str) -> User:
    """The user. Raises ForbiddenProblem unless the caller is this user or an admin of the service."""
    if user != who.user:
        who.check_service()
    return user_row(session, user)


def _token(token: Token, user: User) -> TokenShape:
    names = ("id", "label", "role", "created", "expires", "used", "revoked")
    return TokenShape(user=user.name, **{name: getattr(token, name) for name in names})
