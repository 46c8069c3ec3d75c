"""Pages of a run's events and logs: each is read once, and nothing is missed or repeated."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from curate.core.errors import InputError
from curate.core.store.storage import Storage, open_storage
from curate.engine.record.events import events_page, last_segment, segment
from curate.engine.record.reading_logs import LogPage, log_page, log_tail


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


def events(storage: Storage, number: int, *names: str) -> None:
    text = "".join(json.dumps({"event": name, "time": float(number)}) + "\n" for name in names)
    storage.publish_bytes(segment("runs/one/events", number), text.encode())


def names_of(storage: Storage, limit: int) -> list[str]:
    """All events, page by page."""
    found, after = list[str](), ""
    while (page := events_page(storage, "one", after, limit)).events:
        assert len(page.events) <= limit
        found += [event["event"] for _, event in page.events]
        after = page.next
    return found


def test_pages_of_events(storage: Storage) -> None:
    assert events_page(storage, "one").events == () and last_segment(storage, "one") == 0
    events(storage, 1, "a", "b")
    events(storage, 2, "c")
    first = events_page(storage, "one")
    assert [(place, event["event"]) for place, event in first.events] == [("1:1", "a"), ("1:2", "b"), ("2:1", "c")]
    assert first.next == "3:0" and events_page(storage, "one", "3:0").events == ()
    events(storage, 3, "d")
    assert [place for place, _ in events_page(storage, "one", first.next).events] == ["3:1"]
    assert [place for place, _ in events_page(storage, "one", "1:2").events] == ["2:1", "3:1"]
    assert [place for place, _ in events_page(storage, "one", "1:9").events] == ["2:1", "3:1"]
    assert [names_of(storage, limit) for limit in (1, 2, 3, 9)] == [["a", "b", "c", "d"]] * 4
    assert last_segment(storage, "one") == 3


def test_nothing_new_costs_one_operation(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    events(storage, 1, "a")
    after, asked = events_page(storage, "one").next, list[str]()
    read = Storage.read
    monkeypatch.setattr(Storage, "read", lambda self, path: (asked.append(path), read(self, path))[1])
    assert events_page(storage, "one", after).events == () and len(asked) == 1


@pytest.mark.parametrize("after", ["x", "1", "1:", "-1:0", "1:1:1", "1:1e3", "../../run.json", "9" * 40 + ":1", "١:٢"])
def test_invalid_places(storage: Storage, after: str) -> None:
    with pytest.raises(InputError, match="expected SEGMENT:LINE, such as 12:3"):
        events_page(storage, "one", after)


# --- logs -------------------------------------------------------------------------------------------------------------


def log(storage: Storage, worker: str, number: int, age: float, *lines: tuple[float, str]) -> None:
    """A segment that was published `age` seconds ago."""
    about = {"stage": "embed + size", "worker": worker}
    text = "".join(json.dumps(about | {"time": then, "level": level, "message": level}) + "\n" for then, level in lines)
    path = f"runs/one/logs/{worker}-{number:06d}.jsonl"
    storage.publish_bytes(path, text.encode())
    then = time.time() - age
    os.utime(storage.path(path), (then, then))


def times(page: LogPage) -> list[float]:
    return [record["time"] for record in page.records]


def all_times(storage: Storage, limit: int, **chosen: Any) -> list[float]:
    found, after = list[float](), ""
    while True:
        page = log_page(storage, "one", after, limit, **chosen)
        found += times(page)
        after = page.next
        if not page.more:
            return found


def test_pages_of_logs(storage: Storage) -> None:
    empty = log_page(storage, "one")
    assert (empty.records, empty.next, empty.more) == ((), "", False)
    log(storage, "driver", 1, 60, (1.0, "info"), (4.0, "debug"), (5.0, "error"))
    log(storage, "gpu-1", 1, 50, (2.0, "info"), (6.0, "warning"))
    log(storage, "driver", 2, 40, (7.0, "info"))
    page = log_page(storage, "one")
    assert times(page) == [1.0, 2.0, 5.0, 6.0, 7.0] and not page.more
    assert log_page(storage, "one", page.next).records == ()
    log(storage, "new", 1, 30, (3.0, "info"))  # its first segment comes late
    assert times(log_page(storage, "one", page.next)) == [3.0]
    for limit in (1, 2, 3, 100):
        assert sorted(all_times(storage, limit)) == [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]
    assert sorted(all_times(storage, 2, level="warning")) == [5.0, 6.0]
    assert all_times(storage, 2, stage="size", level="error") == [5.0] and all_times(storage, 2, stage="siz") == []


def test_segments_that_have_just_appeared_wait(storage: Storage) -> None:
    """Another segment with the same time may appear after them."""
    log(storage, "driver", 1, 60, (1.0, "info"))
    log(storage, "driver", 2, 0, (2.0, "info"))
    page = log_page(storage, "one")
    assert times(page) == [1.0] and times(log_tail(storage, "one")) == [1.0]
    log(storage, "driver", 2, 10, (2.0, "info"))
    assert times(log_page(storage, "one", page.next)) == [2.0]


def test_the_tail_of_a_log(storage: Storage) -> None:
    assert log_tail(storage, "one") == LogPage((), "", False)
    for number in range(1, 6):
        log(storage, "driver", number, 60 - number, (float(number), "info"), (number + 0.5, "debug"))
    page = log_tail(storage, "one", limit=2)
    assert times(page) == [4.0, 5.0] and log_page(storage, "one", page.next).records == ()
    log(storage, "driver", 6, 20, (6.0, "info"))
    assert times(log_page(storage, "one", page.next)) == [6.0]


@pytest.mark.parametrize("after", ["x", "1/2", "a/0/b", "1/x/b", "1/2.5/b"])
def test_invalid_log_places(storage: Storage, after: str) -> None:
    with pytest.raises(InputError, match="expected `next` of another page"):
        log_page(storage, "one", after)
