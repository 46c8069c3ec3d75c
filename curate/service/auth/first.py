"""The first admin. There is no default credential and no sign-up: the token is made here and shown once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from curate.service.auth import audit, tokens
from curate.service.auth.roles import SERVICE, Role
from curate.service.database.models import Grant, User

if TYPE_CHECKING:
    from curate.service.service import Service

PEOPLE = "people"
"""Writers of users, grants and tokens take turns."""
FIRST_DAYS = 365.0


def first_token(service: Service) -> str | None:
    """Make the user `admin`, admin of the whole service, and a token. None if there is a user already."""
    now = service.clock()
    with service.database.write(PEOPLE) as session:
        if session.scalar(select(User.id).limit(1)) is not None:
            return None
        user = User(name="admin", created=now)
        session.add(user)
        session.flush()
        session.add(Grant(user_id=user.id, role=Role.ADMIN.value))
        audit.record(session, SERVICE, "user.add", target=user.name, role=Role.ADMIN.value)
        token, text = tokens.made(user.id, now, days=FIRST_DAYS, label="the first")
        session.add(token)
        audit.record(session, SERVICE, "token.make", target=f"{user.name}/{token.id}", role=token.role)
        return text
