"""Workers on Ray: processes that die, hang and log, stopping, and runs that share a cluster."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.core.contracts import Resources
from curate.core.store.storage import open_storage
from curate.engine.backends import CallOptions, Snapshots, WorkerUp
from curate.engine.tasks import beat
from curate.engine.tasks.job import ATTEMPTS, Outcome
from curate.engine.workers.calls import END
from curate.engine.workers.lanes import Budget
from curate.engine.workers.scheduler import Scheduler
from tests.engine.workers.tasks import CPU, REMOTE, SECONDS, log_lines


@pytest.fixture
def over_ray(on_ray: Any) -> Iterator[Scheduler]:
    made = Scheduler(on_ray)
    yield made
    made.close()


def test_a_worker_may_get_its_end_before_it_is_up(on_ray: Any) -> None:
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    worker = on_ray.start("cpu", Resources(cpus=0), 1, told.put)  # no wait for what other tests hold
    worker.wind_down(None)
    worker.request_snapshots()
    heard = [told.get(timeout=SECONDS), told.get(timeout=SECONDS)]
    worker.kill()
    assert {type(one) for one in heard} == {Snapshots, WorkerUp}


def dies(value: int) -> int:
    if value == 3:
        os._exit(1)
    return os.getpid() if value < 0 else value


def sleeps(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def test_a_worker_that_dies_loses_one_payload(over_ray: Scheduler) -> None:
    outcomes = {outcome.index: outcome for outcome in over_ray.map(dies, range(6), CPU)}
    assert outcomes[3] == Outcome(3, error="the worker process died", crashed=True)
    assert [outcomes[n].value for n in (0, 1, 2, 4, 5)] == [0, 1, 2, 4, 5]


def pid_or_death(value: tuple[int, str]) -> int:
    number, mark = value
    if mark and not os.path.exists(mark):
        Path(mark).touch()
        os._exit(1)
    return number


def test_the_last_worker_takes_over_payloads_of_dead_workers(over_ray: Scheduler, tmp_path: Path) -> None:
    """The last payload of a sticky call has lost its worker, and one worker is enough for one payload."""
    began = time.monotonic()
    for call in range(3):
        payloads = [(number, str(tmp_path / str(call)) if number == 3 else "") for number in range(4)]
        outcomes = over_ray.map(pid_or_death, payloads, CPU, CallOptions(sticky=True, window=4))
        assert sorted(outcome.value for outcome in outcomes) == [0, 1, 2, 3]
    assert time.monotonic() - began < 4 * SECONDS


def test_lanes_of_ray_are_separate_processes(over_ray: Scheduler) -> None:
    calls = [over_ray.open(sleeps, lane) for lane in (CPU, REMOTE)]
    for call in calls:
        for _ in range(4):
            call.put(0.1)
        call.close()
    here, there = ({outcome.value for outcome in call} for call in calls)
    assert here and there and not here & there


def test_a_hang_on_ray_costs_its_worker(on_ray: Any) -> None:
    made = Scheduler(on_ray)
    [before] = [outcome.value for outcome in made.map(sleeps, [0.0], CPU)]
    made.meter.deadline = 5.0
    outcomes = {outcome.index: outcome for outcome in made.map(hangs, [0, 1, 0], CPU)}
    made.close()
    assert outcomes[1].hung is not None and str(outcomes[1].error).startswith("hung: crawl finished no batch for ")
    assert outcomes[0].value == outcomes[2].value == 0 and before


def hangs(value: int) -> int:
    beat.current().doing("crawl", [1])
    time.sleep(SECONDS * value)
    return value


def raises(value: int) -> None:
    raise ValueError(f"no {value}")


def test_what_workers_on_ray_say_is_in_the_log(on_ray: Any, tmp_path: Path) -> None:
    made = Scheduler(on_ray, storage=open_storage(str(tmp_path)), run_id="one")
    assert [outcome.error for outcome in made.map(raises, [5], CPU, label="merge")] == ["ValueError: no 5"]
    made.close()
    lines = log_lines(tmp_path / "runs/one/logs", "cpu-")
    assert [line["unit"] for line in lines] == ["merge 0"] * ATTEMPTS
    assert all("in raises" in line["traceback"] and line["worker"].startswith("cpu-") for line in lines)


def test_stop_on_ray_is_quick(on_ray: Any) -> None:
    made = Scheduler(on_ray)
    list(made.map(sleeps, [0.0], CPU))
    call = made.open(sleeps, CPU)
    for _ in range(4):
        call.put(10.0 * SECONDS)
    call.close()
    began = time.monotonic()
    made.stop()
    assert [outcome for outcome in call if outcome.error is None] == []
    made.close()
    assert time.monotonic() - began < 3 * SECONDS


def test_a_run_with_a_budget_leaves_the_rest_of_the_cluster(on_ray: Any) -> None:
    """It always has work; another run has the other CPU meanwhile."""
    one, two = Scheduler(on_ray, budget=Budget(cpus=1)), Scheduler(on_ray)
    busy = one.open(sleeps, CPU)
    for _ in range(4):
        busy.put(0.2)
    assert next(iter(busy)).value
    stop = threading.Event()

    def feed() -> None:
        for outcome in busy:
            if stop.is_set():
                busy.close()
            elif outcome is not END:
                busy.put(0.2)

    feeding = threading.Thread(target=feed)
    feeding.start()
    assert [outcome.error for outcome in two.map(sleeps, [0.1] * 4, CPU)] == [None] * 4
    stop.set()
    feeding.join(SECONDS)
    one.close()
    two.close()
