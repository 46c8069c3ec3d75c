"""Streams of a run: what viewers get, when they come early, late, again, or too slowly."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curate.service.problems import NotLoggedInProblem, TooManyProblem, UnavailableProblem
from curate.service.settings import Limits, Settings
from curate.service.watch import reader as reading
from curate.service.watch import tail as tailing
from curate.service.watch.tail import Look, Position, parse
from curate.service.watch.watch import Watch
from tests.service.records import Recorded, done, step

RUNNING = Look("running", "", 1, "r-1", ended=False)
DONE = replace(RUNNING, state="done", ended=True)
Sent = tuple[str, str, dict[str, Any]]


class Row:
    """What the database says, and how often it was queried."""

    def __init__(self) -> None:
        self.now: Look | Exception = RUNNING
        self.asked = 0

    def __call__(self) -> Look:
        self.asked += 1
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


@pytest.fixture
def row() -> Row:
    return Row()


@pytest.fixture
def record(tmp_path: Path) -> Recorded:
    return Recorded(str(tmp_path / "workspace"), "r-1").events({"event": "build", "stage": "pool"}, step("pool", 1))


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr(reading, "FRESH_SECONDS", 0.0)
    made = Watch(Settings(limits=Limits(streams=2)), poll=0.01)
    yield made
    made.close()


def opened(watch: Watch, record: Recorded, row: Row, **options: Any) -> AsyncIterator[bytes]:
    return watch.stream("r", record.storage.url, row, **options)


async def sent(stream: AsyncIterator[bytes], until: Callable[[list[Sent]], bool] = lambda _: False) -> list[Sent]:
    """(name, id, data) of events, until a condition holds or the stream ends."""
    found: list[Sent] = []
    async with asyncio.timeout(20):
        async for chunk in stream:
            for text in chunk.decode().split("\n\n")[:-1]:
                fields = dict(line.split(": ", 1) for line in text.split("\n"))
                found.append((fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])))
            if until(found):
                return found
    return found


def ids(found: list[Sent]) -> list[str]:
    return [id for name, id, _ in found if name == "message"]


def test_the_state_comes_first_then_the_replay_then_what_happens(watch: Watch, record: Recorded, row: Row) -> None:
    async def tour() -> list[Sent]:
        stream = opened(watch, record, row)
        first = await sent(stream, lambda found: ids(found) == ["1:1", "1:2"])
        assert [name for name, _, _ in first] == ["state", "message", "message"]
        assert first[0][2] == {
            "state": "running", "reason": "", "attempt": 1, "attempt_id": "r-1", "ended": False, "alert": "",
        }  # fmt: skip
        assert first[2][2] == {
            "id": "1:2",
            "event": "step",
            "time": 1.7e9,
            "data": {"stage": "pool", "rows": 1, "total": 100},
        }
        record.events(done("pool"))
        await sent(stream, lambda found: ids(found) == ["2:1"])
        record.events({"event": "end"})
        row.now = DONE
        return await sent(stream)

    rest = asyncio.run(tour())
    assert ids(rest) == ["3:1"] and [name for name, _, _ in rest if name != "message"] == ["state", "end"]
    assert rest[-1][2]["state"] == "done"


def test_a_client_that_comes_back_gets_what_it_has_missed(watch: Watch, record: Recorded, row: Row) -> None:
    record.events(step("pool", 2), step("pool", 3))

    async def tour() -> tuple[list[Sent], list[Sent]]:
        new = await sent(opened(watch, record, row, after=Position(1, 1, 2)), lambda found: len(ids(found)) == 2)
        return new, await sent(opened(watch, record, row, after=Position(1, 2, 1)), lambda found: len(ids(found)) == 1)

    first, second = asyncio.run(tour())
    assert (ids(first), ids(second)) == (["2:1", "2:2"], ["2:2"])


def test_the_next_attempt_follows_on_the_same_stream(watch: Watch, record: Recorded, row: Row) -> None:
    async def tour() -> list[Sent]:
        stream = opened(watch, record, row)
        await sent(stream, lambda found: len(ids(found)) == 2)
        row.now = replace(RUNNING, state="queued", attempt=2, attempt_id="r-2", begun=False)
        await sent(stream, lambda found: found[-1][2].get("state") == "queued")
        Recorded(record.storage.url, "r-2").events(step("pool", 7))
        row.now = replace(RUNNING, attempt=2, attempt_id="r-2")
        return await sent(stream, lambda found: bool(ids(found)))

    [found] = ids(asyncio.run(tour()))
    assert found == "1000001:1" and parse(found) == Position(2, 1, 1)


def test_viewers_share_one_look_at_the_row_and_the_log(watch: Watch, record: Recorded, row: Row) -> None:
    async def tour() -> int:
        viewers = [opened(watch, record, row) for _ in range(50)]
        first = await asyncio.gather(*(sent(one, lambda found: len(ids(found)) == 2) for one in viewers))
        assert len({json.dumps(found) for found in first}) == 1
        row.now = DONE
        ends = await asyncio.gather(*map(sent, viewers))
        assert all(found[-1][0] == "end" for found in ends)
        return len(watch._tails)

    assert asyncio.run(tour()) == 1
    assert row.asked < 500


def test_viewers_of_an_ended_run_share_what_was_read(watch: Watch, record: Recorded, row: Row) -> None:
    row.now = DONE

    async def tour() -> None:
        for _ in range(3):
            found = await sent(opened(watch, record, row, ended=True))
            assert [name for name, _, _ in found] == ["state", "message", "message", "end"]

    asyncio.run(tour())
    assert row.asked == 1


def test_a_resumed_run_has_a_new_tail(watch: Watch, record: Recorded, row: Row) -> None:
    row.now = DONE

    async def tour() -> list[Sent]:
        await sent(opened(watch, record, row, ended=True))
        row.now = replace(RUNNING, state="queued", attempt=2, attempt_id="r-2", begun=False)
        return await sent(opened(watch, record, row, ended=False), lambda found: len(found) == 1)

    assert asyncio.run(tour())[0][2]["state"] == "queued"


def test_a_long_replay_is_bounded(watch: Watch, record: Recorded, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RECENT", 10)
    monkeypatch.setattr(tailing, "RECENT", 10)
    for number in range(30):
        record.events(step("pool", number))

    async def tour() -> list[Sent]:
        return await sent(opened(watch, record, row), lambda found: bool(ids(found)))

    found = asyncio.run(tour())
    assert [name for name, _, _ in found[:3]] == ["state", "gap", "message"]
    assert ids(found) == [f"{number}:1" for number in range(22, 32)]


def test_a_slow_client_is_dropped_with_a_last_word(
    watch: Watch, record: Recorded, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailing, "MOST_CHUNKS", 3)

    async def tour() -> tuple[list[Sent], list[Sent]]:
        slow, quick = opened(watch, record, row), opened(watch, record, row)
        last = (await sent(slow, lambda found: len(ids(found)) == 2))[-1:]
        await sent(quick, lambda found: len(ids(found)) == 2)
        for number in range(2, 12):
            record.events(step("pool", number))
            last = await sent(quick, lambda found, n=number: ids(found)[-1:] == [f"{n}:1"])
        return await sent(slow), last

    slow, quick = asyncio.run(tour())
    assert slow[-1][0] == "gap" and "too slow" in slow[-1][2]["reason"]
    assert len(ids(slow)) == 3 and ids(quick) == ["11:1"]


def test_a_stream_outlives_its_token_by_seconds_only(
    watch: Watch, record: Recorded, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailing, "CHECK_SECONDS", 0.0)
    ended = threading.Event()

    def allowed() -> None:
        if ended.is_set():
            raise NotLoggedInProblem("revoked")

    async def tour() -> list[Sent]:
        other = opened(watch, record, row, login="b")
        stream = opened(watch, record, row, login="a", allowed=allowed)
        await sent(stream, lambda found: len(ids(found)) == 2)
        await sent(other, lambda found: len(ids(found)) == 2)
        ended.set()
        rest = await sent(stream)
        record.events(step("pool", 5))
        assert ids(await sent(other, lambda found: bool(ids(found)))) == ["2:1"]
        return rest

    assert asyncio.run(tour()) == []


def test_a_stream_waits_while_the_database_does_not_answer(watch: Watch, record: Recorded, row: Row) -> None:
    row.now = UnavailableProblem("the database is away")

    async def tour() -> list[Sent]:
        stream = opened(watch, record, row)
        task = asyncio.create_task(sent(stream, lambda found: len(ids(found)) == 2))
        while row.asked < 3:
            await asyncio.sleep(0.01)
        row.now = RUNNING
        return await task

    assert [name for name, _, _ in asyncio.run(tour())] == ["state", "message", "message"]


def test_streams_are_counted_by_user(watch: Watch) -> None:
    with watch.counted(1), watch.counted(1), watch.counted(2):
        assert watch.open == 3
        with pytest.raises(TooManyProblem, match="2 event streams"), watch.counted(1):
            pass
    assert watch.open == 0
