"""What the workers of a run occupy, which is what a cluster pays."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from curate.api import Allocated
from curate.core.contracts import Resources
from curate.core.store.storage import open_storage
from curate.engine.record.events import read_events
from curate.engine.run import run
from curate.engine.workers import allocation, dispatch
from curate.engine.workers.allocation import Allocation
from curate.engine.workers.scheduler import Scheduler
from tests.engine import toys
from tests.engine.workers.tasks import GPU, SECONDS, Doors


def test_workers_count_from_their_start_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(allocation.time, "monotonic", lambda: now)
    held = Allocation()
    held.begin("a", Resources(cpus=2, gpus=1))
    now += 10
    held.begin("b", Resources(cpus=1, gpus=4))
    now += 5
    assert held.so_far() == Allocated(15 + 20, 30 + 5)
    held.end("a")
    now += 1
    assert held.so_far() == Allocated(15 + 24, 30 + 6)
    held.end("b")
    now += 100
    assert held.so_far() == Allocated(39, 36) == Allocated.from_json(held.so_far().to_json())


def test_a_gpu_counts_also_while_its_worker_is_idle(local: Scheduler) -> None:
    doors = Doors()
    call = local.open(doors.pass_through, GPU)
    call.put(1)
    call.close()
    doors.arrived.get(timeout=SECONDS)
    first = local.allocated()
    doors.open.set()
    assert [outcome.value for outcome in call] == [1]
    time.sleep(0.01)
    assert local.allocated().gpu_seconds > first.gpu_seconds
    local.close()
    assert local.allocated() == local.allocated()


def test_a_run_records_it(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "PROGRESS_SECONDS", 0.0)
    run(toys.pipeline(), str(workspace), run_id="one")
    storage = open_storage(str(workspace))
    live = [event for event in read_events(storage, "one") if event["event"] == "allocated"]
    found = Allocated.from_json(storage.read_json("runs/one/result.json")["allocated"])
    assert live and 0 < live[-1]["cpu_seconds"] <= found.cpu_seconds < 600 and found.gpu_seconds == 0
