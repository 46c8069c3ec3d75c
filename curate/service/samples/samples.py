"""One sample: what every stage says about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Path, Query

from curate.api import Slice, SlicePage, plain
from curate.core.errors import CorruptError, InputError
from curate.service.auth.roles import Principal
from curate.service.problems import NotFoundProblem
from curate.service.rest.routing import Router, Served, Who, Workspace
from curate.service.samples.looking import SAMPLE, RunName, looked, too_many
from curate.service.service import Service
from curate.service.shapes import Shape

router = Router(tags=["data"])
SampleKey = Annotated[str, Path(min_length=1, max_length=200)]
SampleName = Annotated[str, Query(alias="url", min_length=1, max_length=4000, description="URL or source id.")]


class StageStory(Shape):
    """What one stage says about a sample."""

    stage: str
    op: str
    noun: str
    """pools, facts, masks, selections, datasets or artifacts."""
    status: str
    """done, rejected, unusable, error, or not reached."""
    reason: str | None
    """Why it is not done."""
    facts: dict[str, Any]


class SampleShape(Shape):
    """A sample's way through a run: `stages` in the order of the DAG, from its pool on."""

    run: str
    key: str
    shard: str
    row: int
    name: str | None
    url: str | None
    media: str
    stages: list[StageStory]
    parent: str | None
    """Key of the sample that it was derived from; see there for what came before."""
    keepers: list[str]
    """Keys of the samples of which it is a copy."""


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
        stages = [StageStory.model_validate(vars(told) | {"facts": plain(told.facts)}) for told in known.stages]
        about = {name: stages[0].facts.get(name) for name in ("shard", "row", "name", "url")}
        keepers = [
            told.facts[name]
            for told in known.stages
            for name in told.facts
            if told.op == "duplicates.members" and name.endswith("_of") and told.facts[name] not in (None, known.key)
        ]
        return SampleShape.model_validate(
            about | {
                "run": one.id, "key": known.key, "media": known.stages[0].facts.get("media") or "image",
                "stages": stages, "parent": known.parent and known.parent.key, "keepers": keepers,
            }
        )  # fmt: skip

    kept = ("sample", one.place.id, one.attempt_id, key)
    try:
        return service.kept.get(who, kept, make, f"sample {key!r}", seconds=30.0)
    except (InputError, CorruptError) as error:  # its shard is gone
        raise NotFoundProblem(str(error)) from None


@dataclass(frozen=True)
class Related:
    """Samples beside one. `copies`: each slice of a stage's copies, and its first page; `packed`: stage -> number of
    samples derived from it, directly or not, in its dataset."""

    parent: SlicePage
    keepers: SlicePage
    children: SlicePage
    copies: list[tuple[Slice, SlicePage]]
    packed: dict[str, int]


def related(service: Service, who: Principal, sample: SampleShape, workspace: str | None) -> Related:
    """For its page."""
    seen = looked(service, who, sample.run, workspace)

    def make() -> Related:
        run = seen.run
        parent = run.rows_of([sample.parent] if sample.parent else [])
        children = run.children_of(sample.shard, sample.key)
        keepers, copies = run.rows_of(sample.keepers), run.copies_of(sample.key)
        return Related(parent, keepers, children, copies, run.packed_of(children))

    kept = ("related", seen.one.place.id, seen.one.attempt_id, sample.key)
    return service.kept.get(who, kept, make, f"samples beside {sample.key}", seconds=30.0)
