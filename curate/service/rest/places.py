"""Workspaces, targets, registrations."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request, Response

from curate.service.actions import places
from curate.service.rest.deps import SEEN, ByName, IfMatch, Limit, Router, Served, Who, after, problems
from curate.service.rest.etags import tagged, version_of
from curate.service.rest.paging import paged
from curate.service.shapes.common import NAME, Page
from curate.service.shapes.places import (
    ChangedTarget,
    ChangedWorkspace,
    Kind,
    NewRegistration,
    NewTarget,
    NewWorkspace,
    RegistrationShape,
    TargetShape,
    WorkspaceShape,
)

router = Router(tags=["places"])
Place = Annotated[str, Path(alias="workspace", pattern=NAME)]
Target = Annotated[str, Path(alias="target", pattern=NAME)]
CHANGED = problems(403, 404, 409, 412)


@router.get("/workspaces")
def list_workspaces(service: Served, who: Who, cursor: ByName = None, limit: Limit = 50) -> Page[WorkspaceShape]:
    """Those that you may see."""
    return paged(places.workspaces(service, who), cursor, limit, name=str)


@router.post("/workspaces", status_code=201)
def add_workspace(service: Served, who: Who, order: NewWorkspace) -> WorkspaceShape:
    """The service has to reach its folder or bucket; a workspace that does not exist is created."""
    return places.add_workspace(service, who, order)


@router.get("/workspaces/{workspace}", response_model=WorkspaceShape, responses=SEEN)
def get_workspace(service: Served, who: Who, request: Request, workspace: Place) -> Response:
    found = places.workspace(service, who, workspace)
    return tagged(request, found, found.version)


@router.patch("/workspaces/{workspace}", response_model=WorkspaceShape, responses=CHANGED)
def change_workspace(
    service: Served, who: Who, request: Request, workspace: Place, order: ChangedWorkspace, if_match: IfMatch = None
) -> Response:
    changed = places.change_workspace(service, who, workspace, order, version_of(if_match))
    return tagged(request, changed, changed.version)


@router.delete("/workspaces/{workspace}", status_code=204, responses=CHANGED)
def remove_workspace(service: Served, who: Who, workspace: Place) -> None:
    """Its files stay; the service forgets it."""
    places.remove_workspace(service, who, workspace)


@router.get("/targets")
def list_targets(service: Served, who: Who, cursor: ByName = None, limit: Limit = 50) -> Page[TargetShape]:
    return paged(places.targets(service, who), cursor, limit, name=str)


@router.post("/targets", status_code=201)
def add_target(service: Served, who: Who, order: NewTarget) -> TargetShape:
    """`token` is a reference, env:NAME or file:PATH, which the service reads."""
    return places.add_target(service, who, order)


@router.get("/targets/{target}", response_model=TargetShape, responses=SEEN)
def get_target(service: Served, who: Who, request: Request, target: Target) -> Response:
    found = places.target(service, who, target)
    return tagged(request, found, found.version)


@router.patch("/targets/{target}", response_model=TargetShape, responses=CHANGED)
def change_target(
    service: Served, who: Who, request: Request, target: Target, order: ChangedTarget, if_match: IfMatch = None
) -> Response:
    changed = places.change_target(service, who, target, order, version_of(if_match))
    return tagged(request, changed, changed.version)


@router.delete("/targets/{target}", status_code=204, responses=CHANGED)
def remove_target(service: Served, who: Who, target: Target) -> None:
    places.remove_target(service, who, target)


@router.post("/targets/{target}/check")
def check_target(service: Served, who: Who, target: Target) -> TargetShape:
    """Ask the cluster now, for at most a few seconds."""
    return places.check_target(service, who, target)


@router.get("/registrations")
def list_registrations(
    service: Served,
    who: Who,
    workspace: Annotated[str | None, Query(pattern=NAME)] = None,
    cursor: Annotated[str | None, after(str, str, str)] = None,
    limit: Limit = 50,
) -> Page[RegistrationShape]:
    """What recipes may use although it lies outside of the workspace."""
    found = places.registrations(service, who, workspace)
    return paged(found, cursor, limit, kind=str, name=str, workspace=str)


@router.post("/registrations", status_code=201)
def register(service: Served, who: Who, order: NewRegistration) -> RegistrationShape:
    return places.register(service, who, order)


@router.delete("/registrations/{kind}/{name}", status_code=204, responses=CHANGED)
def unregister(
    service: Served,
    who: Who,
    kind: Kind,
    name: Annotated[str, Path(pattern=NAME)],
    workspace: Annotated[str | None, Query(pattern=NAME)] = None,
) -> None:
    places.unregister(service, who, workspace, kind, name)
