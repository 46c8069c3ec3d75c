"""Search of a run through the service: who may, what it answers, and what it does not load."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from curate.api import Pipeline, Workspace, make_stage
from curate.service.app import create_app
from curate.service.database.models import IndexedRun
from curate.service.service import Service
from tests.engine import toys
from tests.service.people import People


@pytest.fixture(scope="session")
def embedded_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To copy: two runs over one pool, of an encoder with texts and of one without."""
    path = tmp_path_factory.mktemp("searched") / "workspace"
    for name, encoder in (("words-1", "tiny"), ("shapes-1", "descriptor"), ("none-1", "")):
        made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=20, shard_rows=10))
        if encoder:
            made.add("embed", make_stage("image.embed", encoder=encoder), "pool")
            made.add("index", make_stage("search.fit"), "embed")
        Workspace(str(path)).submit(made.check(), run_id=name).wait()
    return path


@pytest.fixture
def runs(service: Service, people: People, embedded_workspace: Path) -> Workspace:
    shutil.copytree(embedded_workspace, people.workspace.url)
    about = {"title": "toys", "user": "operator", "target": "local", "state": "done", "submitted": True}
    with service.database.write() as session:
        for name in ("words", "shapes", "none"):
            session.add(
                IndexedRun(
                    workspace_id=people.workspace.id, id=name, attempt_id=f"{name}-1", started=1e9, ended=1e9, **about
                )
            )
    return Workspace(people.workspace.url)


@pytest.fixture
def client(service: Service) -> TestClient:
    """Without its lifespan, which starts processes for the check of recipes."""
    return TestClient(create_app(service, reconcile=False))


def test_answers_hold_what_a_page_shows(client: TestClient, people: People, runs: Workspace) -> None:
    """Scores up to their last bits, which depend on the number of threads that torch has in the thread of a request."""
    viewer, address = people.viewer.headers, "/api/v1/runs/words/search"
    asked = {"text": "a red bicycle", "limit": 3, "columns": "width,embedding_norm"}
    found = client.get(address, params=asked, headers=viewer).json()
    assert (found["run"], found["stage"], found["rows"], len(found["hits"])) == ("words", "index", 20, 3)
    direct = runs.run("words-1").search("a red bicycle", limit=3, columns=["width", "embedding_norm"])
    assert found["hits"] == [vars(hit) | {"score": pytest.approx(hit.score, abs=1e-6)} for hit in direct.hits]
    first = found["hits"][0]["key"]
    assert first not in {
        hit["key"] for hit in client.get(address, params={"key": first}, headers=viewer).json()["hits"]
    }
    one = client.get(address, params={"text": "a", "where": "caption = 'picture 7'"}, headers=viewer).json()
    assert [hit["caption"] for hit in one["hits"]] == ["picture 7"]
    runs.add_tombstones([first], "asked for it")
    assert first not in {hit["key"] for hit in client.get(address, params=asked, headers=viewer).json()["hits"]}


def test_a_stranger_and_what_is_wrong(client: TestClient, people: People, runs: Workspace) -> None:
    viewer = people.viewer.headers

    def detail(run: str, status: int, **params: str) -> str:
        answer = client.get(f"/api/v1/runs/{run}/search", params=params, headers=viewer)
        assert answer.status_code == status
        return str(answer.json()["detail"])

    stranger = client.get("/api/v1/runs/words/search", params={"text": "a"}, headers=people.stranger.headers)
    assert stranger.status_code == 404
    assert client.get("/api/v1/runs/words/search", params={"text": "a"}).status_code == 401
    assert "no vectors to search yet" in detail("none", 422, text="a")
    assert "has no text tower; use an image-text model" in detail("shapes", 422, text="a")
    assert "expected one of a text, an image and a key" in detail("words", 422)
    assert "x: no stage over the rows" in detail("words", 422, text="a", columns="x")
    assert "no sample of run" in detail("words", 422, key="0" * 32)
    assert "--where" in detail("words", 422, text="a", where="caption ++ 1")


def test_the_service_loads_no_encoder_from_outside_the_package(
    client: TestClient, people: People, runs: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from curate.api import search

    monkeypatch.setattr(search, "_encoder_of", lambda *_: "open_clip:ViT-B-32/openai")
    monkeypatch.setattr(search, "_loaded", lambda spec: pytest.fail(f"{spec} was loaded"))
    answer = client.get("/api/v1/runs/words/search", params={"text": "a"}, headers=people.viewer.headers)
    assert answer.status_code == 422 and "is not loaded here; search by a key" in answer.json()["detail"]
