"""A release that was killed is written again by the same command, with the same bytes, and by no other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from curate.acquire.folder import AcquireFolder
from curate.api import Workspace
from curate.core.recipe.pipeline import Pipeline
from curate.core.store import lease
from curate.core.store.storage import open_storage
from curate.pack.webdataset import PackWebDataset
from curate.release import layout
from curate.select.all import SelectAll
from tests.codec.make_images import encoded, noise
from tests.draw import drawn
from tests.e2e.commands import CommandResult, curate
from tests.engine.forks import Drivers

POINTS = [
    f"publish:{layout.BEGUN}:published", "publish:data/*:written", "publish:data/*:published",
    f"publish:{layout.CARD}:written", f"publish:{layout.SUMS}:written", f"publish:{layout.SUMS}:published",
]  # fmt: skip


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with the dataset `photos`, and its release `whole`."""
    folder = tmp_path_factory.mktemp("once")
    (folder / "photos").mkdir()
    for number in range(6):
        (folder / "photos" / f"{number}.png").write_bytes(encoded(noise(20, 16, seed=number), "png"))
    made = Pipeline().add("pool", AcquireFolder(path=str(folder / "photos"), namespace="photos"))
    made.add("all", SelectAll(), "pool").add("dataset", PackWebDataset(name="photos"), "all")
    Workspace(str(folder / "workspace")).submit(made.check()).wait()
    assert curate(*words(folder, folder / "whole")).code == 0
    return folder


def words(once: Path, to: Path | str, *more: str) -> list[Any]:
    return ["release", "photos", "--to", to, "--title", "Photos", "-w", once / "workspace", *more]


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with Drivers("tests.e2e.commands", "curate.api") as made:
        yield made


def killed(drivers: Drivers, point: str, once: Path, to: Path | str) -> None:
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    command = list(map(str, words(once, to)))
    ended = drivers.run("", command=command, environment=environment | {"CURATE_FAULT_KILL": point})
    assert ended == {"signal": signal.SIGKILL, "error": None}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(result: CommandResult) -> str:
    assert "is not empty (it has " in result.error and result.error.endswith("); give a new folder")
    return result.error


@pytest.mark.parametrize("point", drawn(POINTS))
def test_a_killed_release_is_written_again(drivers: Drivers, once: Path, tmp_path: Path, point: str) -> None:
    to, mine = tmp_path / "release", {"mine.txt": b"mine"}
    killed(drivers, point, once, to)
    left = content(to)
    assert layout.BEGUN in left
    (to / "mine.txt").write_bytes(b"mine")
    for other in (["--license", "cc0-1.0"], ["--columns", "x=width"], ["--predecessor", str(once / "whole")]):
        refused(curate(*words(once, to, *other)))
    assert content(to) == left | mine
    assert curate(*words(once, to)).code == 0
    assert content(to) == content(once / "whole") | mine
    refused(curate(*words(once, to)))  # it is complete


def test_what_was_tombstoned_meanwhile_is_left_out(drivers: Drivers, once: Path, tmp_path: Path) -> None:
    to, workspace = tmp_path / "release", Workspace(str(once / "workspace"))
    killed(drivers, f"publish:{layout.SUMS}:published", once, to)
    (base,) = (one.base for one in workspace.datasets())
    key = open_storage(workspace.url).read_table(f"{base}/index.parquet")["key"][0].as_py()
    workspace.add_tombstones([key], "asked for")
    try:
        killed(drivers, "publish:data/*:published", once, to)
        assert not (to / layout.SUMS).exists()  # it was of other rows
        assert "5 rows of photos" in curate(*words(once, to)).out
    finally:
        workspace.remove_tombstones([key], "back")


def test_a_release_that_is_being_written_is_waited_for(once: Path, tmp_path: Path) -> None:
    """By a process of any host: its lease is in the workspace."""
    to, workspace = tmp_path / "release", open_storage(str(once / "workspace"))
    with ThreadPoolExecutor(1) as pool:
        with lease.hold(workspace, f"release {to}", lambda: False):
            other = pool.submit(Workspace(workspace.url).release, "photos", str(to), title="Photos")
            assert wait([other], 0.5).not_done and not to.exists()
        assert other.result(60)["rows"] == 6
    assert content(to) == content(once / "whole")


def test_a_killed_release_on_an_object_store(drivers: Drivers, once: Path, object_store: Any) -> None:
    object_store.create_bucket(Bucket="released")
    to = "s3://released/v1"

    def stored() -> dict[str, bytes]:
        found = object_store.list_objects_v2(Bucket="released")["Contents"]
        bodies = {one["Key"]: object_store.get_object(Bucket="released", Key=one["Key"])["Body"] for one in found}
        return {key.removeprefix("v1/"): body.read() for key, body in bodies.items()}

    killed(drivers, "publish:data/*:published", once, to)
    left = stored()
    assert left.keys() == {layout.BEGUN, layout.data_file(0)}
    refused(curate(*words(once, to, "--license", "cc0-1.0")))
    assert stored() == left
    assert curate(*words(once, to)).code == 0
    assert stored() == content(once / "whole")
    refused(curate(*words(once, to)))
