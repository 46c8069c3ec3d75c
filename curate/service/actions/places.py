"""Workspaces, targets, and what recipes may use. Only admins of the whole service change them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from curate.api import Workspace
from curate.core.errors import CurateError
from curate.core.secrets import redact
from curate.core.store.storage import open_workspace
from curate.service.auth.audit import audited, rejections
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import Registration, Submission, TargetRow, WorkspaceRow
from curate.service.policy.rules import check_registration
from curate.service.problems import (
    ChangedProblem,
    ConflictProblem,
    InvalidProblem,
    NotFoundProblem,
    UnavailableProblem,
)
from curate.service.reconcile.swap import swapped
from curate.service.service import Service
from curate.service.shapes.places import (
    ChangedTarget,
    ChangedWorkspace,
    NewRegistration,
    NewTarget,
    NewWorkspace,
    RegistrationShape,
    TargetShape,
    WorkspaceShape,
)
from curate.service.states import State

ACTIVE = [state.value for state in State if state.active]
WAITING = [*ACTIVE, State.QUEUED.value]
STORAGE_LIBRARIES = ("aiohttp", "botocore", "fsspec", "s3fs")

# --- for other actions ------------------------------------------------------------------------------------------------


def workspace_row(session: Session, who: Principal, name: str, needed: Role) -> WorkspaceRow:
    """Raises NotFoundProblem for a workspace that does not exist or that they cannot see, and ForbiddenProblem."""
    row = session.scalar(select(WorkspaceRow).where(WorkspaceRow.name == name))
    if row is None:
        raise NotFoundProblem(f"workspace {name}: not found; `GET /api/v1/workspaces` lists yours")
    who.check(needed, row.id, row.name)
    return row


def place_of(service: Service, who: Principal, name: str, needed: Role = Role.VIEWER) -> WorkspaceRow:
    """`workspace_row` in a separate transaction."""
    with service.database.read() as session:
        return workspace_row(session, who, name, needed)


def opened(row: WorkspaceRow) -> Workspace:
    """Its format is read once per process."""
    return _opened(row.url)


@lru_cache(maxsize=256)
def _opened(url: str) -> Workspace:
    return Workspace(url)


@contextmanager
def reachable(row: WorkspaceRow) -> Iterator[None]:
    """Storage's own errors as UnavailableProblem."""
    try:
        yield
    except CurateError:
        raise
    except Exception as error:  # object stores raise errors of any class
        if not isinstance(error, OSError) and not type(error).__module__.startswith(STORAGE_LIBRARIES):
            raise  # a bug
        text = redact(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
        raise UnavailableProblem(f"workspace {row.name}: does not answer ({text}); try again later") from error


def target_row(session: Session, name: str) -> TargetRow:
    row = session.scalar(select(TargetRow).where(TargetRow.name == name))
    if row is None:
        raise NotFoundProblem(f"target {name}: not found; `GET /api/v1/targets` lists them")
    return row


# --- workspaces -------------------------------------------------------------------------------------------------------


def workspaces(service: Service, who: Principal) -> list[WorkspaceShape]:
    """Those that they may see."""
    with service.database.read() as session:
        rows = session.scalars(select(WorkspaceRow).order_by(WorkspaceRow.name))
        return [_workspace(who, row) for row in rows if who.role(row.id) is not None]


def workspace(service: Service, who: Principal, name: str) -> WorkspaceShape:
    with service.database.read() as session:
        return _workspace(who, workspace_row(session, who, name, Role.VIEWER))


def add_workspace(service: Service, who: Principal, order: NewWorkspace) -> WorkspaceShape:
    """A workspace that does not exist is created, so that a wrong URL shows at once."""
    about: dict[str, Any] = {"workspace": order.name, "target": order.url}
    with rejections(service, who, "workspace.add", **about):
        who.check_service()
        url = _url(order.url)
        open_workspace(url)
    with audited(service, who, "workspace.add", **about) as session:
        if order.target:
            target_row(session, order.target)
        for row in session.scalars(select(WorkspaceRow)):
            if row.name == order.name:
                raise ConflictProblem(f"workspace {order.name}: exists already, at {row.url}; choose another name")
            if row.url == url:
                raise ConflictProblem(f"url: {url} is workspace {row.name} already")
        row = WorkspaceRow(name=order.name, url=url, target=order.target, created=service.clock())
        session.add(row)
        session.flush()
        return _workspace(who, row)


def change_workspace(
    service: Service, who: Principal, name: str, order: ChangedWorkspace, if_match: int | None = None
) -> WorkspaceShape:
    """`if_match`: the version that they have seen."""
    with audited(service, who, "workspace.change", workspace=name, target=order.target) as session:
        who.check_service()
        row = workspace_row(session, who, name, Role.ADMIN)
        target_row(session, order.target)
        _change(session, row, {"target": order.target}, if_match)
        return _workspace(who, row)


def remove_workspace(service: Service, who: Principal, name: str) -> None:
    """Remove it from the service, with the records of its runs there; its files are unchanged."""
    with audited(service, who, "workspace.remove", workspace=name) as session:
        who.check_service()
        row = workspace_row(session, who, name, Role.ADMIN)
        busy = _count(session, Submission.workspace_id == row.id, Submission.state.in_(WAITING))
        if busy:
            raise ConflictProblem(f"workspace {name}: {busy} of its runs have not ended; stop them first")
        session.delete(row)


def _url(given: str) -> str:
    """The root of a workspace, without a secret, in one spelling. Raises InvalidProblem."""
    if any(not char.isprintable() for char in given) or given != given.strip():
        raise InvalidProblem("url: expected a folder or URL without control characters and outer spaces")
    scheme, separator, rest = given.partition("://")
    if separator and "@" in rest.split("/")[0]:
        raise InvalidProblem("url: holds a user or password; give the workers' machines credentials instead")
    if separator and scheme not in ("s3", "gs", "gcs", "az", "abfs", "file"):
        raise InvalidProblem(f"url: {scheme}:// is not storage that workspaces use; expected a folder or s3://…")
    if not separator and not given.startswith("/"):
        raise InvalidProblem(f"url: {given} is relative; expected an absolute folder or s3://BUCKET/PATH")
    return Workspace(given).root


def _workspace(who: Principal, row: WorkspaceRow) -> WorkspaceShape:
    role = who.role(row.id)
    assert role is not None
    about = {field: getattr(row, field) for field in ("name", "url", "target", "created", "version")}
    return WorkspaceShape.model_validate({**about, "role": role})


# --- targets ----------------------------------------------------------------------------------------------------------


def targets(service: Service, who: Principal) -> list[TargetShape]:
    """All of them, for everybody with a role anywhere: the names to submit to."""
    if not who.has(Role.VIEWER):
        return []
    with service.database.read() as session:
        rows = session.scalars(select(TargetRow).order_by(TargetRow.name))
        active = _active(session)
        return [_target(service, who, row, active.get(row.id, 0)) for row in rows]


def target(service: Service, who: Principal, name: str) -> TargetShape:
    if not who.has(Role.VIEWER):
        raise NotFoundProblem(f"target {name}: not found; `GET /api/v1/targets` lists them")
    with service.database.read() as session:
        row = target_row(session, name)
        return _target(service, who, row, _active(session).get(row.id, 0))


def add_target(service: Service, who: Principal, order: NewTarget) -> TargetShape:
    with audited(service, who, "target.add", target=order.name, address=order.address) as session:
        who.check_service()
        if session.scalar(select(TargetRow).where(TargetRow.name == order.name)) is not None:
            raise ConflictProblem(f"target {order.name}: exists already; choose another name, or change it")
        row = TargetRow(**order.model_dump(), created=service.clock())
        session.add(row)
        session.flush()
        return _target(service, who, row, 0)


def change_target(
    service: Service, who: Principal, name: str, order: ChangedTarget, if_match: int | None = None
) -> TargetShape:
    values = {field: value for field, value in order.model_dump().items() if value is not None}
    with audited(service, who, "target.change", target=name, fields=sorted(values)) as session:
        who.check_service()
        row = target_row(session, name)
        active = _active(session).get(row.id, 0)
        if "address" in values and values["address"] != row.address and active:
            raise ConflictProblem(f"target {name}: {active} runs are on it; change its address once they have ended")
        _change(session, row, values, if_match)
        return _target(service, who, row, active)


def remove_target(service: Service, who: Principal, name: str) -> None:
    with audited(service, who, "target.remove", target=name) as session:
        who.check_service()
        row = target_row(session, name)
        used = session.scalar(select(WorkspaceRow.name).where(WorkspaceRow.target == name).limit(1))
        if used is not None:
            raise ConflictProblem(f"target {name}: workspace {used} uses it; give that another target first")
        known = _count(session, Submission.target_id == row.id)
        if known:
            raise ConflictProblem(f"target {name}: {known} runs were submitted to it, whose records name it")
        session.delete(row)


def check_target(service: Service, who: Principal, name: str) -> TargetShape:
    """Ask the cluster now. For those who submit to it."""
    who.check_anywhere(Role.OPERATOR)
    with service.database.read() as session:
        row = target_row(session, name)
        active = _active(session).get(row.id, 0)
    service.targets.check(row)
    return _target(service, who, row, active)


def _target(service: Service, who: Principal, row: TargetRow, active: int) -> TargetShape:
    """Only admins see where a cluster is, and which token the service uses."""
    shown = who.everywhere is Role.ADMIN
    about = {field: getattr(row, field) for field in ("name", "max_runs", "max_gpus", "created", "version")}
    about |= {field: getattr(row, field) if shown else "" for field in ("address", "token")}
    health = service.targets.health(row.name)
    if health is not None and health.error and not shown:  # names the address, or where the token is
        health = health.model_copy(update={"error": "it does not answer as it should; admins of the service see why"})
    return TargetShape.model_validate({**about, "active": active, "health": health})


def _active(session: Session) -> dict[int, int]:
    """Target -> runs that occupy it."""
    counted = select(Submission.target_id, func.count()).where(Submission.state.in_(ACTIVE))
    return {row[0]: row[1] for row in session.execute(counted.group_by(Submission.target_id))}


# --- registrations ----------------------------------------------------------------------------------------------------


def registrations(service: Service, who: Principal, workspace: str | None = None) -> list[RegistrationShape]:
    """Those of the whole service, and of one workspace or all that they may see. What they stand for is shown to admins
    of the service only."""
    if not who.has(Role.VIEWER):
        return []
    with service.database.read() as session:
        names = {row.id: row.name for row in session.scalars(select(WorkspaceRow)) if who.role(row.id) is not None}
        if workspace is not None:
            row = workspace_row(session, who, workspace, Role.VIEWER)
            names = {row.id: row.name}
        order = (Registration.kind, Registration.name, Registration.id)
        rows = session.scalars(select(Registration).order_by(*order))
        return [
            _registration(who, row, names.get(row.workspace_id) if row.workspace_id else None)
            for row in rows
            if row.workspace_id is None or row.workspace_id in names
        ]


def register(service: Service, who: Principal, order: NewRegistration) -> RegistrationShape:
    about: dict[str, Any] = {"workspace": order.workspace or "", "target": f"{order.kind} {order.name}"}
    with audited(service, who, "registration.add", **about) as session:
        who.check_service()
        place = workspace_row(session, who, order.workspace, Role.ADMIN) if order.workspace else None
        if _registered(session, place, order.kind, order.name) is not None:
            where = f" in workspace {place.name}" if place else ""
            raise ConflictProblem(f"{order.kind} {order.name}: registered already{where}; remove it first to change it")
        check_registration(order.kind, order.value)
        row = Registration(
            workspace_id=place.id if place else None, kind=order.kind, name=order.name, value=order.value,
            created=service.clock(),
        )  # fmt: skip
        session.add(row)
        session.flush()
        return _registration(who, row, order.workspace)


def unregister(service: Service, who: Principal, workspace: str | None, kind: str, name: str) -> None:
    with audited(service, who, "registration.remove", workspace=workspace or "", target=f"{kind} {name}") as session:
        who.check_service()
        place = workspace_row(session, who, workspace, Role.ADMIN) if workspace else None
        row = _registered(session, place, kind, name)
        if row is None:
            raise NotFoundProblem(f"{kind} {name}: not registered; `GET /api/v1/registrations` lists what is")
        session.delete(row)


def _registered(session: Session, place: WorkspaceRow | None, kind: str, name: str) -> Registration | None:
    where = Registration.workspace_id.is_(None) if place is None else Registration.workspace_id == place.id
    return session.scalar(select(Registration).where(where, Registration.kind == kind, Registration.name == name))


def _registration(who: Principal, row: Registration, workspace: str | None) -> RegistrationShape:
    about = {field: getattr(row, field) for field in ("kind", "name", "created")}
    value = row.value if who.everywhere is Role.ADMIN else ""
    return RegistrationShape.model_validate({**about, "workspace": workspace, "value": value})


# --- both -------------------------------------------------------------------------------------------------------------


def _change(session: Session, row: WorkspaceRow | TargetRow, values: dict[str, Any], if_match: int | None) -> None:
    """Set fields of the version that was read. Raises ChangedProblem."""
    table, version = type(row), row.version
    if if_match is not None and if_match != version:
        raise ChangedProblem(f"{row.name}: has version {version}, not {if_match}; read it again before changing it")
    same = update(table).where(table.id == row.id, table.version == version)
    if not swapped(session, same.values(**values, version=version + 1)):
        raise ChangedProblem(f"{row.name}: was changed meanwhile; read it again before changing it")
    session.refresh(row)


def _count(session: Session, *conditions: Any) -> int:
    return session.scalar(select(func.count()).select_from(Submission).where(*conditions)) or 0
