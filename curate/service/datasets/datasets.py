"""Datasets, artifacts and lineage: what runs made."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from curate.api import Contents
from curate.core.errors import InputError
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import IndexedDataset, IndexedRun, Tag, WorkspaceRow
from curate.service.kept import COUNT, QUESTION
from curate.service.places.workspaces import opened, place_of, workspace_row
from curate.service.problems import InvalidProblem, NotFoundProblem
from curate.service.rest.paging import decode, page_of, paged
from curate.service.rest.routing import (
    SEEN,
    ByName,
    InUrl,
    Limit,
    Router,
    Served,
    Who,
    after,
    etagged,
    problems,
)
from curate.service.runs.finding import visible
from curate.service.service import Service
from curate.service.shapes import Page, Shape, Time

router = Router(tags=["data"])
LINEAGE_HOPS = 50
"""Farthest neighbourhood."""
DatasetName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$", examples=["openclipart"])]
Fingerprint = Annotated[str, Path(pattern=r"^[0-9a-f]{1,64}$")]
"""No tag or word that follows a dataset's name looks like one."""
Hops = Annotated[int, Query(ge=0, le=LINEAGE_HOPS)]
FOUND = problems(403, 404, 422)


class DatasetShape(Shape):
    name: str
    base: str
    url: str
    """Where training reads it."""
    fingerprint: str
    rows: int
    tars: int
    bytes: int
    committed: Time
    run: str
    tags: list[str]
    pins: list[str]
    predecessor: str = ""
    """Folder of the dataset of which a takedown made it."""


class LineageNode(Shape):
    """A stage's output in the run that made it. `up`: what it was made from; loaded by neighbourhood, never whole."""

    id: str
    """Its folder in the workspace."""
    stage: str
    op: str
    noun: str
    """pool, facts, mask, artifact, selection, dataset, report."""
    rows: int | None
    up: list[str]


class Lineage(Shape):
    run: str
    nodes: list[LineageNode]
    more: bool
    """Whether there is more beyond the distance that was asked for."""


class ArtifactShape(Shape):
    base: str
    stage: str
    op: str
    kind: str
    run: str
    pins: list[str]


@router.get("/workspaces/{workspace}/datasets", responses=FOUND)
def list_datasets(
    service: Served,
    who: Who,
    workspace: InUrl,
    query: Annotated[str | None, Query(max_length=200, description="Part of the name.")] = None,
    cursor: Annotated[str | None, after(float, str)] = None,
    limit: Limit = 50,
) -> Page[DatasetShape]:
    """Newest first. `pins` and `predecessor` are empty here; see the dataset itself."""
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        wanted = select(IndexedDataset).where(IndexedDataset.workspace_id == place.id)
        wanted = wanted.order_by(IndexedDataset.committed.desc(), IndexedDataset.base.desc())
        if query:
            wanted = wanted.where(IndexedDataset.name.icontains(query, autoescape=True))
        if cursor:
            committed, base = decode(cursor, float, str)
            wanted = wanted.where(tuple_(IndexedDataset.committed, IndexedDataset.base) < (committed, base))
        rows = list(session.scalars(wanted.limit(limit + 1)))
        tags = tags_of(session, place.id, {row.base for row in rows})
    return page_of(rows, limit, lambda row: _shape(place, row, tags.get(row.base, [])), "committed", "base")


def newest(service: Service, who: Principal) -> str:
    """Name of the workspace, of those that one may see, with the newest dataset; "" without any dataset."""
    with service.database.read() as session:
        places = {row.id: row.name for row in visible(session, who).values()}
        wanted = select(IndexedDataset.workspace_id).where(IndexedDataset.workspace_id.in_(places))
        return places.get(session.scalar(wanted.order_by(IndexedDataset.committed.desc()).limit(1)) or 0, "")


@router.get("/workspaces/{workspace}/datasets/{name}/{fingerprint}", responses=FOUND | SEEN)
@etagged
def get_dataset(
    service: Served, who: Who, workspace: InUrl, name: DatasetName, fingerprint: Fingerprint
) -> DatasetShape:
    base = f"datasets/{name}/{fingerprint}"
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        row = dataset_row(session, place, base)
        tags = tags_of(session, place.id, {base})
    known = opened(place)
    pins, there = [pin.name for pin in known.pins.values() if pin.base == base], known.dataset(base)
    return _shape(place, row, tags.get(base, []), pins, there.predecessor if there else "")


@router.get("/workspaces/{workspace}/datasets/{name}/{fingerprint}/contents", responses=FOUND)
def get_contents(service: Served, who: Who, workspace: InUrl, name: DatasetName, fingerprint: Fingerprint) -> Contents:
    """Sizes, texts, values of carried columns, and the card."""
    base = f"datasets/{name}/{fingerprint}"
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        dataset_row(session, place, base)
    return service.kept.get(
        who, ("contents", place.id, base), lambda: opened(place).contents(base), f"contents of {base}"
    )


@router.get("/workspaces/{workspace}/artifacts", responses=FOUND)
def list_artifacts(
    service: Served, who: Who, workspace: InUrl, cursor: ByName = None, limit: Limit = 50
) -> Page[ArtifactShape]:
    place = place_of(service, who, workspace)
    # for ten minutes, because the records of all runs name them
    whole = service.kept.get(
        who, ("artifacts", place.id), lambda: _artifacts(place), f"artifacts of {place.name}", kind=COUNT
    )
    return paged(whole, cursor, limit, base=str)


@router.get("/workspaces/{workspace}/datasets/{name}/{fingerprint}/lineage", responses=FOUND)
def get_dataset_lineage(
    service: Served, who: Who, workspace: InUrl, name: DatasetName, fingerprint: Fingerprint, hops: Hops = 2
) -> Lineage:
    """What it was made from, up to `hops` stages away."""
    return get_lineage(service, who, workspace, f"datasets/{name}/{fingerprint}", hops)


@router.get("/workspaces/{workspace}/lineage", responses=FOUND)
def get_lineage(
    service: Served,
    who: Who,
    workspace: InUrl,
    base: Annotated[str, Query(max_length=600, description="Folder of an output in the workspace.")],
    hops: Hops = 2,
) -> Lineage:
    """The neighbours of any output."""
    if not 0 <= hops <= LINEAGE_HOPS:
        raise InvalidProblem(f"hops: {hops}: expected 0 to {LINEAGE_HOPS}; ask for the neighbours of another output")
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        row = session.get(IndexedDataset, (place.id, base))
        runs = attempts_of(session, place.id, row.run_id) if row else []

    def make() -> Lineage:
        around = opened(place).lineage(base, hops, runs)
        nodes = [LineageNode.model_validate(node) for node in around.nodes]
        return Lineage(run=around.run, nodes=nodes, more=around.more)

    try:
        return service.kept.get(who, ("lineage", place.id, base, hops), make, f"lineage of {base}", kind=QUESTION)
    except InputError as error:
        raise NotFoundProblem(str(error)) from None


# --- rows and shapes --------------------------------------------------------------------------------------------------


def dataset_row(session: Session, place: WorkspaceRow, base: str) -> IndexedDataset:
    row = session.get(IndexedDataset, (place.id, base))
    if row is None:
        raise NotFoundProblem(
            f"{base}: not a dataset of workspace {place.name}; GET /api/v1/workspaces/{place.name}/datasets lists them"
        )
    return row


def tags_of(session: Session, workspace: int, bases: set[str]) -> dict[str, list[str]]:
    """Dataset -> its tags."""
    tags: dict[str, list[str]] = {}
    wanted = select(Tag.base, Tag.tag).where(Tag.workspace_id == workspace, Tag.newest, Tag.base.in_(bases))
    for base, tag in session.execute(wanted.order_by(Tag.tag)):
        tags.setdefault(str(base), []).append(tag)
    return tags


def attempts_of(session: Session, workspace: int, run: str) -> list[str]:
    """The engine's runs of a run, newest first: one of them built its datasets."""
    row = session.get(IndexedRun, (workspace, run))
    if row is None:
        return [run] if run else []
    base, _, number = row.attempt_id.rpartition("-")
    if row.submitted and base == run and number.isdecimal():
        return [f"{run}-{attempt}" for attempt in range(int(number), 0, -1)]
    return [row.attempt_id]


def url_of(place: WorkspaceRow, base: str) -> str:
    return f"{place.url.rstrip('/')}/{base}"


def _shape(
    place: WorkspaceRow, row: IndexedDataset, tags: list[str], pins: list[str] | None = None, predecessor: str = ""
) -> DatasetShape:
    names = ("name", "base", "fingerprint", "rows", "tars", "bytes", "committed")
    known = {name: getattr(row, name) for name in names}
    about = {"url": url_of(place, row.base), "run": row.run_id, "tags": tags, "pins": pins or []}
    about |= {"predecessor": predecessor}
    return DatasetShape.model_validate(known | about)


def _artifacts(place: WorkspaceRow) -> list[ArtifactShape]:
    workspace, pins = opened(place), dict[str, list[str]]()
    for pin in workspace.pins.values():
        pins.setdefault(pin.base, []).append(pin.name)
    made = [
        ArtifactShape(
            base=one.base, stage=one.stage, op=one.op, kind=one.kind, run=one.run, pins=pins.get(one.base, [])
        )
        for one in workspace.artifacts()
    ]
    return sorted(made, key=lambda one: one.base)
