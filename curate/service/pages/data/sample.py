"""/runs/{id}/samples/{key}: what one sample went through, and why it is or is not in the dataset."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from curate.api import SlicePage
from curate.api.slices import FIXED, name_of
from curate.core.errors import CorruptError
from curate.service.pages.data.tabs import of_run, run_values
from curate.service.pages.data.tiles import Tile, shown, tiles
from curate.service.pages.forms import Pages
from curate.service.pages.kit import Visiting, link, page, part
from curate.service.samples.samples import Related, SampleShape, StageStory, get_sample, related

router = Pages()
TONES = {"done": "done", "rejected": "failed", "unusable": "failed", "error": "failed", "not reached": "waiting"}
"""Status of a stage -> state, whose icon and colour it has."""
UNITS = {"size": " bytes", "width": " px", "height": " px", "duration_ms": " ms", "fps": " frames/s"}
LOST = ("rejected", "unusable", "error")
NO_ROWS = SlicePage(FIXED.empty_table(), 0, 0, "")
LONG = 48
"""Letters of a fact that is shown as a text."""
LEFT_OUT = {"reject", "status", "reason", "key", "not computed", "not judged", "not reached", "dataset"}
OF_POOL = ("source_id", "caption", "url", "width", "height", "format", "duration_ms", "fps", "size", "span", "fetch")
"""What a sample came with; the rest is for machines."""


@dataclass(frozen=True)
class Line:
    """A stage as the page shows it."""

    told: StageStory
    state: str
    facts: list[tuple[str, str]]
    texts: list[tuple[str, str]]


@router.get("/runs/{run_id}/samples/{key}")
def sample(visit: Visiting, run_id: str, key: str) -> Response:
    workspace = visit.query("workspace") or None
    seen = of_run(visit, run_id)
    found = get_sample(*visit.args, run_id, key, workspace)
    try:
        beside, missing = related(*visit.args, found, workspace), ""
    except CorruptError as error:
        beside, missing = Related(NO_ROWS, NO_ROWS, NO_ROWS, [], {}), str(error)
    base, place = f"/runs/{part(run_id)}", f"{part(found.shard)}/{found.row}"
    film = {"film": "true"} if found.media == "video" else {}
    groups: list[tuple[str, list[Tile], str]] = [
        ("Derived from", tiles(visit, seen, beside.parent), ""),
        ("A copy of", tiles(visit, seen, beside.keepers), ""),
        ("Its children", tiles(visit, seen, beside.children), ""),
    ]
    for which, copies in beside.copies:
        more = link(f"{base}/samples", stage=which.stage, where=which.where, workspace=workspace) if copies.next else ""
        groups.append(("Its copies", tiles(visit, seen, copies), more))
    return page(
        visit, "sample", title=_title(found), sample=found, lines=[_line(told) for told in found.stages],
        lost=next((told for told in found.stages if told.status in LOST and "continues" not in told.facts), None),
        packed=_packed(found), below=beside.packed,
        src=link(f"{base}/thumbnails/{place}", side="960", workspace=workspace, **film) if seen.pixels else "",
        file=link(f"{base}/files/{part(found.key)}", workspace=workspace), groups=[one for one in groups if one[1]],
        missing=missing,
        **run_values(visit, seen, "/samples"),
    )  # fmt: skip


def _title(found: SampleShape) -> str:
    """Its name; where that is only its key, where it came from."""
    source_id = found.stages[0].facts.get("source_id")
    known = found.name and name_of(found.name, source_id) == found.name
    return found.name if found.name and known else str(source_id or found.key)


def _packed(found: SampleShape) -> list[str]:
    """Where it is in datasets."""
    places = [told.facts.get("members") for told in found.stages if told.noun == "datasets"]
    return [str(one) for listed in places if isinstance(listed, list) for one in listed]


def _line(told: StageStory) -> Line:
    facts, texts = list[tuple[str, str]](), list[tuple[str, str]]()
    for name, value in told.facts.items():
        if name in LEFT_OUT or value is None or (told.noun == "pools" and name not in OF_POOL):
            continue
        text = "\n".join(f"{one}: {said}" for one, said in value.items()) if isinstance(value, dict) else _text(value)
        long = len(text) > LONG and " " in text
        (texts if long else facts).append((name.replace("_", " "), f"{text}{UNITS.get(name, '')}"))
    absent = told.noun == "datasets" and not isinstance(told.facts.get("members"), list)
    return Line(told, "waiting" if absent else TONES.get(told.status, "waiting"), facts, texts)


def _text(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        return json.dumps(value, ensure_ascii=False)
    return shown(value)
