"""The pages of the whole application, for people who have logged in by a form."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from curate.service.app import create_app
from curate.service.runs import recipes
from curate.service.service import Service
from tests.service.curated import Curated, curated, toy_workspace
from tests.service.pages.markup import Markup
from tests.service.people import People, Person
from tests.service.rest.site import RECIPE, admitted

__all__ = ["curated", "toy_workspace"]


@pytest.fixture
def client(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(service.sandbox, "start", lambda: None)
    monkeypatch.setattr(recipes, "admitted", admitted)
    with TestClient(create_app(service, reconcile=False), follow_redirects=False) as made:
        yield made


def log_in(client: TestClient, who: Person, **fields: str) -> Response:
    client.cookies.clear()
    return client.post("/login", data={"token": f" {who.token}\n"} | fields)


def csrf(client: TestClient) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', client.get("/people").text)
    assert found is not None
    return found[1]


def test_every_page_needs_a_token(client: TestClient, people: People) -> None:
    for path in ("/runs", "/runs/x?workspace=main", "/new", "/audit", "/", "/static/service.js"):
        answer = client.get(path)
        assert answer.status_code == 303 and answer.headers["location"].startswith("/login")
    assert client.get("/runs/x?workspace=main").headers["location"] == "/login?next=%2Fruns%2Fx%3Fworkspace%3Dmain"
    assert client.post("/runs/x/stop").headers["location"] == "/login"
    login = client.get("/login")
    assert login.status_code == 200
    assert "/static/service.js" not in login.text and client.get("/static/service.css").status_code == 200


def test_a_wrong_token_is_reported_and_never_shown(client: TestClient, people: People) -> None:
    answer = client.post("/login", data={"token": "cur_wrong", "next": "/audit"})
    assert answer.status_code == 401 and "unknown, revoked or expired" in answer.text
    assert "cur_wrong" not in answer.text and 'value="/audit"' in answer.text and not answer.cookies


@pytest.mark.parametrize(
    ("target", "after"),
    [
        ("/runs/x?workspace=main", "/runs/x?workspace=main"),
        ("", "/runs"),
        ("//evil.example", "/runs"),
        ("/\\evil.example", "/runs"),
        ("https://evil.example", "/runs"),
        ("/\r\nSet-Cookie: a=b", "/runs"),
    ],
)
def test_logging_in_leads_to_a_page_of_ours(client: TestClient, people: People, target: str, after: str) -> None:
    answer = log_in(client, people.viewer, next=target)
    assert (answer.status_code, answer.headers["location"]) == (303, after)
    assert "HttpOnly" in answer.headers["set-cookie"] and "SameSite=strict" in answer.headers["set-cookie"]


def test_every_page_for_every_role(client: TestClient, people: People, curated: Curated) -> None:
    dataset = f"/datasets/main/{curated.base.removeprefix('datasets/')}"
    inside = ["/workspaces/main", "/workspaces/main?storage=count", dataset, "/datasets?workspace=main", "/runs/first"]
    for name in ("viewer", "operator", "keeper", "admin", "stranger"):
        log_in(client, getattr(people, name))
        own = ["/runs", "/new", "/datasets", "/workspaces", "/targets", "/people", f"/people/{name}", "/audit"]
        for path in [*own, *inside]:
            answer = client.get(path)
            expected = 200 if name != "stranger" else 403 if path == "/new" else 200 if path in own else 404
            assert (name, path, answer.status_code) == (name, path, expected)
            assert Markup(answer.text).problems == []
        others = client.get("/people/viewer").status_code
        assert others == (200 if name in ("viewer", "keeper", "admin") else 404)


def test_a_run_is_submitted_stopped_and_resumed(client: TestClient, people: People) -> None:
    log_in(client, people.operator)
    token = csrf(client)
    typed = {"csrf": token, "workspace": "main", "recipe": RECIPE, "title": "<A try>", "do": "submit"}
    answer = client.post("/new", data=typed)
    assert answer.status_code == 303
    page = answer.headers["location"]
    text = client.get(page).text
    assert "&lt;A try&gt;" in text and "Queued" in text and "toy.facts" in text and Markup(text).problems == []
    for part in ("progress", "funnel", "log"):
        assert client.get(f"{page}/fragment/{part}").status_code == 200
    assert client.get(f"{page}/recipe").text == RECIPE
    assert "&lt;A try&gt;" in client.get("/runs?q=try&state=queued&workspace=main&user=operator").text
    answer = client.post(f"{page}/stop", data={"csrf": token})
    assert answer.headers["location"] == f"{page}?said=stop"
    assert "asked to stop this run" in client.get(answer.headers["location"]).text
    answer = client.post(f"{page}/resume", data={"csrf": token})
    assert answer.status_code == 409 and "it can be resumed once it has ended" in answer.text
    log_in(client, people.viewer)
    assert "Stop the run" not in client.get(page).text
    assert client.post(f"{page}/kill", data={"csrf": csrf(client)}).status_code == 403


def test_a_form_that_is_sent_twice_submits_one_run(client: TestClient, people: People) -> None:
    log_in(client, people.operator)
    [once] = re.findall('name="once" value="([^"]+)"', client.get("/new").text)
    typed = {"csrf": csrf(client), "workspace": "main", "recipe": RECIPE, "once": once, "do": "submit"}
    rejected = client.post("/new", data=typed | {"target": "none"})
    assert rejected.status_code == 404 and f'name="once" value="{once}"' in rejected.text
    first, again, other = (client.post("/new", data=typed | more) for more in ({}, {}, {"title": "other"}))
    assert {first.status_code, again.status_code, other.status_code} == {303}
    assert first.headers["location"] == again.headers["location"] != other.headers["location"]


def test_a_dataset_gets_a_tag_to_train_by(client: TestClient, people: People, curated: Curated) -> None:
    log_in(client, people.operator)
    page = f"/datasets/main/{curated.base.removeprefix('datasets/')}"
    answer = client.post(f"{page}/tags", data={"csrf": csrf(client), "tag": "good"})
    assert answer.headers["location"] == f"{page}?said=saved"
    text = client.get(page).text
    assert "curate+http://testserver/toys@good" in text and "1 pin" in text and "History of the tags" in text
    assert 'class="card dag"' in text


def test_a_form_of_another_site_does_nothing(client: TestClient, people: People) -> None:
    log_in(client, people.admin)
    token = csrf(client)
    forged = client.post("/people", data={"name": "eve"})
    assert forged.status_code == 403 and Markup(forged.text).problems == []
    foreign = client.post("/people", data={"name": "eve", "csrf": token}, headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert "eve" not in client.get("/people").text
    assert client.post("/people", data={"name": "eve", "csrf": token}).status_code == 303


def test_a_token_made_on_the_page_logs_in_until_it_is_revoked(client: TestClient, people: People) -> None:
    log_in(client, people.viewer)
    token = csrf(client)
    answer = client.post("/people/viewer/tokens", data={"csrf": token, "label": "x", "role": "viewer", "days": "7"})
    text = re.search(r"cur_([0-9a-f]{8})_[A-Za-z0-9_-]{43}", answer.text)
    assert answer.status_code == 201 and text is not None
    assert client.get("/runs", headers={"Authorization": f"Bearer {text[0]}"}).status_code == 200
    client.post(f"/people/viewer/tokens/{text[1]}/revoke", data={"csrf": token})
    client.cookies.clear()
    assert client.get("/runs", headers={"Authorization": f"Bearer {text[0]}"}).status_code == 303


def test_logging_out_ends_the_session(client: TestClient, people: People) -> None:
    log_in(client, people.viewer)
    cookie = dict(client.cookies)
    assert client.post("/logout", data={"csrf": csrf(client)}).headers["location"] == "/login"
    client.cookies.update(cookie)
    assert client.get("/runs").headers["location"].startswith("/login")
