"""What the meter adds up: rows of lost tasks, and fetches by code."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from curate.core.fetches import FETCHED
from curate.engine.tasks import beat
from curate.engine.tasks.beat import BatchStats
from curate.engine.workers import meter as meter_module
from curate.engine.workers.meter import Meter
from curate.engine.workers.scheduler import Scheduler
from tests.engine.workers.tasks import CPU, SECONDS, Doors

DNS = ("error", "dns")


def test_rows_of_a_lost_task_are_counted_apart() -> None:
    meter = Meter()
    stats = {"pool": BatchStats(1, 10, 1000, 1.0, [1.0], Counter({FETCHED: 6, DNS: 4}))}
    meter.add("cpu", stats)
    meter.add("cpu", stats)
    meter.lose("cpu", stats)
    [entry] = meter.changed()
    assert (entry["rows"], entry["lost"], entry["bytes"]) == (20, 10, 2000)
    assert entry["codes"] == [["done", "done", 6], ["error", "dns", 4]]
    assert entry["fetched_per_s"] == 12.0, "the rate is what workers did, even if it was lost"


def test_the_rate_of_a_stage_that_waits_falls_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that drips holds the stage up, which then finishes no batch."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(meter_module, "time", clock)
    meter = Meter()
    meter.add("remote", {"pool": BatchStats(1, 60, 1000, 1.0, [1.0], Counter({FETCHED: 60}))})
    rates = []
    for _ in range(5):
        clock.now += 10.0
        rates += [entry["fetched_per_s"] for entry in meter.changed()]
    assert rates == [5.5, 2.9, 2.0, 0.0], "over the last half minute, or since the stage began, 1 s before"


def test_a_stage_that_fetches_nothing_has_no_codes() -> None:
    meter = Meter()
    meter.add("cpu", {"inspect": BatchStats(1, 10, 0, 1.0, [1.0])})
    assert not {"codes", "lost", "fetched_per_s"} & meter.changed()[0].keys()


def test_a_task_that_is_tried_again_loses_its_rows(quick: Scheduler, doors: Doors) -> None:
    tries = []

    def task(value: int) -> int:
        tries.append(value)
        beat.current().done("pool", 5, 0.1)
        if len(tries) == 1:
            doors.open.wait(SECONDS)
        return value

    assert [outcome.value for outcome in quick.map(task, [7], CPU, label="pool")] == [7]
    [entry] = quick.meter.snapshot()
    assert tries == [7, 7] and (entry["rows"], entry["lost"]) == (10, 5)
