"""Clients choose the id of a run, and may then repeat the request."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from httpx2 import Response
from sqlalchemy import func, select

from curate.service.database.models import IndexedRun, Submission
from curate.service.runs import recipes
from curate.service.runs import submit as actions
from curate.service.runs.shapes import NewRun
from tests.service.rest.site import RECIPE, Site

ORDER = {"workspace": "main", "recipe": RECIPE}


@pytest.fixture
def id() -> str:
    return uuid.uuid4().hex


def submit(site: Site, id: str, **order: Any) -> Response:
    return site.ask("POST", "runs", json=ORDER | {"id": id} | order)


def submissions(site: Site) -> int:
    with site.service.database.read() as session:
        return session.scalar(select(func.count()).select_from(Submission)) or 0


def test_the_same_order_is_submitted_once(site: Site, id: str) -> None:
    before, first = submissions(site), submit(site, id)
    assert (first.status_code, first.json()["id"]) == (202, id)
    site.change(id, state="running")
    again = submit(site, id)
    assert (again.status_code, again.json()["state"]) == (200, "running")
    assert submissions(site) == before + 1


@pytest.mark.parametrize("other", [{"title": "another"}, {"priority": -1}, {"options": {"cpus": 1}}])
def test_an_id_belongs_to_one_order(site: Site, id: str, other: dict[str, Any]) -> None:
    submit(site, id)
    answer = submit(site, id, **other)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "choose another id" in answer.json()["detail"]


def test_an_id_belongs_to_one_user(site: Site, id: str) -> None:
    submit(site, id)
    answer = site.ask("POST", "runs", site.people.keeper, json=ORDER | {"id": id})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize("name", ["{id}", "{id}-1"])
def test_an_id_of_a_run_without_the_service_is_a_conflict(site: Site, id: str, name: str) -> None:
    name, place = name.format(id=id), site.people.workspace.id
    with site.service.database.write() as session:
        session.add(IndexedRun(workspace_id=place, id=name, attempt_id=name, state="done", started=0.0))
    assert submit(site, id).status_code == 409


def test_an_error_does_not_take_the_id(site: Site, id: str) -> None:
    assert submit(site, id, workspace="none").status_code == 404
    assert submit(site, id, priority=1000).status_code == 422
    assert submit(site, id).status_code == 202


def test_a_repeated_order_is_not_checked_again(site: Site, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(site, id)
    monkeypatch.delattr(recipes, "admitted")
    assert submit(site, id).status_code == 200


def test_a_run_of_an_earlier_release_has_no_order_to_repeat(site: Site, id: str) -> None:
    submit(site, id)
    site.change(id, digest="")
    assert submit(site, id).status_code == 409


@pytest.mark.parametrize("wrong", ["", "a b", "x" * 49, "../a", "-a", "é"])
def test_an_id_is_a_plain_name(site: Site, wrong: str) -> None:
    answer = submit(site, wrong)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


def test_two_at_the_same_moment_make_one(site: Site, id: str) -> None:
    who, order, before = site.people.operator.principal, NewRun.model_validate(ORDER | {"id": id}), submissions(site)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: actions.submit(site.service, who, order), range(8)))
    assert submissions(site) == before + 1 and {run.id for run, _ in answers} == {id}
    assert sum(new for _, new in answers) == 1


def test_a_key_of_earlier_clients_submits_nothing(site: Site) -> None:
    before = submissions(site)
    answer = site.ask("POST", "runs", json=ORDER, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "choose the run's `id`" in answer.json()["detail"] and submissions(site) == before
