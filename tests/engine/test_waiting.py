"""Two runs of the same pipeline, and runs that are stopped."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.core.errors import DrainedError
from curate.core.store import lease
from curate.core.store.storage import open_storage
from curate.engine.record.runs import RunRecord, list_runs
from curate.engine.run import run
from tests.engine import toys, workspaces
from tests.engine.forks import Drivers
from tests.engine.gates import Gate

pytestmark = pytest.mark.timeout(100)


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with Drivers() as made:
        yield made


@pytest.fixture(scope="module")
def second() -> Iterator[Drivers]:
    with Drivers() as made:
        yield made


@pytest.fixture(scope="module")
def clean(memory: Path, drivers: Drivers) -> Path:
    assert drivers.run(memory / "clean")["error"] is None
    return memory / "clean"


@pytest.mark.long
def test_a_second_run_waits_for_what_another_builds(
    workspace: Path, gate: Gate, clean: Path, drivers: Drivers, second: Drivers
) -> None:
    log = str(gate.folder / "log")
    first = drivers.start(workspace, changes={"dear__gate": str(gate.folder), "dear__log": log})
    gate.wait()
    second.start(workspace, changes={"dear__log": log}, console=str(gate.folder / "console"))
    assert f"bright: waiting for process {first} on" in gate.waiting()
    gate.open()
    assert drivers.end()["error"] is None and second.end()["error"] is None
    storage = open_storage(str(workspace))
    records = [RunRecord.load(storage, name) for name in list_runs(storage)]
    assert records[0].ledger() == records[1].ledger()
    assert records[1].result is not None and records[1].result["ledger"] == records[0].result["ledger"]  # type: ignore[index]
    built = [
        {name for name, reused in record.result["reused"].items() if not reused}  # type: ignore[index]
        for record in records
    ]
    assert built[0].isdisjoint(built[1]) and "bright" in built[0] | built[1]  # what comes behind is built by either
    assert len(Path(log).read_text().split()) == 40
    workspaces.assert_same(clean, workspace)


def test_a_run_that_waits_can_be_stopped(workspace: Path, gate: Gate, drivers: Drivers, second: Drivers) -> None:
    drivers.start(workspace, changes={"dear__gate": str(gate.folder)})
    gate.wait()
    waiting = second.start(workspace, console=str(gate.folder / "console"))
    assert gate.waiting()
    os.kill(waiting, signal.SIGTERM)
    assert (
        second.end()["error"]
        == "stopped before bright; with a new --run-id or none, the same command resumes from there"
    )
    gate.open()
    assert drivers.end()["error"] is None


def test_sigterm_saves_what_is_computed_and_stops(workspace: Path, gate: Gate, clean: Path, drivers: Drivers) -> None:
    changes = {"dear__gate": str(gate.folder)}
    driver = drivers.start(workspace, changes=changes)
    gate.wait()
    os.kill(driver, signal.SIGTERM)
    gate.open()
    saved = re.fullmatch(
        r"stopped with (\d) tasks? to do; with a new --run-id or none, the same command resumes from there",
        drivers.end()["error"],
    )
    assert saved is not None  # on a busy machine a second task may begin before the signal arrives
    assert len(list(workspace.glob("facts/toy.costly/*/*/*/*.parquet"))) == 5 - int(saved[1]) > 0
    storage = open_storage(str(workspace))
    assert RunRecord.load(storage, list_runs(storage)[-1]).state == "stopped" and storage.list("leases") == {}
    assert drivers.run(workspace, changes=changes)["error"] is None
    workspaces.assert_same(clean, workspace)


def test_a_run_that_is_stopped_at_once_starts_nothing(workspace: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(
        DrainedError, match=r"^stopped.*; with a new --run-id or none, the same command resumes from there$"
    ):
        run(toys.pipeline(), str(workspace), stop=stop)
    assert not list(workspace.glob("pools/**/manifest.json"))


def test_an_output_is_taken_over_from_a_run_that_was_killed(
    workspace: Path, gate: Gate, clean: Path, drivers: Drivers
) -> None:
    """The lease of the dead run still exists; the next run does not wait for it."""
    driver = drivers.start(workspace, changes={"dear__gate": str(gate.folder)})
    gate.wait()
    os.kill(driver, signal.SIGKILL)
    assert drivers.end()["signal"] == signal.SIGKILL
    storage = open_storage(str(workspace))
    assert RunRecord.load(storage, list_runs(storage)[-1]).state == "killed"
    held = [storage.read_json(f"leases/{name}") for name in storage.list("leases")]
    assert {holder["owner"]["pid"] for holder in held} == {driver}
    assert drivers.run(workspace)["error"] is None
    assert [
        name for name in storage.list("leases") if lease.is_gone(storage.read_json(f"leases/{name}")["owner"])
    ] != []
    workspaces.assert_same(clean, workspace)


def test_outputs_of_different_runs_do_not_wait(workspace: Path, gate: Gate, drivers: Drivers) -> None:
    """While one run is held in its columns, another run over the same pool builds its own."""
    drivers.start(workspace, changes={"dear__gate": str(gate.folder)})
    gate.wait()
    result: Any = run(toys.chain(toys.Shifted(shift=1.0)), str(workspace))
    assert result.reused["pool"] and not result.reused["stage_1"]
    gate.open()
    assert drivers.end()["error"] is None
