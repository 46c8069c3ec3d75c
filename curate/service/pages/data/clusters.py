"""/runs/{id}/clusters: the levels of a tree, their clusters with images and what was chosen, and the way down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
from fastapi import Response

from curate.api import Clusters, Slice, SlicePage
from curate.core.errors import CurateError, InputError, RecipeError
from curate.service.kept import QUESTION
from curate.service.pages.data.tabs import CLUSTERS, PROFILE, of_run, run_values
from curate.service.pages.data.tiles import Tile, tiles
from curate.service.pages.forms import Pages
from curate.service.pages.kit import Visit, Visiting, link, page
from curate.service.problems import InvalidProblem
from curate.service.samples.looking import Looked
from curate.service.samples.slices import read

router = Pages()
SORTS = [
    ("rows", "Rows"), ("name", "Name"), ("distance", "Distance, widest first"), ("explained", "Explained, least first"),
    ("sources", "Sources, most first"), ("cluster", "Number"),
]  # fmt: skip
LIMIT, MOST = 24, 960
READ, READINGS = 1000, 3
"""Rows that are read at a time for the images of a page of clusters, and how often: large ones may take all of one."""
SHOWN, SAMPLES = 5, 60
"""Images of a cluster in a list, and on its own page."""
PROFILED = ("name", "mean_distance", "top_source", "top_source_share", "flags", "chosen")
"""Columns that only profiles and selections add."""


@router.get("/runs/{run_id}/clusters")
def clusters(visit: Visiting, run_id: str) -> Response:
    query = {name: visit.query(name) for name in ("stage", "level", "cluster", "sort", "q", "more")}
    level, cluster, more = (_number(query, name) for name in ("level", "cluster", "more"))
    limit, sort, seen = min(more or LIMIT, MOST), query["sort"] or "rows", of_run(visit, run_id)
    kinds = {name: seen.made.kinds[name] for name in seen.made.bases if seen.made.kinds.get(name) in CLUSTERS}
    stages = sorted(kinds, key=lambda name: kinds[name] != PROFILE)
    stage = query["stage"] or next(iter(stages), None)
    try:
        kept = ("clusters", seen.one.place.id, seen.one.attempt_id, stage)
        found: Clusters = visit.service.kept.get(
            visit.who,
            kept,
            lambda: seen.run.clusters(stage),
            f"clusters of run {run_id}",
            kind=QUESTION,
            seconds=seen.one.settled,
        )
        shown = found.check(level, cluster, sort, limit)
    except (InputError, RecipeError) as error:
        raise InvalidProblem(str(error).removeprefix("--")) from None
    above = [] if cluster is None else _above(found, shown, cluster)
    shown -= len(above[:1])  # of a cluster, its children
    items, left = found.listed(shown, sort, limit, cluster, query["q"]) if shown else ([], 0)
    items = [dict.fromkeys(PROFILED) | one for one in items]
    shared = {"stage": stage, "workspace": visit.query("workspace")}
    return page(
        visit, "clusters", title="Clusters", **run_values(visit, seen, "/clusters"), found=found, query=query,
        sorts=[one for one in SORTS if one[0] in ("rows", "cluster") or found.profiled], level=shown, items=items,
        stages=stages, above=above, left=left, images=_images(visit, seen, found, shown, items), shared=shared,
        levels=[(number, len(found.level(number))) for number in range(len(found.levels), 0, -1)],
        grid=_grid(visit, seen, found, above), total=found.rows(len(found.levels))[0],
        longer=link(visit.request.url.path, **{**query, **shared, "more": str(2 * limit)}),
    )  # fmt: skip


def _number(query: dict[str, str], name: str) -> int | None:
    text = query[name]
    if text and not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise InvalidProblem(f"{name}: {text[:50]!r} is not a number; follow a link of the page of clusters")
    return int(text) if text else None


def _above(found: Clusters, level: int, cluster: int | None) -> list[dict[str, Any]]:
    """A cluster and those that it is in, the coarsest first."""
    path: list[dict[str, Any]] = []
    while cluster is not None and level <= len(found.levels):
        path.insert(0, dict.fromkeys(PROFILED) | found.one(level, cluster))
        level, cluster = level + 1, path[0]["parent"]
    return path


def _images(
    visit: Visit, seen: Looked, found: Clusters, level: int, items: list[dict[str, Any]]
) -> dict[int, list[Tile]]:
    """Some samples of each cluster of the page, from all over the pool."""
    column, left = f"{found.rows_of}.cluster_{level}", [one["cluster"] for one in items]
    own: dict[int, list[Tile]] = {}
    for _ in range(READINGS):
        where = f'"{column}" in ({", ".join(map(str, left))})'
        some = _read(visit, seen, found, where, [column], READ) if left else None
        if some is None:
            break
        for number in left:
            table = some.table.filter(pc.equal(some.table.column(column), number))[:SHOWN]
            own[number] = tiles(visit, seen, replace(some, table=table))
        left = [number for number in left if len(own[number]) < SHOWN]
    return own


def _grid(visit: Visit, seen: Looked, found: Clusters, above: list[dict[str, Any]]) -> list[Tile]:
    """Samples of the cluster that was asked for."""
    level, number = (above[-1]["level"], above[-1]["cluster"]) if above else (0, 0)
    where = f'"{found.rows_of}.cluster_{level}" = {number}' if above else ""
    some = _read(visit, seen, found, where, [], SAMPLES) if where else None
    return tiles(visit, seen, some) if some is not None else []


def _read(visit: Visit, seen: Looked, found: Clusters, where: str, columns: list[str], limit: int) -> SlicePage | None:
    """None if the run assigned no rows to these clusters, or a shard is gone: the list is there without images."""
    try:
        which = Slice(found.rows_of, where=where)
        return read(*visit.args, seen.one.id, which, columns, limit=limit, workspace=seen.one.place.name, spread=True)[
            1
        ]
    except CurateError:
        return None
