"""/people: users with their roles, tokens and quotas; /audit: every write, whether it succeeded or not."""

from __future__ import annotations

from fastapi import Response

from curate.core.errors import CurateError
from curate.service.auth.roles import Role
from curate.service.pages.forms import Form, Pages, done, made, real, whole, words
from curate.service.pages.kit import LIMIT, Visit, Visiting, link, page, part
from curate.service.people import quotas, tokens, users
from curate.service.people.quotas import NewQuota, QuotaShape
from curate.service.people.tokens import MadeToken, NewToken
from curate.service.people.users import ChangedUser, NewGrant, NewUser, UserShape
from curate.service.places.workspaces import workspaces
from curate.service.problems import NotFoundProblem

router = Pages()
ROLES = [(role.value, role.value) for role in Role]
DAYS = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "1 year"), ("never", "it does not expire"))
FILTERS = ("workspace", "user", "action")


@router.get("/people")
def people(visit: Visiting) -> Response:
    return _list(visit)


def _list(visit: Visit, problem: CurateError | None = None) -> Response:
    admin = visit.who.everywhere is Role.ADMIN
    return page(
        visit, "people", problem=problem, title="People", me=users.get_me(*visit.args), admin=admin,
        users=users.users(*visit.args), quota=quotas.list_quotas(*visit.args).get("", QuotaShape()) if admin else None,
    )  # fmt: skip


@router.form("/people", "/people", _list)
def add(visit: Visiting, form: Form) -> Response:
    order = made(NewUser, name=words(form, "name"))
    users.add_user(*visit.args, order)
    return done(f"/people/{part(order.name)}", "added")


@router.form("/people/-/quota", "/people", _list)
def usual_quota(visit: Visiting, form: Form) -> None:
    quotas.set_default_quota(*visit.args, _quota(form))


@router.get("/people/{name}")
def person(visit: Visiting, name: str) -> Response:
    return _one(visit, name)


def _one(visit: Visit, name: str, problem: CurateError | None = None, new: MadeToken | None = None) -> Response:
    found = next((one for one in users.users(*visit.args) if one.name == name), None)
    if found is None:
        raise NotFoundProblem(f"user {name}: not found")
    admin = visit.who.everywhere is Role.ADMIN
    own = name == visit.who.user
    kept = [one.name for one in workspaces(*visit.args) if one.role is Role.ADMIN]
    limits = quotas.list_quotas(*visit.args) if admin else {}
    return page(
        visit, "person", 201 if new else 200, problem, title=found.name, person=found, admin=admin, own=own, new=new,
        tokens=tokens.tokens(*visit.args, name) if admin or own else None, roles=ROLES, days=DAYS,
        token_roles=[(role, text) for role, text in ROLES if visit.who.most.covers(Role(role))],
        places=_places(kept, admin), removable=_removable(found, kept, admin),
        quota=limits.get(name, QuotaShape()), usual=limits.get("", QuotaShape()), now=visit.service.clock(),
    )  # fmt: skip


@router.form("/people/{name}/tokens", "/people/{name}", _one)
def make_token(visit: Visiting, form: Form, name: str) -> Response:
    """Shows the token in this answer alone: no address leads to it."""
    days = None if words(form, "days") == "never" else real(form, "days") or 90.0
    order = made(NewToken, label=words(form, "label"), role=words(form, "role") or None, days=days)
    return _one(visit, name, new=tokens.make_token(*visit.args, name, order))


@router.form("/people/{name}/tokens/{token_id}/revoke", "/people/{name}", _one, "revoked")
def revoke(visit: Visiting, name: str, token_id: str) -> None:
    tokens.revoke_token(*visit.args, token_id)


@router.form("/people/{name}/grants", "/people/{name}", _one)
def grant(visit: Visiting, form: Form, name: str) -> None:
    sees = words(form, "see_pixels") == "yes"
    users.set_grant(
        *visit.args, name, made(NewGrant, workspace=_where(form), role=words(form, "role"), see_pixels=sees)
    )


@router.form("/people/{name}/grants/remove", "/people/{name}", _one, "removed")
def ungrant(visit: Visiting, form: Form, name: str) -> None:
    users.remove_grant(*visit.args, name, _where(form))


@router.form("/people/{name}/disabled", "/people/{name}", _one)
def disable(visit: Visiting, form: Form, name: str) -> None:
    users.change_user(*visit.args, name, ChangedUser(disabled=words(form, "disabled") == "yes"))


@router.form("/people/{name}/quota", "/people/{name}", _one)
def quota(visit: Visiting, form: Form, name: str) -> None:
    quotas.set_quota(*visit.args, name, _quota(form))


def _where(form: Form) -> str | None:
    """A workspace; None for the whole service, which no workspace can be named like."""
    chosen = words(form, "workspace")
    return None if chosen == "*" else chosen


def _quota(form: Form) -> NewQuota:
    counts = {name: whole(form, name) for name in ("running", "queued")}
    return made(NewQuota, **counts, gpu_hours=real(form, "gpu_hours"))


def _places(kept: list[str], admin: bool) -> list[tuple[str, str]]:
    """Where they may give roles."""
    everywhere = [("*", "the whole service")] if admin else []
    return [(name, name) for name in kept] + everywhere


def _removable(found: UserShape, kept: list[str], admin: bool) -> list[str | None]:
    return [one.workspace for one in found.grants if (one.workspace in kept) or (one.workspace is None and admin)]


@router.get("/audit")
def audit(visit: Visiting) -> Response:
    query = {name: visit.query(name) for name in FILTERS}
    cursor = visit.query("cursor")
    found = quotas.list_audit(
        *visit.args, workspace=query["workspace"] or None, user=query["user"] or None, action=query["action"] or None,
        cursor=cursor or None, limit=LIMIT,
    )  # fmt: skip
    return page(
        visit, "audit", title="Audit", page=found, query=query, filtered=any(query.values()),
        places=[(one.name, one.name) for one in workspaces(*visit.args)],
        first=link("/audit", **query) if cursor else "",
    )  # fmt: skip
