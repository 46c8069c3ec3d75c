"""/datasets: what runs made, and how to train on it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from fastapi import Response

from curate.core.errors import CurateError
from curate.service.actions import data as actions
from curate.service.actions import places as place_actions
from curate.service.auth.roles import Role
from curate.service.pages.graph import lineage_graph
from curate.service.pages.kit import LIMIT, Form, Visit, Visiting, acted, done, link, made, page, part, words
from curate.service.rest.deps import ByWord
from curate.service.shapes.data import DatasetShape, Lineage, NewTag

router = ByWord()
HOPS = 2
SHOWN_TAGS = 30


@router.get("/datasets")
def datasets(visit: Visiting) -> Response:
    places = place_actions.workspaces(*visit.args)
    chosen = visit.query("workspace") or actions.newest(*visit.args) or (places[0].name if places else "")
    query, cursor = visit.query("q"), visit.query("cursor")
    found = None
    if chosen:
        found = actions.datasets(*visit.args, chosen, query=query or None, cursor=cursor or None, limit=LIMIT)
    return page(
        visit, "datasets", title="Datasets", places=[(one.name, one.name) for one in places], chosen=chosen,
        query=query, page=found, first=link("/datasets", workspace=chosen, q=query) if cursor else "",
    )  # fmt: skip


@router.get("/datasets/{workspace}/{name}/{fingerprint}")
def dataset(visit: Visiting, workspace: str, name: str, fingerprint: str) -> Response:
    return _page(visit, workspace, f"datasets/{name}/{fingerprint}")


@router.post("/datasets/{workspace}/{name}/{fingerprint}/tags")
def tag(visit: Visiting, form: Form, workspace: str, name: str, fingerprint: str) -> Response:
    base = f"datasets/{name}/{fingerprint}"

    def action() -> Response:
        order = made(NewTag, base=base)
        actions.set_tag(*visit.args, workspace, name, words(form, "tag"), order)
        return done(_address(workspace, base), "saved")

    return acted(action, lambda problem: _page(visit, workspace, base, problem))


@router.post("/datasets/{workspace}/{name}/{fingerprint}/tags/remove")
def untag(visit: Visiting, form: Form, workspace: str, name: str, fingerprint: str) -> Response:
    base = f"datasets/{name}/{fingerprint}"

    def action() -> Response:
        actions.remove_tag(*visit.args, workspace, name, words(form, "tag"))
        return done(_address(workspace, base), "removed")

    return acted(action, lambda problem: _page(visit, workspace, base, problem))


def _address(workspace: str, base: str) -> str:
    return f"/datasets/{part(workspace)}/{'/'.join(part(one) for one in base.split('/')[1:])}"


def _page(visit: Visit, workspace: str, base: str, problem: CurateError | None = None) -> Response:
    place = place_actions.workspace(*visit.args, workspace)
    found = actions.dataset(*visit.args, workspace, base)
    tags = actions.tags(*visit.args, workspace, found.name)
    history = [
        change
        for one in tags[:SHOWN_TAGS]
        for change in actions.history(*visit.args, workspace, found.name, one.tag).items
    ]
    history.sort(key=lambda change: change.time, reverse=True)
    return page(
        visit, "dataset", problem=problem, title=found.name, place=place, dataset=found, tags=tags,
        history=history[:SHOWN_TAGS], may=place.role.covers(Role.OPERATOR), base=_address(workspace, base),
        sources=_sources(visit, found), **_lineage(visit, workspace, found),
    )  # fmt: skip


def _sources(visit: Visit, found: DatasetShape) -> list[str]:
    """What a training recipe says to read this dataset by a tag."""
    server = urlsplit(visit.service.settings.url)
    scheme = "curate" if server.scheme == "https" else "curate+http"
    return [f"{scheme}://{server.netloc}{server.path}/{found.name}@{tag}" for tag in found.tags]


def _lineage(visit: Visit, workspace: str, found: DatasetShape) -> dict[str, Any]:
    """Around the node that the reader chose, at first the dataset."""
    around = visit.query("around") or found.base
    try:
        lineage = actions.lineage(*visit.args, workspace, around, HOPS)
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
