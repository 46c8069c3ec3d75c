"""Workspaces. Only admins of the whole service change them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from curate.api import Workspace
from curate.core.errors import CurateError
from curate.core.secrets import redact
from curate.core.store.storage import open_workspace
from curate.service.auth.audit import audited, rejections
from curate.service.auth.roles import Principal, Role
from curate.service.database.database import check_version, swapped
from curate.service.database.models import Submission, TargetRow, WorkspaceRow
from curate.service.problems import ChangedProblem, ConflictProblem, InvalidProblem, NotFoundProblem, UnavailableProblem
from curate.service.rest.paging import paged
from curate.service.rest.routing import SEEN, ByName, IfMatch, InUrl, Limit, Router, Served, Who, etagged, problems
from curate.service.service import Service
from curate.service.shapes import Name, Order, Page, Shape, Time
from curate.service.states import ACTIVE, State

router = Router(tags=["places"])
CHANGED = problems(403, 404, 409, 412)
WAITING = [*ACTIVE, State.QUEUED.value]
STORAGE_LIBRARIES = ("aiohttp", "botocore", "fsspec", "s3fs")


class WorkspaceShape(Shape):
    name: str
    url: str
    target: str
    role: Role
    """The role of the user who asks."""
    created: Time
    version: int


class NewWorkspace(Order):
    name: Name
    url: str = Field(min_length=1, max_length=1000)
    target: Name | Literal[""] = ""


class ChangedWorkspace(Order):
    target: Name


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


def workspaces(service: Service, who: Principal) -> list[WorkspaceShape]:
    """Those that they may see."""
    with service.database.read() as session:
        rows = session.scalars(select(WorkspaceRow).order_by(WorkspaceRow.name))
        return [_workspace(who, row) for row in rows if who.role(row.id) is not None]


@router.get("/workspaces")
def list_workspaces(service: Served, who: Who, cursor: ByName = None, limit: Limit = 50) -> Page[WorkspaceShape]:
    """Those that you may see."""
    return paged(workspaces(service, who), cursor, limit, name=str)


@router.get("/workspaces/{workspace}", responses=SEEN)
@etagged
def get_workspace(service: Served, who: Who, name: InUrl) -> WorkspaceShape:
    with service.database.read() as session:
        return _workspace(who, workspace_row(session, who, name, Role.VIEWER))


@router.post("/workspaces", status_code=201)
def add_workspace(service: Served, who: Who, order: NewWorkspace) -> WorkspaceShape:
    """The service has to reach its folder or bucket; a workspace that does not exist is created."""
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


@router.patch("/workspaces/{workspace}", responses=CHANGED)
@etagged
def change_workspace(
    service: Served, who: Who, name: InUrl, order: ChangedWorkspace, if_match: IfMatch = None
) -> WorkspaceShape:
    with audited(service, who, "workspace.change", workspace=name, target=order.target) as session:
        who.check_service()
        row = workspace_row(session, who, name, Role.ADMIN)
        target_row(session, order.target)
        change(session, row, {"target": order.target}, if_match)
        return _workspace(who, row)


@router.delete("/workspaces/{workspace}", status_code=204, responses=CHANGED)
def remove_workspace(service: Served, who: Who, name: InUrl) -> None:
    """Its files stay; the service forgets it."""
    with audited(service, who, "workspace.remove", workspace=name) as session:
        who.check_service()
        row = workspace_row(session, who, name, Role.ADMIN)
        busy = count(session, Submission.workspace_id == row.id, Submission.state.in_(WAITING))
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


# --- shared with targets ----------------------------------------------------------------------------------------------


def target_row(session: Session, name: str) -> TargetRow:
    row = session.scalar(select(TargetRow).where(TargetRow.name == name))
    if row is None:
        raise NotFoundProblem(f"target {name}: not found; `GET /api/v1/targets` lists them")
    return row


def change(session: Session, row: WorkspaceRow | TargetRow, values: dict[str, Any], if_match: int | None) -> None:
    """Set fields of the version that was read. Raises ChangedProblem."""
    check_version(row.name, row.version, if_match)
    if not swapped(session, row, **values):
        raise ChangedProblem(f"{row.name}: was changed meanwhile; read it again before changing it")
    session.refresh(row)


def count(session: Session, *conditions: Any) -> int:
    return session.scalar(select(func.count()).select_from(Submission).where(*conditions)) or 0
