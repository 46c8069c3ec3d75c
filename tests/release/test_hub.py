"""A release on a server with the Hub's routes, in processes whose environment names it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from curate.api import Workspace
from curate.release import layout
from tests.release.conftest import COUNT, Made
from tests.release.hub import TOKEN, Hub, started


@pytest.fixture
def hub() -> Iterator[Hub]:
    with started() as server:
        yield server


def curate(hub: Hub, *words: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    own = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "MY_TOKEN": token, "HF_HUB_DISABLE_TELEMETRY": "1"}
    own |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_TOKEN": token, "HF_HUB_OFFLINE": "0"}
    return subprocess.run(
        [sys.executable, "-m", "curate.cli", *words], env=os.environ | own, capture_output=True, text=True, timeout=200
    )


def test_a_release_is_pushed_and_fetched(made: Made, hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "v1"
    made.workspace.release("photos", str(folder), allow_networks=["127.0.0.0/8"])
    name = "hf://datasets/me/photos"
    done = curate(hub, "push", str(folder), name, "--token", "env:MY_TOKEN")
    assert done.returncode == 0 and done.stdout.startswith(f"{hub.url}/datasets/me/photos/commit/"), done
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert hub.repos == {"me/photos": files}

    taken = curate(hub, "push", str(folder), name, "--token", "env:MY_TOKEN")
    assert (taken.returncode, taken.stderr) == (1, f"curate: {name}: the name is taken; give another, or --update it\n")
    hub.repos["me/photos"]["data/old.parquet"] = b"old"
    assert curate(hub, "push", str(folder), name, "--update").returncode == 0
    assert hub.repos == {"me/photos": files}

    network = ("--allow-network", "127.0.0.0/8", "--allow-port", str(made.site.port), "--quiet")
    place = tmp_path / "workspace"
    done = curate(hub, "fetch", name, "--contact", "tests@example.org", "-w", str(place), "--run-id", "one", *network)
    assert done.returncode == 0, done.stderr
    assert Workspace(str(place)).run("one").ledger()["pool"].after == COUNT
    assert TOKEN not in "".join(path.read_text(errors="replace") for path in place.rglob("*.json*"))
    assert len(pq.read_table(folder / layout.DATA)) == COUNT


def test_a_wrong_token_is_one_line(made: Made, hub: Hub, tmp_path: Path) -> None:
    made.workspace.release("photos", str(tmp_path / "v1"))
    done = curate(
        hub, "push", str(tmp_path / "v1"), "hf://datasets/me/photos", "--token", "env:MY_TOKEN", token="hf_no"
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert (
        done.stderr.startswith("curate: hf://datasets/me/photos: the Hub rejects it (") and "hf_no" not in done.stderr
    )
    for words, says in {
        ("hf://datasets/photos",): "expected hf://datasets/OWNER/NAME",
        ("hf://datasets/me/photos", "--token", "hf_abc"): "token: expected a reference to a secret",
    }.items():
        done = curate(hub, "push", str(tmp_path / "v1"), *words)
        assert done.returncode == 1 and says in done.stderr and "hf_abc" not in done.stderr
