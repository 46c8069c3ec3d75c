"""/workspaces: where runs keep what they make, and the upkeep of one; /targets: the Ray clusters, their health and what
runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_args

from fastapi import Response

from curate.core.errors import CurateError, some
from curate.service.auth.roles import Role
from curate.service.datasets import upkeep
from curate.service.datasets.upkeep import GcOrder, GcShape, NewPin, NewTombstones
from curate.service.pages.forms import Form, Pages, done, made, whole, words
from curate.service.pages.kit import Visit, Visiting, page, part
from curate.service.places import registrations, targets, workspaces
from curate.service.places.registrations import Kind, NewRegistration
from curate.service.places.targets import ChangedTarget, NewTarget
from curate.service.places.workspaces import ChangedWorkspace, NewWorkspace
from curate.service.runs import views
from curate.service.runs.shapes import RunLine
from curate.service.states import ACTIVE, State

router = Pages()
ABOUT = {
    "root": "a folder or URL that recipes may read",
    "endpoints": "a file of endpoints",
    "file": "a file that recipes may read",
    "encoder": "weights that recipes may load",
    "op": "module:Class",
    "secret": "env:NAME or file:PATH",
    "proxy": "a proxy for downloads",
    "network": "a private network that downloads may reach",
}
KINDS = [(kind, f"{kind}: {ABOUT[kind]}") for kind in get_args(Kind)]
SHOWN_RUNS = 20

# --- workspaces -------------------------------------------------------------------------------------------------------


@router.get("/workspaces")
def show_workspaces(visit: Visiting) -> Response:
    return _workspaces(visit)


def _workspaces(visit: Visit, problem: CurateError | None = None, typed: dict[str, Any] | None = None) -> Response:
    return page(
        visit, "workspaces", problem=problem, title="Workspaces", places=workspaces.workspaces(*visit.args),
        targets=_targets(visit), kinds=KINDS, typed=typed or {}, admin=visit.who.everywhere is Role.ADMIN,
        registrations=[one for one in registrations.registrations(*visit.args) if one.workspace is None],
    )  # fmt: skip


@router.form("/workspaces", "/workspaces", _workspaces, typed=True)
def add_workspace(visit: Visiting, form: Form) -> Response:
    order = made(NewWorkspace, name=words(form, "name"), url=words(form, "url"), target=words(form, "target"))
    workspaces.add_workspace(*visit.args, order)
    return done(f"/workspaces/{part(order.name)}", "added")


@router.form("/workspaces/-/registrations", "/workspaces", _workspaces, "added", typed=True)
def register_for_all(visit: Visiting, form: Form) -> None:
    _register(visit, form, None)


@router.form("/workspaces/-/registrations/remove", "/workspaces", _workspaces, "removed")
def unregister_for_all(visit: Visiting, form: Form) -> None:
    _unregister(visit, form, None)


@router.get("/workspaces/{name}")
def show_workspace(visit: Visiting, name: str) -> Response:
    return _workspace(visit, name)


def _workspace(
    visit: Visit, name: str, problem: CurateError | None = None, typed: dict[str, Any] | None = None,
    gc: tuple[GcOrder, GcShape] | None = None, unknown: Sequence[str] = (),
) -> Response:  # fmt: skip
    place = workspaces.get_workspace(*visit.args, name)
    counting = visit.query("storage") != "" or gc is not None
    storage = upkeep.get_storage(*visit.args, name, fresh=visit.query("storage") == "fresh") if counting else None
    return page(
        visit, "workspace", problem=problem, title=place.name, place=place, pins=upkeep.pins(*visit.args, name),
        tombstones=upkeep.get_tombstones(*visit.args, name), storage=storage, gc=gc, typed=typed or {}, kinds=KINDS,
        registrations=registrations.registrations(*visit.args, name), targets=_targets(visit),
        base=f"/workspaces/{part(name)}", operator=place.role.covers(Role.OPERATOR),
        keeper=place.role.covers(Role.ADMIN), admin=visit.who.everywhere is Role.ADMIN, unknown=some(unknown),
    )  # fmt: skip


@router.form("/workspaces/{name}/target", "/workspaces/{name}", _workspace)
def change_workspace(visit: Visiting, form: Form, name: str) -> None:
    order = made(ChangedWorkspace, target=words(form, "target"))
    workspaces.change_workspace(*visit.args, name, order, whole(form, "version"))


@router.form("/workspaces/{name}/remove", "/workspaces/{name}", _workspace)
def remove_workspace(visit: Visiting, name: str) -> Response:
    workspaces.remove_workspace(*visit.args, name)
    return done("/workspaces", "removed")


@router.form("/workspaces/{name}/registrations", "/workspaces/{name}", _workspace, "added", typed=True)
def register(visit: Visiting, form: Form, name: str) -> None:
    _register(visit, form, name)


@router.form("/workspaces/{name}/registrations/remove", "/workspaces/{name}", _workspace, "removed")
def unregister(visit: Visiting, form: Form, name: str) -> None:
    _unregister(visit, form, name)


def _register(visit: Visit, form: Form, workspace: str | None) -> None:
    fields = {field: words(form, field) for field in ("kind", "name", "value")}
    registrations.register(*visit.args, made(NewRegistration, workspace=workspace, **fields))


def _unregister(visit: Visit, form: Form, workspace: str | None) -> None:
    registrations.unregister(*visit.args, cast(Kind, words(form, "kind")), words(form, "name"), workspace)


@router.form("/workspaces/{name}/pins", "/workspaces/{name}", _workspace, "added")
def add_pin(visit: Visiting, form: Form, name: str) -> None:
    order = made(NewPin, run=words(form, "run"), stage=words(form, "stage"))
    upkeep.add_pin(*visit.args, name, words(form, "name"), order)


@router.form("/workspaces/{name}/pins/remove", "/workspaces/{name}", _workspace, "removed")
def remove_pin(visit: Visiting, form: Form, name: str) -> None:
    upkeep.remove_pin(*visit.args, name, words(form, "name"))


@router.form("/workspaces/{name}/tombstones", "/workspaces/{name}", _workspace, "added")
def add_tombstones(visit: Visiting, form: Form, name: str) -> Response | None:
    entries = [line.strip() for line in words(form, "entries").splitlines() if line.strip()]
    found = upkeep.add_tombstones(*visit.args, name, made(NewTombstones, entries=entries, why=words(form, "why")))
    return _workspace(visit, name, unknown=found.unknown) if found.unknown else None


@router.form("/workspaces/{name}/gc", "/workspaces/{name}", _workspace, "freed", typed=True)
def gc(visit: Visiting, form: Form, name: str) -> Response | None:
    """First says what would be freed; frees it with `do=delete`."""
    order = made(
        GcOrder, keep=whole(form, "keep"), costly=bool(words(form, "costly")), delete=words(form, "do") == "delete",
        drop=words(form, "drop").split(),
    )  # fmt: skip
    found = upkeep.collect_garbage(*visit.args, name, order)
    return None if order.delete else _workspace(visit, name, gc=(order, found))


# --- targets ----------------------------------------------------------------------------------------------------------


@router.get("/targets")
def show_targets(visit: Visiting) -> Response:
    return _page(visit)


def _page(visit: Visit, problem: CurateError | None = None, typed: dict[str, Any] | None = None) -> Response:
    on: dict[str, list[RunLine]] = {}
    for state in ACTIVE:
        for run in views.list_runs(*visit.args, state=State(state), limit=SHOWN_RUNS).items:
            on.setdefault(run.target, []).append(run)
    return page(
        visit, "targets", problem=problem, title="Targets", targets=targets.targets(*visit.args), on=on,
        typed=typed or {}, admin=visit.who.everywhere is Role.ADMIN,
    )  # fmt: skip


@router.form("/targets", "/targets", _page, "added", typed=True)
def add_target(visit: Visiting, form: Form) -> None:
    values = {name: words(form, name) for name in ("name", "address", "token")}
    targets.add_target(*visit.args, made(NewTarget, **values, **_most(form)))


@router.form("/targets/{name}", "/targets", _page)
def change_target(visit: Visiting, form: Form, name: str) -> None:
    values = {"address": words(form, "address") or None, "token": words(form, "token")}
    targets.change_target(*visit.args, name, made(ChangedTarget, **values, **_most(form)), whole(form, "version"))


@router.form("/targets/{name}/check", "/targets", _page, "")
def check_target(visit: Visiting, name: str) -> None:
    targets.check_target(*visit.args, name)


@router.form("/targets/{name}/remove", "/targets", _page, "removed")
def remove_target(visit: Visiting, name: str) -> None:
    targets.remove_target(*visit.args, name)


def _most(form: Form) -> dict[str, int]:
    found = {name: whole(form, name) for name in ("max_runs", "max_gpus")}
    return {name: value for name, value in found.items() if value is not None}


def _targets(visit: Visit) -> list[tuple[str, str]]:
    return [(one.name, one.name) for one in targets.targets(*visit.args)]
