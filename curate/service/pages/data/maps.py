"""/runs/{id}/map: the rows of a run as points, and what a region of them contains."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from fastapi import Response

from curate.api import Polygon, Slice, SlicePage
from curate.api.slices import NAMED, name_of
from curate.core.errors import CurateError, InputError
from curate.html.scatter import scatter
from curate.service.auth.roles import Role
from curate.service.pages.data.tabs import of_run, run_values
from curate.service.pages.data.tiles import tiles
from curate.service.pages.forms import Pages
from curate.service.pages.kit import Visit, Visiting, fragment, link, page, part
from curate.service.problems import InvalidProblem
from curate.service.runs.views import get_run
from curate.service.samples.looking import Looked
from curate.service.samples.maps import MapBytes, MapShape, made_map
from curate.service.samples.search import search
from curate.service.samples.slices import read

router = Pages()
MAP = "/runs/{run_id}/map"
SHOWN, FOUND = 60, 24
SIZE = (1000, 700)
"""Pixels of the image without JavaScript."""
FILTERED = ("select.", "cluster.fit", "pack.")
"""Ops that a region may come before; the first of these kinds that the run has is chosen."""
SIDES = (("inside", "Only these"), ("outside", "Never these"))
REASONS = {"inside": "outside_region", "outside": "inside_region"}
DRAWN = ("stage", "colour", "alive")
KEPT = (*DRAWN, "q", "within", "side", "before", "reason")


@router.get(MAP)
def run_map(visit: Visiting, run_id: str) -> Response:
    seen, query = of_run(visit, run_id), {name: _text(visit, name) for name in KEPT}
    own = query | {"workspace": visit.query("workspace") or None}
    values = run_values(visit, seen, "/map") | {"query": query, "sides": SIDES, "shape": None}
    problem: CurateError | None = None
    try:
        found = _held(visit, run_id)[1].shape
        query["stage"] = found.stage
        values |= _links(visit, own | {"stage": found.stage}, found) | {"shape": found} | _choices(seen, found)
    except InvalidProblem as error:
        return page(visit, "map", problem=error, title="Map", **values)
    for name, make in (("found", _found), ("chosen", _chosen)):
        try:
            values[name] = make(visit, seen, query, found)
        except InvalidProblem as error:
            values[name], problem = None, error
    return page(visit, "map", problem=problem, title="Map", **values)


@router.get(f"{MAP}/image")
def image(visit: Visiting, run_id: str) -> Response:
    """PNG, for browsers without JavaScript or WebGL2."""
    held = _held(visit, run_id)[1]
    xy, category, alive = (held.array(*part) for part in ((0, "<f4", 2), (8, "u1"), (9, "u1")))
    colours = [line.colour for line in held.shape.legend]
    data = scatter(xy, category[:, 0], alive[:, 0], colours, held.shape.extent, SIZE)
    return Response(data, 200, {"Cache-Control": "private, max-age=60"}, "image/png")


@router.get(f"{MAP}/point")
def point(visit: Visiting, run_id: str, point: int = 0) -> Response:
    """The tile of one point."""
    seen, held = _held(visit, run_id)
    shard, row = held.place(point)
    about = seen.run.file(shard, row).about
    name = name_of(*(about[column] for column in NAMED))
    line = held.shape.legend[int(held.array(8, "u1")[point, 0])].label if len(held.shape.legend) > 1 else ""
    table = _rows([{"key": about["key"], "shard": shard, "row": row, "name": name}])
    return fragment(visit, "map_point", tiles=tiles(visit, seen, SlicePage(table, 0, 0, ""), lambda _: line))


def _held(visit: Visit, run_id: str) -> tuple[Looked, MapBytes]:
    stage, colour, alive = (visit.query(name) for name in DRAWN)
    return made_map(*visit.args, run_id, stage or None, colour, alive, visit.query("workspace") or None)


def _text(visit: Visit, name: str) -> str:
    """A parameter, which may be longer than those of other pages: a polygon is."""
    return visit.request.query_params.get(name, "").strip()[:5000]


def _polygon(visit: Visit, found: MapShape) -> Polygon:
    try:
        return Polygon.parse(_text(visit, "within"), f"{found.stage}.{found.column}")
    except InputError as error:
        raise InvalidProblem(str(error)) from None


def _links(visit: Visit, own: dict[str, Any], found: MapShape) -> dict[str, Any]:
    base = visit.request.url.path
    drawn = {name: own[name] for name in (*DRAWN, "workspace")}
    return {
        "image": link(f"{base}/image", **drawn), "point": link(f"{base}/point", **drawn), "size": SIZE,
        "points": link(f"/api/v1/runs/{part(found.run)}/map/points", **drawn),
    }  # fmt: skip


def _choices(seen: Looked, found: MapShape) -> dict[str, Any]:
    names = list(seen.made.bases)
    later = [name for name in seen.made.with_rows if names.index(name) > names.index(found.stage)]
    columns = seen.run.map_columns(found.stage)
    return {
        "stages": [(one, one) for one in seen.made.maps],
        "columns": [("", "nothing"), *((one, one) for one in columns)],
        "later": [("", "any stage"), *((one, one) for one in later)],
    }  # fmt: skip


# --- what was found and chosen ----------------------------------------------------------------------------------------


def _rows(rows: list[dict[str, Any]]) -> pa.Table:
    names = ("key", "shard", "row", "media", "name", "url", "reason", "note", "x", "y")
    return pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])


def _found(visit: Visit, seen: Looked, query: dict[str, str], found: MapShape) -> dict[str, Any] | None:
    """Rows near to a text."""
    if not query["q"]:
        return None
    columns = [f"{found.stage}.{found.column}_{axis}" for axis in "xy"]
    answer = search(
        *visit.args, found.run, text=query["q"], columns=",".join(columns), limit=FOUND,
        workspace=visit.query("workspace") or None,
    )  # fmt: skip
    rows = []
    for hit in answer.hits:
        x, y = (hit.columns[name] for name in columns)
        if x is not None and y is not None:
            rows.append(vars(hit) | {"note": f"similarity {hit.score:.3f}", "x": x, "y": y})
    table = _rows(rows)
    return {"tiles": tiles(visit, seen, SlicePage(table, 0, 0, ""), "note"), "rows": rows, "hits": len(answer.hits)}


def _chosen(visit: Visit, seen: Looked, query: dict[str, str], found: MapShape) -> dict[str, Any] | None:
    if not query["within"]:
        return None
    polygon, cursor = _polygon(visit, found), visit.query("cursor") or None
    workspace = visit.query("workspace") or None
    _, rows = read(*visit.args, found.run, Slice(found.stage, within=polygon), (), cursor, SHOWN, workspace)
    own = query | {"workspace": workspace}
    base = visit.request.url.path
    return {
        "tiles": tiles(visit, seen, rows), "page": rows, "first": link(base, **own) if cursor else "",
        "next": link(base, **own, cursor=rows.next) if rows.next else "",
        "without": link(base, **{**own, "within": ""}), **_recipe(visit, seen, query, found, polygon),
    }  # fmt: skip


def _recipe(
    visit: Visit, seen: Looked, query: dict[str, str], found: MapShape, polygon: Polygon
) -> dict[str, Any]:  # fmt: skip
    """The region as a stage, and the recipe with it."""
    run = get_run(*visit.args, found.run, visit.query("workspace") or None)
    side = query["side"] if query["side"] in dict(SIDES) else "inside"
    given = query["reason"] if query["reason"] not in REASONS.values() else ""
    reason = given if re.fullmatch("[a-z][a-z0-9_]{0,59}", given) else REASONS[side]
    stages = [one for one in run.stage_list if one.inputs and one.op.startswith(FILTERED)]
    stages.sort(key=lambda one: [one.op.startswith(kind) for kind in FILTERED].index(True))
    before = next((one for one in stages if one.stage == query["before"]), stages[0] if stages else None)
    inputs = list(dict.fromkeys([*(before.inputs if before else []), found.stage]))
    known = {one.stage for one in run.stage_list}
    name = next(name for name in ("region", *(f"region_{at}" for at in range(2, 999))) if name not in known)
    lines = [
        f"  {name}:", "    op: project.region", f"    from: {_listed(inputs)}",
        f"    polygon: {json.dumps([list(corner) for corner in polygon.corners])}", f"    side: {side}",
        f"    column: {found.column}", f"    map: '{found.map}'", f"    reason: {reason}",
    ]  # fmt: skip
    text = with_stage(run.recipe, before.stage, lines, name) if before and run.recipe else None
    return {
        "lines": "\n".join(lines), "name": name, "side": side, "reason": reason, "recipe": text, "run": run,
        "before": before.stage if before else "", "befores": [(one.stage, one.stage) for one in stages],
        "may": seen.role.covers(Role.OPERATOR),
    }  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def with_stage(recipe: str, before: str, lines: Sequence[str], name: str) -> str | None:
    """A recipe with a stage before another stage, which then reads from it. None if its lines are not found: it only
    looks at lines, since what people typed is parsed in the sandbox alone."""
    held = recipe.splitlines()
    head = re.compile(rf"  {re.escape(before)}:\s*(#.*)?")
    start = next((at for at, line in enumerate(held) if head.fullmatch(line)), None)
    if start is None:
        return None
    end = next((at for at in range(start + 1, len(held)) if re.match(r" {0,2}\S", held[at])), len(held))
    source = next((at for at in range(start + 1, end) if re.match(r"    from:\s*\S", held[at])), None)
    if source is None:
        return None
    held[source] = f"    from: {name}"
    while start and held[start - 1].lstrip().startswith("#"):
        start -= 1
    return "\n".join([*held[:start], *lines, *held[start:]]) + "\n"
