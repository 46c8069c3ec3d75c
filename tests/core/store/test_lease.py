"""Leases: one holder, found dead by its process or its heartbeat; others wait until the output exists."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.core.errors import DrainedError
from curate.core.store import lease
from curate.core.store.storage import Storage

OUTPUT = "columns/op/fingerprint/versions/pool"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.2)


@pytest.fixture
def place(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def never() -> bool:
    return False


def leave(storage: Storage, **changes: Any) -> None:
    """The lease of another process."""
    owner = lease.owner() | changes
    content = {"output": OUTPUT, "owner": owner, "beat": 0}
    storage.create(lease.lease_path(OUTPUT), json.dumps(content).encode())


def test_held_while_building_and_removed_after(storage: Storage) -> None:
    with lease.hold(storage, OUTPUT, never) as mine:
        held = lease.read(storage, lease.lease_path(OUTPUT))
        assert mine and held is not None
        assert held["output"] == OUTPUT and held["owner"]["pid"] == os.getpid()
    assert storage.list("leases") == {}
    with pytest.raises(RuntimeError), lease.hold(storage, OUTPUT, never):
        raise RuntimeError("the build failed")
    assert storage.list("leases") == {}


def test_not_acquired_if_the_output_exists(place: Storage) -> None:
    with lease.hold(place, OUTPUT, lambda: True) as mine:
        assert not mine and place.list("leases") == {}


def test_a_lease_beats(place: Storage) -> None:
    beats: set[int] = set()
    with lease.hold(place, OUTPUT, never):
        while len(beats) < 3:
            beats.add(lease.read(place, lease.lease_path(OUTPUT))["beat"])  # type: ignore[index]
    assert place.list("leases") == {}


def test_storage_errors_do_not_stop_the_heartbeat(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of an object store's client may be neither OSError nor StorageError."""
    publish, calls = place.publish_bytes, []

    def third_time(relative: str, data: bytes) -> None:
        calls.append(relative)
        if len(calls) < 3:
            raise ZeroDivisionError("the client's own")
        publish(relative, data)

    monkeypatch.setattr(place, "publish_bytes", third_time)
    beats: set[int] = set()
    with lease.hold(place, OUTPUT, never):
        while max(beats, default=0) < 3:
            beats.add(lease.read(place, lease.lease_path(OUTPUT))["beat"])  # type: ignore[index]
    assert len(calls) >= 3


def test_a_single_look_finds_stale_leases_by_process_or_clock(dead: int) -> None:
    held = {"owner": lease.owner(), "beat": 0, "time": time.time()}
    far = held | {"owner": lease.owner() | {"host": "far-away", "pid": dead}}
    assert not lease.is_dead(held) and not lease.is_dead(held | {"time": 0.0})
    assert lease.is_dead(held | {"owner": lease.owner() | {"pid": dead}})
    assert not lease.is_dead(far) and lease.is_dead(far | {"time": time.time() - 1})
    assert not lease.is_dead(far | {"time": time.time() + 3600})


def test_a_second_run_waits_until_the_output_exists(place: Storage) -> None:
    done, waiting = threading.Event(), threading.Event()
    told: list[dict[str, Any]] = []
    yielded: list[bool] = []

    def on_wait(holder: dict[str, Any]) -> None:
        told.append(holder)
        waiting.set()

    def second() -> None:
        with lease.hold(place, OUTPUT, done.is_set, on_wait) as mine:
            yielded.append(mine)

    thread = threading.Thread(target=second)
    with lease.hold(place, OUTPUT, never):
        thread.start()
        assert waiting.wait(60)
        done.set()
    thread.join(60)
    assert yielded == [False] and [holder["pid"] for holder in told] == [os.getpid()]


def test_a_second_run_builds_what_the_first_abandoned(place: Storage) -> None:
    waiting = threading.Event()
    yielded: list[bool] = []

    def second() -> None:
        with lease.hold(place, OUTPUT, never, lambda _: waiting.set()) as mine:
            yielded.append(mine)

    thread = threading.Thread(target=second)
    with contextlib.suppress(RuntimeError), lease.hold(place, OUTPUT, never):
        thread.start()
        assert waiting.wait(60)
        raise RuntimeError("the build failed")
    thread.join(60)
    assert yielded == [True]


@pytest.fixture
def dead() -> Iterator[int]:
    """Number of a killed process that is reaped only at the end, so that its number is not reused meanwhile."""
    if not (child := os.fork()):
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    yield child
    os.waitpid(child, 0)


def test_a_dead_holder_is_not_waited_for(place: Storage, dead: int) -> None:
    leave(place, pid=dead)
    told: list[Any] = []
    with lease.hold(place, OUTPUT, never, told.append) as mine:
        assert mine and told == []


@pytest.mark.parametrize("changes", [{"born": 1.0}, {"boot": 1.0}, {"pid": 2**22 + 1}])
def test_a_reused_process_number_is_another_process(place: Storage, changes: dict[str, Any]) -> None:
    leave(place, **changes)
    with lease.hold(place, OUTPUT, never) as mine:
        assert mine


def test_another_host_is_waited_for_until_its_heartbeat_stops(place: Storage) -> None:
    leave(place, host="far-away", pid=1)
    told: list[dict[str, Any]] = []
    with lease.hold(place, OUTPUT, never, told.append) as mine:
        assert mine
    assert [holder["host"] for holder in told] == ["far-away"]


def test_another_host_with_a_heartbeat_is_waited_for(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.05)
    leave(place, host="far-away", pid=1)
    beats = 0

    def done() -> bool:
        """Looked at before each turn: beats meanwhile, for far longer than a silence is borne."""
        nonlocal beats
        beats += 1
        content = {"output": OUTPUT, "owner": lease.owner() | {"host": "far-away"}, "beat": beats}
        place.publish_bytes(lease.lease_path(OUTPUT), json.dumps(content).encode())
        return beats == 60

    with lease.hold(place, OUTPUT, done) as mine:
        assert not mine
    assert beats == 60 and len(place.list("leases")) == 1


def test_waiting_ends_if_done_raises(place: Storage) -> None:
    leave(place)

    def drained() -> bool:
        raise DrainedError("stopped")

    with pytest.raises(DrainedError), lease.hold(place, OUTPUT, drained):
        raise AssertionError("not reached")


def test_a_fork_is_another_owner() -> None:
    mine = lease.owner()
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, json.dumps(lease.owner()).encode())
        os._exit(0)
    theirs = json.loads(os.read(reader, 10_000))
    assert theirs["pid"] == child != mine["pid"] and not lease.is_gone(mine)
    os.waitpid(child, 0)
    assert lease.is_gone(theirs)
