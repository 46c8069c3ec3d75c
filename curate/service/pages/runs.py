"""/runs: all runs, and /runs/{id}: one of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import Response
from fastapi.responses import PlainTextResponse, RedirectResponse

from curate.core.errors import CurateError, InputError
from curate.service.auth.roles import Role
from curate.service.pages.data.tabs import Tab, of_run, run_values
from curate.service.pages.forms import Form, Pages, done, in_turn, made, real, whole
from curate.service.pages.graph import stages_graph
from curate.service.pages.kit import LIMIT, Visit, Visiting, fragment, link, page, part
from curate.service.places.workspaces import workspaces
from curate.service.problems import InvalidProblem, NotFoundProblem
from curate.service.runs import control
from curate.service.runs.shapes import ChangedRun, NewLimits
from curate.service.runs.submit import resume_run
from curate.service.runs.views import RunPage, get_run, list_runs, run_page
from curate.service.samples.looking import check_pixels
from curate.service.states import State

router = Pages()
FILTERS = ("q", "workspace", "state", "user")
LEVELS = (("debug", "debug"), ("info", "info"), ("warning", "warning"), ("error", "error"))
STATES = [(state.value, state.value.capitalize()) for state in State]
FRAGMENTS = ("progress", "funnel", "log")
LOG_LINES = 100
SANDBOX = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'"
RUN = "/runs/{run_id}"
SHOWN_RECIPE = 8_000
"""Letters; the file has all of it."""
FEW_STAGES = 60
"""Longer funnels leave out the stages that lost no row."""


@router.get("/")
def start() -> Response:
    return RedirectResponse("/runs", 303)


@router.get("/runs")
def runs(visit: Visiting) -> Response:
    return page(visit, "runs", **_list(visit))


@router.get("/runs/fragment")
def runs_fragment(visit: Visiting) -> Response:
    return fragment(visit, "runs_list", **_list(visit))


def _list(visit: Visit) -> dict[str, Any]:
    query = {name: visit.query(name) for name in FILTERS}
    cursor = visit.query("cursor")
    found = list_runs(
        *visit.args, workspace=query["workspace"] or None, state=_state(query["state"]), user=query["user"] or None,
        query=query["q"] or None, cursor=cursor or None, limit=LIMIT,
    )  # fmt: skip
    places = [(one.name, one.name) for one in workspaces(*visit.args)]
    open_ = any(not State(run.state).ended for run in found.items)
    return {
        "title": "Runs", "page": found, "query": query, "filtered": any(query.values()), "places": places,
        "states": STATES, "live": link("/runs/fragment", **query, cursor=cursor), "every": 4 if open_ else 15,
        "now": visit.service.clock(),
        "filtered_first": link("/runs", **query) if cursor else "",
    }  # fmt: skip


@router.get(RUN)
def run(visit: Visiting, run_id: str) -> Response:
    return run_with(visit, run_id)


@router.get("/runs/{run_id}/recipe")
def recipe(visit: Visiting, run_id: str) -> Response:
    found = get_run(*visit.args, run_id, _where(visit))
    headers = {"Content-Disposition": f'attachment; filename="{part(found.id)}.yaml"', "Cache-Control": "no-store"}
    return PlainTextResponse(found.recipe, headers=headers)


@router.get("/runs/{run_id}/reports/{name}")
def report(visit: Visiting, run_id: str, name: str) -> Response:
    """What a run wrote has neither scripts nor this origin here."""
    seen = of_run(visit, run_id)
    check_pixels(seen)
    try:
        found = seen.run.report(name)
    except InputError as error:
        raise NotFoundProblem(str(error)) from None
    return Response(found, headers={"Content-Security-Policy": SANDBOX}, media_type="text/html")


@router.get("/runs/{run_id}/fragment/{name}")
def run_fragment(visit: Visiting, run_id: str, name: str) -> Response:
    query = _log_query(visit)
    seen = run_page(
        *visit.args, run_id, _where(visit), level=query["level"], stage=query["stage"] or None,
        log_lines=LOG_LINES if name == "log" else 0,
    )  # fmt: skip
    if name not in FRAGMENTS:
        raise InvalidProblem(f"fragment {name!r}: expected {', '.join(FRAGMENTS)}")
    values = _shared(visit, seen)
    if name == "funnel":
        values |= _funnel(visit, seen)
    elif name == "log":
        values |= _log(visit, seen)
    return fragment(visit, f"run_{name}", **values)


def run_with(visit: Visit, run_id: str, problem: CurateError | None = None) -> Response:
    query = _log_query(visit)
    seen = run_page(
        *visit.args, run_id, _where(visit), level=query["level"], stage=query["stage"] or None, log_lines=LOG_LINES
    )
    found = seen.run
    values = _shared(visit, seen) | _funnel(visit, seen) | _log(visit, seen)
    events = "" if seen.final else link(f"/api/v1/runs/{part(found.id)}/events", workspace=_where(visit))
    return page(
        visit, "run", problem=problem, title=found.title or found.id, events=events, tabs=_tabs(visit, run_id),
        levels=LEVELS, shown_recipe=SHOWN_RECIPE, **values,
    )  # fmt: skip


def _tabs(visit: Visit, run_id: str) -> list[Tab]:
    """The other pages of the run, once it has started."""
    try:
        tabs: list[Tab] = run_values(visit, of_run(visit, run_id), "")["tabs"]
    except CurateError:
        return []
    return tabs


@router.form("/runs/{run_id}/limit", RUN, run_with)
def limit(visit: Visiting, form: Form, run_id: str) -> Response:
    given = {name: real(form, name) for name in ("max_dollars", "max_tokens")}
    order = made(NewLimits, **{name: value for name, value in given.items() if value is not None})
    control.limit_run(*visit.args, run_id, order, _where(visit))
    return _done(visit, run_id, "saved")


@router.form("/runs/{run_id}/priority", RUN, run_with)
def priority(visit: Visiting, form: Form, run_id: str) -> Response:
    order = made(ChangedRun, priority=whole(form, "priority"))
    control.change_run(*visit.args, run_id, order, _where(visit))
    return _done(visit, run_id, "saved")


@router.post("/runs/{run_id}/resume")
async def resume(visit: Visiting, run_id: str) -> Response:
    return await in_turn(visit, partial(act, visit, run_id=run_id, verb="resume"), partial(run_with, visit, run_id))


@router.form("/runs/{run_id}/{verb}", RUN, run_with)
def act(visit: Visiting, run_id: str, verb: str) -> Response:
    verbs = {"stop": control.stop_run, "kill": control.kill_run, "resume": resume_run}
    if verb not in verbs:
        raise InvalidProblem(f"{verb!r}: expected {', '.join(verbs)}")
    verbs[verb](*visit.args, run_id, _where(visit))
    return _done(visit, run_id, verb)


def _done(visit: Visit, run_id: str, said: str) -> Response:
    return done(f"/runs/{part(run_id)}", said, workspace=_where(visit))


def _state(text: str) -> State | None:
    if text and text not in set(State):
        raise InvalidProblem(f"state: {text!r} is not a state; expected one of {', '.join(State)}")
    return State(text) if text else None


def _where(visit: Visit) -> str | None:
    """The workspace of the run where the address names it: two may have runs of the same id."""
    return visit.query("workspace") or None


def _shared(visit: Visit, seen: RunPage) -> dict[str, Any]:
    found, role = seen.run, seen.role
    told = {line.stage for line in seen.funnel} if len(seen.funnel) <= FEW_STAGES else set()
    base = f"/runs/{part(found.id)}"
    return {
        "run": found, "ended": seen.final, "base": base, "suffix": link("", workspace=_where(visit)),
        "workspace": visit.query("workspace"), "may": role is not None and role.covers(Role.OPERATOR),
        "graph": stages_graph(found.stage_list),
        "listed": [one for one in found.stage_list if one.remedy or one.stage not in told],
        "live": "" if seen.final else link(f"{base}/fragment/progress", workspace=_where(visit)),
    }  # fmt: skip


def _funnel(visit: Visit, seen: RunPage) -> dict[str, Any]:
    lines = seen.funnel
    live = "" if seen.final else link(f"/runs/{part(seen.run.id)}/fragment/funnel", workspace=_where(visit))
    ends = {lines[0].stage, lines[-1].stage} if lines else set()
    few = len(lines) <= FEW_STAGES
    shown = [line for line in lines if few or line.stage in ends or line.rejected or line.unusable or line.error]
    return {"funnel": shown, "left_out": len(lines) - len(shown), "funnel_live": live}


def _log_query(visit: Visit) -> dict[str, str]:
    query = {"level": visit.query("level") or "info", "stage": visit.query("stage")}
    if query["level"] not in dict(LEVELS):
        raise InvalidProblem(f"level: {query['level']!r}; expected debug, info, warning or error")
    return query


def _log(visit: Visit, seen: RunPage) -> dict[str, Any]:
    query = _log_query(visit)
    fresh = link(f"/runs/{part(seen.run.id)}/fragment/log", **query, workspace=_where(visit))
    return {"log": seen.log, "log_query": query, "log_live": "" if seen.final else fresh}
