"""Requests that are repeated with the same Idempotency-Key."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from httpx2 import Response
from sqlalchemy import func, select

from curate.service.actions import places
from curate.service.actions import runs as actions
from curate.service.database.models import Reply, Submission
from curate.service.problems import ConflictProblem, UnavailableProblem
from curate.service.rest import idempotency
from curate.service.rest.idempotency import UNDER_WAY_SECONDS, Replayed, UnderWayProblem, reserve
from curate.service.service import Service
from tests.service.people import People
from tests.service.rest.site import RECIPE, Site

ORDER = {"workspace": "main", "recipe": RECIPE}


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


def submit(site: Site, key: str, **order: Any) -> Response:
    return site.ask("POST", "runs", json=ORDER | order, headers={"Idempotency-Key": key})


def submissions(site: Site) -> int:
    with site.service.database.read() as session:
        return session.scalar(select(func.count()).select_from(Submission)) or 0


def replies(site: Site, key: str) -> list[Reply]:
    with site.service.database.read() as session:
        return list(session.scalars(select(Reply).where(Reply.key == key)))


@pytest.fixture
def clock(site: Site) -> Iterator[list[float]]:
    """Seconds to add to the service's clock."""
    before, ahead = site.service.clock, [0.0]
    site.service.clock = lambda: before() + ahead[0]
    yield ahead
    site.service.clock = before


def test_the_first_answer_comes_again(site: Site, key: str) -> None:
    before, first = submissions(site), submit(site, key)
    again = submit(site, key)
    assert (again.status_code, again.content) == (202, first.content)
    assert "idempotency-replayed" not in first.headers and again.headers["idempotency-replayed"] == "true"
    assert submissions(site) == before + 1
    other = site.ask("POST", "runs", site.people.keeper, json=ORDER, headers={"Idempotency-Key": key})
    assert other.json()["id"] != first.json()["id"], "keys belong to a user"


def test_a_key_belongs_to_one_request(site: Site, key: str) -> None:
    submit(site, key)
    answer = submit(site, key, title="another")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "used for another request" in answer.json()["detail"]


def test_an_error_frees_the_key(site: Site, key: str) -> None:
    assert submit(site, key, workspace="none").status_code == 404
    assert submit(site, key, priority=1000).status_code == 422
    assert replies(site, key) == []
    assert submit(site, key).status_code == 202


def test_a_bug_frees_the_key(site: Site, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(actions, "submit", broken)
    assert submit(site, key).status_code == 500
    assert replies(site, key) == []


@pytest.mark.parametrize("wrong", ["", "a b", "x" * 201, "tab\there"])
def test_a_key_is_visible_ascii(site: Site, wrong: str) -> None:
    answer = submit(site, wrong)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


def test_a_token_is_never_stored(site: Site, key: str) -> None:
    answer = site.ask("POST", "users/operator/tokens", json={}, headers={"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "never stored" in answer.json()["detail"] and replies(site, key) == []


def test_the_second_waits_for_the_first(site: Site, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave, check = threading.Event(), threading.Event(), places.check_target

    def slow(*words: Any) -> Any:
        entered.set()
        assert leave.wait(30)
        return check(*words)

    monkeypatch.setattr(places, "check_target", slow)
    with ThreadPoolExecutor(1) as pool:
        headers = {"Idempotency-Key": key}
        first = pool.submit(site.ask, "POST", "targets/local/check", headers=headers)
        assert entered.wait(30)
        second = site.ask("POST", "targets/local/check", headers=headers)
        leave.set()
        assert first.result(30).status_code == 200
    assert (second.status_code, second.json()["code"], second.headers["retry-after"]) == (409, "under_way", "2")
    assert site.ask("POST", "targets/local/check", headers=headers).content == first.result().content


def test_a_submission_survives_the_death_of_its_process(
    site: Site, key: str, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setattr(idempotency, "_finish", lambda *_: None)  # it died after the transaction
    first, before = submit(site, key), submissions(site)
    [reply] = replies(site, key)
    assert (reply.status, reply.body) == (None, first.json()["id"])
    monkeypatch.undo()
    assert submit(site, key).json()["code"] == "under_way"
    clock[0] += UNDER_WAY_SECONDS + 1
    again = submit(site, key)
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert submissions(site) == before
    assert submit(site, key).content == again.content


def test_a_request_that_died_before_its_transaction_runs_again(
    site: Site, key: str, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setattr(idempotency, "_finish", lambda *_: None)
    assert submit(site, key, workspace="none").status_code == 404
    monkeypatch.undo()
    clock[0] += UNDER_WAY_SECONDS + 1
    assert submit(site, key, workspace="none").status_code == 404
    assert replies(site, key) == []


def test_a_reservation_that_was_taken_over_makes_nothing(service: Service, people: People) -> None:
    now, user = service.clock(), people.operator.principal
    late = reserve(service, user, "k", "digest")
    service.clock = lambda: now + UNDER_WAY_SECONDS + 1
    second = reserve(service, user, "k", "digest")
    with pytest.raises(ConflictProblem, match="repeated meanwhile"), service.database.write() as session:
        late.mark(session, "run")
    late.finish(202, "late")
    with pytest.raises(UnderWayProblem):
        reserve(service, user, "k", "digest")
    second.finish(202, "{}")
    with pytest.raises(Replayed) as replayed:
        reserve(service, user, "k", "digest")
    assert (replayed.value.status, replayed.value.body) == (202, "{}")
    with pytest.raises(ConflictProblem, match="another request"):
        reserve(service, user, "k", "other")


@pytest.mark.parametrize("jump", [1, -1])
def test_old_answers_are_forgotten(service: Service, people: People, jump: int) -> None:
    now, user = service.clock(), people.operator.principal
    reserve(service, user, "k", "digest").finish(202, "{}")
    service.clock = lambda: now + jump * (service.settings.limits.reply_seconds + 1)
    assert reserve(service, user, "k", "other").reference == ""


def test_an_answer_that_cannot_be_stored_is_given_all_the_same(
    site: Site, key: str, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    def full(*_: Any) -> None:
        raise UnavailableProblem("the disk is full")

    monkeypatch.setattr(idempotency.Reservation, "finish", full)
    first = submit(site, key)
    assert first.status_code == 202
    monkeypatch.undo()
    clock[0] += UNDER_WAY_SECONDS + 1
    assert submit(site, key).json()["id"] == first.json()["id"]


def test_two_at_the_same_moment_make_one(site: Site, key: str) -> None:
    before = submissions(site)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit(site, key), range(8)))
    codes = {answer.status_code for answer in answers}
    assert submissions(site) == before + 1 and codes <= {202, 409} and 202 in codes
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 202}) == 1
