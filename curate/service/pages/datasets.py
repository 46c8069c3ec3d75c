"""/datasets: what runs made, and how to train on it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from fastapi import Response

from curate.core.errors import CurateError
from curate.service.auth.roles import Role
from curate.service.datasets import datasets as actions
from curate.service.datasets import tags
from curate.service.datasets.datasets import DatasetShape, Lineage
from curate.service.datasets.tags import NewTag
from curate.service.pages.data.contents import contents_of
from curate.service.pages.forms import Form, Pages, made, words
from curate.service.pages.graph import lineage_graph
from curate.service.pages.kit import LIMIT, Visit, Visiting, link, page, part
from curate.service.places.workspaces import get_workspace, workspaces

router = Pages()
DATASET = "/datasets/{workspace}/{name}/{fingerprint}"
HOPS = 2
SHOWN_TAGS = 30


@router.get("/datasets")
def datasets(visit: Visiting) -> Response:
    places = workspaces(*visit.args)
    chosen = visit.query("workspace") or actions.newest(*visit.args) or (places[0].name if places else "")
    query, cursor = visit.query("q"), visit.query("cursor")
    found = None
    if chosen:
        found = actions.list_datasets(*visit.args, chosen, query=query or None, cursor=cursor or None, limit=LIMIT)
    return page(
        visit, "datasets", title="Datasets", places=[(one.name, one.name) for one in places], chosen=chosen,
        query=query, page=found, first=link("/datasets", workspace=chosen, q=query) if cursor else "",
    )  # fmt: skip


@router.get(DATASET)
def dataset(visit: Visiting, workspace: str, name: str, fingerprint: str) -> Response:
    return _page(visit, workspace, name, fingerprint)


def _page(visit: Visit, workspace: str, name: str, fingerprint: str, problem: CurateError | None = None) -> Response:
    place = get_workspace(*visit.args, workspace)
    found = actions.get_dataset(*visit.args, workspace, name, fingerprint)
    shown = tags.tags(*visit.args, workspace, found.name)
    history = [
        change
        for one in shown[:SHOWN_TAGS]
        for change in tags.get_tag_history(*visit.args, workspace, found.name, one.tag).items
    ]
    history.sort(key=lambda change: change.time, reverse=True)
    return page(
        visit, "dataset", problem=problem, title=found.name, place=place, dataset=found, tags=shown,
        history=history[:SHOWN_TAGS], may=place.role.covers(Role.OPERATOR), base=_address(workspace, found.base),
        sources=_sources(visit, found), **_lineage(visit, workspace, found), **contents_of(visit, workspace, found),
    )  # fmt: skip


@router.form(f"{DATASET}/tags", DATASET, _page)
def tag(visit: Visiting, form: Form, workspace: str, name: str, fingerprint: str) -> None:
    order = made(NewTag, base=f"datasets/{name}/{fingerprint}")
    tags.set_tag(*visit.args, workspace, name, words(form, "tag"), order)


@router.form(f"{DATASET}/tags/remove", DATASET, _page, "removed")
def untag(visit: Visiting, form: Form, workspace: str, name: str, fingerprint: str) -> None:
    tags.remove_tag(*visit.args, workspace, name, words(form, "tag"))


def _address(workspace: str, base: str) -> str:
    return f"/datasets/{part(workspace)}/{'/'.join(part(one) for one in base.split('/')[1:])}"


def _sources(visit: Visit, found: DatasetShape) -> list[str]:
    """What a training recipe says to read this dataset by a tag."""
    server = urlsplit(visit.service.settings.url)
    scheme = "curate" if server.scheme == "https" else "curate+http"
    return [f"{scheme}://{server.netloc}{server.path}/{found.name}@{tag}" for tag in found.tags]


def _lineage(visit: Visit, workspace: str, found: DatasetShape) -> dict[str, Any]:
    """Around the node that the reader chose, at first the dataset."""
    around = visit.query("around") or found.base
    try:
        lineage = actions.get_lineage(*visit.args, workspace, around, HOPS)
    except CurateError as error:
        return {"lineage": None, "graph": None, "lineage_error": str(error), "hrefs": {}, "around": around}
    hrefs = _hrefs(workspace, found, lineage)
    graph = lineage_graph(lineage, found.base, hrefs)
    return {"lineage": lineage, "graph": graph, "lineage_error": "", "hrefs": hrefs, "around": around}


def _hrefs(workspace: str, found: DatasetShape, lineage: Lineage) -> dict[str, str]:
    """Other datasets have pages; other outputs show their own neighbours here."""
    own = _address(workspace, found.base)
    hrefs = {}
    for node in lineage.nodes:
        other = node.noun == "dataset" and node.id.count("/") == 2 and node.id != found.base
        hrefs[node.id] = _address(workspace, node.id) if other else f"{link(own, around=node.id)}#lineage"
    return hrefs
