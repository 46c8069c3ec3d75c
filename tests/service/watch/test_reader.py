"""Readers of attempts, over workspaces whose reads are counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from curate.api import Workspace
from curate.core.store.storage import Storage
from curate.service.problems import UnavailableProblem
from curate.service.watch import reader as reading
from curate.service.watch.reader import Known, Reader, thinned
from tests.service.records import Recorded, done, progress, step


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "workspace")


def begun(url: str) -> Recorded:
    return Recorded(url, "r-1").events({"event": "build", "stage": "pool"}, step("pool", 10))


def known(reader: Reader) -> Known:
    found = reader.known(alive=True)
    assert found is not None
    return found


def test_an_attempt_that_has_not_begun_is_not_known(url: str, clock: Clock) -> None:
    Recorded(url, "other-1")
    reader = Reader(Workspace(url), "r-1", clock)
    assert reader.known() is None
    begun(url)
    clock.now += 3
    assert known(reader).status.stages[0].state == "running"


def test_the_status_follows_the_events(url: str, clock: Clock) -> None:
    record, reader = begun(url), Reader(Workspace(url), "r-1", clock)
    assert [(stage.stage, stage.state, stage.rows) for stage in known(reader).status.stages] == [
        ("pool", "running", 10), ("facts", "waiting", 0),
    ]  # fmt: skip
    assert known(reader).graph["facts"] == (["pool"], {})
    record.events(done("pool"), progress("facts", 4))
    assert known(reader).status.stages[0].state == "running", "it is fresh for two seconds"
    clock.now += 3
    found = known(reader)
    assert [stage.state for stage in found.status.stages] == ["done", "running"]
    assert (found.ledger["pool"].before, found.ledger["pool"].after, found.outputs["pool"]) == (10, 8, "facts/pool/f")


def test_segments_are_read_once(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    record, reader = begun(url), Reader(Workspace(url), "r-1", clock)
    reads: Counter[str] = Counter()
    read = Storage.read

    def counted(self: Storage, relative: str) -> bytes:
        reads[relative.partition("events/")[2]] += 1
        return read(self, relative)

    monkeypatch.setattr(Storage, "read", counted)
    for number in range(5):
        clock.now += 3
        record.events(step("pool", 10 + number))
        known(reader)
        reader.news(None)
    assert reads["000001.jsonl"] == 1 and reads["000004.jsonl"] <= 2
    clock.now += 3
    before = sum(reads.values())
    reader.news("6:1")
    assert sum(reads.values()) - before == 1, "one operation if nothing is new"


def test_a_settled_attempt_is_read_once(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(url).result("it broke")
    reader = Reader(Workspace(url), "r-1", clock)
    assert known(reader).status.state == "failed"
    monkeypatch.setattr(Storage, "read", None)
    clock.now += 1e6
    assert known(reader).status.error == "it broke"


def test_a_driver_that_only_seemed_dead_is_read_again(url: str, clock: Clock) -> None:
    begun(url)
    reader = Reader(Workspace(url), "r-1", clock)
    found = reader.known(alive=False)
    assert found is not None and found.status.state == "killed" and not found.settled
    clock.now += 3
    assert known(reader).status.state == "running"


def test_a_viewer_of_an_ended_attempt_waits_for_its_end(url: str, clock: Clock) -> None:
    record, reader = begun(url), Reader(Workspace(url), "r-1", clock)
    known(reader)
    record.result(outputs={"pool": {"base": "facts/pool/f"}}, ledger={})
    clock.now += 3
    reader._reading.acquire()  # another viewer reads
    assert not known(reader).status.ended, "what is known, at once"
    Timer(0.2, reader._reading.release).start()
    found = reader.known(alive=False)
    assert found is not None and (found.status.state, found.outputs) == ("done", {"pool": "facts/pool/f"})


def test_news_come_in_order_and_say_what_was_missed(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RECENT", 3)
    record, reader = begun(url), Reader(Workspace(url), "r-1", clock)
    assert [id for id, _ in reader.news(None).events] == ["1:1", "1:2"]
    record.events(step("pool", 20), step("pool", 30))
    clock.now += 2
    news = reader.news("1:2")
    assert [(id, event["rows"]) for id, event in news.events] == [("2:1", 20), ("2:2", 30)]
    assert not news.missed
    assert reader.news("1:1").events[0][0] == "1:2"
    assert reader.news(None).missed and [id for id, _ in reader.news(None).events] == ["1:2", "2:1", "2:2"]
    assert reader.news("0:1").missed


def test_a_long_log_is_read_by_ranges(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONG", 20)
    record = Recorded(url, "r-1")
    for number in range(40):
        record.events(step("pool", 2 * number), step("pool", 2 * number + 1))
    reader = Reader(Workspace(url), "r-1", clock)
    assert [event["rows"] for _, event in reader.news(None).events] == list(range(80))
    record.events(step("pool", 80))
    clock.now += 3
    assert [event["rows"] for _, event in reader.news("40:2").events] == [80]


def test_without_storage_the_last_status_is_shown(url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(url)
    reader, other = Reader(Workspace(url), "r-1", clock), Reader(Workspace(url), "r-1", clock)
    assert known(reader).status.stages

    def broken(*_: Any) -> bytes:
        raise OSError("storage is gone\nfor now")

    monkeypatch.setattr(Storage, "read", broken)
    clock.now += 3
    assert known(reader).status.stages
    with pytest.raises(UnavailableProblem, match=r"run r-1: its workspace does not answer \(.*storage is gone for now"):
        other.known()
    with pytest.raises(UnavailableProblem):
        other.news(None)


def test_repeated_events_are_thinned() -> None:
    events = [dict(progress("facts", number)) for number in range(100)] + [dict(done("facts"))]
    kept = thinned([dict(done("pool")), *events])
    assert [event.get("rows") for event in kept[1:-1]] == list(range(80, 100))
    assert (kept[0]["event"], kept[-1]["event"]) == ("stage", "stage")
