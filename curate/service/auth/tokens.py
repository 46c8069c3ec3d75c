"""Tokens: `cur_<8 characters>_<43 characters>`, 256 random bits. Only the SHA-256 digest is stored: guessing needs no
slow hash to be hopeless. Nothing is cached, so a revoked token ends at once in every replica."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from curate.service.auth.roles import Principal, Role, lesser
from curate.service.database.models import Grant, Token, User
from curate.service.problems import NotLoggedInProblem

FORM = re.compile(r"cur_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
NO_DIGEST = "0" * 64
USED_SECONDS = 60.0
"""How exact a token's last use is."""
DAY_SECONDS = 86_400.0

Row = tuple[Token, User, Grant | None]


@dataclass(frozen=True)
class Bearer:
    """A token that is valid now, with its user and their grants: (workspace or None, role)."""

    token: Token
    user: User
    grants: tuple[tuple[int | None, Role], ...]

    def principal(self, request_id: str = "") -> Principal:
        most = Role(self.token.role)
        roles = {workspace: lesser(role, most) for workspace, role in self.grants}
        return Principal(
            user_id=self.user.id,
            user=self.user.name,
            token_id=self.token.id,
            everywhere=roles.pop(None, None),
            roles={workspace: role for workspace, role in roles.items() if workspace is not None},
            token_role=most,
            request_id=request_id,
        )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def made(
    user_id: int, now: float, *, role: Role = Role.ADMIN, days: float | None = 90, label: str = ""
) -> tuple[Token, str]:
    """A new token and its text, which is shown once."""
    name = secrets.token_hex(4)
    text = f"cur_{name}_{secrets.token_urlsafe(32)}"
    expires = None if days is None else now + days * DAY_SECONDS
    token = Token(
        id=name, user_id=user_id, digest=digest(text), label=label, role=role.value, created=now, expires=expires
    )
    return token, text


def verified(session: Session, text: str, now: float) -> Bearer:
    """Raises NotLoggedInProblem, and never says why."""
    match = FORM.fullmatch(text)
    rows = _rows(session, match[1]) if match else []
    known = rows[0][0].digest if rows else NO_DIGEST
    if not hmac.compare_digest(known, digest(text)):
        raise not_logged_in()
    return _bearer(rows, now)


def by_id(session: Session, token_id: str, now: float) -> Bearer:
    """Whose session or stream this is. Raises NotLoggedInProblem if the token has ended."""
    return _bearer(_rows(session, token_id), now)


def _bearer(rows: list[Row], now: float) -> Bearer:
    if not rows:
        raise not_logged_in()
    token, user, _ = rows[0]
    if token.revoked is not None or user.disabled is not None or (token.expires is not None and token.expires <= now):
        raise not_logged_in()
    grants = tuple((grant.workspace_id, Role(grant.role)) for _, _, grant in rows if grant is not None)
    return Bearer(token, user, grants)


def _rows(session: Session, token_id: str) -> list[Row]:
    """One for each grant of the user, or one without a grant."""
    query = select(Token, User, Grant).join(User, User.id == Token.user_id).outerjoin(Grant, Grant.user_id == User.id)
    return [(token, user, grant) for token, user, grant in session.execute(query.where(Token.id == token_id))]


def is_used(token: Token, now: float) -> bool:
    """Whether its last use has been noted, to the minute."""
    return token.used is not None and abs(now - token.used) < USED_SECONDS


def note_use(session: Session, token_id: str, now: float) -> None:
    late = or_(Token.used.is_(None), Token.used <= now - USED_SECONDS, Token.used >= now + USED_SECONDS)
    session.execute(update(Token).where(Token.id == token_id, late).values(used=now))


def not_logged_in() -> NotLoggedInProblem:
    return NotLoggedInProblem(
        "not logged in, or the token has ended; send `Authorization: Bearer TOKEN`, or log in at /login"
    )
