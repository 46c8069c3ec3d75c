"""Upkeep of a workspace: pins, tombstones, storage and what gc frees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from curate.api import Workspace
from curate.core.errors import InputError
from curate.service.actions import tag_pins
from curate.service.actions.places import opened, place_of
from curate.service.actions.writes import recorded
from curate.service.auth.roles import Principal, Role
from curate.service.database.models import IndexedDataset, IndexedRun, Tag, WorkspaceRow
from curate.service.problems import ConflictProblem, InvalidProblem, NotFoundProblem
from curate.service.service import Service
from curate.service.shapes.data import (
    GcOrder,
    GcShape,
    NewPin,
    NewTombstones,
    PinShape,
    StorageLine,
    StorageShape,
    TombstonesShape,
)

SHOWN_SECONDS = 600.0
"""How long what takes minutes to compute is shown again."""


def pins(service: Service, who: Principal, workspace: str) -> list[PinShape]:
    """Artifacts and datasets that gc keeps, by name."""
    place = place_of(service, who, workspace, Role.VIEWER)
    return [PinShape.model_validate(pin) for pin in opened(place).pins.values()]


def add_pin(service: Service, who: Principal, workspace: str, name: str, order: NewPin) -> PinShape:
    """Keep the output of a stage of a run under a name."""
    with recorded(service, who, "pin.add", workspace, name) as detail:
        place = place_of(service, who, workspace, Role.OPERATOR)
        detail |= {"run": order.run, "stage": order.stage}
        if name.startswith(tag_pins.PREFIX):
            raise InvalidProblem(
                f"pin {name}: names that begin with {tag_pins.PREFIX} belong to tags; set a tag instead"
            )
        made = opened(place).pin(name, order.run, order.stage)
    return PinShape.model_validate(made)


def remove_pin(service: Service, who: Principal, workspace: str, name: str) -> PinShape:
    """Remove a pin; its output stays until gc."""
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


def tombstones(service: Service, who: Principal, workspace: str, fresh: bool = False) -> TombstonesShape:
    """How many samples are excluded, and which datasets still have some of them."""
    place = place_of(service, who, workspace, Role.VIEWER)
    return _tombstones(service, place, fresh)


def add_tombstones(service: Service, who: Principal, workspace: str, order: NewTombstones) -> TombstonesShape:
    """Exclude samples from all later runs."""
    with recorded(service, who, "tombstone.add", workspace, order.why) as detail:
        place = place_of(service, who, workspace, Role.OPERATOR)
        detail["entries"] = opened(place).add_tombstones(order.entries, order.why)
    return _tombstones(service, place, fresh=True)


def _tombstones(service: Service, place: WorkspaceRow, fresh: bool) -> TombstonesShape:
    def make() -> TombstonesShape:
        workspace = opened(place)
        counts = {kind: len(values) for kind, values in workspace.tombstones().items()}
        return TombstonesShape(counts=counts, affected=workspace.affected_datasets())

    what = f"tombstones of {place.name}"
    return service.kept.get(("tombstones", place.id), make, what, seconds=SHOWN_SECONDS, fresh=fresh)


def storage(service: Service, who: Principal, workspace: str, fresh: bool = False) -> StorageShape:
    """Files and bytes by noun and op, and what gc would free."""
    place = place_of(service, who, workspace, Role.VIEWER)

    def make() -> StorageShape:
        checked = service.clock()
        lines = [StorageLine.model_validate(line) for line in opened(place).usage()]
        size, garbage = sum(line.bytes for line in lines), sum(line.garbage for line in lines)
        return StorageShape.model_validate({"lines": lines, "bytes": size, "garbage": garbage, "checked": checked})

    what = f"storage of {place.name}"
    return service.kept.get(("storage", place.id), make, what, seconds=SHOWN_SECONDS, fresh=fresh)


def gc(service: Service, who: Principal, workspace: str, order: GcOrder) -> GcShape:
    """What no kept run, pin or tag needs; removed only with `delete`. A removal continues if the caller leaves; the
    same request again waits for it, and frees nothing twice."""
    if not order.delete:
        place = place_of(service, who, workspace, Role.ADMIN)
        key = ("gc", place.id, order.model_dump_json())
        return service.kept.get(
            key, lambda: _freed(*_collected(opened(place), order), order), f"gc of {place.name}", seconds=60.0
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

    return service.kept.get(("delete", place.id, order.model_dump_json()), remove, f"gc of {place.name}", seconds=0.0)


def _collected(workspace: Workspace, order: GcOrder) -> tuple[dict[str, int], list[str]]:
    return workspace.gc(order.keep, order.drop, order.costly, order.delete)


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
    if not pin.startswith(tag_pins.PREFIX):
        return None
    wanted = select(Tag).where(Tag.workspace_id == place.id, Tag.newest, Tag.base.is_not(None))
    with service.database.read() as session:
        rows = session.scalars(wanted)
        owners = (
            f"{row.name}@{row.tag}" for row in rows if tag_pins.pin_name(row.name, row.tag, row.base or "") == pin
        )
        return next(owners, None)
