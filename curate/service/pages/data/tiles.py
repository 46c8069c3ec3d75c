"""Tiles: the rows of a slice as thumbnails, each of which leads to its sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from curate.api import SlicePage, plain
from curate.html import numbers
from curate.service.pages.kit import Visit, link, part
from curate.service.samples.looking import Looked
from curate.service.samples.thumbnails import make_ahead

LONGEST_NOTE = 80
Note = str | Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class Tile:
    key: str
    href: str
    """The page of the sample."""
    src: str
    """The thumbnail; "" for those who may not see it."""
    name: str
    """The file's name, or the start of the key."""
    reason: str
    """Why the stage rejected it."""
    note: str
    video: bool


def tiles(visit: Visit, run: Looked, page: SlicePage, note: Note = "") -> list[Tile]:
    """`note`: a column of the slice, or a function of a row, whose text is shown below the image."""
    workspace = visit.query("workspace") or None
    base = f"/runs/{part(run.one.id)}"
    rows = page.table.to_pylist()
    if run.pixels:
        make_ahead(visit.service, run, [(row["shard"], row["row"]) for row in rows if row["media"] in (None, "image")])
    return [_tile(base, workspace, run.pixels, row, note) for row in rows]


def _tile(base: str, workspace: str | None, pixels: bool, row: dict[str, Any], note: Note) -> Tile:
    src = link(f"{base}/thumbnails/{part(row['shard'])}/{row['row']}", side="160", workspace=workspace)
    href = link(f"{base}/samples/{part(row['key'])}", workspace=workspace)
    return Tile(row["key"], href, src if pixels else "", *texts(row, note), video=row["media"] == "video")


def texts(row: dict[str, Any], note: Note = "") -> tuple[str, str, str]:
    """Name, reason and note of a tile."""
    said = note(row) if callable(note) else shown(row[note]) if note else ""
    return row["name"] or row["key"][:12], (row["reason"] or "").replace("_", " "), said[:LONGEST_NOTE]


def shown(value: Any) -> str:
    """A value of a column in few words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return numbers.number(value)
    found = plain(value)
    return "–" if found is None else ", ".join(map(str, found)) if isinstance(found, list) else str(found)
