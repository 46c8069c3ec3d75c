"""/runs/{id}/compare/{other}: two runs beside each other."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Response

from curate.core.errors import CurateError
from curate.service.kept import QUESTION
from curate.service.pages.data.tabs import of_run, run_values
from curate.service.pages.data.tiles import tiles
from curate.service.pages.forms import Pages
from curate.service.pages.kit import Visit, Visiting, link, page, part
from curate.service.problems import InvalidProblem
from curate.service.runs.compare import Pair, pair
from curate.service.runs.views import list_runs

router = Pages()
FIRST, MORE, SECONDS = 12, 60, 0.8
"""Images of each side on the page of both, on a page of one, and how long to look for those of a side."""
RUNS = 50
LONGEST = 300
"""Letters of a parameter."""


@router.get("/runs/{run_id}/compare")
def choose(visit: Visiting, run_id: str) -> Response:
    """A form for the other run; then the comparison."""
    seen, other = of_run(visit, run_id), visit.query("with")
    if other:
        return compare(visit, run_id, other)
    runs = list_runs(*visit.args, workspace=seen.one.place.name, limit=RUNS).items
    others = [(run.id, f"{run.title or run.id} · {run.state}") for run in runs if run.id != seen.one.id]
    return page(visit, "compare_choose", title="Compare", others=others, **run_values(visit, seen, "/compare"))


@router.get("/runs/{run_id}/compare/{other}")
def compare(visit: Visiting, run_id: str, other: str) -> Response:
    seen, side, cursor = of_run(visit, run_id), visit.query("side"), visit.query("cursor")
    of, problem = pair(*visit.args, run_id, other, visit.query("stage"), visit.query("workspace") or None), None
    query = {"with": other, "stage": visit.query("stage"), "workspace": visit.query("workspace")}
    sides: list[Any] = []
    try:
        both = ("gained", "lost") if of.stages else ()
        sides = [_side(visit, of, one, cursor, MORE if side else FIRST) for one in ([side] if side else both)]
    except CurateError as error:
        problem = error
    base = f"{visit.request.url.path.partition('/compare')[0]}/compare"
    return page(
        visit, "compare", problem=problem, title="Compare", found=of.shape, sides=sides, side=side, query=query,
        at=base, cursor=cursor, stages=[(name, name) for name in of.stages], show=_shown,
        other_href=link(f"/runs/{part(other)}", workspace=query["workspace"]), **run_values(visit, seen, "/compare"),
    )  # fmt: skip


def _side(visit: Visit, of: Pair, side: str, cursor: str, limit: int) -> Any:
    """(side, its tiles, page of the slice)."""
    try:
        with visit.service.kept.turn(visit.who, QUESTION, f"samples {side}"):
            found = of.comparison().page(side, cursor, limit, SECONDS)
    except CurateError as error:
        raise InvalidProblem(str(error)) from None
    return side, tiles(visit, of_run(visit, (of.second if side == "gained" else of.first).id), found), found


def _shown(value: Any) -> str:
    """A parameter."""
    text = "not set" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
