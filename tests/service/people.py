"""People who ask things of a service in tests."""

from __future__ import annotations

from dataclasses import dataclass

from curate.service.auth import tokens
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import Grant, TargetRow, User, WorkspaceRow
from curate.service.service import Service


@dataclass(frozen=True)
class Person:
    principal: Principal
    token: str

    @property
    def name(self) -> str:
        return self.principal.user

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True)
class People:
    """`keeper` is admin of the workspace `main` only; `stranger` has no role anywhere."""

    workspace: WorkspaceRow
    target: TargetRow
    viewer: Person
    operator: Person
    keeper: Person
    admin: Person
    stranger: Person


def people(service: Service, workspace_url: str) -> People:
    """Users with a token each, a target `local` and a workspace `main`."""
    now = service.clock()
    target = TargetRow(name="local", address="http://127.0.0.1:1", created=now)
    workspace = WorkspaceRow(name="main", url=workspace_url, target="local", created=now)
    with service.database.write() as session:
        session.add_all([target, workspace])
    made = {
        "viewer": person(service, "viewer", Role.VIEWER, workspace),
        "operator": person(service, "operator", Role.OPERATOR, workspace),
        "keeper": person(service, "keeper", Role.ADMIN, workspace),
        "admin": person(service, "admin", Role.ADMIN),
        "stranger": person(service, "stranger"),
    }
    return People(workspace=workspace, target=target, **made)


def person(service: Service, name: str, role: Role | None = None, workspace: WorkspaceRow | None = None) -> Person:
    """A new user with a role in the workspace, or in the whole service, and a token for it."""
    now = service.clock()
    with service.database.write() as session:
        user = User(name=name, created=now)
        session.add(user)
        session.flush()
        if role is not None:
            place = workspace.id if workspace else None
            session.add(Grant(user_id=user.id, workspace_id=place, role=role.value))
        token, text = tokens.made(user.id, now)
        session.add(token)
        session.flush()
        return Person(tokens.by_id(session, token.id, now).principal(), text)
