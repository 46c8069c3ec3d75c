"""/targets: the Ray clusters, their health and what runs on them."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from curate.core.errors import CurateError
from curate.service.actions import places as actions
from curate.service.actions import runs as run_actions
from curate.service.auth.roles import Role
from curate.service.pages.kit import Form, Visit, Visiting, acted, done, made, page, whole, words
from curate.service.rest.deps import ByWord
from curate.service.shapes.places import ChangedTarget, NewTarget
from curate.service.shapes.runs import RunLine
from curate.service.states import State

router = ByWord()
ACTIVE = [state for state in State if state.active]
SHOWN_RUNS = 20


@router.get("/targets")
def targets(visit: Visiting) -> Response:
    return _page(visit)


@router.post("/targets")
def add(visit: Visiting, form: Form) -> Response:
    def action() -> Response:
        values = {name: words(form, name) for name in ("name", "address", "token")}
        actions.add_target(*visit.args, made(NewTarget, **values, **_most(form)))
        return done("/targets", "added")

    return acted(action, lambda problem: _page(visit, problem, dict(form)))


@router.post("/targets/{name}")
def change(visit: Visiting, form: Form, name: str) -> Response:
    def action() -> Response:
        values = {"address": words(form, "address") or None, "token": words(form, "token")}
        order = made(ChangedTarget, **values, **_most(form))
        actions.change_target(*visit.args, name, order, whole(form, "version"))
        return done("/targets", "saved")

    return acted(action, lambda problem: _page(visit, problem))


@router.post("/targets/{name}/check")
def check(visit: Visiting, name: str) -> Response:
    def action() -> Response:
        actions.check_target(*visit.args, name)
        return done("/targets")

    return acted(action, lambda problem: _page(visit, problem))


@router.post("/targets/{name}/remove")
def remove(visit: Visiting, name: str) -> Response:
    def action() -> Response:
        actions.remove_target(*visit.args, name)
        return done("/targets", "removed")

    return acted(action, lambda problem: _page(visit, problem))


def _most(form: Form) -> dict[str, int]:
    found = {name: whole(form, name) for name in ("max_runs", "max_gpus")}
    return {name: value for name, value in found.items() if value is not None}


def _page(visit: Visit, problem: CurateError | None = None, typed: dict[str, Any] | None = None) -> Response:
    on: dict[str, list[RunLine]] = {}
    for state in ACTIVE:
        for run in run_actions.runs(*visit.args, state=state.value, limit=SHOWN_RUNS).items:
            on.setdefault(run.target, []).append(run)
    return page(
        visit, "targets", problem=problem, title="Targets", targets=actions.targets(*visit.args), on=on,
        typed=typed or {}, admin=visit.who.everywhere is Role.ADMIN,
    )  # fmt: skip
