"""Pins, tombstones, storage, gc."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from curate.service.actions import upkeep
from curate.service.rest.deps import ByName, Limit, Router, Served, Who, problems
from curate.service.rest.paging import paged
from curate.service.shapes.common import NAME, Page
from curate.service.shapes.data import (
    GcOrder,
    GcShape,
    NewPin,
    NewTombstones,
    PinShape,
    StorageShape,
    TombstonesShape,
)

router = Router(tags=["upkeep"])
Place = Annotated[str, Path(alias="workspace", pattern=NAME)]
PinName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", examples=["good"])]
Fresh = Annotated[bool, Query(description="Compute it now, instead of showing what is up to ten minutes old.")]
FOUND = problems(403, 404, 422)
WRITTEN = problems(403, 404, 409, 422)


@router.get("/workspaces/{workspace}/pins", responses=FOUND)
def list_pins(service: Served, who: Who, workspace: Place, cursor: ByName = None, limit: Limit = 50) -> Page[PinShape]:
    return paged(upkeep.pins(service, who, workspace), cursor, limit, name=str)


@router.put("/workspaces/{workspace}/pins/{name}", responses=WRITTEN)
def add_pin(service: Served, who: Who, workspace: Place, name: PinName, order: NewPin) -> PinShape:
    """gc keeps the output. A name that holds another output is a conflict: remove that pin first."""
    return upkeep.add_pin(service, who, workspace, name, order)


@router.delete("/workspaces/{workspace}/pins/{name}", responses=WRITTEN)
def remove_pin(service: Served, who: Who, workspace: Place, name: PinName) -> PinShape:
    return upkeep.remove_pin(service, who, workspace, name)


@router.get("/workspaces/{workspace}/tombstones", responses=FOUND)
def get_tombstones(service: Served, who: Who, workspace: Place, fresh: Fresh = False) -> TombstonesShape:
    return upkeep.tombstones(service, who, workspace, fresh)


@router.post("/workspaces/{workspace}/tombstones", responses=WRITTEN)
def add_tombstones(service: Served, who: Who, workspace: Place, order: NewTombstones) -> TombstonesShape:
    """All later runs leave these samples out."""
    return upkeep.add_tombstones(service, who, workspace, order)


@router.get("/workspaces/{workspace}/storage", responses=FOUND)
def get_storage(service: Served, who: Who, workspace: Place, fresh: Fresh = False) -> StorageShape:
    """Lists all files of the workspace."""
    return upkeep.storage(service, who, workspace, fresh)


@router.post("/workspaces/{workspace}/gc", responses=WRITTEN)
def collect_garbage(service: Served, who: Who, workspace: Place, order: GcOrder) -> GcShape:
    """Says what gc would remove; removes it with `delete`."""
    return upkeep.gc(service, who, workspace, order)
