"""Datasets, tags, artifacts, lineage, samples."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from curate.service.actions import data
from curate.service.rest.deps import SEEN, ByName, IfMatch, Limit, Router, Served, Who, after, problems
from curate.service.rest.etags import tagged, version_of
from curate.service.rest.paging import paged
from curate.service.shapes.common import NAME, Page
from curate.service.shapes.data import ArtifactShape, DatasetShape, Lineage, NewTag, Resolved, SampleShape, TagShape

router = Router(tags=["data"])
Place = Annotated[str, Path(alias="workspace", pattern=NAME)]
DatasetName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$", examples=["openclipart"])]
TagName = Annotated[str, Path(pattern=NAME, examples=["good"])]
Fingerprint = Annotated[str, Path(pattern=r"^[0-9a-f]{1,64}$")]
"""No tag or word that follows a dataset's name looks like one."""
Run = Annotated[str, Path(max_length=64)]
FOUND = problems(403, 404, 422)
SAMPLE = problems(403, 404, 409, 422)
CHANGED = problems(403, 404, 409, 412, 422)
TAG = "/workspaces/{workspace}/datasets/{name}/tags/{tag}"


@router.get("/workspaces/{workspace}/datasets", responses=FOUND)
def list_datasets(
    service: Served,
    who: Who,
    workspace: Place,
    query: Annotated[str | None, Query(max_length=200, description="Part of the name.")] = None,
    cursor: Annotated[str | None, after(float, str)] = None,
    limit: Limit = 50,
) -> Page[DatasetShape]:
    """Newest first. `pins` is empty here; see the dataset itself."""
    return data.datasets(service, who, workspace, query=query, cursor=cursor, limit=limit)


@router.get("/workspaces/{workspace}/datasets/{name}/tags", responses=FOUND)
def list_tags(
    service: Served, who: Who, workspace: Place, name: DatasetName, cursor: ByName = None, limit: Limit = 50
) -> Page[TagShape]:
    return paged(data.tags(service, who, workspace, name), cursor, limit, tag=str)


@router.get(TAG, response_model=TagShape, responses=FOUND | SEEN)
def get_tag(service: Served, who: Who, request: Request, workspace: Place, name: DatasetName, tag: TagName) -> Response:
    found = data.tag(service, who, workspace, name, tag)
    return tagged(request, found, found.version)


@router.put(TAG, response_model=TagShape, responses=CHANGED)
def set_tag(
    service: Served, who: Who, request: Request, workspace: Place, name: DatasetName, tag: TagName, order: NewTag,
    if_match: IfMatch = None,
) -> Response:  # fmt: skip
    """The dataset is pinned, so that gc keeps it."""
    changed = data.set_tag(service, who, workspace, name, tag, order, version_of(if_match))
    return tagged(request, changed, changed.version)


@router.delete(TAG, responses=CHANGED)
def remove_tag(
    service: Served, who: Who, workspace: Place, name: DatasetName, tag: TagName, if_match: IfMatch = None
) -> TagShape:
    return data.remove_tag(service, who, workspace, name, tag, version_of(if_match))


@router.get(f"{TAG}/history", responses=FOUND)
def get_tag_history(
    service: Served, who: Who, workspace: Place, name: DatasetName, tag: TagName,
    cursor: Annotated[str | None, after(int)] = None, limit: Limit = 50,
) -> Page[TagShape]:  # fmt: skip
    """Newest first; a change without `base` removed the tag."""
    return data.history(service, who, workspace, name, tag, cursor, limit)


@router.get(
    "/workspaces/{workspace}/datasets/{name}/{fingerprint}", response_model=DatasetShape, responses=FOUND | SEEN
)
def get_dataset(
    service: Served, who: Who, request: Request, workspace: Place, name: DatasetName, fingerprint: Fingerprint
) -> Response:
    return tagged(request, data.dataset(service, who, workspace, f"datasets/{name}/{fingerprint}"))


@router.get("/workspaces/{workspace}/datasets/{name}/{fingerprint}/lineage", responses=FOUND)
def get_dataset_lineage(
    service: Served,
    who: Who,
    workspace: Place,
    name: DatasetName,
    fingerprint: Fingerprint,
    hops: Annotated[int, Query(ge=0, le=data.LINEAGE_HOPS)] = 2,
) -> Lineage:
    """What it was made from, up to `hops` stages away."""
    return data.lineage(service, who, workspace, f"datasets/{name}/{fingerprint}", hops)


@router.get("/workspaces/{workspace}/lineage", responses=FOUND)
def get_lineage(
    service: Served,
    who: Who,
    workspace: Place,
    base: Annotated[str, Query(max_length=600, description="Folder of an output in the workspace.")],
    hops: Annotated[int, Query(ge=0, le=data.LINEAGE_HOPS)] = 2,
) -> Lineage:
    """The neighbours of any output."""
    return data.lineage(service, who, workspace, base, hops)


@router.get("/workspaces/{workspace}/artifacts", responses=FOUND)
def list_artifacts(
    service: Served, who: Who, workspace: Place, cursor: ByName = None, limit: Limit = 50
) -> Page[ArtifactShape]:
    return data.artifacts(service, who, workspace, cursor, limit)


@router.get("/resolve/{name}@{tag}", responses=problems(403, 404, 409, 422))
def resolve(
    service: Served,
    who: Who,
    name: DatasetName,
    tag: TagName,
    workspace: Annotated[str | None, Query(pattern=NAME)] = None,
) -> Resolved:
    """The dataset that training reads for `curate://SERVER/NAME@TAG`."""
    return data.resolve(service, who, workspace, name, tag)


SampleName = Annotated[str, Query(alias="url", min_length=1, max_length=4000, description="URL or source id.")]


@router.get("/runs/{run}/samples", responses=SAMPLE)
def get_sample_by_url(
    service: Served, who: Who, run: Run, url: SampleName, workspace: Annotated[str | None, Query(pattern=NAME)] = None
) -> SampleShape:
    return data.sample(service, who, run, url, workspace)


@router.get("/runs/{run}/samples/{key}", responses=SAMPLE)
def get_sample(
    service: Served,
    who: Who,
    run: Run,
    key: Annotated[str, Path(min_length=1, max_length=200)],
    workspace: Annotated[str | None, Query(pattern=NAME)] = None,
) -> SampleShape:
    """What every stage says about a sample. `key` may be the start of one."""
    return data.sample(service, who, run, key, workspace)
