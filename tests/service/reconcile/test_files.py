"""The same with real files, leases and processes; only the cluster is not Ray."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from curate.api import Workspace
from curate.core.store.storage import open_workspace
from curate.service.reconcile.index import Counts, reindex
from curate.service.reconcile.loop import Reconciler
from curate.service.states import State
from tests.service.reconcile.worlds import World

SECONDS = 120.0


class Processes(World):
    """Every job is a process."""

    def __init__(self, *about: object) -> None:
        super().__init__(*about)  # type: ignore[arg-type]
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.cluster.on_submit = self._begin
        open_workspace(self.workspace.url)

    def replica(self) -> Reconciler:
        return Reconciler(self.service)

    def _begin(self, attempt: str) -> None:
        assert attempt in shlex.split(self.job(attempt).entrypoint)
        words = [sys.executable, "-m", "tests.service.reconcile.driver", self.workspace.url, attempt]
        self.children[attempt] = subprocess.Popen(words)

    def wait(self, true: Callable[[], bool]) -> None:
        until = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < until, (self.row().state, self.row().reason)
            for attempt, child in self.children.items():
                self.job(attempt).status = "running" if child.poll() is None else "failed"
            self.reconciler.once()
            time.sleep(0.05)

    def reaches(self, state: State) -> None:
        self.wait(lambda: self.row().state == state)


@pytest.fixture
def world(service: object, people: object) -> Iterator[Processes]:
    made = Processes(service, people)
    yield made
    for child in made.children.values():
        child.kill()
        child.wait()


def test_stop_resubmission_and_kill_of_real_processes(world: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curate.service.reconcile.observe.GONE_SECONDS", 0.3)
    world.submit(retries=1)
    world.reaches(State.RUNNING)

    world.children["run-1"].kill()  # as the machine's memory manager does
    world.wait(lambda: world.row().attempt == 2 and world.row().state == State.RUNNING)
    assert world.cluster.submitted == ["run-1", "run-2"]
    world.request("stop")
    world.reaches(State.STOPPED)

    row = world.row()
    assert (row.reason, row.gpu_hours) == ("stopped: ann", 1.0)
    assert world.indexed().attempt_id == "run-2"
    workspace = Workspace(world.workspace.url)
    assert workspace.summary("run-2").submission == {
        "run": "run", "attempt": "2", "user": "operator", "service": "service",
    }  # fmt: skip
    assert workspace.run_names() == ["run-1", "run-2"]
    world.reconciler.discover()
    assert reindex(world.service) == {"main": Counts(1, 0)}
    assert (world.indexed().state, world.indexed().stages) == ("stopped", 1)


def test_a_kill_ends_a_real_process(world: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curate.service.reconcile.observe.GONE_SECONDS", 0.3)
    world.submit()
    world.reaches(State.RUNNING)

    world.request("kill")
    world.reaches(State.KILLED)

    assert world.children["run-1"].wait(SECONDS) == -9
    assert world.row().reason == "killed on request"


def test_an_empty_folder_is_not_a_workspace(world: Processes) -> None:
    """A file system that is not mounted: nothing is written there, nothing is dropped from the lists."""
    place = Path(world.workspace.url)
    place.rename(f"{place}-mounted")
    place.mkdir()
    world.submit()
    world.wait(lambda: "not a workspace" in world.row().reason)
    assert world.row().state == State.SUBMITTING and list(place.iterdir()) == []

    place.rmdir()
    Path(f"{place}-mounted").rename(place)
    world.reaches(State.RUNNING)
    assert Workspace(world.workspace.url).run_names() == ["run-1"]
