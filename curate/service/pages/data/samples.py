"""/runs/{id}/samples: a grid of a run's samples, and what each of them went through."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from markupsafe import escape

from curate.service.pages.data.tabs import of_run, run_values
from curate.service.pages.data.tiles import tiles
from curate.service.pages.forms import Pages
from curate.service.pages.kit import Visit, Visiting, link, page
from curate.service.problems import InvalidProblem, NotFoundProblem
from curate.service.samples.looking import Looked
from curate.service.samples.samples import get_sample
from curate.service.samples.slices import ALL, listed, read, slice_of
from curate.service.samples.thumbnails import get_thumbnail

router = Pages()
PARAMETERS = ("stage", "rejected", "where", "columns")
LIMIT = 60
KEEP = "private, max-age=600"
"""Browsers keep thumbnails for some minutes; a takedown removes them."""


@router.get("/runs/{run_id}/samples")
def samples(visit: Visiting, run_id: str) -> Response:
    seen = of_run(visit, run_id)
    query = {name: visit.query(name) for name in PARAMETERS}
    names = seen.made.with_rows
    if not names:
        raise NotFoundProblem(f"run {run_id}: no stage with rows is done yet; come back once one is")
    query["stage"] = query["stage"] or names[-1]
    values: dict[str, Any] = {
        "query": query,
        "stages": [(name, name) for name in names],
        "reasons": _reasons(seen, query["stage"]),
    }
    try:
        values |= _grid(visit, run_id, query)
        problem = None
    except InvalidProblem as found:
        values |= {"found": None, "tiles": [], "next": "", "first": "", "columns": []}
        problem = found
    return page(visit, "samples", problem=problem, title="Samples", **run_values(visit, seen, "/samples"), **values)


def _grid(visit: Visit, run_id: str, query: dict[str, str]) -> dict[str, Any]:
    workspace, cursor = visit.query("workspace") or None, visit.query("cursor")
    which = slice_of(query["stage"], query["rejected"], query["where"])
    names = listed(query["columns"])
    seen, found = read(*visit.args, run_id, which, names, cursor, LIMIT, workspace)
    path, own = f"{visit.request.url.path}", query | {"workspace": workspace}
    return {
        "found": found, "tiles": tiles(visit, seen, found, names[0] if names else ""), "columns": names,
        "next": link(path, **own, cursor=found.next) if found.next else "",
        "first": link(path, **own) if cursor else "", "total": _total(seen, query), "role": seen.role,
    }  # fmt: skip


def _total(seen: Looked, query: dict[str, str]) -> int | None:
    """Rows of the slice by the run's ledger; None where only reading tells."""
    entry = seen.made.ledger.get(query["stage"])
    if entry is None or query["where"]:
        return None
    if not query["rejected"]:
        return entry.after
    lost = seen.made.rejected(query["stage"])
    return sum(lost.values()) if query["rejected"] == ALL else lost.get(query["rejected"], 0)


def _reasons(seen: Looked, stage: str) -> list[tuple[str, str]]:
    lost = seen.made.rejected(stage)
    every = [(ALL, f"rejected, for any reason ({sum(lost.values()):,})")] if lost else []
    return [("", "passed on"), *every, *((one, f"{one.replace('_', ' ')} ({rows:,})") for one, rows in lost.items())]


@router.get("/runs/{run_id}/samples/{key}")
def sample(visit: Visiting, run_id: str, key: str) -> Response:
    seen = of_run(visit, run_id)
    found = get_sample(*visit.args, run_id, key, visit.query("workspace") or None)
    return page(visit, "sample", title=found.key[:12], sample=found, **run_values(visit, seen, "/samples"))


@router.get("/runs/{run_id}/thumbnails/{shard}/{row}")
def thumbnail(visit: Visiting, run_id: str, shard: str, row: int, side: int = 160, film: bool = False) -> Response:
    """WebP; a drawing with the reason where a sample has none."""
    workspace = visit.query("workspace") or None
    small = get_thumbnail(*visit.args, run_id, shard, row, side=side, film=film, workspace=workspace)
    if not small.data:
        return Response(_drawing(small.reason), 200, {"Cache-Control": "no-store"}, "image/svg+xml")
    headers = {"Cache-Control": KEEP, "ETag": f'"{small.tag}"'}
    if visit.request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(small.data, 200, headers, "image/webp")


def _drawing(reason: str) -> str:
    words = f'<text x="80" y="84" text-anchor="middle" font-family="sans-serif" font-size="13">{escape(reason)}</text>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 160 160" width="160" height="160">{words}</svg>'
