"""Slices of a run: rows that a stage passes on or rejects, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query

from curate.api import Slice, SlicePage, plain
from curate.core.errors import InputError
from curate.service.auth.roles import Principal
from curate.service.kept import PAGE, QUESTION
from curate.service.problems import InvalidProblem
from curate.service.rest.routing import Limit, Router, Served, Who, Workspace
from curate.service.samples.looking import SAMPLE, Looked, RunName, looked
from curate.service.service import Service
from curate.service.shapes import Shape

router = Router(tags=["data"])
SECONDS = 2.0
"""How long a page may search."""
ALL = "*"
"""For all reasons."""
Stage = Annotated[str, Query(min_length=1, max_length=200)]
Reason = Annotated[
    str | None, Query(max_length=200, description="Rows that the stage rejected for this reason, or * for any.")
]
Where = Annotated[str | None, Query(max_length=1000, description="As in `filter.where`.")]
Columns = Annotated[str, Query(max_length=1000, description="Columns of any stages, separated by commas.")]
FORM = r"^$|^[0-9a-f]{12}:[0-9]{1,9}:[0-9]{1,18}$"
Cursor = Annotated[str | None, Query(max_length=100, pattern=FORM, description="`next` of the page before.")]


class RowShape(Shape):
    """`reason`: why the stage rejected it."""

    key: str
    shard: str
    row: int
    media: str | None
    name: str | None
    url: str | None
    reason: str | None
    columns: dict[str, Any]


class SliceShape(Shape):
    """`searched`: shards read so far, of all `shards`. A page may be empty because time was up."""

    run: str
    stage: str
    rows: list[RowShape]
    searched: int
    shards: int
    next: str | None


@router.get("/runs/{run}/rows", responses=SAMPLE)
def get_rows(
    service: Served,
    who: Who,
    run: RunName,
    stage: Stage,
    rejected: Reason = None,
    where: Where = None,
    columns: Columns = "",
    cursor: Cursor = None,
    workspace: Workspace = None,
    limit: Limit = 60,
) -> SliceShape:
    """Rows that are alive at a stage, or that it rejected, in the order of their pool."""
    names = listed(columns)
    seen, page = read(service, who, run, slice_of(stage, rejected, where), names, cursor, limit, workspace)
    rows = [
        RowShape.model_validate(line | {"columns": {name: plain(line[name]) for name in names}})
        for line in page.table.to_pylist()
    ]
    return SliceShape(
        run=seen.one.id, stage=stage, rows=rows, searched=page.searched, shards=page.shards, next=page.next or None
    )


def slice_of(stage: str, rejected: str | None, where: str | None) -> Slice:
    """From what an address says."""
    return Slice(stage, ("" if rejected == ALL else rejected) if rejected else None, where or None)


def listed(columns: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in columns.split(",") if name.strip()))


def read(
    service: Service,
    who: Principal,
    run: str,
    which: Slice,
    columns: Sequence[str] = (),
    cursor: str | None = None,
    limit: int = 60,
    workspace: str | None = None,
    spread: bool = False,
) -> tuple[Looked, SlicePage]:
    """For pages; `spread`: rows from all over the slice. Raises InvalidProblem for an unknown stage, column or
    expression."""
    seen = looked(service, who, run, workspace)

    def make() -> SlicePage:
        if spread:
            return seen.run.preview(which, columns, limit=limit, seconds=SECONDS)
        return seen.run.slice(which, columns, cursor=cursor or "", limit=limit, seconds=SECONDS)

    kind = PAGE if which.where is None and which.within is None else QUESTION
    kept = ("slice", seen.one.place.id, seen.one.attempt_id, which, tuple(columns), cursor, limit, spread)
    try:
        return seen, service.kept.get(who, kept, make, f"rows of {which.stage}", kind=kind, seconds=30.0)
    except InputError as error:
        raise InvalidProblem(str(error)) from None
