"""/workspaces: where runs keep what they make; and the upkeep of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from fastapi import Response

from curate.core.errors import CurateError
from curate.service.actions import places as actions
from curate.service.actions import upkeep
from curate.service.auth.roles import Role
from curate.service.pages.kit import Form, Visit, Visiting, acted, done, made, page, part, whole, words
from curate.service.rest.deps import ByWord
from curate.service.shapes.data import GcOrder, GcShape, NewPin, NewTombstones
from curate.service.shapes.places import ChangedWorkspace, Kind, NewRegistration, NewWorkspace

router = ByWord()
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


@router.get("/workspaces")
def workspaces(visit: Visiting) -> Response:
    return _list(visit)


@router.post("/workspaces")
def add(visit: Visiting, form: Form) -> Response:
    def action() -> Response:
        order = made(NewWorkspace, name=words(form, "name"), url=words(form, "url"), target=words(form, "target"))
        actions.add_workspace(*visit.args, order)
        return done(f"/workspaces/{part(order.name)}", "added")

    return acted(action, lambda problem: _list(visit, problem, dict(form)))


def _list(visit: Visit, problem: CurateError | None = None, typed: dict[str, Any] | None = None) -> Response:
    return page(
        visit, "workspaces", problem=problem, title="Workspaces", places=actions.workspaces(*visit.args),
        targets=_targets(visit), kinds=KINDS, typed=typed or {}, admin=visit.who.everywhere is Role.ADMIN,
        registrations=[one for one in actions.registrations(*visit.args) if one.workspace is None],
    )  # fmt: skip


@router.post("/workspaces/-/registrations")
def register_for_all(visit: Visiting, form: Form) -> Response:
    return acted(lambda: _register(visit, form, None, "/workspaces"), lambda problem: _list(visit, problem, dict(form)))


@router.post("/workspaces/-/registrations/remove")
def unregister_for_all(visit: Visiting, form: Form) -> Response:
    return acted(lambda: _unregister(visit, form, None, "/workspaces"), lambda problem: _list(visit, problem))


@router.get("/workspaces/{name}")
def workspace(visit: Visiting, name: str) -> Response:
    return _one(visit, name)


@router.post("/workspaces/{name}/target")
def change(visit: Visiting, form: Form, name: str) -> Response:
    def action() -> None:
        order = made(ChangedWorkspace, target=words(form, "target"))
        actions.change_workspace(*visit.args, name, order, whole(form, "version"))

    return _acted(visit, name, action, "saved")


@router.post("/workspaces/{name}/remove")
def remove(visit: Visiting, name: str) -> Response:
    def action() -> Response:
        actions.remove_workspace(*visit.args, name)
        return done("/workspaces", "removed")

    return acted(action, lambda problem: _one(visit, name, problem))


@router.post("/workspaces/{name}/registrations")
def register(visit: Visiting, form: Form, name: str) -> Response:
    back = f"/workspaces/{part(name)}"
    return acted(lambda: _register(visit, form, name, back), lambda problem: _one(visit, name, problem, dict(form)))


@router.post("/workspaces/{name}/registrations/remove")
def unregister(visit: Visiting, form: Form, name: str) -> Response:
    back = f"/workspaces/{part(name)}"
    return acted(lambda: _unregister(visit, form, name, back), lambda problem: _one(visit, name, problem))


def _register(visit: Visit, form: Form, workspace: str | None, back: str) -> Response:
    fields = {field: words(form, field) for field in ("kind", "name", "value")}
    actions.register(*visit.args, made(NewRegistration, workspace=workspace, **fields))
    return done(back, "added")


def _unregister(visit: Visit, form: Form, workspace: str | None, back: str) -> Response:
    actions.unregister(*visit.args, workspace, words(form, "kind"), words(form, "name"))
    return done(back, "removed")


@router.post("/workspaces/{name}/pins")
def pin(visit: Visiting, form: Form, name: str) -> Response:
    def action() -> None:
        order = made(NewPin, run=words(form, "run"), stage=words(form, "stage"))
        upkeep.add_pin(*visit.args, name, words(form, "name"), order)

    return _acted(visit, name, action, "added")


@router.post("/workspaces/{name}/pins/remove")
def unpin(visit: Visiting, form: Form, name: str) -> Response:
    return _acted(visit, name, lambda: upkeep.remove_pin(*visit.args, name, words(form, "name")), "removed")


@router.post("/workspaces/{name}/tombstones")
def bury(visit: Visiting, form: Form, name: str) -> Response:
    def action() -> None:
        entries = [line.strip() for line in words(form, "entries").splitlines() if line.strip()]
        upkeep.add_tombstones(*visit.args, name, made(NewTombstones, entries=entries, why=words(form, "why")))

    return _acted(visit, name, action, "added")


@router.post("/workspaces/{name}/gc")
def gc(visit: Visiting, form: Form, name: str) -> Response:
    """First says what would be freed; frees it with `do=delete`."""

    def action() -> Response:
        delete = words(form, "do") == "delete"
        order = made(
            GcOrder, keep=whole(form, "keep"), costly=bool(words(form, "costly")), delete=delete,
            drop=words(form, "drop").split(),
        )  # fmt: skip
        found = upkeep.gc(*visit.args, name, order)
        return done(f"/workspaces/{part(name)}", "freed") if delete else _one(visit, name, gc=(order, found))

    return acted(action, lambda problem: _one(visit, name, problem, dict(form)))


def _acted(visit: Visit, name: str, action: Callable[[], Any], said: str) -> Response:
    def acting() -> Response:
        action()
        return done(f"/workspaces/{part(name)}", said)

    return acted(acting, lambda problem: _one(visit, name, problem))


def _one(
    visit: Visit, name: str, problem: CurateError | None = None, typed: dict[str, Any] | None = None,
    gc: tuple[GcOrder, GcShape] | None = None,
) -> Response:  # fmt: skip
    place = actions.workspace(*visit.args, name)
    counting = visit.query("storage") != "" or gc is not None
    storage = upkeep.storage(*visit.args, name, fresh=visit.query("storage") == "fresh") if counting else None
    return page(
        visit, "workspace", problem=problem, title=place.name, place=place, pins=upkeep.pins(*visit.args, name),
        tombstones=upkeep.tombstones(*visit.args, name), storage=storage, gc=gc, typed=typed or {}, kinds=KINDS,
        registrations=actions.registrations(*visit.args, name), targets=_targets(visit),
        base=f"/workspaces/{part(name)}", operator=place.role.covers(Role.OPERATOR),
        keeper=place.role.covers(Role.ADMIN), admin=visit.who.everywhere is Role.ADMIN,
    )  # fmt: skip


def _targets(visit: Visit) -> list[tuple[str, str]]:
    return [(one.name, one.name) for one in actions.targets(*visit.args)]
