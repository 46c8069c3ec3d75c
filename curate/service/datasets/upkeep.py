"""Upkeep of a workspace: pins, tombstones, storage and what gc frees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from curate.api import Workspace
from curate.core.errors import InputError
from curate.service.auth.audit import recorded
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import IndexedDataset, IndexedRun, Tag, WorkspaceRow
from curate.service.datasets.datasets import FOUND
from curate.service.datasets.tags import PREFIX, pin_name
from curate.service.kept import COUNT, QUESTION, WORK
from curate.service.places.workspaces import opened, place_of
from curate.service.problems import ConflictProblem, InvalidProblem, NotFoundProblem
from curate.service.rest.paging import paged
from curate.service.rest.routing import ByName, InUrl, Limit, Router, Served, Who, problems
from curate.service.service import Service
from curate.service.shapes import Amount, Name, Order, Page, Shape, Text, Time

router = Router(tags=["upkeep"])
SHOWN_SECONDS = 600.0
"""How long what takes minutes to compute is shown again."""
PinName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", examples=["good"])]
Fresh = Annotated[bool, Query(description="Compute it now, instead of showing what is up to ten minutes old.")]
WRITTEN = problems(403, 404, 409, 422)


class PinShape(Shape):
    name: str
    base: str
    fingerprint: str
    run: str
    stage: str


class NewPin(Order):
    run: Name
    stage: str = Field(max_length=200)


class TombstonesShape(Shape):
    counts: dict[str, int]
    """Kind (key, sha256, url) -> number of entries."""
    affected: dict[str, int]
    """URL of each dataset that still has tombstoned samples -> their number."""
    unknown: list[str] = []
    """The entries of this order that no pool or dataset has; none if that takes long. They are tombstoned too."""


class NewTombstones(Order):
    entries: list[str] = Field(min_length=1, max_length=10_000)
    """Keys, sha256 digests, URLs."""
    why: Text = Field(min_length=1)


class StorageLine(Shape):
    noun: str
    name: str
    stages: list[str]
    files: int
    bytes: int
    garbage: int
    """Bytes that gc would free."""


class StorageShape(Shape):
    lines: list[StorageLine]
    bytes: int
    garbage: int
    checked: Time


class GcOrder(Order):
    keep: Amount | None = None
    """Latest successful runs of each recipe to keep; those that pins name stay too."""
    drop: list[Name] = []
    costly: bool = False
    delete: bool = False
    """False: only say what would be freed."""


class GcShape(Shape):
    paths: int
    bytes: int
    runs: list[str]
    deleted: bool


def pins(service: Service, who: Principal, workspace: str) -> list[PinShape]:
    """Artifacts and datasets that gc keeps, by name."""
    place = place_of(service, who, workspace, Role.VIEWER)
    return [PinShape.model_validate(pin) for pin in opened(place).pins.values()]


@router.get("/workspaces/{workspace}/pins", responses=FOUND)
def list_pins(service: Served, who: Who, workspace: InUrl, cursor: ByName = None, limit: Limit = 50) -> Page[PinShape]:
    return paged(pins(service, who, workspace), cursor, limit, name=str)


@router.put("/workspaces/{workspace}/pins/{name}", responses=WRITTEN)
def add_pin(service: Served, who: Who, workspace: InUrl, name: PinName, order: NewPin) -> PinShape:
    """gc keeps the output. A name that holds another output is a conflict: remove that pin first."""
    with recorded(service, who, "pin.add", workspace, name) as detail:
        place = place_of(service, who, workspace, Role.OPERATOR)
        detail |= {"run": order.run, "stage": order.stage}
        if name.startswith(PREFIX):
            raise InvalidProblem(f"pin {name}: names that begin with {PREFIX} belong to tags; set a tag instead")
        made = opened(place).pin(name, order.run, order.stage)
    return PinShape.model_validate(made)


@router.delete("/workspaces/{workspace}/pins/{name}", responses=WRITTEN)
def remove_pin(service: Served, who: Who, workspace: InUrl, name: PinName) -> PinShape:
    with recorded(service, who, "pin.remove", workspace, name) as detail:
        place = place_of(service, who, workspace, Role.OPERATOR)
        if (tag := _tag_of(service, place, name)) is not None:
            raise ConflictProblem(f"pin {name}: keeps the dataset of {tag}; remove the tag instead")
        try:
            removed = opened(place).unpin(name)
        except InputError as error:
            raise NotFoundProblem(str(error)) from None
        detail["base"] = removed.base
    return PinShape.model_validate(removed)


@router.get("/workspaces/{workspace}/tombstones", responses=FOUND)
def get_tombstones(service: Served, who: Who, workspace: InUrl, fresh: Fresh = False) -> TombstonesShape:
    place = place_of(service, who, workspace, Role.VIEWER)
    return _tombstones(service, who, place, fresh)


@router.post("/workspaces/{workspace}/tombstones", responses=WRITTEN)
def add_tombstones(service: Served, who: Who, workspace: InUrl, order: NewTombstones) -> TombstonesShape:
    """All later runs leave these samples out."""
    with recorded(service, who, "tombstone.add", workspace, order.why) as detail:
        place = place_of(service, who, workspace, Role.OPERATOR)
        detail["entries"] = opened(place).add_tombstones(order.entries, order.why)
    key, given = ("unknown", place.id, tuple(order.entries)), order.entries
    unknown = service.kept.soon(who, key, lambda: opened(place).unknown_samples(given), "samples", seconds=0.0, wait=10)
    return _tombstones(service, who, place, fresh=True).model_copy(update={"unknown": unknown or []})


def _tombstones(service: Service, who: Principal, place: WorkspaceRow, fresh: bool) -> TombstonesShape:
    def make() -> TombstonesShape:
        workspace = opened(place)
        counts = {kind: len(values) for kind, values in workspace.tombstones().items()}
        return TombstonesShape(counts=counts, affected=workspace.affected_datasets())

    what = f"tombstones of {place.name}"
    return service.kept.get(
        who, ("tombstones", place.id), make, what, kind=QUESTION, seconds=SHOWN_SECONDS, fresh=fresh
    )


@router.get("/workspaces/{workspace}/storage", responses=FOUND)
def get_storage(service: Served, who: Who, workspace: InUrl, fresh: Fresh = False) -> StorageShape:
    """Lists all files of the workspace."""
    place = place_of(service, who, workspace, Role.VIEWER)

    def make() -> StorageShape:
        checked = service.clock()
        lines = [StorageLine.model_validate(line) for line in opened(place).usage()]
        size, garbage = sum(line.bytes for line in lines), sum(line.garbage for line in lines)
        return StorageShape.model_validate({"lines": lines, "bytes": size, "garbage": garbage, "checked": checked})

    what = f"storage of {place.name}"
    return service.kept.get(who, ("storage", place.id), make, what, kind=COUNT, seconds=SHOWN_SECONDS, fresh=fresh)


@router.post("/workspaces/{workspace}/gc", responses=WRITTEN)
def collect_garbage(service: Served, who: Who, workspace: InUrl, order: GcOrder) -> GcShape:
    """Says what gc would remove; removes it with `delete`."""
    # a removal continues if the caller leaves; the same request again waits for it, and frees nothing twice
    if not order.delete:
        place = place_of(service, who, workspace, Role.ADMIN)
        key = ("gc", place.id, order.model_dump_json())
        return service.kept.get(
            who,
            key,
            lambda: _freed(*_collected(opened(place), order), order),
            f"gc of {place.name}",
            kind=WORK,
            seconds=60.0,
        )
    with recorded(service, who, "workspace.gc", workspace, "begun") as detail:
        place = place_of(service, who, workspace, Role.ADMIN)
        detail |= order.model_dump()

    def remove() -> GcShape:
        with recorded(service, who, "workspace.gc", place.name, "ended") as detail:
            garbage, runs = _collected(opened(place), order)
            freed = _freed(garbage, runs, order)
            detail |= {"paths": freed.paths, "bytes": freed.bytes, "runs": len(runs)}
            with service.database.write() as session:
                _forget(session, place, garbage, runs)
        service.kept.drop(("storage", place.id))
        return freed

    return service.kept.get(
        who, ("delete", place.id, order.model_dump_json()), remove, f"gc of {place.name}", kind=WORK, seconds=0.0
    )


def _collected(workspace: Workspace, order: GcOrder) -> tuple[dict[str, int], list[str]]:
    return workspace.gc(order.keep, order.drop, order.costly, order.delete, now=None)


def _freed(garbage: dict[str, int], runs: list[str], order: GcOrder) -> GcShape:
    return GcShape(paths=len(garbage), bytes=sum(garbage.values()), runs=runs, deleted=order.delete)


def _forget(session: Session, place: WorkspaceRow, garbage: Iterable[str], runs: Sequence[str]) -> None:
    """Remove datasets and runs from the index. Submitted runs stay, since the database has them."""
    bases = [path for path in garbage if path.startswith("datasets/")]
    for some in _some(bases):
        session.execute(
            delete(IndexedDataset).where(IndexedDataset.workspace_id == place.id, IndexedDataset.base.in_(some))
        )
    for some in _some(runs):
        gone = (IndexedRun.workspace_id == place.id) & IndexedRun.attempt_id.in_(some) & ~IndexedRun.submitted
        session.execute(delete(IndexedRun).where(gone))


def _some(values: Sequence[str], size: int = 500) -> Iterator[Sequence[str]]:
    """Parts that fit into one statement."""
    return (values[start : start + size] for start in range(0, len(values), size))


def _tag_of(service: Service, place: WorkspaceRow, pin: str) -> str | None:
    """The tag that needs a pin; pins of earlier tags may be removed."""
    if not pin.startswith(PREFIX):
        return None
    wanted = select(Tag).where(Tag.workspace_id == place.id, Tag.newest, Tag.base.is_not(None))
    with service.database.read() as session:
        rows = session.scalars(wanted)
        owners = (f"{row.name}@{row.tag}" for row in rows if pin_name(row.name, row.tag, row.base or "") == pin)
        return next(owners, None)
