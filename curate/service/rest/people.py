"""Routes for users, roles, tokens, quotas and the audit."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from curate.service.actions import people
from curate.service.rest.deps import ByName, Limit, Router, Served, Who, after, problems
from curate.service.rest.paging import paged
from curate.service.shapes.common import NAME, Name, Page
from curate.service.shapes.people import (
    AuditShape,
    ChangedUser,
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

router = Router(tags=["people"])
UserName = Annotated[str, Path(alias="user", pattern=NAME)]
TokenId = Annotated[str, Path(alias="token", pattern=r"^[0-9a-f]{8}$")]
InPlace = Annotated[Name | None, Query(description="A workspace; none: the whole service.")]
Filter = Annotated[str | None, Field(max_length=64), Query()]
FOUND = problems(403, 404)
WRITTEN = problems(403, 404, 409)


@router.get("/me")
def get_me(service: Served, who: Who) -> Me:
    """The user of the token, and what the token may do."""
    return people.me(service, who)


@router.get("/users")
def list_users(service: Served, who: Who, cursor: ByName = None, limit: Limit = 50) -> Page[UserShape]:
    """Admins of the service see all users; others see themselves and the users of workspaces that they are admin of."""
    return paged(people.users(service, who), cursor, limit, name=str)


@router.post("/users", status_code=201, responses=WRITTEN)
def add_user(service: Served, who: Who, order: NewUser) -> UserShape:
    """A user without a role; give one, then make a token for them."""
    return people.add_user(service, who, order)


@router.patch("/users/{user}", responses=WRITTEN)
def change_user(service: Served, who: Who, user: UserName, order: ChangedUser) -> UserShape:
    """Disable or enable a user. Disabling revokes all tokens permanently."""
    return people.set_disabled(service, who, user, order.disabled)


@router.put("/users/{user}/grants", responses=WRITTEN)
def set_grant(service: Served, who: Who, user: UserName, order: NewGrant) -> UserShape:
    """Give a role in a workspace, or in the whole service. It replaces the user's earlier role there."""
    return people.set_grant(service, who, user, order)


@router.delete("/users/{user}/grants", responses=WRITTEN)
def remove_grant(service: Served, who: Who, user: UserName, workspace: InPlace = None) -> UserShape:
    return people.remove_grant(service, who, user, workspace)


@router.get("/users/{user}/tokens", responses=FOUND)
def list_tokens(
    service: Served,
    who: Who,
    user: UserName,
    cursor: Annotated[str | None, after(float, str)] = None,
    limit: Limit = 50,
) -> Page[TokenShape]:
    """Newest first. Only admins of the service see the tokens of others."""
    return paged(people.tokens(service, who, user), cursor, limit, newest=True, created=float, id=str)


@router.post("/users/{user}/tokens", status_code=201, responses=WRITTEN)
def make_token(service: Served, who: Who, user: UserName, order: NewToken) -> MadeToken:
    """The token is shown only in this answer. A user's own token ends no later than the one that makes it."""
    return people.make_token(service, who, user, order)


@router.delete("/tokens/{token}", responses=FOUND)
def revoke_token(service: Served, who: Who, token: TokenId) -> TokenShape:
    """Ends the token and its browser sessions at once."""
    return people.revoke_token(service, who, token)


@router.get("/quotas")
def list_quotas(service: Served, who: Who) -> dict[str, QuotaShape]:
    """By user; the empty name is the default."""
    return people.quotas(service, who)


@router.put("/quotas", responses=problems(403))
def set_default_quota(service: Served, who: Who, order: NewQuota) -> QuotaShape:
    return people.set_quota(service, who, None, order)


@router.put("/users/{user}/quota", responses=FOUND)
def set_quota(service: Served, who: Who, user: UserName, order: NewQuota) -> QuotaShape:
    return people.set_quota(service, who, user, order)


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
    return people.audit(service, who, workspace=workspace, user=user, action=action, cursor=cursor, limit=limit)
