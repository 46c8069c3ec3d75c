"""Tokens: `cur_<8 characters>_<43 characters>`, 256 random bits. Only the SHA-256 digest is stored: guessing needs no
slow hash to be hopeless. Nothing is cached, so a revoked token ends at once in every replica."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, bindparam, or_, select, update
from sqlalchemy.orm import Session

from curate.service.auth import audit
from curate.service.auth.roles import SERVICE, Principal, Role, lesser
from curate.service.database.models import Grant, Token, User
from curate.service.problems import NotLoggedInProblem

if TYPE_CHECKING:
    from curate.service.service import Service

Reading = Session | Connection
FORM = re.compile(r"cur_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
NO_DIGEST = "0" * 64
USED_SECONDS = 60.0
"""How exact a token's last use is."""
DAY_SECONDS = 86_400.0
PEOPLE = "people"
"""Writers of users, grants and tokens take turns."""
FIRST_DAYS = 365.0

_QUERY = (
    select(
        Token.id, Token.digest, Token.role, Token.expires, Token.revoked, Token.used, Token.user_id, User.name,
        User.disabled, Grant.workspace_id, Grant.role.label("granted"),
        Grant.see_pixels,
    )
    .join(User, User.id == Token.user_id)
    .outerjoin(Grant, Grant.user_id == User.id)
    .where(Token.id == bindparam("id"))
)  # fmt: skip
"""A row for each grant of the user, or one without a grant. Columns: objects would cost a multiple on each request."""


@dataclass(frozen=True)
class Bearer:
    """A token that is valid now, with its user and their grants: (workspace or None, role)."""

    id: str
    role: Role
    user_id: int
    user: str
    grants: tuple[tuple[int | None, Role], ...]
    pixels: frozenset[int | None] = frozenset()
    """Where they see images as viewers."""
    expires: float | None = None
    used: float | None = None

    def principal(self, request_id: str = "", session: str = "") -> Principal:
        roles = {workspace: lesser(role, self.role) for workspace, role in self.grants}
        return Principal(
            user_id=self.user_id,
            user=self.user,
            token_id=self.id,
            everywhere=roles.pop(None, None),
            roles={workspace: role for workspace, role in roles.items() if workspace is not None},
            token_role=self.role,
            pixels=self.pixels,
            request_id=request_id,
            session=session,
        )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def made(
    user_id: int,
    now: float,
    *,
    role: Role = Role.ADMIN,
    days: float | None = 90,
    until: float | None = None,
    label: str = "",
) -> tuple[Token, str]:
    """A new token and its text, which is shown once. It ends after `days`, and at the latest at `until`."""
    name = secrets.token_hex(4)
    text = f"cur_{name}_{secrets.token_urlsafe(32)}"
    ends = [until, None if days is None else now + days * DAY_SECONDS]
    expires = min((end for end in ends if end is not None), default=None)
    token = Token(
        id=name, user_id=user_id, digest=digest(text), label=label, role=role.value, created=now, expires=expires
    )
    return token, text


def verified(session: Reading, text: str, now: float) -> Bearer:
    """Raises NotLoggedInProblem, and never says why."""
    match = FORM.fullmatch(text)
    rows = _rows(session, match[1]) if match else []
    known = rows[0].digest if rows else NO_DIGEST
    if not hmac.compare_digest(known, digest(text)):
        raise not_logged_in()
    return _bearer(rows, now)


def by_id(session: Reading, token_id: str, now: float) -> Bearer:
    """Whose session or stream this is. Raises NotLoggedInProblem if the token has ended."""
    return _bearer(_rows(session, token_id), now)


def _bearer(rows: Sequence[Row[*tuple[Any, ...]]], now: float) -> Bearer:
    if not rows:
        raise not_logged_in()
    one = rows[0]
    if one.revoked is not None or one.disabled is not None or (one.expires is not None and one.expires <= now):
        raise not_logged_in()
    grants = tuple((row.workspace_id, Role(row.granted)) for row in rows if row.granted is not None)
    pixels = frozenset(row.workspace_id for row in rows if row.see_pixels)
    return Bearer(one.id, Role(one.role), one.user_id, one.name, grants, pixels, one.expires, one.used)


def _rows(session: Reading, token_id: str) -> Sequence[Row[*tuple[Any, ...]]]:
    return session.execute(_QUERY, {"id": token_id}).all()


def is_used(found: Bearer, now: float) -> bool:
    """Whether its last use has been noted, to the minute."""
    return found.used is not None and abs(now - found.used) < USED_SECONDS


def note_use(session: Session, token_id: str, now: float) -> None:
    late = or_(Token.used.is_(None), Token.used <= now - USED_SECONDS, Token.used >= now + USED_SECONDS)
    session.execute(update(Token).where(Token.id == token_id, late).values(used=now))


def not_logged_in() -> NotLoggedInProblem:
    return NotLoggedInProblem(
        "not logged in, or the token has ended; send `Authorization: Bearer TOKEN`, or log in at /login"
    )


def first_token(service: Service) -> str | None:
    """Make the first user, `admin` of the whole service, and a token, which is shown once: there is no default
    credential and no sign-up. None if there is a user already."""
    now = service.clock()
    with service.database.write(PEOPLE) as session:
        if session.scalar(select(User.id).limit(1)) is not None:
            return None
        user = User(name="admin", created=now)
        session.add(user)
        session.flush()
        session.add(Grant(user_id=user.id, role=Role.ADMIN.value))
        audit.record(session, SERVICE, "user.add", target=user.name, role=Role.ADMIN.value)
        token, text = made(user.id, now, days=FIRST_DAYS, label="the first")
        session.add(token)
        audit.record(session, SERVICE, "token.make", target=f"{user.name}/{token.id}", role=token.role)
        return text
