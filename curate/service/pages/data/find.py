"""/find: one box for keys, URLs, reject reasons, texts and meanings; the page says which it was."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from fastapi import Response

from curate.api import SlicePage
from curate.api.slices import FIXED
from curate.core.errors import CurateError
from curate.service.pages.data.tabs import of_run, run_values
from curate.service.pages.data.tiles import Tile, tiles
from curate.service.pages.forms import Pages
from curate.service.pages.kit import Visit, Visiting, link, page, part, shown
from curate.service.runs.shapes import RunLine
from curate.service.runs.views import list_runs
from curate.service.samples.find import LONGEST, found_in
from curate.service.samples.looking import Looked
from curate.service.samples.search import soon
from curate.service.states import State

router = Pages()
LIMIT = 60
NEAREST = 24
WAIT_SECONDS = 3.0
"""For what is near in meaning; the page has other answers."""
RUNS = 50
"""Runs that the page offers, the newest first."""
INDEX = "search_index"


@router.get("/find")
def find(visit: Visiting) -> Response:
    query = {name: visit.query(name) for name in ("q", "run", "stage", "like", "workspace")}
    offered = list_runs(*visit.args, workspace=query["workspace"] or None, limit=RUNS).items
    chosen = query["run"] or _newest(offered)
    values: dict[str, Any] = {"query": query, "runs": offered, "chosen": chosen, "longest": LONGEST, "found": None}
    problem = None
    if chosen and (query["q"] or query["like"]):
        try:
            values |= _found(visit, chosen, query)
        except CurateError as error:
            problem = error
    return page(visit, "find", problem=problem, title="Find", **values)


def _newest(offered: list[RunLine]) -> str:
    """The newest run that is done, or else one that has started."""
    done = [one.id for one in offered if one.state == State.DONE]
    return next(iter([*done, *(one.id for one in offered if one.started)]), "")


def _found(visit: Visit, run_id: str, query: dict[str, str]) -> dict[str, Any]:
    workspace, cursor = query["workspace"] or None, visit.query("cursor")
    seen = of_run(visit, run_id)
    near, why = ([], "") if cursor else _near(visit, seen, query)
    values = run_values(visit, seen, "")
    values |= {"near": near, "why": why, "indexed": INDEX in seen.made.kinds.values()}
    values |= {"tiles": [], "shown": [], "next": ""}
    if query["like"]:
        return values
    stage = query["stage"] or None
    answer = found_in(*visit.args, run_id, query["q"], stage, cursor or None, workspace, LIMIT)
    some, found = answer.page, answer.shape
    base = f"/runs/{part(seen.one.id)}"
    reasons = [
        (name, reason, rows, link(f"{base}/samples", stage=name, rejected=reason, workspace=workspace))
        for name, reason, rows in found.reasons
    ]
    return values | {
        "found": found, "some": some, "tiles": tiles(visit, seen, some), "reasons": reasons,
        "shown": tiles(visit, seen, answer.shown, _share), "shown_of": answer.shown,
        "stages": [(name, name) for name in seen.made.with_rows],
        "next": link("/find", **query, cursor=found.next) if found.next else "",
        "first": link("/find", **query) if cursor else "",
    }  # fmt: skip


def _share(row: dict[str, Any]) -> str:
    share = row.get("concept_share")
    return "" if share is None else f"{100 * share:.0f} % sure"


def _near(visit: Visit, seen: Looked, query: dict[str, str]) -> tuple[list[Tile], str]:
    """(the samples nearest in meaning, or why there are none). A run without an index says nothing."""
    if INDEX not in seen.made.kinds.values():
        return [], "this run has no stage `search.fit`" if query["like"] else ""
    try:
        text = None if query["like"] else query["q"]
        place = seen.one.place.name
        found = soon(*visit.args, seen.one.id, text, query["like"] or None, place, NEAREST, WAIT_SECONDS)
    except CurateError as error:
        return [], shown(error)["detail"]
    if found is None:
        return [], "the search takes longer than usual; reload the page in a moment"
    if found.said:  # shown apart
        return [], ""
    rows = pa.Table.from_pylist([vars(hit) | {"reason": None} for hit in found.hits], FIXED)
    scores = {hit.key: f"similarity {hit.score:.2f}" for hit in found.hits}
    return tiles(visit, seen, SlicePage(rows, 0, 0, ""), lambda row: scores[row["key"]]), ""
