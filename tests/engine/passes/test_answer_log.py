"""Logs of answers: each worker writes one, and the next run puts those of dead workers into tables."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.core.errors import CurateError, StorageError
from curate.core.store.storage import Storage, open_storage
from curate.engine.passes import async_map
from curate.engine.passes.answers import index
from curate.engine.passes.answers import log as answer_log
from curate.engine.record import gc
from curate.engine.run import run
from tests.engine import toys, workspaces
from tests.engine.asks import Say, answer_rows, go, segments
from tests.engine.passes.test_answer_kills import POINTS, ROOT, child, kept
from tests.servers.scripted import Endpoint


@pytest.fixture
def dead(workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    """Folder of facts of a run of which only the log is left, as a kill leaves it: all answers, and no tables."""
    monkeypatch.setattr(answer_log.Log, "end", lambda *_: None)
    monkeypatch.setattr(answer_log, "fold", lambda *_, **__: {})
    go(workspace, Say(url=endpoint.script().url, flush_seconds=0.0), rows=20)
    monkeypatch.undo()
    [folder] = [path for path in workspace.glob("facts/toy.say/*/*") if path.name not in ("index", "log")]
    for path in [*folder.glob("*/0*.parquet"), *(folder.parent / "index").glob("*")]:
        path.unlink()
    for path in workspace.glob("masks/*/versions/*/manifest.json"):
        path.unlink()
    return str(folder.relative_to(workspace))


def test_the_next_run_puts_a_dead_runs_answers_into_tables(workspace: Path, endpoint: Endpoint, dead: str) -> None:
    """Also answers for rows that it does not need itself: the darker half."""
    script = endpoint.script()
    made = toys.Pipeline().add("pool", toys.Numbers(namespace="toys", rows=20)).add("bright", toys.Brightness(), "pool")
    made.add("light", toys.Light(darkest=127.5), "bright").add("say", Say(url=script.url), "light")
    result = run(made.check(), str(workspace))
    assert script.stats()["requests"] == 0 and 0 < result.ledger["say"].after < 20
    assert workspaces.rows_of(workspace, "toy.say") == 20
    assert go(workspace, Say(url=script.url), rows=20).counts["stage_1"].requests == 0
    assert go(workspace, Say(url=script.url), namespace="other", rows=20).counts["stage_1"].requests == 0


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS[2:])
def test_a_kill_while_logs_are_put_into_tables(workspace: Path, endpoint: Endpoint, dead: str, point: str) -> None:
    script = endpoint.script()
    kill = os.environ | {"CURATE_FAULT_KILL": point}
    command = child(workspace, script, 20, 10)
    assert subprocess.run(command, cwd=ROOT, env=kill, timeout=60).returncode == -signal.SIGKILL
    assert go(workspace, Say(url=script.url), rows=20).ledger["stage_1"].after == 20
    assert script.stats()["requests"] == 0 and workspaces.rows_of(workspace, "toy.say") == 20
    assert not segments(workspace)


def test_a_log_with_a_live_writer_is_left_alone(workspace: Path, dead: str) -> None:
    storage = open_storage(str(workspace))
    other = f"{dead.rpartition('/')[0]}/{'0' * 32}"
    before = segments(workspace)
    with answer_log.lease.hold(storage, dead, lambda: False):
        answer_log.fold(storage, other)
    assert segments(workspace) == before
    answer_log.fold(storage, other)
    assert not segments(workspace) and workspaces.rows_of(workspace, "toy.say") == 20


def test_gc_keeps_logs_by_default(workspace: Path, dead: str) -> None:
    storage = open_storage(str(workspace))
    log = answer_log.folder_of(dead)
    assert not [path for path in gc.unreachable(storage, keep=0)[0] if path.startswith(log)]
    assert [path for path in gc.unreachable(storage, keep=0, costly=True)[0] if path.startswith(log)]


def fail_segments(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """The storage fails to write segments `times` times. Returns the segments that failed."""
    publish, failed = Storage.publish_table, list[str]()

    def broken(storage: Storage, relative: str, *args: Any, **options: Any) -> None:
        if f"/{answer_log.FOLDER}/" in relative and len(failed) < times:
            failed.append(relative)
            raise StorageError(f"{relative}: no answer")
        publish(storage, relative, *args, **options)

    monkeypatch.setattr(Storage, "publish_table", broken)
    return failed


def test_a_log_that_cannot_be_written_for_a_while_loses_nothing(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request is sent meanwhile, and none is repeated."""
    monkeypatch.setattr(async_map, "LOOK_SECONDS", 0.01)
    failed = fail_segments(monkeypatch, 2)
    script = endpoint.script(latency_seconds=0.05, slots=4)
    result = go(workspace, Say(url=script.url, max_in_flight=4, flush_seconds=0.0), rows=40, shard_rows=40)
    assert len(failed) >= 2
    assert script.stats()["texts"] == {f"picture {n}": 1 for n in range(40)}
    assert (result.counts["stage_1"].asked_again, result.ledger["stage_1"].after) == (0, 40)
    assert not segments(workspace)


def test_requests_in_flight_outlast_tables_of_others(workspace: Path) -> None:
    """A unit may publish what it has while requests are in flight; and it may end before any is answered."""
    storage, path = open_storage(str(workspace)), "facts/toy.say/stage/fingerprint"
    log = answer_log.Log(storage, path)
    log.sent("unit", b"x" * 16, "000", 7)
    log.end("unit")
    log.leave("unit")
    assert answer_log.logged_by(storage, path, ["unit"]).in_flight == {"000": {b"x" * 16}}
    for _ in range(2):  # the run that asks again may die too
        assert answer_log.fold(storage, path) == {"000": {b"x" * 16}}
        assert len(segments(workspace)) == 1


@pytest.mark.parametrize("size", [0, answer_log.FOLD_BYTES])
def test_segments_are_put_into_tables_few_at_a_time(
    workspace: Path, endpoint: Endpoint, dead: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Or one by one, where one holds as much as may be in memory."""
    tables = [pq.read_table(path, partitioning=None) for path in workspace.glob("facts/*/*/log/*/*.parquet")]
    held = sum(any(status >= 0 for status in table["_status"].to_pylist()) for table in tables)
    into = answer_log._into_tables
    seen: list[int] = []

    def counting(storage: Any, path: str, tables: Any) -> None:
        seen.append(len(tables))
        into(storage, path, tables)

    monkeypatch.setattr(answer_log, "_into_tables", counting)
    monkeypatch.setattr(answer_log, "FOLD_BYTES", size)
    script = endpoint.script()
    result = go(workspace, Say(url=script.url), rows=20)
    assert (script.stats()["requests"], result.ledger["stage_1"].after) == (0, 20)
    assert not segments(workspace) and sum(seen) == held > 1
    assert max(seen) == (held if size else 1)


def test_a_full_disk_ends_the_run_and_the_next_one_repeats_what_is_counted(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is full from the fourth segment on, also for tables. Nothing that was published is lost."""
    finish, seen, kept_then = Storage._finish, list[str](), list[set[bytes]]()

    def full(storage: Storage, aside: Path, relative: str, *, exclusive: bool) -> None:
        seen.extend([relative] if f"/{answer_log.FOLDER}/" in relative else [])
        if len(seen) > 3 and relative.startswith("facts/"):
            kept_then[:] = kept_then or [kept(workspace)]
            raise OSError(errno.ENOSPC, "No space left on device")
        finish(storage, aside, relative, exclusive=exclusive)

    monkeypatch.setattr(Storage, "_finish", full)
    monkeypatch.setattr(async_map, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(async_map, "PATIENCE_SECONDS", 0.1)
    script = endpoint.script(latency_seconds=0.05, slots=4)
    stage = Say(url=script.url, max_in_flight=4, flush_seconds=0.1)
    with pytest.raises(CurateError, match=r"(?i)space") as raised:
        go(workspace, stage, rows=60, shard_rows=60)
    assert "\n" not in str(raised.value) and len(script.stats()["texts"]) < 60
    monkeypatch.undo()
    monkeypatch.setattr(answer_log, "_logs", {})  # as in another process
    assert kept_then[0] and kept(workspace) == kept_then[0]
    result = go(workspace, stage, rows=60, shard_rows=60)
    asked, counts = script.stats()["texts"], result.counts["stage_1"]
    assert len(asked) == result.ledger["stage_1"].after == 60
    assert counts.requests == 60 - len(kept_then[0])
    assert sum(asked.values()) - len(asked) <= counts.asked_again
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n}" for n in range(60))
    assert not segments(workspace)


def test_no_request_is_sent_before_it_is_logged(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that cannot be written at all: a kill would repeat requests that are counted nowhere."""
    monkeypatch.setattr(async_map, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(async_map, "PATIENCE_SECONDS", 0.05)
    fail_segments(monkeypatch, sys.maxsize)
    script = endpoint.script()
    result = go(workspace, Say(url=script.url), rows=10)
    assert script.stats()["requests"] == 0
    assert result.ledger["stage_1"].error == Counter(shard_set_aside=10)


@pytest.mark.parametrize("times", [0, 1])
def test_a_unit_that_failed_leaves_its_answers_to_the_next_attempt(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Its tables could not be written, once; nor could its log."""
    failed = fail_segments(monkeypatch, times)
    remember = index.add
    left = [OSError("try again")]

    def broken(*args: Any) -> None:
        if left:
            raise left.pop()
        remember(*args)

    monkeypatch.setattr(index, "add", broken)
    script = endpoint.script()
    result = go(workspace, Say(url=script.url), rows=10)
    assert script.stats()["requests"] == 10 and result.ledger["stage_1"].after == 10
    assert len(failed) == times and result.counts["stage_1"].copied == 10 and not segments(workspace)
    assert go(workspace, Say(url=script.url), namespace="other", rows=10).counts["stage_1"].copied == 10
