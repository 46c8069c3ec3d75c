"""`curate stop --kill`: the process of a run ends at once, and the run resumes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.api import Workspace
from curate.core.errors import RESUMES, InputError
from curate.core.store.lease import lease_path
from curate.core.store.storage import open_storage, open_workspace
from curate.engine import killing
from tests.e2e.commands import curate
from tests.engine.forks import Drivers
from tests.engine.gates import Gate
from tests.engine.workers.tasks import log_lines

pytestmark = pytest.mark.timeout(100)
SECONDS = 2.0 + killing.FLUSH_SECONDS
"""A driver ends within this time, on a busy machine within ten times as long."""


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with Drivers() as made:
        yield made


def test_a_killed_run_ends_at_once_and_resumes(workspace: Path, gate: Gate, drivers: Drivers) -> None:
    drivers.start(workspace, run_id="one", changes={"dear__gate": str(gate.folder)})
    gate.wait()
    place, began = Workspace(str(workspace)), time.monotonic()
    said = curate("stop", "one", "--kill", "-w", workspace)
    assert said.out == f"run one: kill requested\nrun one: killed; {RESUMES}\n"
    assert drivers.end()["signal"] == signal.SIGKILL and time.monotonic() - began < 10 * SECONDS
    assert not open_storage(str(workspace)).exists(
        lease_path("runs/one")
    )  # no other host has to wait for its heartbeat
    assert place.attempt("one").state == "open" and place.summary("one").state == "killed"
    assert any("run one: killed, as" in line["message"] for line in log_lines(workspace / "runs/one/logs"))
    with pytest.raises(InputError, match="run one: already killed; only a running run can be killed"):
        place.run("one").kill()
    assert drivers.run(workspace, run_id="two")["error"] is None
    result = place.run("two").wait(timeout=60)
    assert result.reused["pool"] and not result.reused["dataset"]


@pytest.mark.long
def test_progress_after_a_kill_counts_what_was_done_before(workspace: Path, gate: Gate, drivers: Drivers) -> None:
    """Killed in the third shard of four, of 10 rows each; then watched when the first batch of 4 has been computed."""
    order: dict[str, Any] = {"changes": {"dear__gate": str(gate.folder)}, "options": {"task_rows": 10}}
    try:
        drivers.start(workspace, run_id="one", **order)
        for _ in range(3 + 3):
            gate.let_one_pass()
        gate.wait()
        drivers.kill()
        drivers.start(workspace, run_id="two", **order)
        gate.let_one_pass()
        run = Workspace(str(workspace)).run("two")
        seen = (event["rows"] for event in run.events(follow=True) if event.get("lane") and event["stage"] == "parity")
        assert next(rows for rows in seen if rows > 20) == 24
        now = {stage.stage: stage for stage in run.status().stages}
    finally:
        drivers.kill()
    assert now["bright"].rows >= now["light"].rows >= now["dear"].rows == now["parity"].rows == 24
    for stage in (now[name] for name in ("bright", "light", "dear", "parity")):
        [lane] = stage.lanes
        assert stage.total == 40 and 0 < lane.rows_per_s < 20  # found rows took no time: they are in no rate
        assert stage.left_seconds == pytest.approx((40 - stage.rows) / lane.rows_per_s)


def test_a_run_that_is_to_be_killed_never_begins(workspace: Path, drivers: Drivers) -> None:
    open_workspace(str(workspace))
    place = Workspace(str(workspace))
    assert place.request_kill("one", "somebody") and not place.request_kill("one")
    drivers.start(workspace, run_id="one")
    assert drivers.end()["signal"] == signal.SIGKILL
    assert place.attempt("one").state == "none" and not place.has("one")
    assert open_storage(str(workspace)).read_json("runs/one/kill.json")["user"] == "somebody"


def test_slow_storage_delays_the_end_by_a_second_at_most(tmp_path: Path) -> None:
    storage = open_workspace(str(tmp_path / "workspace"))
    Workspace(storage.url).request_kill("one")
    pid = os.fork()
    if not pid:
        killing.end_if_requested(storage, "one", lambda: time.sleep(600))
        os._exit(0)
    began = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert time.monotonic() - began < 10 * SECONDS
