"""/people: users with their roles, tokens and quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Response

from curate.core.errors import CurateError
from curate.service.actions import people as actions
from curate.service.actions import places as place_actions
from curate.service.auth.roles import Role
from curate.service.pages.kit import Form, Visit, Visiting, acted, done, made, page, part, real, whole, words
from curate.service.problems import NotFoundProblem
from curate.service.rest.deps import ByWord
from curate.service.shapes.people import MadeToken, NewGrant, NewQuota, NewToken, NewUser, QuotaShape, UserShape

router = ByWord()
ROLES = [(role.value, role.value) for role in Role]
DAYS = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "1 year"), ("never", "it does not expire"))


@router.get("/people")
def people(visit: Visiting) -> Response:
    return _list(visit)


@router.post("/people")
def add(visit: Visiting, form: Form) -> Response:
    def action() -> Response:
        order = made(NewUser, name=words(form, "name"))
        actions.add_user(*visit.args, order)
        return done(f"/people/{part(order.name)}", "added")

    return acted(action, lambda problem: _list(visit, problem))


@router.post("/people/-/quota")
def usual_quota(visit: Visiting, form: Form) -> Response:
    def action() -> Response:
        actions.set_quota(*visit.args, None, _quota(form))
        return done("/people", "saved")

    return acted(action, lambda problem: _list(visit, problem))


@router.get("/people/{name}")
def person(visit: Visiting, name: str) -> Response:
    return _one(visit, name)


@router.post("/people/{name}/tokens")
def make_token(visit: Visiting, form: Form, name: str) -> Response:
    """Shows the token in this answer alone: no address leads to it."""

    def action() -> Response:
        days = None if words(form, "days") == "never" else real(form, "days") or 90.0
        order = made(NewToken, label=words(form, "label"), role=words(form, "role") or None, days=days)
        return _one(visit, name, new=actions.make_token(*visit.args, name, order))

    return acted(action, lambda problem: _one(visit, name, problem))


@router.post("/people/{name}/tokens/{token_id}/revoke")
def revoke(visit: Visiting, name: str, token_id: str) -> Response:
    return _acted(visit, name, lambda: actions.revoke_token(*visit.args, token_id), "revoked")


@router.post("/people/{name}/grants")
def grant(visit: Visiting, form: Form, name: str) -> Response:
    def action() -> None:
        order = made(NewGrant, workspace=_where(form), role=words(form, "role"))
        actions.set_grant(*visit.args, name, order)

    return _acted(visit, name, action, "saved")


@router.post("/people/{name}/grants/remove")
def ungrant(visit: Visiting, form: Form, name: str) -> Response:
    return _acted(visit, name, lambda: actions.remove_grant(*visit.args, name, _where(form)), "removed")


@router.post("/people/{name}/disabled")
def disable(visit: Visiting, form: Form, name: str) -> Response:
    value = words(form, "disabled") == "yes"
    return _acted(visit, name, lambda: actions.set_disabled(*visit.args, name, value), "saved")


@router.post("/people/{name}/quota")
def quota(visit: Visiting, form: Form, name: str) -> Response:
    return _acted(visit, name, lambda: actions.set_quota(*visit.args, name, _quota(form)), "saved")


def _where(form: Form) -> str | None:
    """A workspace; None for the whole service, which no workspace can be named like."""
    chosen = words(form, "workspace")
    return None if chosen == "*" else chosen


def _quota(form: Form) -> NewQuota:
    counts = {name: whole(form, name) for name in ("running", "queued")}
    return made(NewQuota, **counts, gpu_hours=real(form, "gpu_hours"))


def _acted(visit: Visit, name: str, action: Callable[[], Any], said: str) -> Response:
    def acting() -> Response:
        action()
        return done(f"/people/{part(name)}", said)

    return acted(acting, lambda problem: _one(visit, name, problem))


def _list(visit: Visit, problem: CurateError | None = None) -> Response:
    admin = visit.who.everywhere is Role.ADMIN
    return page(
        visit, "people", problem=problem, title="People", me=actions.me(*visit.args), admin=admin,
        users=actions.users(*visit.args), quota=actions.quotas(*visit.args).get("", QuotaShape()) if admin else None,
    )  # fmt: skip


def _one(visit: Visit, name: str, problem: CurateError | None = None, new: MadeToken | None = None) -> Response:
    found = next((one for one in actions.users(*visit.args) if one.name == name), None)
    if found is None:
        raise NotFoundProblem(f"user {name}: not found")
    admin = visit.who.everywhere is Role.ADMIN
    own = name == visit.who.user
    kept = [one.name for one in place_actions.workspaces(*visit.args) if one.role is Role.ADMIN]
    quotas = actions.quotas(*visit.args) if admin else {}
    return page(
        visit, "person", 201 if new else 200, problem, title=found.name, person=found, admin=admin, own=own, new=new,
        tokens=actions.tokens(*visit.args, name) if admin or own else None, roles=ROLES, days=DAYS,
        token_roles=[(role, text) for role, text in ROLES if visit.who.most.covers(Role(role))],
        places=_places(kept, admin), removable=_removable(found, kept, admin),
        quota=quotas.get(name, QuotaShape()), usual=quotas.get("", QuotaShape()), now=visit.service.clock(),
    )  # fmt: skip


def _places(kept: list[str], admin: bool) -> list[tuple[str, str]]:
    """Where they may give roles."""
    everywhere = [("*", "the whole service")] if admin else []
    return [(name, name) for name in kept] + everywhere


def _removable(found: UserShape, kept: list[str], admin: bool) -> list[str | None]:
    return [one.workspace for one in found.grants if (one.workspace in kept) or (one.workspace is None and admin)]
