"""/new: the recipe editor. Checks and plans before it submits, and keeps what was typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from curate.api import new_run_id
from curate.core.errors import CurateError
from curate.service.auth.roles import Role
from curate.service.pages.forms import Form, Pages, in_turn, made, real, whole, words
from curate.service.pages.graph import stages_graph
from curate.service.pages.kit import Visit, Visiting, page, part
from curate.service.places.targets import targets
from curate.service.places.workspaces import workspaces
from curate.service.problems import InvalidProblem
from curate.service.runs.recipes import check_recipe, list_recipes, plan_recipe
from curate.service.runs.shapes import Checked, Mistake, NewRun, Planned, RecipeOrder, RunOptions, StageShape
from curate.service.runs.submit import digest, submit
from curate.service.runs.views import get_run

router = Pages()
MOST_VARIABLES = 60
NUMBERS = (
    ("priority", "Priority", "0", "Larger ones start first; above 0 needs the role admin."),
    ("retries", "Retries if it is lost", "default", "How often the service resubmits it."),
    ("drain_seconds", "Drain time (seconds)", "default", "How long a stop may take to save what is under way."),
)
OPTIONS = (
    ("failure_budget", "Failure budget", "0.01", "Share of the rows that may end in error."),
    ("sample", "Sample", "1", "Share of the shards to compute, above 0 and up to 1."),
    ("sample_rows", "Sample rows", "all", "Rows to take of each pool, approximately; instead of a share."),
    ("deadline", "Deadline (seconds)", "none", "Without a finished batch, after which work is repeated."),
    ("cpus", "CPUs", "all", "What its workers may take of the cluster."),
    ("gpus", "GPUs", "all", "What its workers may take of the cluster."),
    ("max_tokens", "Token limit", "none", "What stages may use at endpoints."),
    ("max_dollars", "Dollar limit", "none", "What stages may spend at endpoints."),
)
RETRIED = (("error", "Rows in error"), ("unusable", "Unusable rows, which needs reasons"))
WHOLE = ("priority", "retries", "max_tokens", "sample_rows", "cpus", "gpus")
_VARIABLE = re.compile(
    r"(?P<indent>[ ]+)(?P<name>[A-Za-z_][A-Za-z0-9_-]*):(?:[ ]+(?P<value>.*?))?(?:[ ]+#[ ]*(?P<note>.*))?"
)


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    note: str


def variables(recipe: str) -> list[Variable]:
    """The lines of the block `vars:`. It only looks at lines: what people type is parsed in the sandbox alone."""
    found: list[Variable] = []
    indent, inside = "", False
    for line in recipe.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line.startswith(" "):
            inside = line.split("#")[0].rstrip() == "vars:"
            continue
        match = _VARIABLE.fullmatch(line.rstrip()) if inside and len(line) < 500 else None
        if match and match["indent"] == (indent or match["indent"]):
            indent = match["indent"]
            found.append(Variable(match["name"], match["value"] or "", match["note"] or ""))
    return found[:MOST_VARIABLES]


@router.get("/new")
def new(visit: Visiting) -> Response:
    typed = {"workspace": visit.query("workspace"), "recipe": ""}
    if visit.query("run"):
        run = get_run(*visit.args, visit.query("run"))
        typed |= {"workspace": run.workspace, "recipe": run.recipe, "set": "\n".join(run.set), "title": run.title}
        given = {**run.options, **{name: getattr(run, name) for name, *_ in NUMBERS}}
        typed |= {name: str(given[name]) for name, *_ in NUMBERS + OPTIONS if given.get(name) is not None}
        retry: dict[str, list[str]] = given.get("retry") or {}
        lines = [f"{stage}: {', '.join(reasons)}" if reasons else stage for stage, reasons in retry.items()]
        typed |= {"target": run.target, "retry": "\n".join(lines), "retry_status": given.get("retry_status") or "error"}
        typed["to"] = given.get("to") or ""
    return _page(visit, typed)


@router.post("/new")
async def act(visit: Visiting, form: Form) -> Response:
    typed = {"workspace": ""} | {name: str(value) for name, value in form.items() if isinstance(value, str)}
    typed["recipe"] = typed.get("recipe", "").replace("\r\n", "\n")
    if words(form, "do") == "load":
        return await run_in_threadpool(_page, visit, typed | {"recipe": ""})
    return await in_turn(visit, partial(_act, visit, form, typed), partial(_page, visit, typed))


def _act(visit: Visit, form: FormData, typed: dict[str, str]) -> Response:
    verb = words(form, "do")
    try:
        if verb == "submit":
            run, _ = submit(*visit.args, _order(typed, form))
            return RedirectResponse(f"/runs/{part(run.id)}", 303)
        order = made(RecipeOrder, **_recipe(typed))
        result = plan_recipe(*visit.args, order) if verb == "plan" else check_recipe(*visit.args, order)
    except CurateError as problem:
        return _page(visit, typed, problem=problem)
    return _page(visit, typed, result=result)


def _retry(text: str) -> dict[str, list[str]]:
    """Lines STAGE or STAGE: REASON, REASON."""
    lines = [line.partition(":") for line in text.splitlines() if line.strip()]
    return {stage.strip(): [one.strip() for one in reasons.split(",") if one.strip()] for stage, _, reasons in lines}


def _recipe(typed: Mapping[str, str]) -> dict[str, Any]:
    recipe = typed["recipe"]
    if not recipe.strip():
        raise InvalidProblem("recipe: empty; choose a template or paste a recipe")
    given = [f"{one.name}={typed[f'var.{one.name}']}" for one in variables(recipe) if typed.get(f"var.{one.name}")]
    lines = [line.strip() for line in typed.get("set", "").splitlines() if line.strip()]
    return {"workspace": typed.get("workspace", ""), "recipe": recipe, "set": [*given, *lines]}


def _order(typed: Mapping[str, str], form: FormData) -> NewRun:
    def given(fields: tuple[tuple[str, str, str, str], ...]) -> dict[str, Any]:
        found = {name: whole(form, name) if name in WHOLE else real(form, name) for name, *_ in fields}
        return {name: value for name, value in found.items() if value is not None}

    retry = {"retry": _retry(typed.get("retry", "")), "retry_status": words(form, "retry_status") or "error"}
    options = made(RunOptions, **given(OPTIONS), **retry, to=words(form, "to") or None)
    order = made(
        NewRun, **_recipe(typed), **given(NUMBERS), title=words(form, "title"),
        target=words(form, "target") or None, options=options,
    )  # fmt: skip
    once = words(form, "once")  # the same order from the same form, sent twice, has one run
    return made(NewRun, **dict(order) | {"id": f"{once}{digest(order)[:8]}"}) if once else order


def _page(
    visit: Visit, typed: Mapping[str, str], result: Checked | None = None, problem: CurateError | None = None
) -> Response:
    templates = list_recipes(*visit.args)
    chosen = visit.query("template") or typed.get("template", "")
    text = typed["recipe"] or next((one.text for one in templates if one.name == chosen), "")
    places = [one for one in workspaces(*visit.args) if one.role.covers(Role.OPERATOR)]
    graph = stages_graph([_line(one) for one in result.stages], "#recipe") if result and result.ok else None
    return page(
        visit, "new", problem=problem, title="New run", templates=templates, chosen=chosen, typed=typed, text=text,
        variables=variables(text), numbers=NUMBERS, options_=OPTIONS, result=result, graph=graph,
        plan=result.plan if isinstance(result, Planned) else [], places=[(one.name, one.name) for one in places],
        excerpts=_excerpts(text, result.mistakes if result else []), retried=RETRIED,
        once=typed.get("once") or new_run_id(),
        targets=[(one.name, one.name) for one in targets(*visit.args)],
    )  # fmt: skip


def _line(one: Any) -> StageShape:
    text = f"{one.contract}{f', {one.gpus:g} GPU' if one.gpus else ''}"
    return StageShape(
        stage=one.stage, op=one.op, contract=one.contract, inputs=one.inputs, ports=one.ports, state="waiting", rows=0,
        total=None, left_seconds=None, text=text, lanes=[],
    )  # fmt: skip


def _excerpts(text: str, mistakes: list[Mistake]) -> dict[int, str]:
    """Number of a line that has a mistake -> that line."""
    lines = text.splitlines()
    numbers = {one.line for one in mistakes if one.line and one.line <= len(lines)}
    return {number: lines[number - 1][:200] for number in numbers}
