"""The service on one machine: its state, what it prints, how it begins and ends. A stand-in takes Ray's place."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx2
import psutil
import pytest
import yaml
from sqlalchemy import select

from curate.core.errors import CurateError
from curate.service import local_ray
from curate.service.database.database import Database
from curate.service.database.models import AuditEntry, Registration, TargetRow, WorkspaceRow
from curate.service.embedded import Embedded, _owned, state_folder
from curate.service.local_ray import LocalRay, end_tree
from curate.service.serving import listening
from tests.service.one_machine import embedded


@pytest.mark.parametrize(
    ("workspace", "folder"),
    [
        ("/data/ws", "/data/ws-service"),
        ("/data/ws/", "/data/ws-service"),
        ("s3://bucket/a/ws", f"{os.getcwd()}/bucket-a-ws-service"),
    ],
)
def test_state_is_beside_the_workspace(workspace: str, folder: str) -> None:
    assert str(state_folder(workspace)) == folder


def test_one_process_serves_a_workspace(tmp_path: Path) -> None:
    state = tmp_path / "ws-service"
    with _owned(state):
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        with pytest.raises(CurateError, match="another process serves this workspace"), _owned(state):
            pass
    with _owned(state):
        pass


def test_a_state_folder_that_cannot_be_written_is_one_line() -> None:
    state = Path("/proc/ws-service")
    with pytest.raises(CurateError, match=r"^/proc/ws-service: cannot be written .* --state"), _owned(state):
        pass


def test_a_port_in_use_is_one_line() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CurateError, match=f"^port {port}: another program listens on 127.0.0.1:{port}"):
            listening("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_one_line() -> None:
    with pytest.raises(CurateError, match=r"^192.0.2.77:0: cannot listen there"):
        listening("192.0.2.77", 0)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of Ray's that writes its arguments and environment to a file, and waits."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ray").write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls; env | sort > {tmp_path}/environment; pwd > {tmp_path}/place\n'
        f"sleep 1000 & echo $! >> {tmp_path}/children; wait\n"
    )
    (folder / "ray").chmod(0o755)
    monkeypatch.setattr(LocalRay, "program", staticmethod(lambda: folder / "ray"))
    monkeypatch.setattr(local_ray, "AGAIN_SECONDS", 0.05)
    return tmp_path


def until(met: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.02)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_ray_is_local_has_a_token_and_ends_with_all_its_processes(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURATE_TOKEN", "cur_secret")
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    urls: list[str] = []
    ray = LocalRay(stand_in, urls.append, cpus=2)
    ray.start()
    until(lambda: lines(stand_in / "children"))
    [call], [child] = lines(stand_in / "calls"), lines(stand_in / "children")
    token = ray.token.read_text()
    environment = dict(line.partition("=")[::2] for line in lines(stand_in / "environment") if "=" in line)
    place = lines(stand_in / "place")[0]
    assert stat.S_IMODE(ray.token.stat().st_mode) == 0o600 and len(token) > 30
    assert stat.S_IMODE(Path(place).stat().st_mode) == 0o700
    assert "--node-ip-address=127.0.0.1" in call and "--dashboard-host=127.0.0.1" in call and "--num-cpus=2" in call
    assert f"--dashboard-port={urls[0].rpartition(':')[2]}" in call and f"--temp-dir={place}/ray" in call
    assert environment["RAY_AUTH_MODE"] == "token" and environment["RAY_AUTH_TOKEN_PATH"] == str(ray.token)
    assert token not in call and token not in environment.values()
    assert not {"CURATE_TOKEN", "RAY_ADDRESS"} & environment.keys()
    assert environment["PATH"].startswith(f"{stand_in / 'bin'}:")
    ray.stop()
    assert not psutil.pid_exists(int(child)) or psutil.Process(int(child)).status() == psutil.STATUS_ZOMBIE
    assert not Path(place).exists()
    assert len(lines(stand_in / "calls")) == 1


def test_ray_starts_again_when_it_dies_at_another_address(stand_in: Path) -> None:
    urls: list[str] = []
    ray = LocalRay(stand_in, urls.append)
    ray.start()
    until(lambda: lines(stand_in / "children"))
    assert ray._head is not None
    token = ray.token.read_text()
    ray._head.kill()
    until(lambda: len(lines(stand_in / "children")) == 2)
    ray.stop()
    assert len(set(urls)) == 2 and ray.token.read_text() == token


def test_a_ray_whose_address_cannot_be_written_is_tried_again(stand_in: Path) -> None:
    failures = [CurateError("the database does not answer")]

    def moved(url: str) -> None:
        if failures:
            raise failures.pop()

    ray = LocalRay(stand_in, moved)
    ray.start()
    until(lambda: lines(stand_in / "children"))
    ray.stop()
    assert len(lines(stand_in / "calls")) == 1


def test_a_tree_of_processes_ends() -> None:
    script = "import subprocess, time; subprocess.Popen(['/bin/sleep', '1000']); time.sleep(1000)"
    head = subprocess.Popen([sys.executable, "-c", script])
    until(lambda: psutil.Process(head.pid).children())
    [child] = psutil.Process(head.pid).children()
    end_tree(head)
    assert not local_ray._alive(child)


def test_a_child_that_lost_its_parent_ends_with_the_session() -> None:
    """As agents of Ray, when a head dies alone."""
    script = "import os, subprocess; print(subprocess.Popen(['/bin/sleep', '1000'], stdout=2).pid); os._exit(0)"
    head = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert head.stdout is not None
    with head.stdout:
        child = psutil.Process(int(head.stdout.readline()))
    until(lambda: child.ppid() != head.pid)
    end_tree(head)
    assert not local_ray._alive(child)


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys\n"
        "words = [sys.executable, '-m', 'curate.service.local_ray', str(os.getpid()), '/bin/sleep', '1000']\n"
        "print(subprocess.Popen(words).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdin is not None
    child = psutil.Process(int(parent.stdout.readline()))
    until(lambda: child.name() == "sleep")
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    until(lambda: not local_ray._alive(child))


# --- the whole service ------------------------------------------------------------------------------------------------


def test_recipes_are_offered_with_the_names_of_roots(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "a.yaml").write_text("vars:\n  images: .cache/drawings # a folder\n")
    made = Embedded("ws", recipes=[tmp_path / "recipes"], roots={"drawings": ".cache/drawings"})
    for _ in range(2):  # the second start replaces the copies of the first
        [folder] = made._offered(tmp_path / "state")
        assert [file.name for file in Path(folder).iterdir()] == ["a.yaml"]
    assert yaml.safe_load((Path(folder) / "a.yaml").read_text()) == {"vars": {"images": "drawings"}}


@pytest.mark.long
def test_a_service_starts_twice(tmp_path: Path) -> None:
    """It prints the token the first time only; a second process ends with an error."""
    with embedded(tmp_path / "ws", "http://127.0.0.1:1") as first:
        answer = httpx2.get(f"{first.url}/api/v1/workspaces", headers={"Authorization": f"Bearer {first.token}"})
        assert [found["name"] for found in answer.json()["items"]] == ["main"]
        assert httpx2.get(f"{first.url}/api/v1/workspaces").status_code == 401
        second = Embedded(str(tmp_path / "ws"), port=0)
        with pytest.raises(CurateError, match="another process serves this workspace"):
            second.serve()
    assert first.code == 0 and first.end_seconds < 100
    with embedded(tmp_path / "ws", "http://127.0.0.1:2", {"images": str(tmp_path)}) as again:
        assert not again.token
    with (
        closing(Database(f"sqlite:///{tmp_path / 'ws-service' / 'service.db'}")) as database,
        database.read() as session,
    ):
        assert session.scalars(select(TargetRow.address)).one() == "http://127.0.0.1:2"
        assert session.scalars(select(WorkspaceRow.url)).one() == str(tmp_path / "ws")
        assert session.scalars(select(Registration.value)).one() == str(tmp_path)
        written = session.scalars(select(AuditEntry.action).where(AuditEntry.user == "service")).all()
    assert written == ["target.add", "workspace.add", "user.add", "token.make", "registration.add"]
    assert first.token not in first.err.read_text() and "Traceback" not in first.err.read_text()
