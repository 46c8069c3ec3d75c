"""Downloads by two workers of Ray: the pool of the local engine, also when a worker or the driver is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from curate.core.recipe.load import load
from curate.engine.run import run
from tests.acquire.download.site import SECONDS, THREADS, Site, ends, runners, write_list
from tests.engine import workspaces
from tests.engine.deaths import deaths
from tests.engine.forks import Drivers

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("runner_python"), pytest.mark.timeout(600)]
MIDDLE = 20
"""Requests that are answered before the others are held back."""


@pytest.fixture(scope="module")
def recipe(site_server: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    return site_server.recipe(folder, write_list(folder / "list.jsonl", site_server.rows()))


@pytest.fixture(scope="module")
def local(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of an undisturbed run of the local engine."""
    folder = tmp_path_factory.mktemp("local") / "workspace"
    run(load(recipe), str(folder))
    return folder


def assert_same(local: Path, workspace: Path) -> None:
    both = [workspaces.files(folder) for folder in (local, workspace)]
    fetches = [{name for name in files if name.startswith("fetches/")} for files in both]
    ours, theirs = ({n: d for n, d in files.items() if n not in fetches[0]} for files in both)
    assert ours == theirs and fetches[0] == fetches[1]
    assert workspaces.manifests(local) == workspaces.manifests(workspace)
    assert [path for name in ("pending", ".scratch.*") for path in (workspace / "pools").rglob(name)] == []


def test_two_workers_make_the_same_pool(site: Site, recipe: Path, local: Path, on_ray: Any, tmp_path: Path) -> None:
    site.hold(0)
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(run, load(recipe), str(tmp_path / "workspace"), engine=on_ray)
        site.wait(THREADS + 1)  # more than one worker requests
        site.open()
        ended.result(SECONDS)
    assert_same(local, tmp_path / "workspace")


def test_a_worker_killed_in_the_middle_of_a_shard(
    site: Site, recipe: Path, local: Path, on_ray: Any, tmp_path: Path
) -> None:
    assert all(ends(runner) for runner in runners(os.getpid())), "runners end with their run"
    site.hold(MIDDLE)
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(run, load(recipe), str(tmp_path / "workspace"), engine=on_ray)
        site.wait()
        runner = runners(os.getpid())[0]
        worker = runner.parent()
        assert worker is not None and worker.name().startswith("ray::")
        worker.kill()
        assert ends(runner)
        site.open()
        ended.result(SECONDS)
    assert_same(local, tmp_path / "workspace")


def test_workers_killed_while_they_publish(site: Site, recipe: Path, local: Path, on_ray: Any, tmp_path: Path) -> None:
    """Each death meets another portion: one whose worker dies three times is set aside."""
    tar, fetches, portion, *_ = sorted((local / "pools/web/portions").glob("*.json"))
    points = (
        f"publish:{json.loads(tar.read_text())['shard']['tar']}:published",
        f"publish:fetches/web/{fetches.stem}*:written",
        f"publish:pools/web/portions/{portion.name}:written",
    )
    (tmp_path / "deaths").mkdir()
    with deaths(on_ray, points, tmp_path / "deaths"):
        run(load(recipe), str(tmp_path / "workspace"), engine=on_ray)
    assert_same(local, tmp_path / "workspace")


@pytest.fixture
def drivers() -> Iterator[Drivers]:
    with Drivers("curate.acquire.download.download", "curate.acquire.lists.list") as made:
        yield made
        made.kill()


@pytest.mark.drawn
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_ended_in_the_middle_of_a_shard(
    site: Site, recipe: Path, local: Path, on_this_ray: str, drivers: Drivers, tmp_path: Path, how: signal.Signals
) -> None:
    """Its runners end, and another run in the same Ray continues."""
    order: dict[str, Any] = {"recipe": str(recipe), "engine": "ray", "environment": {"RAY_ADDRESS": on_this_ray}}
    site.hold(MIDDLE)
    driver = drivers.start(tmp_path / "workspace", **order)
    site.wait()
    at_work = runners(os.getpid())
    assert at_work
    os.kill(driver, how)
    said = drivers.end()
    assert said["signal"] == how if how == signal.SIGKILL else "resumes from there" in said["error"], said
    assert all(ends(runner) for runner in at_work)
    site.open()
    assert drivers.run(tmp_path / "workspace", **order)["error"] is None
    assert_same(local, tmp_path / "workspace")
