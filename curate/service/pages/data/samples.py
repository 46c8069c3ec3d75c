"""/runs/{id}/samples: a grid of a run's samples, with their thumbnails and files."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse
from markupsafe import escape

from curate.api import SlicePage
from curate.service.pages.data.tabs import of_run, run_values
from curate.service.pages.data.tiles import texts, tiles
from curate.service.pages.forms import Pages
from curate.service.pages.kit import Visit, Visiting, count, link, page, part
from curate.service.problems import InvalidProblem, NotFoundProblem
from curate.service.rest.routing import knows
from curate.service.samples.looking import Looked
from curate.service.samples.slices import ALL, listed, read, slice_of
from curate.service.samples.thumbnails import get_file, get_thumbnail

router = Pages()
PARAMETERS = ("stage", "rejected", "where", "columns")
LIMIT, MOST = 60, 200
MOST_ROWS = 1000
"""Rows that a script gets at a time."""
FEW, MOST_REASONS = 12, 20
"""Images of a reason among the rejects, and most reasons."""
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
        "unblurred": not seen.made.blurred,
    }
    try:
        values |= _grid(visit, run_id, query)
        problem = None
    except InvalidProblem as found:
        values |= {"found": None, "tiles": [], "next": "", "first": "", "columns": [], "blurred": False}
        problem = found
    return page(visit, "samples", problem=problem, title="Samples", **run_values(visit, seen, "/samples"), **values)


def _grid(visit: Visit, run_id: str, query: dict[str, str]) -> dict[str, Any]:
    workspace, cursor = visit.query("workspace") or None, visit.query("cursor")
    which = slice_of(query["stage"], query["rejected"], query["where"])
    names = listed(query["columns"])
    seen, found = read(*visit.args, run_id, which, names, cursor, _limit(visit), workspace)
    path, own = (
        visit.request.url.path,
        query | {"workspace": workspace, "blur": visit.query("blur"), "limit": visit.query("limit")},
    )
    total = _total(seen, query)
    return {
        "found": found, "tiles": tiles(visit, seen, found, names[0] if names else ""), "columns": names,
        "more": _more(visit, seen, found, own, total) if found.next else {},
        "next": link(path, **own, cursor=found.next) if found.next else "",
        "first": link(path, **own) if cursor else "", "total": total,
        "blurred": bool(query["rejected"]) and _blurred(visit, seen),
    }  # fmt: skip


def _more(
    visit: Visit, seen: Looked, found: SlicePage, query: dict[str, Any], total: int | None
) -> dict[str, str | int | None]:
    """What the script of the grid needs to scroll on."""
    base = f"/runs/{part(seen.one.id)}"
    given = query | {"cursor": found.next, "limit": None, "blur": None}
    return {
        "data-more": link(f"{base}/tiles", **given), "data-base": base, "data-total": total,
        "data-suffix": link("", workspace=visit.query("workspace")),
    }  # fmt: skip


@router.get("/runs/{run_id}/tiles")
def more_tiles(visit: Visiting, run_id: str) -> Response:
    """The next rows for the grid's script, as JSON: `tiles` are [place in `shards`, row, key, and three texts]."""
    query = {name: visit.query(name) for name in PARAMETERS}
    workspace, columns = visit.query("workspace") or None, listed(query["columns"])
    which = slice_of(query["stage"], query["rejected"], query["where"])
    seen, found = read(*visit.args, run_id, which, columns, visit.query("cursor"), MOST_ROWS, workspace)
    shards = list(dict.fromkeys(found.table["shard"].to_pylist()))
    places = {shard: place for place, shard in enumerate(shards)}
    lines = [
        (places[row["shard"]], row["row"], row["key"], *texts(row, columns[0] if columns else ""))
        for row in found.table.to_pylist()
    ]
    own = query | {"workspace": workspace}
    following = link(f"/runs/{part(run_id)}/tiles", **own, cursor=found.next) if found.next else ""
    told = f"searched {found.searched:,} of {count(found.shards, 'shard')}"
    return JSONResponse(
        {"pixels": seen.pixels, "shards": shards, "tiles": lines, "next": following, "searched": told},
        headers={"Cache-Control": "no-store"},
    )


def _limit(visit: Visit) -> int:
    """Tiles of a page."""
    given = visit.query("limit")
    if given and not (given.isdecimal() and 1 <= int(given[:9]) <= MOST):
        raise InvalidProblem(f"limit: {given!r}: expected 1 to {MOST} samples of a page")
    return int(given or LIMIT)


def _total(seen: Looked, query: dict[str, str]) -> int | None:
    """Rows of the slice by the run's ledger; None if only reading tells."""
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


@router.get("/runs/{run_id}/rejects")
def rejects(visit: Visiting, run_id: str) -> Response:
    """Each stage that rejected rows, with some of each reason."""
    seen, workspace = of_run(visit, run_id), visit.query("workspace") or None
    lost = {name: seen.made.rejected(name) for name in seen.made.with_rows}
    lost = {name: reasons for name, reasons in lost.items() if reasons}
    chosen = visit.query("stage") if visit.query("stage") in lost else next(iter(lost), "")
    groups, path = [], f"/runs/{part(run_id)}/samples"
    for reason, rows in list(lost.get(chosen, {}).items())[:MOST_REASONS]:
        which = slice_of(chosen, reason, None)
        _, found = read(*visit.args, run_id, which, limit=FEW, workspace=workspace, spread=True)
        every = link(path, stage=chosen, rejected=reason, workspace=workspace)
        groups.append((reason.replace("_", " "), rows, tiles(visit, seen, found), every))
    stages = [(name, f"{name} ({sum(reasons.values()):,})") for name, reasons in lost.items()]
    return page(
        visit, "rejects", title="Rejects", stages=stages, chosen=chosen, groups=groups,
        more=max(0, len(lost.get(chosen, {})) - MOST_REASONS), blurred=_blurred(visit, seen),
        unblurred=not seen.made.blurred, total=sum(lost.get(chosen, {}).values()),
        every=link(path, stage=chosen, rejected=ALL, workspace=workspace),
        **run_values(visit, seen, "/rejects"),
    )  # fmt: skip


def _blurred(visit: Visit, seen: Looked) -> bool:
    return visit.query("blur") != "0" if seen.made.blurred else visit.query("blur") == "1"


@router.get("/runs/{run_id}/thumbnails/{shard}/{row}")
def thumbnail(visit: Visiting, run_id: str, shard: str, row: int, side: int = 160, film: bool = False) -> Response:
    """WebP; a drawing with the reason if a sample has none."""
    workspace = visit.query("workspace") or None
    small = get_thumbnail(*visit.args, run_id, shard, row, side=side, film=film, workspace=workspace)
    if not small.data:
        return Response(_drawing(small.reason), 200, {"Cache-Control": "no-store"}, "image/svg+xml")
    headers = {"Cache-Control": KEEP, "ETag": f'"{small.tag}"'}
    if knows(visit.request.headers.get("if-none-match", ""), small.tag):
        return Response(status_code=304, headers=headers)
    return Response(small.data, 200, headers, "image/webp")


@router.get("/runs/{run_id}/files/{key}")
def file(visit: Visiting, run_id: str, key: str) -> Response:
    """The original bytes, which browsers save and never show."""
    name, data = get_file(*visit.args, run_id, key, visit.query("workspace") or None)
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(data.size)}
    return StreamingResponse(data.blocks(), headers=headers, media_type="application/octet-stream")


def _drawing(reason: str) -> str:
    words = f'<text x="80" y="84" text-anchor="middle" font-family="sans-serif" font-size="13">{escape(reason)}</text>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 160 160" width="160" height="160">{words}</svg>'
