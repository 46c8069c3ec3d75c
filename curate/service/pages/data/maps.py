"""/runs/{id}/map: the rows of a run as points, and what a region of them contains."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from fastapi import Response

from curate.api import Polygon, Slice, SlicePage
from curate.api.recipes import as_yaml, free_name, set_stage
from curate.api.slices import NAMED, name_of
from curate.core.errors import CurateError, InputError
from curate.html.scatter import scatter
from curate.service.auth.roles import Role
from curate.service.pages.data.tabs import of_run, run_values
from curate.service.pages.data.tiles import tiles
from curate.service.pages.forms import Pages
from curate.service.pages.kit import Visit, Visiting, fragment, link, page, part
from curate.service.problems import InvalidProblem
from curate.service.runs.recipes import changed
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
        if visit.query("drawn") not in ("", found.stage):  # a region of another map
            query["within"] = own["within"] = ""
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
        "without": link(base, **{**own, "within": ""}), **_recipe(seen, query, found, polygon),
    }  # fmt: skip


def _recipe(seen: Looked, query: dict[str, str], found: MapShape, polygon: Polygon) -> dict[str, Any]:
    """The region as a stage, and the recipe with it, if the run's record has one, before a stage that the map is not
    made of."""
    record = seen.run.record
    side = query["side"] if query["side"] in dict(SIDES) else "inside"
    given = query["reason"] if query["reason"] not in REASONS.values() else ""
    reason = given if re.fullmatch("[a-z][a-z0-9_]{0,59}", given) else REASONS[side]
    stages, made_of = record.record["stages"], record.made_of(found.stage)
    later = [name for name in stages if name not in made_of and record.pool_above(name) == record.pool_of(found.stage)]
    befores = [name for kind in FILTERED for name in later if stages[name]["op"].startswith(kind)]
    before = query["before"] if query["before"] in befores else next(iter(befores), "")
    inputs = list(dict.fromkeys([*(stages[before]["from"] if before else ()), found.stage]))
    stage = {
        "op": "project.region", "from": inputs if len(inputs) > 1 else inputs[0],
        "polygon": [list(corner) for corner in polygon.corners], "side": side, "column": found.column,
        "map": found.map, "reason": reason,
    }  # fmt: skip
    name = free_name(record, "region")
    try:
        order = changed(seen.one, record, set_stage(record, name, stage, [before])) if before else None
    except InputError:
        order = None
    return {
        "lines": as_yaml({name: stage}), "name": name, "side": side, "reason": reason, "order": order,
        "before": before, "befores": [(one, one) for one in befores],
        "may": seen.role.covers(Role.OPERATOR),
    }  # fmt: skip
