"""Tags of datasets, such as `birds@good`. A tagged dataset is pinned in its workspace, so that every gc keeps it, also
one without the service."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Path
from pydantic import AliasChoices, Field
from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from curate import api
from curate.core.errors import InputError
from curate.service.auth.audit import audited, rejections
from curate.service.auth.roles import Principal, Role
from curate.service.database.database import check_version
from curate.service.database.models import IndexedDataset, Tag, WorkspaceRow
from curate.service.datasets.datasets import FOUND, DatasetName, attempts_of, dataset_row, url_of
from curate.service.places.workspaces import opened, workspace_row
from curate.service.problems import ConflictProblem, InvalidProblem, NotFoundProblem
from curate.service.rest.paging import decode, page_of, paged
from curate.service.rest.routing import (
    SEEN,
    ByName,
    IfMatch,
    InUrl,
    Limit,
    Router,
    Served,
    Who,
    Workspace,
    after,
    etagged,
    problems,
)
from curate.service.runs.finding import visible
from curate.service.service import Service
from curate.service.shapes import NAME, Order, Page, Shape, Time

router = Router(tags=["data"])
PREFIX = "tag."
"""Of the names of pins that belong to tags."""
TAG = "/workspaces/{workspace}/datasets/{name}/tags/{tag}"
TagName = Annotated[str, Path(pattern=NAME, examples=["good"])]
CHANGED = problems(403, 404, 409, 412, 422)


class TagShape(Shape):
    """`name@tag`, now or at some time."""

    name: str
    tag: str
    base: str | None
    """The dataset's folder in the workspace; None: the tag was removed."""
    time: Time
    user: str
    version: int = Field(validation_alias=AliasChoices("version", "id"))
    """Grows with each change. If-Match names it."""


class NewTag(Order):
    base: str = Field(max_length=300, pattern=r"^datasets/[^/]+/[^/]+$")


class Resolved(Shape):
    """What `curate://SERVER/NAME@TAG` is now."""

    workspace: str
    name: str
    tag: str
    base: str
    url: str
    fingerprint: str
    rows: int


def tags(service: Service, who: Principal, workspace: str, name: str) -> list[TagShape]:
    """The tags of a dataset as they are now."""
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        rows = session.scalars(_newest(place.id, name).order_by(Tag.tag))
        return [TagShape.model_validate(row) for row in rows]


@router.get("/workspaces/{workspace}/datasets/{name}/tags", responses=FOUND)
def list_tags(
    service: Served, who: Who, workspace: InUrl, name: DatasetName, cursor: ByName = None, limit: Limit = 50
) -> Page[TagShape]:
    return paged(tags(service, who, workspace, name), cursor, limit, tag=str)


@router.get(TAG, responses=FOUND | SEEN)
@etagged
def get_tag(service: Served, who: Who, workspace: InUrl, name: DatasetName, tag: TagName) -> TagShape:
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        return TagShape.model_validate(_tag(session, place, name, tag))


@router.get(f"{TAG}/history", responses=FOUND)
def get_tag_history(
    service: Served, who: Who, workspace: InUrl, name: DatasetName, tag: TagName,
    cursor: Annotated[str | None, after(int)] = None, limit: Limit = 50,
) -> Page[TagShape]:  # fmt: skip
    """Newest first; a change without `base` removed the tag."""
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        wanted = select(Tag).where(Tag.workspace_id == place.id, Tag.name == name, Tag.tag == tag)
        if cursor:
            wanted = wanted.where(Tag.id < decode(cursor, int)[0])
        rows = list(session.scalars(wanted.order_by(Tag.id.desc()).limit(limit + 1)))
    if not rows and not cursor:
        raise NotFoundProblem(f"{name}@{tag}: never a tag of workspace {workspace}")
    return page_of(rows, limit, TagShape.model_validate, "id")


@router.put(TAG, responses=CHANGED)
@etagged
def set_tag(
    service: Served, who: Who, workspace: InUrl, name: DatasetName, tag: TagName, order: NewTag,
    if_match: IfMatch = None,
) -> TagShape:  # fmt: skip
    """The dataset is pinned, so that gc keeps it."""
    target = f"{name}@{tag}"
    with rejections(service, who, "tag.set", workspace, target):
        if not re.fullmatch(NAME, tag):
            raise InvalidProblem(f"tag: {tag[:80]!r}: expected at most 64 letters, digits, ., - and _")
        with service.database.read() as session:
            place = workspace_row(session, who, workspace, Role.OPERATOR)
            row = dataset_row(session, place, order.base)
            if row.name != name:
                raise InvalidProblem(f"base: {order.base} is a dataset of {row.name}; expected one of {name}")
            _check_version(session.scalar(_newest(place.id, name, tag)), target, if_match)
            runs = attempts_of(session, place.id, row.run_id)
        pin_dataset(opened(place), name, tag, order.base, runs)
    about: dict[str, Any] = {"workspace": place.name, "target": target, "alone": "tags", "base": order.base}
    with audited(service, who, "tag.set", **about) as session:
        _check_version(session.scalar(_newest(place.id, name, tag)), target, if_match)
        changed = _change(session, service.clock(), who, place, name, tag, order.base)
    _settle(service, place, name, tag)
    return changed


@router.delete(TAG, responses=CHANGED)
def remove_tag(
    service: Served, who: Who, workspace: InUrl, name: DatasetName, tag: TagName, if_match: IfMatch = None
) -> TagShape:
    with audited(service, who, "tag.remove", workspace=workspace, target=f"{name}@{tag}", alone="tags") as session:
        place = workspace_row(session, who, workspace, Role.OPERATOR)
        _check_version(_tag(session, place, name, tag), f"{name}@{tag}", if_match)
        changed = _change(session, service.clock(), who, place, name, tag, None)
    _settle(service, place, name, tag)
    return changed


@router.get("/resolve/{name}@{tag}", responses=problems(403, 404, 409, 422))
def resolve(service: Served, who: Who, name: DatasetName, tag: TagName, workspace: Workspace = None) -> Resolved:
    """The dataset that training reads for `curate://SERVER/NAME@TAG`."""
    with service.database.read() as session:
        if workspace is not None:
            place = workspace_row(session, who, workspace, Role.VIEWER)
            known = {place.id: place}
        else:
            known = visible(session, who)
        tagged = session.execute(
            select(Tag, IndexedDataset)
            .join(IndexedDataset, (IndexedDataset.workspace_id == Tag.workspace_id) & (IndexedDataset.base == Tag.base))
            .where(Tag.name == name, Tag.tag == tag, Tag.newest, Tag.workspace_id.in_(known))
        ).all()
    if not tagged:
        raise NotFoundProblem(f"{name}@{tag}: not a tag of {workspace or 'a workspace that you can see'}")
    if len(tagged) > 1:
        names = ", ".join(sorted(known[one.workspace_id].name for one, _ in tagged))
        raise ConflictProblem(f"{name}@{tag}: a tag in several workspaces ({names}); name one with ?workspace=")
    ((one, row),) = tagged
    place = known[one.workspace_id]
    return Resolved(
        workspace=place.name, name=name, tag=tag, base=row.base, url=url_of(place, row.base),
        fingerprint=row.fingerprint, rows=row.rows,
    )  # fmt: skip


def _change(
    session: Session, now: float, who: Principal, place: WorkspaceRow, name: str, tag: str, base: str | None
) -> TagShape:
    """A change of a tag; none if the tag is this dataset already."""
    before = session.scalar(_newest(place.id, name, tag))
    if before is not None and before.base == base:
        return TagShape.model_validate(before)
    same = (Tag.workspace_id == place.id, Tag.name == name, Tag.tag == tag)
    session.execute(update(Tag).where(*same).values(newest=False))
    made = Tag(workspace_id=place.id, name=name, tag=tag, base=base, time=now, user=who.user)
    session.add(made)
    session.flush()  # numbers it
    return TagShape.model_validate(made)


def _check_version(row: Tag | None, target: str, if_match: int | None) -> None:
    """A tag that does not exist has version 0."""
    check_version(target, row.id if row is not None else 0, if_match)


def _settle(service: Service, place: WorkspaceRow, name: str, tag: str) -> None:
    """Let the pins of a tag follow the database, which another request may change meanwhile."""
    for _ in range(3):
        with service.database.read() as session:
            newest = session.scalar(_newest(place.id, name, tag))
            row = dataset_row(session, place, newest.base) if newest and newest.base else None
            runs = attempts_of(session, place.id, row.run_id) if row else []
        if not follow(opened(place), name, tag, row.base if row else None, runs):
            return


def _tag(session: Session, place: WorkspaceRow, name: str, tag: str) -> Tag:
    row = session.scalar(_newest(place.id, name, tag))
    if row is None:
        raise NotFoundProblem(f"{name}@{tag}: not a tag of workspace {place.name}")
    return row


def _newest(workspace: int, name: str, tag: str | None = None) -> Select[Tag]:
    """The tags of a dataset, or one of them, as they are now."""
    wanted = select(Tag).where(Tag.workspace_id == workspace, Tag.name == name, Tag.newest, Tag.base.is_not(None))
    return wanted if tag is None else wanted.where(Tag.tag == tag)


# --- pins -------------------------------------------------------------------------------------------------------------


def pin_name(name: str, tag: str, base: str) -> str:
    """Differs between datasets, so that the pin of the next one exists before that of the last one is removed."""
    digest = hashlib.sha256(f"{name}@{tag} {base}".encode()).hexdigest()
    return f"{_prefix(name, tag)}{digest[:8]}"


def _prefix(name: str, tag: str) -> str:
    owner = hashlib.sha256(f"{name}@{tag}".encode()).hexdigest()  # a.b@c and a@b.c are not the same
    return f"{PREFIX}{name[:40]}.{tag[:24]}.{owner[:8]}."


def pin_dataset(workspace: api.Workspace, name: str, tag: str, base: str, runs: Sequence[str]) -> None:
    """Pin a dataset. `runs`: runs that may have built it. Raises ConflictProblem if none of them did."""
    for run_id in runs:
        try:
            outputs = workspace.run(run_id).record.outputs
        except InputError:  # gc has removed its record
            continue
        stage = next((stage for stage, output in outputs.items() if output["base"] == base), None)
        if stage is not None:
            workspace.pin(pin_name(name, tag, base), run_id, stage)
            return
    raise ConflictProblem(
        f"{base}: the record of the run that built it is gone, so it cannot be pinned; run its recipe again"
    )


def restore(service: Service, place: WorkspaceRow, who: Principal) -> None:
    """Make the tags of a new database again, from the pins of their datasets. A tag is found if its pin has all of its
    name, which has at most 24 characters."""
    tags = list[Tag]()
    for pin in opened(place).pins.values():
        name, rest = pin.base.split("/")[1], pin.name.removeprefix(PREFIX)
        tag = rest.removeprefix(f"{name[:40]}.").rpartition(".")[0].rpartition(".")[0]
        if pin.name == pin_name(name, tag, pin.base):
            tags.append(
                Tag(workspace_id=place.id, name=name, tag=tag, base=pin.base, time=service.clock(), user=who.user)
            )
    with service.database.write() as session:
        session.add_all(tags)


def follow(workspace: api.Workspace, name: str, tag: str, base: str | None, runs: Sequence[str]) -> bool:
    """Pin the dataset of a tag unless it is pinned, and remove all other pins of the tag. Returns whether any pin
    changed."""
    wanted = pin_name(name, tag, base) if base else ""
    mine = {pin for pin in workspace.pins if pin.startswith(_prefix(name, tag))}
    if base and wanted not in mine:
        pin_dataset(workspace, name, tag, base, runs)
    for pin in mine - {wanted}:
        try:
            workspace.unpin(pin)
        except InputError:  # another request has removed it
            continue
    return bool(mine ^ ({wanted} - {""}))
