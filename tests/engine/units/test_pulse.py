"""Progress inside a portion: rows count once, as soon as they are known."""

from __future__ import annotations

from typing import Any

import pytest

from curate.engine.tasks.beat import Beat, beating
from curate.engine.units.source import pulse
from curate.engine.units.source.pulse import BEAT_ROWS, Pulse


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(pulse.time, "monotonic", lambda: now[0])
    return now


def told(beat: Beat) -> Any:
    """Stats since the last call."""
    return beat.snapshot()["stats"].get("pool")


def test_rows_received_early_are_not_counted_again_when_they_are_yielded(clock: list[float]) -> None:
    with beating(Beat()) as mine:
        made = Pulse("pool")
        for _ in range(BEAT_ROWS // 2):
            made.received(2, "done", "done", 100)
        first = told(mine)
        assert (first.rows, first.bytes) == (BEAT_ROWS, 100 * BEAT_ROWS // 2)
        assert first.codes == {("done", "done"): BEAT_ROWS // 2}
        for _ in range(BEAT_ROWS):
            made.yielded(50)
        made.tell()
        last = told(mine)
        assert (last.rows, last.bytes, last.codes) == (0, 0, {})
        made.yielded(0)  # a row that was not fetched
        made.tell()
        assert told(mine).rows == 1


def test_a_source_that_receives_nothing_early(clock: list[float]) -> None:
    with beating(Beat()) as mine:
        made = Pulse("pool")
        for _ in range(BEAT_ROWS - 1):
            made.yielded(10)
        assert told(mine) is None
        made.yielded(10)
        assert (found := told(mine)).rows == BEAT_ROWS and found.bytes == 10 * BEAT_ROWS and not found.codes


def test_a_slow_source_tells_every_second(clock: list[float]) -> None:
    with beating(Beat()) as mine:
        made = Pulse("pool")
        made.received(1, "error", "dns", 0)
        assert told(mine) is None
        clock[0] += 1.5
        made.received(1, "error", "dns", 0)
        found = told(mine)
        assert (found.rows, found.seconds, found.codes) == (2, 1.5, {("error", "dns"): 2})


def test_a_source_that_asks_whether_to_stop_does_not_hang(clock: list[float]) -> None:
    with beating(Beat()) as mine:
        made = Pulse("pool")
        clock[0] += 5000.0
        assert not made.stopped() and mine.moved == clock[0]
        mine.stopping = True
        assert made.stopped()
