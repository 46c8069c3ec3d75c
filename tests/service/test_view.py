"""`curate view`: one user without an account, who can do what an operator does to data, and nothing to runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from curate.api import Workspace
from curate.core.errors import CurateError
from curate.service.app import create_app
from curate.service.database.models import AuditEntry
from curate.service.service import Service
from curate.service.settings import Settings
from curate.service.view import View, set_up

URL = "http://127.0.0.1:8090"


@pytest.fixture(scope="module")
def workspace(toy_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    path = tmp_path_factory.mktemp("view") / "birds & bees"
    shutil.copytree(toy_workspace, path)
    return Workspace(str(path))


@pytest.fixture(scope="module")
def service(workspace: Workspace, migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path = tmp_path_factory.mktemp("state") / "view.db"
    shutil.copy(migrated_file, path)
    with closing(Service.of(Settings(database=f"sqlite:///{path}", url=URL))) as made:
        made.alone = set_up(made, workspace)
        yield made


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[TestClient]:
    service.sandbox.start = lambda: None  # type: ignore[method-assign]
    with TestClient(create_app(service, reconcile=False), base_url=URL, follow_redirects=False) as made:
        yield made


def test_the_pages_open_without_an_account(client: TestClient) -> None:
    page = client.get("/runs").text
    assert "first" in page and "birds-bees" in page
    assert not {"/new", "/people", "/targets", "/logout"} & set(re.findall(r'(?:href|action)="([^"]+)"', page))
    assert client.get("/api/v1/workspaces").json()["items"][0]["role"] == "operator"


def test_other_sites_get_nothing_and_change_nothing(client: TestClient, service: Service) -> None:
    form, path = {"csrf": service.csrf, "entries": "00ff", "why": "x"}, "/workspaces/birds-bees/tombstones"
    assert client.get("/runs", headers={"host": "evil.example"}).status_code == 400
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert client.post(path, data=form, headers=headers).status_code == 403
    assert client.post(path, data=form | {"csrf": "guessed"}).status_code == 403
    assert "access-control-allow-origin" not in client.get("/runs", headers={"origin": "https://evil.example"}).headers


def test_the_user_tombstones_and_tags_and_is_in_the_audit(
    client: TestClient, service: Service, workspace: Workspace, migrated_file: Path, tmp_path: Path
) -> None:
    (dataset,) = workspace.datasets()
    form = {"csrf": service.csrf, "entries": "ab" * 16, "why": "blurred"}
    added = client.post("/workspaces/birds-bees/tombstones", data=form)
    assert added.status_code == 200 and "ab" * 16 in added.text  # no pool has it, which the page says
    assert workspace.tombstones()["key"] == ("ab" * 16,)
    base = f"/datasets/birds-bees/{dataset.base.removeprefix('datasets/')}"
    assert client.post(f"{base}/tags", data={"csrf": service.csrf, "tag": "good"}).status_code == 303
    with service.database.read() as session:
        found = [(row.user, row.action) for row in session.scalars(select(AuditEntry)) if row.outcome == "ok"]
    assert service.alone is not None
    assert found == [(service.alone.user, "tombstone.add"), (service.alone.user, "tag.set")]
    shutil.copy(migrated_file, tmp_path / "again.db")  # the pin stays in the workspace, so the next start has the tag
    with closing(Service.of(Settings(database=f"sqlite:///{tmp_path / 'again.db'}"))) as again:
        again.alone = set_up(again, workspace)
        with TestClient(create_app(again, reconcile=False), base_url=URL) as other:
            assert '<span class="tag"><bdi>good</bdi></span>' in other.get(base).text


def test_it_starts_no_run(client: TestClient, service: Service) -> None:
    order = {"workspace": "birds-bees", "recipe": "stages: {}"}
    assert client.post("/api/v1/runs", json=order, headers={"x-csrf-token": service.csrf}).status_code == 422


def test_a_workspace_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CurateError, match="nowhere"):
        View(str(tmp_path / "nowhere"), 0).serve()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.long
def test_the_command_prints_its_url_and_leaves_nothing(workspace: Workspace, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "curate.cli", "view", "-w", workspace.url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(tmp_path)}) as process:
        assert process.stdout is not None
        assert re.fullmatch(r"url: http://127\.0\.0\.1:\d+\n", process.stdout.readline())
        assert list(tmp_path.glob("curate-view-*"))
        process.terminate()
        process.wait(60)
    assert not list(tmp_path.glob("curate-view-*"))
