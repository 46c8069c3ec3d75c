"""Users, tokens, roles, audit."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from curate.service.auth.roles import Role
from curate.service.shapes.common import Name, Order, Shape, Text, Time


class GrantShape(Shape):
    workspace: str | None
    """None: the whole service."""
    role: Role


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
