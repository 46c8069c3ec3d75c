"""kill -9, a stop, a full disk in the middle of a shard, then the same command: the bytes of an undisturbed run.

Local drivers are forked from a process that has imported everything; they download from a server that holds back its
answers until the test has killed something.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from curate.acquire.download import download
from curate.acquire.download.runner import Runner
from curate.core.recipe.load import load
from curate.engine.run import run
from tests.acquire.download.site import SECONDS, Site, runners, write_list
from tests.draw import drawn
from tests.e2e.commands import curate
from tests.engine import workspaces
from tests.engine.forks import Drivers
from tests.engine.gates import Family

pytestmark = [pytest.mark.usefixtures("runner_python"), pytest.mark.timeout(300)]
ROOM = 100 << 20
"""Bytes of a disk that a test fills. A run needs 64 MiB of them free to begin."""
MIDDLE = 20
"""Requests that are answered before the others are held back: some portions are done, one is not."""
STOP_SECONDS = 100.0
"""A stop takes a few seconds; if it waited for the server, it would take LONG_SECONDS."""
QUIET_SECONDS = 3.0


class Place:
    """A workspace, and the drivers that run the recipe in it."""

    def __init__(self, folder: Path, recipe: Path, site: Site, drivers: Drivers) -> None:
        self.workspace, self.recipe, self.site, self.drivers = folder / "workspace", recipe, site, drivers

    def start(self, **order: Any) -> int:
        return self.drivers.start(self.workspace, recipe=str(self.recipe), **order)

    def run(self, **order: Any) -> dict[str, Any]:
        self.start(**order)
        return self.drivers.end()

    def files(self) -> tuple[dict[str, str], list[str], Any]:
        """Digests of what the run made; names of the tables of fetches, whose times differ; manifests."""
        found = workspaces.files(self.workspace)
        fetches = sorted(name for name in found if name.startswith("fetches/"))
        return {n: d for n, d in found.items() if n not in fetches}, fetches, workspaces.manifests(self.workspace)


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files of all drivers."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield folder


@pytest.fixture(scope="module")
def drivers(temporary: Path) -> Iterator[Drivers]:
    with Drivers("curate.acquire.download.download", "curate.acquire.lists.list") as made:
        yield made
        assert psutil.Process(made.process.pid).children(recursive=True) == []


@pytest.fixture(scope="module")
def recipe(site_server: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "denied.txt").write_text("denied.example\n")
    path = write_list(folder / "list.jsonl", site_server.rows())
    return site_server.recipe(folder, path, deny_hosts=str(folder / "denied.txt"))


@pytest.fixture
def place(tmp_path: Path, recipe: Path, site: Site, drivers: Drivers, temporary: Path) -> Iterator[Place]:
    yield Place(tmp_path, recipe, site, drivers)
    site.open()
    drivers.kill()
    assert list(temporary.iterdir()) == []


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, recipe: Path, site_server: Site, drivers: Drivers) -> Any:
    """Files of an undisturbed run."""
    made = Place(tmp_path_factory.mktemp("clean"), recipe, site_server, drivers)
    assert made.run()["error"] is None
    found = made.files()
    assert len([name for name in found[0] if name.endswith(".tar")]) == 5
    return found


def assert_same(place: Place, clean: Any) -> None:
    assert place.files() == clean
    assert [path for name in ("pending", ".scratch.*") for path in (place.workspace / "pools").rglob(name)] == []


@pytest.mark.long
@pytest.mark.parametrize("after", [0, MIDDLE])
def test_a_driver_killed_in_the_middle_of_a_shard(place: Place, clean: Any, after: int) -> None:
    place.site.hold(after)
    driver = place.start()
    place.site.wait()
    family = Family(driver)
    assert runners(driver)
    os.kill(driver, signal.SIGKILL)
    assert place.drivers.end()["signal"] == signal.SIGKILL
    assert family.left(within_seconds=60) == []
    place.site.open()
    assert place.run()["error"] is None
    assert_same(place, clean)


@pytest.mark.long
def test_a_runner_killed_in_the_middle_of_a_shard(place: Place, clean: Any) -> None:
    place.site.hold(MIDDLE)
    driver = place.start()
    place.site.wait()
    for runner in runners(driver):
        runner.kill()
    place.site.open()
    assert place.drivers.end()["error"] is None
    assert_same(place, clean)


@pytest.mark.long
@pytest.mark.parametrize("how", ["signal", "request"])
def test_a_run_stopped_in_the_middle_of_a_shard(place: Place, clean: Any, how: str) -> None:
    place.site.hold(MIDDLE)
    driver = place.start(run_id="one")
    place.site.wait()
    family = Family(driver)
    began = time.monotonic()
    if how == "signal":
        os.kill(driver, signal.SIGTERM)
    else:
        assert curate("stop", "one", "-w", place.workspace).out.endswith("the same command resumes from there\n")
    said = place.drivers.end()["error"]
    assert "the same command resumes from there" in said and time.monotonic() - began < STOP_SECONDS
    assert family.left(within_seconds=60) == []
    done = list(place.workspace.glob("pools/web/shards/*.tar"))
    assert done and not list(place.workspace.rglob("*.tmp"))
    place.site.open()
    assert place.run()["error"] is None
    assert_same(place, clean)


@pytest.mark.long
def test_a_runner_that_hangs_in_the_middle_of_a_shard(
    place: Place, clean: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed when it has been silent for too long, and a new one continues."""
    monkeypatch.setattr(download, "Runner", partial(Runner, quiet_seconds=QUIET_SECONDS))
    place.site.hold(MIDDLE)
    with ThreadPoolExecutor(1) as threads:
        earlier = runners(os.getpid())
        ended = threads.submit(run, load(place.recipe), str(place.workspace))
        place.site.wait()
        (runner,) = set(runners(os.getpid())).difference(earlier)
        runner.suspend()
        place.site.open()
        ended.result(SECONDS)
    assert not runner.is_running()
    assert_same(place, clean)


@pytest.mark.long
def test_a_driver_killed_in_the_middle_of_a_retry(place: Place, tmp_path: Path) -> None:
    retry = {"retry": {"pool": []}}
    plain = Place(tmp_path / "plain", place.recipe, place.site, place.drivers)
    for one in (plain, place):
        assert one.run()["error"] is None
    place.site.late = True
    assert plain.run(options=retry)["error"] is None
    place.site.hold(0)
    driver = place.start(options=retry)
    place.site.wait()
    os.kill(driver, signal.SIGKILL)
    assert place.drivers.end()["signal"] == signal.SIGKILL
    place.site.open()
    assert place.run(options=retry)["error"] is None
    assert_same(place, plain.files())


# --- every point ------------------------------------------------------------------------------------------------------


def points(log: Path) -> list[str]:
    """Points of an undisturbed run at which a file of the pool or of the list is written, or has just appeared."""
    names = [line for line in log.read_text().splitlines() if not line.startswith(("publish:leases/", "publish:runs/"))]
    return [re.sub("/versions/[0-9a-f]*", "/versions/*", name) for name in names]


@pytest.mark.long
def test_a_driver_killed_at_points(place: Place, clean: Any) -> None:
    """Each run resumes, and is killed at a later point."""
    log = place.workspace.parent / "points.log"
    logged = Place(place.workspace.parent / "logged", place.recipe, place.site, place.drivers)
    assert logged.run(environment={"CURATE_FAULT_LOG": str(log)})["error"] is None
    found = points(log)
    kinds = (
        "/pending/",
        ".tar:",
        "/shards/*.parquet:",
        "/portions/*.json:",
        "/portions/all/",
        "/keys/",
        "/manifest.json:",
    )
    kinds += ("publish:fetches/", "publish:artifacts/*/rows/")
    assert [kind for kind in kinds if not any(fnmatch(point, f"*{kind}*") for point in found)] == []
    for point in drawn(found):
        assert place.run(environment={"CURATE_FAULT_KILL": point})["signal"] == signal.SIGKILL, point
    assert place.run()["error"] is None
    assert_same(place, clean)


# --- the environment --------------------------------------------------------------------------------------------------


def test_an_environment_that_cannot_be_built_is_one_line_before_anything_runs(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, cache = tmp_path / "wheels", tmp_path / "cache"
    wheels.mkdir()
    offline = {"UV_OFFLINE": "1", "UV_FIND_LINKS": wheels, "UV_CACHE_DIR": tmp_path / "uv"}
    for name, value in {"CURATE_CACHE": cache, **offline}.items():
        monkeypatch.setenv(name, str(value))
    done = curate("run", place.recipe, "-w", place.workspace)
    assert "pool: the environment of img2dataset cannot be built: " in done.error and done.out == ""
    assert [path.name for path in place.workspace.rglob("*")] == ["format.json"]
    assert [path for path in (cache / "envs").iterdir() if path.is_dir()] == []
    assert len(place.site.log) == 0


# --- disks ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """A disk with ROOM for a workspace or temporary files."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "none", folder]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("it is not permitted to mount a disk here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """A file that leaves no room on its disk."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    return ballast


@pytest.mark.long
def test_the_disk_of_the_workspace_is_full(place: Place, clean: Any, tmp_path: Path) -> None:
    with disk(tmp_path / "disk") as small:
        place.workspace = small / "workspace"
        place.site.hold(MIDDLE)
        place.start()
        place.site.wait()
        ballast = fill(small)
        place.site.open()
        said = place.drivers.end()["error"]
        assert "no space left; free some" in said and "\n" not in said
        ballast.unlink()
        assert place.run()["error"] is None
        assert_same(place, clean)


@pytest.mark.long
def test_the_disk_of_the_temporary_folder_is_full(place: Place, clean: Any, tmp_path: Path) -> None:
    with disk(tmp_path / "disk") as small:
        place.site.hold(MIDDLE)
        place.start(environment={"TMPDIR": str(small)})
        place.site.wait()
        ballast = fill(small)
        place.site.open()
        said = place.drivers.end()["error"]
        assert "set TMPDIR" in said and "\n" not in said
        ballast.unlink()
        assert list(small.iterdir()) == []
        assert place.run()["error"] is None
        assert_same(place, clean)
