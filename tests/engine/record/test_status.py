"""What `curate status` knows about fetches, from the events of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from curate.core.contracts import Fetch
from curate.core.fetches import FETCHED, Code, Fetches, codes_to_json
from curate.core.store import lease
from curate.core.store.storage import Storage, open_storage
from curate.engine.record import events as record_events
from curate.engine.record.events import Events
from curate.engine.record.runs import RunRecord
from curate.engine.record.status import StageStatus, status_of
from curate.engine.run import run
from tests.engine import toys

DNS: Code = ("error", "dns")


class Clock:
    now = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(record_events, "time", made)
    return made


@pytest.fixture
def storage(workspace: Path) -> Storage:
    """A run without a result or events."""
    run(toys.chain(toys.Brightness()), str(workspace), run_id="one")
    found = open_storage(str(workspace))
    for path in ("runs/one/result.json", "runs/one/events"):
        found.remove(path)
    return found


def first_stage(storage: Storage) -> StageStatus:
    with lease.hold(storage, "runs/one", lambda: False):
        return status_of(RunRecord.load(storage, "one")).stages[0]


def summary(done: int, failed: int) -> dict[str, Any]:
    found = Fetches()
    for code in [FETCHED] * done + [DNS] * failed:
        found.count(Fetch("a.org", 2, 0.5, 100), code, 1000.0)
    return found.to_json()


def lane(name: str, codes: dict[Code, int], **more: Any) -> dict[str, Any]:
    rates = {"fetched_per_s": 3.0, "bytes_per_s": 300.0, "rows_per_s": 4.0}
    return {"stage": "pool", "lane": name, "codes": codes_to_json(codes), "rows": 8, "bytes": 900} | rates | more


def test_fetches_of_unfinished_shards_count(storage: Storage, clock: Clock) -> None:
    events = Events(storage, "one")
    events.emit("build", stage="pool", base="pools/toys", path="")
    clock.now += 10
    events.emit("fetches", stage="pool", summary=summary(4, 1))
    events.emit("progress", **lane("cpu", {FETCHED: 6, DNS: 2}, rows=13, lost=5))
    events.emit("progress", **lane("far", {FETCHED: 1}))
    events.emit("step", stage="pool", rows=9, total=40, text="", rows_per_s=2.0, left_seconds=15.5, live=True)
    events.flush()
    stage = first_stage(storage)
    assert (stage.state, stage.rows, stage.total, stage.left_seconds) == ("running", 16, 40, 3.0)
    assert [rate.rows for rate in stage.lanes] == [8, 8]
    found = stage.fetches
    assert found is not None and found.codes == Counter({FETCHED: 7, DNS: 2}) and found.bytes == 1800
    assert (found.seconds, found.samples_per_s, found.bytes_per_s) == (10.0, 0.7, 180.0)
    assert found.rates[-1] == (1010.0, 6.0, 600.0)
    assert found.finished.tries == 10 and list(found.finished.failing()) == ["a.org"]
    events.emit("step", stage="pool", rows=40, total=40, text="", live=True, ended=True)
    events.emit("progress", **lane("cpu", {FETCHED: 6}, rows=80))  # of the index of keys
    events.flush()
    stage = first_stage(storage)
    assert (stage.rows, stage.left_seconds, stage.lanes) == (40, None, ())


def test_time_left_is_of_a_stage_and_by_its_shown_rate(storage: Storage, clock: Clock) -> None:
    """Not that of the pass: its stages have gone over different numbers of rows."""
    pipeline, rates = toys.chain(toys.Brightness()), {"rows_per_s": 4.0, "bytes_per_s": 0.0}
    events, [first, second, *_] = Events(storage, "one"), list(pipeline.nodes)
    events.emit("step", stage=f"{first} + {second}", rows=10, total=40, text="", rows_per_s=0.75, left_seconds=40.0)
    events.emit("progress", stage=first, lane="cpu", rows=30, **rates)
    events.emit("progress", stage=second, lane="cpu", rows=12, **rates)
    events.flush()
    with lease.hold(storage, "runs/one", lambda: False):
        one, two = status_of(RunRecord.load(storage, "one")).stages[:2]
    assert (one.rows, one.total, one.left_seconds) == (30, 40, 2.5)
    assert (two.rows, two.total, two.left_seconds) == (12, 40, 7.0)
    events.emit("progress", stage=second, lane="cpu", rows=12, **rates | {"rows_per_s": 0.0})
    events.flush()
    with lease.hold(storage, "runs/one", lambda: False):
        assert status_of(RunRecord.load(storage, "one")).stages[1].left_seconds is None


def test_a_source_that_has_ended_shows_its_last_summary(storage: Storage, clock: Clock) -> None:
    """Lanes may have counted fetches twice, of workers that died, and they report the index of keys later."""
    events = Events(storage, "one")
    events.emit("build", stage="pool", base="pools/toys", path="")
    clock.now += 20
    events.emit("progress", **lane("cpu", {FETCHED: 60}))
    events.emit("fetches", stage="pool", summary=summary(10, 0))
    clock.now += 100
    events.emit("progress", **lane("cpu", {FETCHED: 60}))
    events.emit("stage", stage="pool", base="pools/toys/versions/x", ledger={}, counts={}, reused=False)
    events.flush()
    stage = first_stage(storage)
    assert stage.state == "done" and stage.fetches is not None
    assert (stage.fetches.codes, stage.fetches.seconds) == (Counter({FETCHED: 10}), 20.0)


def test_a_stage_that_fetches_nothing(storage: Storage, clock: Clock) -> None:
    events = Events(storage, "one")
    events.emit("build", stage="pool", base="pools/toys", path="")
    events.emit("progress", stage="pool", lane="cpu", rows=8, rows_per_s=4.0, bytes_per_s=1e6, busy=0.9)
    events.flush()
    assert first_stage(storage).fetches is None


def test_summaries_are_thinned(storage: Storage) -> None:
    events = Events(storage, "one")
    for count in range(5):
        events.emit("fetches", stage="pool", summary=summary(count, 0))
    events.flush()
    assert len(record_events.read_events(storage, "one")) == 1
