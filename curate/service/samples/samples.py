"""One sample: what every stage says about it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query

from curate.api import plain
from curate.core.errors import InputError
from curate.service.problems import NotFoundProblem
from curate.service.rest.routing import Router, Served, Who, Workspace
from curate.service.samples.looking import SAMPLE, RunName, looked, too_many
from curate.service.shapes import Shape

router = Router(tags=["data"])
SampleKey = Annotated[str, Path(min_length=1, max_length=200)]
SampleName = Annotated[str, Query(alias="url", min_length=1, max_length=4000, description="URL or source id.")]


class SampleFact(Shape):
    """What one stage says about a sample."""

    stage: str
    op: str
    facts: dict[str, Any]


class SampleShape(Shape):
    key: str
    run: str
    facts: list[SampleFact]


@router.get("/runs/{run}/samples", responses=SAMPLE)
def get_sample_by_url(
    service: Served, who: Who, run: RunName, url: SampleName, workspace: Workspace = None
) -> SampleShape:
    return get_sample(service, who, run, url, workspace)


@router.get("/runs/{run}/samples/{key}", responses=SAMPLE)
def get_sample(service: Served, who: Who, run: RunName, key: SampleKey, workspace: Workspace = None) -> SampleShape:
    """What every stage says about a sample. `key` may be the start of one."""
    seen = looked(service, who, run, workspace)
    one = seen.one

    def make() -> SampleShape:
        known = seen.run.sample(key, too_many)
        facts = [SampleFact(stage=stage, op=op, facts=plain(about)) for stage, op, about in known.lines()]
        return SampleShape(key=known.key, run=one.id, facts=facts)

    kept = ("sample", one.place.id, one.attempt_id, key)
    try:
        return service.kept.get(kept, make, f"sample {key!r}", seconds=30.0)
    except InputError as error:
        raise NotFoundProblem(str(error)) from None
