"""Releases of datasets, in the folder `releases` of their workspace."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import Field

from curate.core.errors import InputError
from curate.service.auth.audit import recorded
from curate.service.auth.roles import Role
from curate.service.database.models import WorkspaceRow
from curate.service.datasets.datasets import FOUND, DatasetName, Fingerprint, dataset_row
from curate.service.kept import WORK
from curate.service.places.workspaces import opened, place_of
from curate.service.problems import NotFoundProblem
from curate.service.rest.routing import InUrl, Router, Served, Who, problems
from curate.service.shapes import NAME, Name, Order, Shape, Text

router = Router(tags=["data"])
ReleaseName = Annotated[str, Path(pattern=NAME, examples=["photos-v2"])]
FOLDER = "releases"


class NewRelease(Order):
    name: Name
    """Name of the new folder."""
    columns: list[Text] = Field([], max_length=100)
    """Further columns: COLUMN, STAGE.COLUMN, meta.FIELD, or NAME=any of them."""
    title: Text | None = None
    license: Text = "unknown"
    predecessor: Name | None = None
    """Another release of the workspace."""


class ReleaseShape(Shape):
    name: str
    url: str
    dataset: str
    """Fingerprint."""
    version: int
    rows: int
    samples: int
    urls: int
    """Rows with a URL."""
    digests: int
    """Rows with a digest of the bytes there."""
    withheld: dict[str, dict[str, int]]
    """Column -> values that were not published, by reason."""
    tombstoned: int
    taken_down: int
    added: int | None = None
    removed: int | None = None
    """Keys that the predecessor did not have, and that only it has."""
    columns: dict[str, str]


@router.post("/workspaces/{workspace}/datasets/{name}/{fingerprint}/releases", responses=problems(403, 404, 409, 422))
def add_release(
    service: Served, who: Who, workspace: InUrl, name: DatasetName, fingerprint: Fingerprint, order: NewRelease
) -> ReleaseShape:
    """Write what may be published of the dataset: rows without pixels, a card, checksums. A large one takes longer than
    a request may: it continues, and the same request again waits for it."""
    base = f"datasets/{name}/{fingerprint}"
    with recorded(service, who, "release.add", workspace, order.name) as detail:
        place = place_of(service, who, workspace, Role.OPERATOR)
        detail |= {"base": base}
        with service.database.read() as session:
            dataset_row(session, place, base)

        def make() -> ReleaseShape:
            before = None if order.predecessor is None else _url(place, order.predecessor)
            options = order.model_dump(include={"columns", "title", "license"}) | {"predecessor": before}
            return _shape(place, order.name, opened(place).release(base, _url(place, order.name), **options))

        key = ("release", place.id, base, order.model_dump_json())
        return service.kept.get(who, key, make, f"release {order.name}", kind=WORK)


@router.get("/workspaces/{workspace}/releases/{name}", responses=FOUND)
def get_release(service: Served, who: Who, workspace: InUrl, name: ReleaseName) -> ReleaseShape:
    place = place_of(service, who, workspace, Role.VIEWER)
    try:
        return _shape(place, name, opened(place).release_at(_url(place, name)))
    except InputError as error:
        raise NotFoundProblem(str(error)) from None


def _url(place: WorkspaceRow, name: str) -> str:
    return f"{place.url.rstrip('/')}/{FOLDER}/{name}"


def _shape(place: WorkspaceRow, name: str, about: dict[str, Any]) -> ReleaseShape:
    return ReleaseShape.model_validate(about | {"name": name, "url": _url(place, name)})
