"""Search in the vectors of a run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Annotated, Any

from fastapi import Query

from curate.core.errors import InputError
from curate.service.auth.roles import Principal
from curate.service.kept import QUESTION
from curate.service.problems import InvalidProblem
from curate.service.rest.routing import Limit, Router, Served, Who, Workspace
from curate.service.samples.looking import SAMPLE, RunName, looked, too_many
from curate.service.samples.slices import Columns, listed
from curate.service.service import Service
from curate.service.shapes import Shape

router = Router(tags=["data"])
Text = Annotated[str | None, Query(min_length=1, max_length=1000, description="Words; or give `key`.")]
Key = Annotated[str | None, Query(min_length=1, max_length=4000, description="A sample: its key, source id or URL.")]
Where = Annotated[str | None, Query(min_length=1, max_length=1000, description="As in `filter.where`.")]
Stage = Annotated[str | None, Query(max_length=200, description="Stage of the index, if the run has several.")]


class HitShape(Shape):
    """A row, with what a page shows of it. `score`: the cosine of its vector with the query's."""

    key: str
    score: float
    url: str | None
    caption: str | None
    shard: str
    row: int
    name: str | None
    media: str | None
    columns: dict[str, Any]


class SearchShape(Shape):
    """`judged`: rows looked up, nearest first, of the `rows` of the index. `said`: what was searched, if not
    vectors but what images show; `score` is then a probability."""

    run: str
    stage: str
    hits: list[HitShape]
    judged: int
    rows: int
    said: str


@router.get("/runs/{run}/search", responses=SAMPLE)
def search(
    service: Served,
    who: Who,
    run: RunName,
    text: Text = None,
    key: Key = None,
    columns: Columns = "",
    where: Where = None,
    stage: Stage = None,
    workspace: Workspace = None,
    limit: Limit = 50,
) -> SearchShape:
    """The nearest rows to a text or a sample, nearest first, without tombstoned ones. Texts need an encoder that is in
    the package."""
    make, kept, what = _search(service, who, run, text, key, columns, where, stage, workspace, limit)
    try:
        return service.kept.get(who, kept, make, what, kind=QUESTION, seconds=0.0)  # a tombstone counts at once
    except InputError as error:
        raise InvalidProblem(str(error)) from None


def soon(
    service: Service, who: Principal, run: str, text: str | None, key: str | None, workspace: str | None, limit: int,
    wait: float,
) -> SearchShape | None:  # fmt: skip
    """For pages: None if it takes longer than `wait` seconds, such as for the first text, whose encoder is loaded."""
    make, kept, what = _search(service, who, run, text, key, "", None, None, workspace, limit)
    try:
        return service.kept.soon(who, kept, make, what, kind=QUESTION, seconds=0.0, wait=wait)
    except InputError as error:
        raise InvalidProblem(str(error)) from None


def _search(
    service: Service, who: Principal, run: str, text: str | None, key: str | None, columns: str, where: str | None,
    stage: str | None, workspace: str | None, limit: int,
) -> tuple[Callable[[], SearchShape], Hashable, str]:  # fmt: skip
    """(what searches, its key and its name among what is kept)."""
    seen = looked(service, who, run, workspace)
    one = seen.one

    def make() -> SearchShape:
        answer = seen.run.search(
            text, key=key, limit=limit, columns=listed(columns), where=where, stage=stage, included=True, say=too_many
        )
        hits = [HitShape.model_validate(vars(hit)) for hit in answer.hits]
        about = {name: getattr(answer, name) for name in ("stage", "judged", "rows", "said")}
        return SearchShape(run=one.id, hits=hits, **about)

    kept = ("search", one.place.id, one.attempt_id, text, key, columns, where, stage, limit)
    return make, kept, f"search in run {run}"
