"""Find samples of a run by what people type: a key, a source id or a URL by the index, and any text by scanning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import pyarrow as pa
from fastapi import Query

from curate.api import Slice, SlicePage
from curate.api.slices import FIXED
from curate.core.errors import InputError
from curate.service.auth.roles import Principal
from curate.service.kept import QUESTION
from curate.service.problems import InvalidProblem
from curate.service.rest.routing import Limit, Router, Served, Who, Workspace
from curate.service.samples.looking import SAMPLE, Looked, RunName, looked
from curate.service.samples.slices import SECONDS, Cursor, RowShape, SliceShape
from curate.service.service import Service

router = Router(tags=["data"])
LONGEST = 300
SHOWN = 48
"""Images that show what was searched."""
Text = Annotated[str, Query(min_length=1, max_length=LONGEST, description="A key, URL, source id, reason or text.")]
Stage = Annotated[str | None, Query(max_length=200, description="Only rows that it passes on; by default the pool.")]


class FoundShape(SliceShape):
    """`by`: "key" if the rows have this key, source id or URL; "text" if a column of texts contains it. `reasons`:
    (stage, reason, rows) of the reject reasons that contain it. `shown`: the images that show it, the most probable
    first, on the first page; `words`: what was searched for them, or why nothing."""

    by: str
    reasons: list[tuple[str, str, int]]
    shown: list[RowShape]
    words: str


@router.get("/runs/{run}/find", responses=SAMPLE)
def find(
    service: Served,
    who: Who,
    run: RunName,
    text: Text,
    stage: Stage = None,
    cursor: Cursor = None,
    workspace: Workspace = None,
    limit: Limit = 60,
) -> FoundShape:
    """Samples by key, source id or URL; otherwise by a text, which reads shard by shard for some seconds a page."""
    return found_in(service, who, run, text, stage, cursor, workspace, limit).shape


@dataclass(frozen=True)
class Found:
    seen: Looked
    page: SlicePage
    """By key or text."""
    shown: SlicePage
    """By what images show."""
    shape: FoundShape


def found_in(
    service: Service, who: Principal, run: str, text: str, stage: str | None, cursor: str | None,
    workspace: str | None, limit: int,
) -> Found:  # fmt: skip
    """For pages. Raises InvalidProblem for an unknown stage or cursor."""
    seen = looked(service, who, run, workspace)
    if not seen.made.with_rows:
        raise InvalidProblem(f"run {run}: no stage with rows is done yet; search once one is")
    place = stage or next(name for name in seen.made.with_rows if seen.made.bases[name].startswith("pools/"))

    def make() -> Found:
        none = SlicePage(FIXED.empty_table(), 0, 0, "")
        exact = pa.table({}) if cursor else seen.run.named(text)
        page = SlicePage(exact, 0, 0, "")
        if not len(exact):
            which = Slice(place, within=seen.run.containing(place, text))
            page = seen.run.slice(which, cursor=cursor or "", limit=limit, seconds=SECONDS)
        shown, words = (None, "") if cursor or len(exact) else seen.run.showing(place, text, SECONDS)
        shown = none if shown is None else replace(shown, table=shown.table.slice(0, SHOWN))
        rows, showing = (
            [RowShape.model_validate({name: line[name] for name in FIXED.names} | {"columns": {}}) for line in lines]
            for lines in (page.table.to_pylist(), shown.table.to_pylist())
        )
        shape = FoundShape(
            run=seen.one.id, by="key" if len(exact) else "text", stage=place, searched=page.searched, rows=rows,
            shards=page.shards, next=page.next or None, reasons=[] if cursor else seen.run.reasons(text),
            shown=showing, words=words,
        )  # fmt: skip
        return Found(seen, page, shown, shape)

    kept = ("find", seen.one.place.id, seen.one.attempt_id, text, place, cursor, limit)
    try:
        found = service.kept.get(who, kept, make, f"{text[:60]!r} in run {run}", kind=QUESTION, seconds=30.0)
    except InputError as error:
        raise InvalidProblem(str(error)) from None
    return replace(found, seen=seen)
