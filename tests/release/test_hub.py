"""A release on a server with the Hub's routes, in processes whose environment names it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.api import Workspace, push_release
from curate.core.errors import InputError
from tests.release.conftest import COUNT, Made
from tests.release.hub import TOKEN, Hub, started


@pytest.fixture
def hub() -> Iterator[Hub]:
    with started() as server:
        yield server


def environment(hub: Hub, **more: str) -> dict[str, str]:
    own = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "MY_TOKEN": TOKEN, "HF_TOKEN": TOKEN}
    own |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return os.environ | own | more


def curate(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "curate.cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)


TWICE = """
import sys
from curate.api import push_release
from curate.core.errors import CurateError

source, name = sys.argv[1:]
for options in ({}, {}, {"update": True}, {"token": "env:BAD_TOKEN", "update": True}):
    try:
        print(push_release(source, name, **{"token": "env:MY_TOKEN"} | options))
    except CurateError as error:
        print(error)
"""


@pytest.mark.long
def test_a_release_is_pushed_and_fetched(made: Made, hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "v1"
    made.workspace.release("photos", str(folder), allow_networks=["127.0.0.0/8"])
    name = "hf://datasets/me/photos"
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.before_commit = lambda repo: repo.update({"data/old.parquet": b"old"}) if not repo else None
    variables = environment(hub, BAD_TOKEN="hf_bad")
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(folder), name], env=variables, capture_output=True, text=True, timeout=200
    )
    first, taken, updated, rejected = done.stdout.splitlines()
    assert first.startswith(f"{hub.url}/datasets/me/photos/commit/") and updated.startswith(hub.url)
    assert taken == f"{name}: the name is taken; give another, or --update it"
    assert rejected.startswith(f"{name}: the Hub rejects it (") and rejected.endswith("); check the token")
    assert "hf_bad" not in done.stdout + done.stderr
    assert hub.repos == {"me/photos": files}  # the update has removed old rows

    network = ("--allow-network", "127.0.0.0/8", "--allow-port", str(made.site.port), "--quiet")
    place = tmp_path / "workspace"
    contact = ("--contact", "tests@example.org")
    done = curate(environment(hub), "fetch", name, *contact, "-w", str(place), "--run-id", "one", *network)
    assert done.returncode == 0, done.stderr
    assert Workspace(str(place)).run("one").ledger()["pool"].after == COUNT
    assert TOKEN not in "".join(path.read_text(errors="replace") for path in place.rglob("*.json*"))


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        pytest.param(
            {"HF_TOKEN": "hf_bad"}, "the object store does not answer (HfHubHTTPError)", marks=pytest.mark.long
        ),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "the object store does not answer (ConnectError)"),
    ],
)
def test_a_hub_that_does_not_answer_is_one_line(hub: Hub, tmp_path: Path, variables: dict[str, str], says: str) -> None:
    words = ("fetch", "hf://datasets/me/photos", "--contact", "tests@example.org", "-w", str(tmp_path))
    done = curate(environment(hub, **variables), *words)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and says in done.stderr, done.stderr
    assert "hf_bad" not in done.stderr


@pytest.mark.parametrize(
    ("to", "token", "says"),
    [
        ("hf://datasets/photos", None, "expected hf://datasets/OWNER/NAME"),
        ("s3://bucket/photos", None, "expected hf://datasets/OWNER/NAME"),
        ("hf://datasets/me/photos", "hf_abc", "token: expected a reference to a secret"),
    ],
)
def test_a_wrong_request_is_one_line(made: Made, tmp_path: Path, to: str, token: str | None, says: str) -> None:
    made.workspace.release("photos", str(tmp_path / "v1"))
    with pytest.raises(InputError, match=says) as error:
        push_release(str(tmp_path / "v1"), to, token)
    assert "\n" not in str(error.value) and "hf_abc" not in str(error.value)
