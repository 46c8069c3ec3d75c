"""Datasets, tags, upkeep and metrics over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from curate.service.app import create_app
from curate.service.database.models import Leader
from curate.service.service import Service
from tests.service.curated import Curated
from tests.service.people import People

MAIN = "/api/v1/workspaces/main"


@pytest.fixture
def client(service: Service) -> TestClient:
    """Without its lifespan, which starts processes for the check of recipes."""
    return TestClient(create_app(service, reconcile=False))


def test_from_a_dataset_to_what_training_reads(client: TestClient, people: People, curated: Curated) -> None:
    viewer, operator = people.viewer.headers, people.operator.headers
    (line,) = client.get(f"{MAIN}/datasets", headers=viewer).json()["items"]
    one = f"{MAIN}/datasets/toys/{line['fingerprint']}"
    order = {"base": line["base"]}
    tagged = client.put(f"{MAIN}/datasets/toys/tags/good", json=order, headers=operator)
    assert tagged.status_code == 200 and tagged.json()["user"] == "operator"
    assert client.get(one, headers=viewer).json()["tags"] == ["good"]
    assert [tag["tag"] for tag in client.get(f"{MAIN}/datasets/toys/tags", headers=viewer).json()["items"]] == ["good"]
    found = client.get("/api/v1/resolve/toys@good", headers=viewer).json()
    assert found["url"] == line["url"] and found["rows"] == line["rows"]
    around = client.get(f"{one}/lineage?hops=1", headers=viewer).json()
    assert curated.base in [node["id"] for node in around["nodes"]]
    above = around["nodes"][0]["id"]
    assert client.get(f"{MAIN}/lineage", params={"base": above}, headers=viewer).json()["nodes"]
    assert client.delete(f"{MAIN}/datasets/toys/tags/good", headers=operator).json()["base"] is None
    history = client.get(f"{MAIN}/datasets/toys/tags/good/history", headers=viewer).json()["items"]
    assert [change["base"] for change in history] == [None, curated.base]
    gone = client.get("/api/v1/resolve/toys@good", headers=viewer)
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


def test_one_of_two_people_who_tag_at_once_learns_of_the_other(
    client: TestClient, people: People, curated: Curated
) -> None:
    operator, order = people.operator.headers, {"base": curated.base}
    address = f"{MAIN}/datasets/toys/tags/shared"
    first = client.put(address, json=order, headers=operator | {"If-Match": '"0"'})
    tag = first.headers["etag"]
    assert client.get(address, headers=operator).headers["etag"] == tag
    assert client.get(address, headers=operator | {"If-None-Match": tag}).status_code == 304
    second = client.put(address, json=order, headers=operator | {"If-Match": '"0"'})
    assert (second.status_code, second.json()["code"]) == (412, "changed")
    assert client.delete(address, headers=operator | {"If-Match": '"0"'}).status_code == 412
    assert client.delete(address, headers=operator | {"If-Match": tag}).status_code == 200
    assert client.get(address, headers=operator).status_code == 404


def test_releases(client: TestClient, people: People, curated: Curated) -> None:
    viewer, operator = people.viewer.headers, people.operator.headers
    address = f"{MAIN}/datasets/toys/{curated.fingerprint}/releases"
    order = {"name": "toys-v1", "title": "Toys", "columns": ["brightness", "n=meta.number"]}
    assert client.post(address, json=order, headers=viewer).status_code == 403
    made = client.post(address, json=order, headers=operator).json()
    assert (made["rows"], made["version"], made["urls"], made["added"]) == (9, 1, 0, None)
    assert {"brightness", "n"} < made["columns"].keys() and made["url"].endswith("/releases/toys-v1")
    assert client.post(address, json=order, headers=operator).json() == made
    assert client.get(f"{MAIN}/releases/toys-v1", headers=viewer).json() == made
    assert (Path(made["url"]) / "SHA256SUMS").exists()
    taken = client.post(address, json=order | {"title": None}, headers=operator)
    assert (taken.status_code, taken.json()["code"]) == (422, "input") and "is not empty" in taken.json()["detail"]
    client.post(f"{MAIN}/tombstones", json={"entries": [curated.key], "why": "takedown"}, headers=operator)
    second = client.post(address, json={"name": "toys-v2", "predecessor": "toys-v1"}, headers=operator).json()
    assert (second["version"], second["added"], second["removed"], second["taken_down"]) == (2, 0, 1, 1)
    lost = client.post(address, json={"name": "x", "predecessor": "nothing"}, headers=operator)
    assert lost.status_code == 422 and "has no release.json" in lost.json()["detail"]
    assert client.get(f"{MAIN}/releases/nothing", headers=viewer).status_code == 404
    other = client.post(f"{MAIN}/datasets/toys/abc/releases", json=order, headers=operator)
    assert other.status_code == 404


KILLED = """
import json, sys
from curate.api import Workspace
workspace, dataset, to, options = sys.argv[1:]
Workspace(workspace).release(dataset, to, **json.loads(options))
"""


def test_a_killed_release_is_written_again(client: TestClient, people: People, curated: Curated) -> None:
    operator, root = people.operator.headers, Path(curated.workspace.url)
    address = f"{MAIN}/datasets/toys/{curated.fingerprint}/releases"
    order = {"name": "toys-v1", "title": "Toys", "columns": ["brightness"]}
    whole = Path(client.post(address, json=order | {"name": "whole"}, headers=operator).json()["url"])
    options = json.dumps({"title": "Toys", "columns": ["brightness"]})
    command = [sys.executable, "-c", KILLED, str(root), curated.base, str(root / "releases/toys-v1"), options]
    killing = os.environ | {"CURATE_FAULT_KILL": "publish:data/*:published"}
    assert subprocess.run(command, env=killing).returncode == -signal.SIGKILL
    assert client.get(f"{MAIN}/releases/toys-v1", headers=operator).status_code == 404
    other = client.post(address, json=order | {"title": "Other"}, headers=operator)
    assert other.status_code == 422 and "only the same command resumes" in other.json()["detail"]
    made = client.post(address, json=order, headers=operator)
    assert (made.status_code, made.json()["rows"]) == (200, 9)
    found = [{path.relative_to(one): path.read_bytes() for path in one.rglob("*.*")}
             for one in (whole, root / "releases/toys-v1")]  # fmt: skip
    assert found[0] == found[1]


def test_unknown_tombstones_are_in_the_answer(client: TestClient, people: People, curated: Curated) -> None:
    unknown = ["cd" * 16, "https://nowhere.example/a.jpg", "ef" * 32]
    order = {"entries": [unknown[0], curated.key, *unknown[1:]], "why": "takedown"}
    answer = client.post(f"{MAIN}/tombstones", json=order, headers=people.operator.headers).json()
    assert answer["unknown"] == unknown and answer["counts"] == {"key": 2, "url": 1, "sha256": 1}
    assert client.get(f"{MAIN}/tombstones", headers=people.operator.headers).json()["unknown"] == []


def test_a_sample_by_key_and_by_url(client: TestClient, people: People, curated: Curated) -> None:
    viewer = people.viewer.headers
    found = client.get(f"/api/v1/runs/first/samples/{curated.key}", headers=viewer).json()
    assert found["key"] == curated.key and found["stages"]
    unknown = client.get("/api/v1/runs/first/samples", params={"url": "https://a.example/b.jpg"}, headers=viewer)
    assert unknown.status_code == 404 and "no sample" in unknown.json()["detail"]


def test_pins_tombstones_storage_and_gc(client: TestClient, people: People, curated: Curated) -> None:
    operator, keeper = people.operator.headers, people.keeper.headers
    pin = client.put(f"{MAIN}/pins/mine", json={"run": "first-1", "stage": "total"}, headers=operator)
    assert pin.status_code == 200
    other = client.put(f"{MAIN}/pins/mine", json={"run": "first-1", "stage": "dataset"}, headers=operator)
    assert (other.status_code, other.json()["code"]) == (409, "pinned")
    assert [one["name"] for one in client.get(f"{MAIN}/pins", headers=operator).json()["items"]] == ["mine"]
    (total,) = [one for one in client.get(f"{MAIN}/artifacts", headers=operator).json()["items"] if one["pins"]]
    assert total["stage"] == "total"
    assert client.delete(f"{MAIN}/pins/mine", headers=operator).status_code == 200
    entries = {"entries": [curated.key], "why": "takedown"}
    assert client.post(f"{MAIN}/tombstones", json=entries, headers=operator).json()["counts"]["key"] == 1
    assert list(client.get(f"{MAIN}/tombstones", headers=operator).json()["affected"].values()) == [1]
    Path(curated.workspace.url, "facts/.left.tmp").write_bytes(bytes(1000))  # by a writer that was killed
    storage = client.get(f"{MAIN}/storage", params={"fresh": True}, headers=operator).json()
    assert storage["bytes"] > storage["garbage"] == 1000
    [left] = [line for line in storage["lines"] if line["garbage"]]
    assert (left["noun"], left["files"], left["bytes"]) == ("temporary files", 1, 1000)
    found = client.post(f"{MAIN}/gc", json={}, headers=keeper).json()
    assert (found["paths"], found["bytes"]) == (1, 1000)
    assert client.post(f"{MAIN}/gc", json={"keep": 0}, headers=operator).status_code == 403
    freed = client.post(f"{MAIN}/gc", json={"keep": 0}, headers=keeper).json()
    assert freed["bytes"] > 0 and not freed["deleted"]


@pytest.mark.parametrize(
    "path", ["datasets/toys/UPPER", "datasets/..%2f..%2fetc/00", "pins/.hidden", "datasets/a/tags/b c"]
)
def test_invalid_names_do_not_reach_a_workspace(client: TestClient, people: People, path: str) -> None:
    answer = client.request("DELETE" if "pins" in path else "GET", f"{MAIN}/{path}", headers=people.operator.headers)
    assert answer.status_code in (404, 405, 422) and "code" in answer.json()


def test_metrics_are_for_viewers_of_the_whole_service(client: TestClient, people: People) -> None:
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=people.keeper.headers).status_code == 403  # of one workspace only
    answer = client.get("/metrics", headers={**people.admin.headers, "Host": "10.1.2.3:8080"})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    text = answer.text
    assert 'curate_http_requests_total{method="GET",route="other",status="401"} 1.0' in text
    assert "curate_database_up 1.0" in text


def test_routes_are_counted_with_their_prefix(client: TestClient, people: People) -> None:
    client.get(f"{MAIN}/pins", headers=people.stranger.headers)
    client.get("/api/v1/nothing", headers=people.viewer.headers)
    text = client.get("/metrics", headers=people.admin.headers).text
    assert 'route="/api/v1/workspaces/{workspace}/pins",status="404"' in text
    assert 'route="other",status="404"' in text


def test_health_is_open_and_says_nothing(client: TestClient) -> None:
    answer = client.get("/healthz", headers={"Host": "10.1.2.3"})
    assert (answer.status_code, answer.text) == (200, "ok\n")


def test_readiness_needs_a_token_and_the_tables(client: TestClient, service: Service, people: People) -> None:
    assert client.get("/readyz").status_code == 401
    assert client.get("/readyz", headers=people.viewer.headers).text == "ready\n"
    with service.database.engine.begin() as connection:
        connection.exec_driver_sql("update alembic_version set version_num = '0000'")
    answer = client.get("/readyz", headers=people.viewer.headers)
    assert answer.status_code == 503 and "curate service migrate" in answer.json()["detail"]


def test_readiness_needs_a_replica_that_moves_runs(service: Service, people: People) -> None:
    app = create_app(service)
    client = TestClient(app)  # without its lifespan: the reconciler never starts
    answer = client.get("/readyz", headers=people.viewer.headers)
    assert answer.status_code == 503 and "no replica has moved runs" in answer.json()["detail"]
    assert app.state.reconciler.once()
    assert client.get("/readyz", headers=people.viewer.headers).status_code == 200
    with service.database.read() as session:
        assert session.get(Leader, "reconciler") is not None
