"""Datasets, their tags, artifacts, lineage and samples."""

from __future__ import annotations

import math
import re
from typing import Any

from sqlalchemy import Select, select, tuple_, update
from sqlalchemy.orm import Session

from curate.core.errors import InputError
from curate.service.actions import tag_pins
from curate.service.actions.finding import found, visible
from curate.service.actions.places import opened, place_of, workspace_row
from curate.service.auth.audit import audited, rejections
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import IndexedDataset, IndexedRun, Tag, WorkspaceRow
from curate.service.problems import ChangedProblem, ConflictProblem, InvalidProblem, NotFoundProblem
from curate.service.rest.paging import decode, encode
from curate.service.service import Service
from curate.service.shapes.common import NAME, Page
from curate.service.shapes.data import (
    ArtifactShape,
    DatasetShape,
    Lineage,
    LineageNode,
    NewTag,
    Resolved,
    SampleFact,
    SampleShape,
    TagShape,
)

LINEAGE_HOPS = 50
"""Farthest neighbourhood."""


def datasets(
    service: Service, who: Principal, workspace: str, *, query: str | None = None, cursor: str | None = None,
    limit: int = 50,
) -> Page[DatasetShape]:  # fmt: skip
    """Newest first, from the index; `query`: part of the name. Pins are not listed: see `dataset`."""
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
        tagged = _tagged(session, place.id, {row.base for row in rows})
    shapes = [_shape(place, row, tagged.get(row.base, [])) for row in rows[:limit]]
    last = rows[limit - 1] if len(rows) > limit else None
    return Page(items=shapes, next=encode(last.committed, last.base) if last else None)


def newest(service: Service, who: Principal) -> str:
    """Name of the workspace, of those that one may see, with the newest dataset; "" without any dataset."""
    with service.database.read() as session:
        places = {row.id: row.name for row in visible(session, who).values()}
        wanted = select(IndexedDataset.workspace_id).where(IndexedDataset.workspace_id.in_(places))
        return places.get(session.scalar(wanted.order_by(IndexedDataset.committed.desc()).limit(1)) or 0, "")


def dataset(service: Service, who: Principal, workspace: str, base: str) -> DatasetShape:
    """One dataset with its tags and pins."""
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        row = _dataset(session, place, base)
        tagged = _tagged(session, place.id, {base})
    pins = [pin.name for pin in opened(place).pins.values() if pin.base == base]
    return _shape(place, row, tagged.get(base, []), pins)


def artifacts(
    service: Service, who: Principal, workspace: str, cursor: str | None = None, limit: int = 50
) -> Page[ArtifactShape]:
    """Committed artifacts, by folder. Known for ten minutes, because the records of all runs name them."""
    place = place_of(service, who, workspace)
    after = decode(cursor, str)[0] if cursor else ""
    whole = service.kept.get(("artifacts", place.id), lambda: _artifacts(place), f"artifacts of {place.name}")
    rest = [one for one in whole if one.base > after]
    return Page(items=rest[:limit], next=encode(rest[limit - 1].base) if len(rest) > limit else None)


def lineage(service: Service, who: Principal, workspace: str, base: str, hops: int = 2) -> Lineage:
    """What an output was made from and what was made from it, up to `hops` stages away."""
    if not 0 <= hops <= LINEAGE_HOPS:
        raise InvalidProblem(f"hops: {hops}: expected 0 to {LINEAGE_HOPS}; ask for the neighbours of another output")
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        row = session.get(IndexedDataset, (place.id, base))
        runs = _attempts(session, place.id, row.run_id) if row else []

    def make() -> Lineage:
        around = opened(place).lineage(base, hops, runs)
        nodes = [LineageNode.model_validate(node) for node in around.nodes]
        return Lineage(run=around.run, nodes=nodes, more=around.more)

    try:
        return service.kept.get(("lineage", place.id, base, hops), make, f"lineage of {base}")
    except InputError as error:
        raise NotFoundProblem(str(error)) from None


def sample(service: Service, who: Principal, run: str, key_or_url: str, workspace: str | None = None) -> SampleShape:
    """Everything that a run knows about a sample, by its key, the start of a key, its source id or URL."""
    with service.database.read() as session:
        one = found(session, who, run, workspace, Role.VIEWER)
    if not one.begun:
        raise ConflictProblem(f"run {run}: is {one.state}, not started; its samples are known once stages are done")

    def make() -> SampleShape:
        known = one.workspace.run(one.attempt_id).explain(key_or_url, _too_many)
        facts = [SampleFact(stage=stage, op=op, facts=_plain(about)) for stage, op, about in known]
        return SampleShape(key=str(known[0][2]["key"]), run=one.id, facts=facts)

    key = ("sample", one.place.id, one.attempt_id, key_or_url)
    try:
        return service.kept.get(key, make, f"sample {key_or_url!r}", seconds=30.0)
    except InputError as error:
        raise NotFoundProblem(str(error)) from None


# --- tags -------------------------------------------------------------------------------------------------------------


def tags(service: Service, who: Principal, workspace: str, name: str) -> list[TagShape]:
    """The tags of a dataset as they are now."""
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        rows = session.scalars(_newest(place.id, name).order_by(Tag.tag))
        return [TagShape.model_validate(row) for row in rows]


def tag(service: Service, who: Principal, workspace: str, name: str, tag: str) -> TagShape:
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        return TagShape.model_validate(_tag(session, place, name, tag))


def history(
    service: Service, who: Principal, workspace: str, name: str, tag: str, cursor: str | None = None, limit: int = 50
) -> Page[TagShape]:
    """Every change of a tag, newest first."""
    with service.database.read() as session:
        place = workspace_row(session, who, workspace, Role.VIEWER)
        wanted = select(Tag).where(Tag.workspace_id == place.id, Tag.name == name, Tag.tag == tag)
        if cursor:
            wanted = wanted.where(Tag.id < decode(cursor, int)[0])
        rows = list(session.scalars(wanted.order_by(Tag.id.desc()).limit(limit + 1)))
    if not rows and not cursor:
        raise NotFoundProblem(f"{name}@{tag}: never a tag of workspace {workspace}")
    shapes = [TagShape.model_validate(row) for row in rows[:limit]]
    return Page(items=shapes, next=encode(rows[limit - 1].id) if len(rows) > limit else None)


def set_tag(
    service: Service, who: Principal, workspace: str, name: str, tag: str, order: NewTag, if_match: int | None = None
) -> TagShape:
    """Let `name@tag` be a dataset, and pin the dataset so that gc keeps it. `if_match`: the version that they have
    seen."""
    target = f"{name}@{tag}"
    with rejections(service, who, "tag.set", workspace, target):
        if not re.fullmatch(NAME, tag):
            raise InvalidProblem(f"tag: {tag[:80]!r}: expected at most 64 letters, digits, ., - and _")
        with service.database.read() as session:
            place = workspace_row(session, who, workspace, Role.OPERATOR)
            row = _dataset(session, place, order.base)
            if row.name != name:
                raise InvalidProblem(f"base: {order.base} is a dataset of {row.name}; expected one of {name}")
            _check_version(session.scalar(_newest(place.id, name, tag)), target, if_match)
            runs = _attempts(session, place.id, row.run_id)
        tag_pins.add(opened(place), name, tag, order.base, runs)
    about: dict[str, Any] = {"workspace": place.name, "target": target, "alone": "tags", "base": order.base}
    with audited(service, who, "tag.set", **about) as session:
        _check_version(session.scalar(_newest(place.id, name, tag)), target, if_match)
        changed = _change(session, service.clock(), who, place, name, tag, order.base)
    _settle(service, place, name, tag)
    return changed


def remove_tag(
    service: Service, who: Principal, workspace: str, name: str, tag: str, if_match: int | None = None
) -> TagShape:
    """Remove a tag; its history stays, and its dataset until gc. `if_match`: the version that they have seen."""
    with audited(service, who, "tag.remove", workspace=workspace, target=f"{name}@{tag}", alone="tags") as session:
        place = workspace_row(session, who, workspace, Role.OPERATOR)
        _check_version(_tag(session, place, name, tag), f"{name}@{tag}", if_match)
        changed = _change(session, service.clock(), who, place, name, tag, None)
    _settle(service, place, name, tag)
    return changed


def resolve(service: Service, who: Principal, workspace: str | None, name: str, tag: str) -> Resolved:
    """The dataset of `name@tag`, in one workspace or in all that the user may see."""
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
        workspace=place.name, name=name, tag=tag, base=row.base, url=_url(place, row.base),
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
    """Raises ChangedProblem. A tag that does not exist has version 0."""
    version = row.id if row is not None else 0
    if if_match is not None and if_match != version:
        raise ChangedProblem(f"{target}: has version {version}, not {if_match}; read it again before changing it")


def _settle(service: Service, place: WorkspaceRow, name: str, tag: str) -> None:
    """Let the pins of a tag follow the database, which another request may change meanwhile."""
    for _ in range(3):
        with service.database.read() as session:
            newest = session.scalar(_newest(place.id, name, tag))
            row = _dataset(session, place, newest.base) if newest and newest.base else None
            runs = _attempts(session, place.id, row.run_id) if row else []
        if not tag_pins.follow(opened(place), name, tag, row.base if row else None, runs):
            return


# --- rows -------------------------------------------------------------------------------------------------------------


def _dataset(session: Session, place: WorkspaceRow, base: str) -> IndexedDataset:
    row = session.get(IndexedDataset, (place.id, base))
    if row is None:
        raise NotFoundProblem(
            f"{base}: not a dataset of workspace {place.name}; GET /api/v1/workspaces/{place.name}/datasets lists them"
        )
    return row


def _tag(session: Session, place: WorkspaceRow, name: str, tag: str) -> Tag:
    row = session.scalar(_newest(place.id, name, tag))
    if row is None:
        raise NotFoundProblem(f"{name}@{tag}: not a tag of workspace {place.name}")
    return row


def _newest(workspace: int, name: str, tag: str | None = None) -> Select[Tag]:
    """The tags of a dataset, or one of them, as they are now."""
    wanted = select(Tag).where(Tag.workspace_id == workspace, Tag.name == name, Tag.newest, Tag.base.is_not(None))
    return wanted if tag is None else wanted.where(Tag.tag == tag)


def _tagged(session: Session, workspace: int, bases: set[str]) -> dict[str, list[str]]:
    """Dataset -> its tags."""
    tags: dict[str, list[str]] = {}
    wanted = select(Tag.base, Tag.tag).where(Tag.workspace_id == workspace, Tag.newest, Tag.base.in_(bases))
    for base, tag in session.execute(wanted.order_by(Tag.tag)):
        tags.setdefault(str(base), []).append(tag)
    return tags


def _attempts(session: Session, workspace: int, run: str) -> list[str]:
    """The engine's runs of a run, newest first: one of them built its datasets."""
    row = session.get(IndexedRun, (workspace, run))
    if row is None:
        return [run] if run else []
    base, _, number = row.attempt_id.rpartition("-")
    if row.submitted and base == run and number.isdecimal():
        return [f"{run}-{attempt}" for attempt in range(int(number), 0, -1)]
    return [row.attempt_id]


# --- shapes -----------------------------------------------------------------------------------------------------------


def _url(place: WorkspaceRow, base: str) -> str:
    return f"{place.url.rstrip('/')}/{base}"


def _shape(place: WorkspaceRow, row: IndexedDataset, tags: list[str], pins: list[str] | None = None) -> DatasetShape:
    names = ("name", "base", "fingerprint", "rows", "tars", "bytes", "committed")
    known = {name: getattr(row, name) for name in names}
    about = {"url": _url(place, row.base), "run": row.run_id, "tags": tags, "pins": pins or []}
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


def _plain(value: Any) -> Any:
    """A fact in JSON's types."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, str | int | None) else value.hex() if isinstance(value, bytes) else str(value)


def _too_many(text: str) -> None:
    """`explain` is about to read the tables of a large pool."""
    raise InvalidProblem(f"{text} takes too long here; give the key, or use `curate explain` on a machine")
