"""Roles, and the user of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from curate.service.problems import ForbiddenProblem, NotFoundProblem


class Role(StrEnum):
    """Each may do what the one before it may."""

    VIEWER = "viewer"
    """Sees runs, datasets and samples."""
    OPERATOR = "operator"
    """Submits, stops and resumes runs; sets tags, pins and tombstones."""
    ADMIN = "admin"
    """In a workspace: frees storage and gives roles. In the service: everything."""

    def covers(self, needed: Role) -> bool:
        return self.rank >= needed.rank

    @property
    def rank(self) -> int:
        return list(Role).index(self)


def lesser(one: Role, other: Role) -> Role:
    return one if other.covers(one) else other


def greatest(roles: Iterable[Role]) -> Role | None:
    return max(roles, key=lambda role: role.rank, default=None)


@dataclass(frozen=True)
class Principal:
    """The user of a request, with the roles that the token allows. `everywhere`: the role in the whole service."""

    user_id: int
    user: str
    token_id: str
    everywhere: Role | None = None
    roles: Mapping[int, Role] = field(default_factory=dict)
    """Workspace -> role there."""
    token_role: Role = Role.VIEWER
    """The most that the token may do."""
    pixels: frozenset[int | None] = frozenset()
    """Workspaces whose images and videos they see although they are viewers there. None: all that they may see."""
    request_id: str = ""
    session: str = ""
    """Digest of the browser session; "" for a bearer token."""
    alone: bool = False
    """Whether this is the only user, of `curate view`: without an account, and without a cluster for runs."""

    @property
    def login(self) -> str:
        """The token, or the browser session, with which the user came."""
        return f"{self.token_id}/{self.session}"

    def role(self, workspace: int) -> Role | None:
        return greatest(role for role in (self.roles.get(workspace), self.everywhere) if role is not None)

    def check(self, needed: Role, workspace: int, name: str) -> None:
        """Raises NotFoundProblem if they may not know the workspace, and ForbiddenProblem if they may."""
        role = self.role(workspace)
        if role is None:
            raise NotFoundProblem(f"workspace {name}: not found; `GET /api/v1/workspaces` lists yours")
        if not role.covers(needed):
            raise ForbiddenProblem(f"workspace {name}: this needs the role {needed}, and you are {role}; ask an admin")

    def check_service(self, needed: Role = Role.ADMIN) -> None:
        """Raises ForbiddenProblem without the role in the whole service."""
        if self.everywhere is None or not self.everywhere.covers(needed):
            raise ForbiddenProblem(f"this needs the role {needed} in the whole service; ask an admin")

    def sees_pixels(self, workspace: int) -> bool:
        """Whether they see images and videos of the workspace: operators do, viewers by a grant."""
        role = self.role(workspace)
        return role is not None and (role.covers(Role.OPERATOR) or not self.pixels.isdisjoint((workspace, None)))

    @property
    def most(self) -> Role:
        """The most that they may do anywhere: what tokens made by them may do at most."""
        return greatest(role for role in (self.everywhere, *self.roles.values()) if role is not None) or Role.VIEWER

    def has(self, needed: Role) -> bool:
        """Whether they have the role in some workspace, or in the whole service."""
        return any(role is not None and role.covers(needed) for role in (self.everywhere, *self.roles.values()))

    def check_anywhere(self, needed: Role = Role.VIEWER) -> None:
        """Raises ForbiddenProblem without the role in some workspace."""
        if not self.has(needed):
            raise ForbiddenProblem(f"this needs the role {needed} in some workspace; ask an admin")


NOBODY = Principal(user_id=0, user="-", token_id="")
"""The user of a public page. Has no role."""
SERVICE = Principal(user_id=0, user="service", token_id="", everywhere=Role.ADMIN, token_role=Role.ADMIN)
"""The service itself, and `curate service …` on its machine."""
