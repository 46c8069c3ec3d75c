"""Answers survive kills, stops and failures: each worker logs them, and the next run puts them into tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.core.errors import DrainedError, StorageError
from curate.core.store.storage import Storage, open_storage
from curate.engine.passes.answers import index
from curate.engine.passes.answers import log as answer_log
from curate.engine.record import gc
from curate.engine.run import Result, run
from tests.engine import toys, workspaces
from tests.engine.asks import LOSSES, Say, answer_rows, go, segments
from tests.engine.deaths import deaths
from tests.engine.endpoint import Endpoint, Scripted

ROOT = Path(__file__).parents[3]


# --- kills and stops --------------------------------------------------------------------------------------------------

CHILD = """
import sys
from curate.engine.state import Options
from curate.engine.run import run
from tests.engine import asks, toys
stage = asks.Say(url=sys.argv[2], flush_seconds=0.1, max_in_flight=8)
run(toys.chain(stage, rows=int(sys.argv[3]), shard_rows=int(sys.argv[4])), sys.argv[1])
"""
ROWS, SHARD_ROWS, ANSWERED = 64, 16, 40


def child(workspace: Path, script: Scripted, rows: int = ROWS, shard_rows: int = SHARD_ROWS) -> list[str]:
    """Command of a run in a separate process."""
    return [sys.executable, "-c", CHILD, str(workspace), script.url, str(rows), str(shard_rows)]


def kept(workspace: Path) -> set[bytes]:
    """Inputs that have an answer, in tables and in segments of logs."""
    found = set()
    for path in [*workspace.glob("facts/*/*/log/*/*.parquet"), *workspace.glob("facts/*/*/*/*/0*.parquet")]:
        try:
            rows = pq.read_table(path, columns=["_input", "_status"], partitioning=None).to_pylist()
        except FileNotFoundError:  # its unit has just ended
            continue
        found |= {row["_input"] for row in rows if row["_status"] >= 0}
    return found


@pytest.fixture
def interrupted(workspace: Path, endpoint: Endpoint) -> Iterator[Callable[[int], tuple[int, Result]]]:
    """Ends a run that has got 40 of 64 answers by a signal; returns what the next one asks, and its result."""

    def end(by: int) -> tuple[int, Result]:
        script = endpoint.script(stall_after=ANSWERED)
        with subprocess.Popen(child(workspace, script), cwd=ROOT, stderr=subprocess.PIPE) as process:
            try:
                until = time.monotonic() + 60
                while len(kept(workspace)) < ANSWERED:
                    assert time.monotonic() < until and process.poll() is None
                    time.sleep(0.05)
                process.send_signal(by)
                process.communicate(timeout=20)
            finally:
                process.kill()
        script.stats({})
        result = go(workspace, Say(url=script.url), rows=ROWS, shard_rows=SHARD_ROWS)
        return script.stats()["requests"], result

    return end


def test_requests_in_flight_of_a_killed_run_are_repeated(
    workspace: Path, interrupted: Callable[[int], tuple[int, Result]]
) -> None:
    requests, result = interrupted(signal.SIGKILL)
    assert requests == ROWS - ANSWERED and result.ledger["stage_1"].after == ROWS
    assert 0 < result.counts["stage_1"].asked_again <= ROWS - ANSWERED
    assert not segments(workspace)
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n}" for n in range(ROWS))


def test_a_stopped_run_keeps_its_answers(workspace: Path, interrupted: Callable[[int], tuple[int, Result]]) -> None:
    """Requests without an answer are counted when they are repeated."""
    requests, result = interrupted(signal.SIGTERM)
    assert requests == ROWS - ANSWERED and result.ledger["stage_1"].after == ROWS
    assert 0 < result.counts["stage_1"].asked_again <= ROWS - ANSWERED
    assert not segments(workspace)


def test_a_stopped_run_takes_in_what_is_answered_soon(workspace: Path, endpoint: Endpoint) -> None:
    """All requests in flight get their answers: no request is repeated."""
    script, stop = endpoint.script(latency_seconds=0.3, slots=4), threading.Event()
    pipeline = toys.chain(Say(url=script.url, max_in_flight=4), rows=32, shard_rows=32)

    def end() -> None:
        while script.stats()["requests"] < 8:
            time.sleep(0.02)
        stop.set()

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(end)
        with pytest.raises(DrainedError):
            run(pipeline, str(workspace), options=LOSSES, stop=stop)
        ending.result()
    asked = script.stats()["requests"]
    assert 8 <= asked == len(kept(workspace)) < 32
    result = run(pipeline, str(workspace), options=LOSSES)
    assert script.stats()["texts"] == {f"picture {n}": 1 for n in range(32)}
    assert (result.counts["stage_1"].asked_again, result.ledger["stage_1"].after) == (0, 32)


def test_a_worker_that_dies_on_ray_leaves_its_answers_to_the_next(
    workspace: Path, endpoint: Endpoint, on_ray: Any, tmp_path: Path
) -> None:
    """The worker dies when its third segment is written. It loses at most its later requests: twice as many as
    may be in flight."""
    script = endpoint.script(latency_seconds=0.2, slots=8)
    stage = Say(url=script.url, max_in_flight=8, flush_seconds=0.05)
    with deaths(on_ray, ["publish:facts/toy.say/*/log/*-000003-*:published"], tmp_path):
        result = go(workspace, stage, engine=on_ray, rows=64, shard_rows=64)
    counts = result.counts["stage_1"]
    assert result.ledger["stage_1"].after == 64 == counts.copied + counts.requests
    assert counts.copied >= 3 and 0 < counts.asked_again <= 2 * 8
    assert script.stats()["requests"] <= 64 + 2 * 8
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n}" for n in range(64))
    assert not segments(workspace)


POINTS = (
    "publish:facts/toy.say/*/log/*-000001-*:written",
    "publish:facts/toy.say/*/log/*-000004-*:published",
    "publish:facts/toy.say/*/index/*:written",
    "publish:facts/toy.say/*/index/*:published",
    "publish:facts/toy.say/*/000001.parquet:written",
    "publish:facts/toy.say/*/000001.parquet:published",
)


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_anywhere_costs_what_was_not_flushed(workspace: Path, endpoint: Endpoint, point: str) -> None:
    """Twice as many as may be in flight, of each of four units, and what came since the last flush."""
    script = endpoint.script(latency_seconds=0.05, slots=8)
    kill = os.environ | {"CURATE_FAULT_KILL": point}
    assert subprocess.run(child(workspace, script), cwd=ROOT, env=kill, timeout=60).returncode == -signal.SIGKILL
    before, first = len(kept(workspace)), script.stats()["requests"]
    result = go(workspace, Say(url=script.url), rows=ROWS, shard_rows=SHARD_ROWS)
    assert result.ledger["stage_1"].after == ROWS
    assert script.stats()["requests"] - first == ROWS - before
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n}" for n in range(ROWS))
    assert not segments(workspace)


# --- the log ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def dead(workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> str:
    """Folder of facts of a run of which only the log is left, as a kill leaves it: all answers, and no tables."""
    monkeypatch.setattr(answer_log.Log, "end", lambda *_: None)
    monkeypatch.setattr(answer_log, "fold", lambda *_: {})
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


@pytest.mark.parametrize("times", [2, sys.maxsize])
def test_a_log_that_cannot_be_written_ends_no_requests(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """For a while or permanently: answers are in the tables at the unit's end."""
    failed = fail_segments(monkeypatch, times)
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
    assert answer_log.fold(storage, path) == {"000": {b"x" * 16}}
    assert not segments(workspace)


@pytest.mark.parametrize("size", [0, answer_log.FOLD_BYTES])
def test_segments_are_put_into_tables_few_at_a_time(
    workspace: Path, endpoint: Endpoint, dead: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Or one by one, where one holds as much as may be in memory."""
    held, into = len(segments(workspace)), answer_log._into_tables
    seen: list[int] = []

    def counting(storage: Any, path: str, tables: Any, files: Any) -> None:
        seen.append(len(tables))
        into(storage, path, tables, files)

    monkeypatch.setattr(answer_log, "_into_tables", counting)
    monkeypatch.setattr(answer_log, "FOLD_BYTES", size)
    script = endpoint.script()
    result = go(workspace, Say(url=script.url), rows=20)
    assert (script.stats()["requests"], result.ledger["stage_1"].after) == (0, 20)
    assert not segments(workspace) and sum(seen) == held > 1
    assert max(seen) == (held if size else 1)


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
