"""/runs/{id}/thresholds: a histogram, and what another threshold would do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fastapi import Response

from curate.api.slices import MOST_ROWS
from curate.api.thresholds.rules import Rule, plain
from curate.core.errors import CurateError, InputError
from curate.html.histogram import histogram_chart
from curate.service.auth.roles import Role
from curate.service.pages.data.tabs import of_run, run_values
from curate.service.pages.data.tiles import shown, tiles
from curate.service.pages.forms import Pages
from curate.service.pages.kit import Visit, Visiting, fragment, link, page, part
from curate.service.problems import InvalidProblem
from curate.service.runs import thresholds as actions
from curate.service.runs.thresholds import Moved
from curate.service.samples.looking import Looked
from curate.service.samples.slices import ALL

router = Pages()
PATH = "/runs/{run_id}/thresholds"
BORDER, BORDER_SECONDS = 8, 0.4
"""Images on either side of a threshold, the nearest of MOST_ROWS, and how long to look for them."""
SIGNS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}


@router.get(PATH)
def thresholds(visit: Visiting, run_id: str) -> Response:
    seen = of_run(visit, run_id)
    typed = {name: visit.query(name) for name in ("stage", "column", "sign", "at")}
    rules, stages = actions.rules_of(visit.service, seen.one), seen.made.with_rows
    if not typed["stage"]:
        usual = next((rule for rule in rules if rule.at is not None), None)
        typed |= {"stage": usual.stage, "column": usual.column} if usual else {"stage": stages[-1] if stages else ""}
    values: dict[str, Any] = {"moved": None, "columns": []}
    problem = None
    try:
        values["columns"] = actions.columns_of(visit.service, seen.one, typed["stage"]) if typed["stage"] else []
        if typed["column"]:
            moved = _moved(visit, seen, typed)
            values |= _found(visit, moved) | _near(visit, seen, moved)
    except CurateError as error:
        problem = error
    return page(
        visit, "thresholds", problem=problem, title="Thresholds", typed=typed, rules=rules, plain=plain, signs=SIGNS,
        stages=[(name, name) for name in stages], **values,
        **run_values(visit, seen, "/thresholds"),
    )  # fmt: skip


@router.get(f"{PATH}/fragment/{{name}}")
def threshold_fragment(visit: Visiting, run_id: str, name: str) -> Response:
    """`rows`: the chart and the numbers; `border`: images on both sides, and the recipe."""
    seen = of_run(visit, run_id)
    moved = _moved(visit, seen, {name: visit.query(name) for name in ("stage", "column", "sign", "at")})
    values = _near(visit, seen, moved) if name == "border" else {}
    place = seen.one.place.name
    return fragment(visit, "threshold_fragment", part=name, place=place, **_found(visit, moved), **values)


def _moved(visit: Visit, seen: Looked, typed: dict[str, str]) -> Moved:
    stage, column, sign = typed["stage"], typed["column"], typed["sign"]
    known = [rule for rule in actions.rules_of(visit.service, seen.one) if (rule.stage, rule.column) == (stage, column)]
    rule = next((rule for rule in known if sign in ("", rule.sign)), Rule(stage, column, sign or ">="))
    at, edge = _number("at", typed["at"]), _number("edge", visit.query("edge"))
    return actions.move(visit.service, seen.one, rule, at, None if edge is None else int(edge))


def _number(name: str, text: str) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise InvalidProblem(f"{name}: {text[:50]!r} is not a number; give one such as 0.45")
    return value


def _found(visit: Visit, moved: Moved) -> dict[str, Any]:
    found, rule = moved.found, moved.rule
    edges = found.edges[found.bars].tolist()
    query = {"stage": rule.stage, "column": rule.column, "sign": rule.sign, "workspace": visit.query("workspace")}
    base = f"/runs/{part(moved.one.id)}/thresholds/fragment"
    bands = {name: found.band(name, moved.at) for name in ("alive", "gained", "lost")}
    bands |= {name: found.band(name) for name in ("reached", "now")}
    yaml, new, readers = actions.lines(moved)
    return {
        "moved": moved, "at": plain(moved.at), "yaml": yaml, "new": (new, readers), "bands": bands, "query": query,
        "chart": histogram_chart(edges, found.heights(), moved.at, rule.sign[0] == ">", rule.at, rule.column),
        "present": None if rule.at is None else plain(rule.at), "sign_words": SIGNS[rule.sign],
        "outside": found.outside(), "slider": (int(found.bars[0]), int(found.bars[-1]), found.place(moved.at)),
        "live": link(f"{base}/rows", **query, at=plain(moved.at)) if moved.pending else "",
        "slides": link(f"{base}/rows", **query), "slides_border": link(f"{base}/border", **query),
    }  # fmt: skip


def _near(visit: Visit, seen: Looked, moved: Moved) -> dict[str, Any]:
    """Both sides of the threshold: (whether they pass, range, tiles, address of all, page of the slice); and the recipe
    with it, for those who may submit it, if the run's record has one."""
    names, sides, may = moved.found.columns, [], seen.role.covers(Role.OPERATOR)

    def note(row: dict[str, Any]) -> str:
        return ", ".join(f"{name} {shown(row[name])}" if len(names) > 1 else shown(row[name]) for name in names)

    for passes, text, which in moved.found.borders(moved.at):
        found = seen.run.slice(which, names, limit=MOST_ROWS, seconds=BORDER_SECONDS)
        found = replace(found, table=moved.found.nearest(moved.at, found.table, BORDER))
        query = {"stage": which.stage, "rejected": ALL if which.rejected == "" else "", "where": which.where}
        address = link(f"/runs/{part(seen.one.id)}/samples", **query, workspace=visit.query("workspace"))
        sides.append((passes, text, tiles(visit, seen, found, note), address, found))
    try:
        order = actions.order(moved) if may else None
    except InputError:
        order = None
    return {"sides": sides, "order": order, "may": may}
