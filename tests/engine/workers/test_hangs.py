"""Hangs: time limits of batches, steps and setups, and tasks that exceed them."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from curate.core.contracts import Stage
from curate.core.store.storage import open_storage
from curate.engine.backends import CallOptions
from curate.engine.backends.local import LocalBackend
from curate.engine.tasks import beat
from curate.engine.tasks import running as tasks
from curate.engine.tasks.beat import BatchStats
from curate.engine.tasks.job import ATTEMPTS
from curate.engine.tasks.stages import set_up
from curate.engine.workers import dispatch, meter
from curate.engine.workers.meter import Meter
from curate.engine.workers.scheduler import Scheduler
from tests.engine.workers.tasks import CPU, GPU, SECONDS, Doors


def test_a_unit_that_hangs_is_ended_and_named(quick: Scheduler, doors: Doors) -> None:
    def task(value: int) -> int:
        mine = beat.current()
        mine.doing("before", [0])
        mine.done("before", 1, 0.0)
        mine.doing("caption", [4, 5, 6])
        if value == 1:
            doors.open.wait(SECONDS)
        mine.done("caption", 3, 0.0)
        return value

    outcomes = {outcome.index: outcome for outcome in quick.map(task, range(3), CPU)}
    assert [outcomes[n].value for n in (0, 2)] == [0, 2]
    hung = outcomes[1]
    assert hung.error is not None and hung.hung is not None and not doors.open.is_set()
    assert hung.error.startswith("hung: caption finished no batch for ") and "(rows 4-6 of its unit)" in hung.error
    assert hung.hung.stage == "caption" and hung.hung.rows == (4, 5, 6)


def test_a_task_without_batches_that_hangs_is_tried_again(quick: Scheduler, doors: Doors) -> None:
    tries = Counter[int]()

    def task(value: int) -> int:
        tries[value] += 1
        if value == 2 or (value == 1 and tries[1] == 1):
            doors.open.wait(SECONDS)
        return value

    outcomes = {outcome.index: outcome for outcome in quick.map(task, range(4), CPU, label="merge")}
    assert [outcomes[n].value for n in (0, 1, 3)] == [0, 1, 3]
    assert str(outcomes[2].error).startswith("hung: merge finished no batch for ")
    assert tries == {0: 1, 1: 2, 2: ATTEMPTS, 3: 1}


def test_batches_that_end_do_not_count_as_a_hang(quick: Scheduler) -> None:
    def task(value: int) -> int:
        for _ in range(8):
            beat.current().doing("slow", [0])
            time.sleep(0.25)
            beat.current().done("slow", 1, 0.25)
        return value

    assert [outcome.value for outcome in quick.map(task, [7], CPU)] == [7]


def test_a_task_that_hangs_in_its_turn_releases_it(quick: Scheduler, doors: Doors) -> None:
    def task(value: int) -> int:
        mine = beat.current()
        with mine.turn:
            mine.doing("embed", [value])
            if value == 0:
                doors.open.wait(SECONDS)
            mine.done("embed", 1, 0.0)
        return value

    outcomes = {outcome.index: outcome for outcome in quick.map(task, range(4), GPU)}
    assert outcomes[0].hung is not None and [outcomes[n].value for n in (1, 2, 3)] == [1, 2, 3]


def test_an_isolated_process_that_hangs_is_killed(
    quick: Scheduler, doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It relays its beat, so that its step learns where it hung."""
    monkeypatch.setattr(tasks, "START_METHOD", "fork")
    monkeypatch.setattr(tasks, "RELAY_SECONDS", 0.05)

    def task(value: int) -> int:
        beat.current().doing("crawl", [value])
        (tmp_path / str(value)).write_text(str(os.getpid()))
        time.sleep(SECONDS * value)
        return value

    quick.meter.deadline = 5.0
    outcomes = {o.index: o for o in quick.map(task, range(2), CPU, CallOptions(isolated=True))}
    assert outcomes[0].value == 0 and outcomes[1].hung is not None and outcomes[1].hung.rows == (1,)
    pid = int((tmp_path / "1").read_text())
    until = time.monotonic() + SECONDS
    while psutil.pid_exists(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not psutil.pid_exists(pid)


def test_how_long_a_batch_may_take() -> None:
    meter = Meter()
    assert meter.limit("caption") == 3600
    meter.add("cpu", {"caption": BatchStats(batches=4, recent=[100.0] * 4)})
    assert meter.limit("caption") == 3600
    meter.add("cpu", {"caption": BatchStats(batches=1, recent=[100.0])})
    assert meter.limit("caption") == 1000
    meter.add("cpu", {"merge": BatchStats(batches=5, recent=[2.0] * 5)})
    assert meter.limit("merge") == 600 and meter.limit("other") == 3600
    assert Meter(deadline=7).limit("caption") == 7


def test_a_step_that_is_not_one_of_many_batches_may_take_an_hour() -> None:
    meter = Meter()
    meter.add("cpu", {"merge": BatchStats(batches=5, recent=[2.0] * 5)})
    assert meter.limit("merge", beat.LONG) == 3600
    meter.add("cpu", {"merge": BatchStats(batches=20, recent=[1000.0] * 20)})
    assert meter.limit("merge", beat.LONG) == 10_000
    assert meter.silent_limit([]) == meter.silent_limit([2.0] * 5) == 3600 and meter.silent_limit([500.0]) == 5000
    quick = Meter(deadline=7)
    assert quick.limit("merge", beat.LONG) == quick.silent_limit([500.0]) == 7
    assert quick.limit("clip (setting up)", beat.SET_UP) == 3600


@pytest.mark.parametrize("speaks", [False, True])
def test_short_tasks_do_not_make_a_long_one_hang(monkeypatch: pytest.MonkeyPatch, speaks: bool) -> None:
    """Ten short steps of a fit, in the same call or in another, with or without reported batches."""
    monkeypatch.setattr(meter, "LEAST_SECONDS", 0.1)
    monkeypatch.setattr(dispatch, "SNAPSHOT_SECONDS", 0.1)
    tries = Counter[float]()

    def step(seconds: float) -> None:
        tries[seconds] += 1
        if speaks:
            beat.current().doing("fit")
        time.sleep(seconds)
        if speaks:
            beat.current().done("fit", 1, seconds)

    made = Scheduler(LocalBackend())
    for payloads in ([0.0] * 5, [0.0] * 5 + [1.0]):
        assert [outcome.error for outcome in made.map(step, payloads, CPU, label="fit")] == [None] * len(payloads)
    made.close()
    assert tries == {0.0: 10, 1.0: 1}


def test_a_setup_does_not_count_as_a_batch(quick: Scheduler, tmp_path: Path) -> None:
    """A setup, and the wait for it, may exceed the deadline; the beat then returns to its previous state."""

    class Slow(Stage):
        op: ClassVar[str] = "test.slow"

        def setup(self, artifacts: Any) -> None:
            began.set()
            snapshots.append(beat.current().snapshot())
            time.sleep(2.0)

    began, snapshots, storage = threading.Event(), list[Any](), open_storage(str(tmp_path))

    def task(value: int) -> int:
        beat.current().doing("embed", [value])
        set_up("slow", Slow(), {}, storage)
        snapshots.append(beat.current().snapshot())
        return value

    outcomes = list(quick.map(task, [0, 1], GPU))
    assert sorted(outcome.value for outcome in outcomes) == [0, 1]
    setting_up, *after = snapshots
    assert setting_up["stage"] == "test.slow (setting up)" and setting_up["pace"] == beat.SET_UP
    assert [(one["stage"], one["pace"], one["idle"] < 0.5) for one in after] == [("embed", beat.BATCH, True)] * 2


def test_progress_reports_rows_and_rates() -> None:
    meter = Meter()
    meter.units["gpu"] = 2
    meter.add("gpu", {"embed": BatchStats(2, 64, 1000, 1.0, [0.5, 0.5])})
    [rate] = meter.changed()
    assert rate["stage"] == "embed" and rate["lane"] == "gpu" and rate["rows"] == 64
    assert rate["rows_per_s"] == pytest.approx(64, rel=0.2) and 0.3 < rate["busy"] <= 0.5
    assert meter.changed() == []
