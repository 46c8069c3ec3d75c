"""`Workspace(url).submit(pipeline) -> Run`: runs started, watched and stopped by programs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from curate.api import Options, Run, Workspace
from curate.core.errors import CurateError, DrainedError, InputError, RecipeError, RunExistsError
from curate.core.store import lease
from curate.core.store.storage import Storage, open_storage
from curate.engine.record import stop
from tests.engine import toys
from tests.engine.gates import Gate

pytestmark = pytest.mark.timeout(100)


@pytest.fixture(scope="module")
def place(memory: Path) -> Workspace:
    """A workspace with a run, `first`."""
    made = Workspace(str(memory / "api"))
    made.submit(toys.pipeline(), run_id="first").wait()
    return made


def test_a_run_reports_its_result(place: Workspace) -> None:
    run = place.run("first")
    result = run.wait(timeout=60)
    assert result.ledger == run.ledger() and result.outputs == run.outputs and list(result.ops) == list(result.ledger)
    status = run.status()
    assert (status.state, status.ended, status.done) == ("done", True, len(toys.STAGES)) and status.error == ""
    assert [found.run_id for found in place.runs()] == ["first"] and place.run().id == "first"
    assert [e["stage"] for e in run.events() if e["event"] == "stage"] == [
        e["stage"] for e in run.events(follow=True) if e["event"] == "stage"
    ]


def test_a_second_run_computes_nothing(place: Workspace) -> None:
    result = place.submit(toys.pipeline(), run_id="again").wait()
    assert set(result.reused.values()) == {True}
    assert {item.state for item in place.diff("first", "again")} == {"same"}
    assert place.runs()[-1].run_id == "again"


def test_what_is_wrong_with_a_run_is_raised_by_wait(place: Workspace) -> None:
    with pytest.raises(RunExistsError, match="--run-id first: this run exists"):
        place.submit(toys.pipeline(), run_id="first").wait()
    run = place.submit(toys.chain(toys.Bad(numbers=tuple(range(40)))), run_id="failed")
    with pytest.raises(CurateError) as raised:
        run.wait()
    assert run.status().state == "failed" and run.status().error == str(raised.value)
    with pytest.raises(CurateError, match="run failed: "):
        place.run("failed").wait()
    early = place.submit(toys.pipeline(), run_id="no/name")
    with pytest.raises(RecipeError):
        early.wait()
    assert early.status().state == "failed" and "no/name" in early.status().error


@pytest.mark.parametrize("ask", [lambda run: run.status(), lambda run: run.stop(), lambda run: run.logs()])
def test_a_run_that_never_was_is_one_line(place: Workspace, ask: Any) -> None:
    with pytest.raises(InputError, match=r"run 'never': not in .*; the latest runs are first"):
        list(ask(place.run("never")) or ())


def test_a_missing_workspace_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(CurateError, match="not a workspace"):
        Workspace(str(tmp_path / "none")).runs()
    assert Workspace(str(tmp_path / "none")).plan(toys.pipeline())
    assert not (tmp_path / "none").exists()


# --- stopping ---------------------------------------------------------------------------------------------------------


def begun(workspace: Path, gate: Gate) -> Run:
    """A run that waits at the gate."""
    changes = {"dear__gate": str(gate.folder)}
    run = Workspace(str(workspace)).submit(toys.pipeline(**changes), run_id="one", options=Options(segment_seconds=0.0))
    gate.wait()
    return run


def test_a_run_is_stopped_from_elsewhere_and_resumes(workspace: Path, gate: Gate) -> None:
    run, elsewhere = begun(workspace, gate), Workspace(str(workspace)).run("one")
    assert elsewhere.status().state == "running"
    elsewhere.stop()
    with pytest.raises(InputError, match=r"run one: .* on .* requested to stop it at .* UTC; it is stopping"):
        elsewhere.stop()
    with pytest.raises(TimeoutError):
        elsewhere.wait(timeout=0.1)
    with pytest.raises(DrainedError, match="run one: stopped"):
        elsewhere.wait(timeout=100)  # although a task waits at the gate all the time
    with pytest.raises(DrainedError, match="the same command resumes from there"):
        run.wait()
    gate.open()
    assert elsewhere.status().state == "stopped"
    with pytest.raises(InputError, match=r"requested to stop it at .*; it is stopped"):
        elsewhere.stop()
    result = Workspace(str(workspace)).submit(toys.pipeline(), run_id="two").wait()
    assert result.ledger["dear"].after == result.ledger["dear"].before


def test_a_run_that_is_done_cannot_be_stopped(place: Workspace) -> None:
    with pytest.raises(InputError, match="run first: already done; only a running run can be stopped"):
        place.run("first").stop()
    assert stop.requested(open_storage(place.url), "first") is None


# --- clocks -----------------------------------------------------------------------------------------------------------


class FarDriver:
    """The heart of a run on another host whose clock is `off` seconds off. It has beaten once."""

    def __init__(self, storage: Storage, run_id: str, off: float) -> None:
        self.storage, self.path, self.off = storage, lease.lease_path(f"runs/{run_id}"), off
        self.owner = lease.owner() | {"host": "far-away"}
        self.beats = 0
        self.beat()

    def beat(self) -> None:
        self.beats += 1
        held = {"output": "runs", "owner": self.owner, "beat": self.beats, "time": time.time() + self.off}
        self.storage.publish_bytes(self.path, json.dumps(held).encode())


@pytest.fixture
def far(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A workspace whose only run has no result; stopped heartbeats are watched only briefly."""
    Workspace(str(workspace)).submit(toys.chain(toys.Brightness()), run_id="far").wait()
    storage = open_storage(str(workspace))
    storage.remove("runs/far/result.json")
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.6)
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.6)
    return storage


@pytest.mark.parametrize("off", [-3600.0, 0.0, 3600.0])
def test_a_beating_lease_is_alive_even_if_clocks_differ(
    far: Storage, off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has beaten again at each look."""
    run, driver, read = Workspace(far.url).run("far"), FarDriver(far, "far", off), lease.read

    def beaten(storage: Storage, path: str) -> dict[str, Any] | None:
        driver.beat()
        return read(storage, path)

    monkeypatch.setattr(lease, "read", beaten)
    assert run.status().state == "running"
    with pytest.raises(TimeoutError):
        run.wait(timeout=1)
    assert driver.beats > 3 and run.status().seconds < 3600 + 600


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
def test_a_silent_lease_is_dead_even_if_clocks_differ(far: Storage, off: float) -> None:
    FarDriver(far, "far", off)
    run = Workspace(far.url).run("far")
    with pytest.raises(
        CurateError, match="run far: its process died; with a new --run-id or none, the same command resumes from there"
    ):
        run.wait(timeout=120)
    assert run.status().state == "killed"
    with pytest.raises(InputError, match="run far: already killed"):
        run.stop()


# --- logs -------------------------------------------------------------------------------------------------------------


def record(second: float, level: str, message: str, **about: Any) -> str:
    return json.dumps({"time": 1e9 + second, "level": level, "message": message} | about) + "\n"


@pytest.fixture
def logged(workspace: Path) -> Run:
    place = Workspace(str(workspace))
    run = place.submit(toys.chain(toys.Brightness()), run_id="one")
    run.wait()
    storage = open_storage(str(workspace))
    storage.remove("runs/one/logs")
    files = {
        "gpu-1-000001": record(1, "INFO", "begins", stage="stage_1") + record(4, "ERROR", "failed", stage="stage_1"),
        "gpu-1-000002": record(5, "INFO", "ends", stage="pool + stage_1"),
        "driver-000001": record(2, "WARNING", "slow", stage="pool") + record(3, "DEBUG", "looks"),
    }
    for name, text in files.items():
        storage.publish_bytes(f"runs/one/logs/{name}.jsonl", text.encode())
    return place.run("one")


@pytest.mark.parametrize(
    ("asked", "messages"),
    [
        ({}, ["begins", "slow", "looks", "failed", "ends"]),
        ({"level": "info"}, ["begins", "slow", "failed", "ends"]),
        ({"level": "warning"}, ["slow", "failed"]),
        ({"stage": "stage_1"}, ["begins", "failed", "ends"]),
        ({"stage": "pool", "level": "warning"}, ["slow"]),
    ],
)
@pytest.mark.parametrize("follow", [False, True])
def test_logs_of_all_workers_come_by_time(
    logged: Run, asked: dict[str, str], messages: list[str], follow: bool
) -> None:
    assert [found["message"] for found in logged.logs(**asked, follow=follow)] == messages


def test_wrong_questions_about_logs_are_one_line(logged: Run) -> None:
    with pytest.raises(InputError, match="--stage none: not a stage of run one; expected one of pool, stage_1"):
        list(logged.logs(stage="none"))
    with pytest.raises(InputError, match="--level loud: expected one of debug, info"):
        list(logged.logs(level="loud"))
