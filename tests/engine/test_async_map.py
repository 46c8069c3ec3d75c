"""AsyncMaps: what is asked, how often, and what becomes of rows that get no answer."""

from __future__ import annotations

import email.utils
import os
import signal
import socket
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
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import CurateError, DrainedError, StorageError
from curate.core.store.storage import Storage, open_storage
from curate.engine.context import Options
from curate.engine.passes import ahead, answer_log, answers, asking, async_map
from curate.engine.passes.async_map import weight
from curate.engine.record import gc
from curate.engine.run import Result, run
from tests.engine import toys, workspaces
from tests.engine.asks import Loose, Say, See, Stuck, Told
from tests.engine.deaths import deaths
from tests.engine.endpoint import Endpoint, Scripted

LOSSES = Options(failure_budget=1.0)
ROOT = Path(__file__).parents[2]


def go(workspace: Path, stage: Say, options: Options = LOSSES, engine: Any = "local", **source: Any) -> Result:
    return run(toys.chain(stage, **source), str(workspace), options=options, engine=engine)


def said(workspace: Path, op: str = "toy.say") -> list[dict[str, Any]]:
    """Rows of facts, by what was said."""
    rows = [row for shards in workspaces.facts(workspace, op).values() for held in shards.values() for row in held]
    return sorted(rows, key=lambda row: (str(row["said"]), row["_row"]))


def segments(workspace: Path) -> list[str]:
    """Those of all logs."""
    return sorted(path.name for path in workspace.glob("facts/*/*/log/*/[!.]*"))


# --- answers ----------------------------------------------------------------------------------------------------------


def test_every_row_is_asked_once_and_never_again(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    result = go(workspace, Say(url=script.url), rows=50, shard_rows=20)
    assert [row["said"] for row in said(workspace)] == sorted(f"said picture {n}" for n in range(50))
    assert script.told()["texts"] == {f"picture {n}": 1 for n in range(50)}
    counts = result.counts["stage_1"]
    assert (counts.computed, counts.requests, counts.asked_again, result.ledger["stage_1"].after) == (50, 50, 0, 50)
    assert go(workspace, Say(url=script.url), rows=50, shard_rows=20).reused["stage_1"]
    assert script.told()["requests"] == 50
    assert not segments(workspace)


def test_another_pool_finds_the_answers(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    go(workspace, Say(url=script.url), rows=30)
    result = go(workspace, Say(url=script.url), namespace="other", rows=40, shard_rows=7)
    assert script.told()["requests"] == 40
    assert (result.counts["stage_1"].copied, result.counts["stage_1"].computed) == (30, 10)


def test_equal_requests_of_a_unit_are_asked_once(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    result = go(workspace, Say(url=script.url, modulo=5), rows=40, shard_rows=40)
    assert script.told()["texts"] == {f"picture {n}": 1 for n in range(5)}
    assert result.ledger["stage_1"].after == 40
    assert [row["said"] for row in said(workspace)] == sorted(f"said picture {n % 5}" for n in range(40))


def test_pictures_are_sent(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script()
    result = go(workspace, See(url=script.url), rows=24, shard_rows=12, broken=11)
    told = script.told()
    assert told["requests"] == 24 and told["bytes"] > 24 * len(toys.picture(1))
    assert result.ledger["stage_1"].after == 24  # nobody decodes here: what a picture is, the endpoint says


def test_no_more_than_max_in_flight_are_asked_at_once(workspace: Path, endpoint: Endpoint) -> None:
    script = endpoint.script(latency_seconds=0.02)
    go(workspace, Say(url=script.url, max_in_flight=3), rows=60, shard_rows=20)
    assert script.told()["most"] <= 3


def test_all_slots_are_in_use_at_once(workspace: Path, endpoint: Endpoint) -> None:
    """How busy they are over time, `bench/engine/async_map.py` says."""
    script = endpoint.script(latency_seconds=0.2, slots=32)
    go(workspace, Say(url=script.url), rows=320, shard_rows=80)
    told = script.told()
    assert told["requests"] == 320 and told["most"] >= 32


def test_rows_wait_for_their_answers_while_there_is_no_room(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There is room for three pictures at once: the others' requests are made, and wait. Nobody behind takes them to be
    without an answer."""
    script = endpoint.script(latency_seconds=0.1)
    stages, options = (See(url=script.url), Told()), Options()
    source = {"rows": 60, "shard_rows": 30}
    run(toys.chain(*stages, **source), str(tmp_path / "unhindered"), options=options)
    monkeypatch.setattr(async_map, "ROOM", ahead.Room(3 * (len(toys.picture(1)) + 16)))
    monkeypatch.setattr(async_map, "LOOK_SECONDS", 0.01)
    result = run(toys.chain(*stages, **source), str(workspace), options=options)
    asked, told = result.ledger["stage_1"], result.ledger["stage_2"]
    assert (asked.before, asked.after, told.before, told.after) == (60, 60, 60, 60) and not told.rejected
    assert workspaces.facts(workspace) == workspaces.facts(tmp_path / "unhindered")


# --- rows without an answer -------------------------------------------------------------------------------------------


def test_rows_that_are_not_asked(workspace: Path, endpoint: Endpoint) -> None:
    """None needs no answer: the row is done. A Reject makes it unusable."""
    script = endpoint.script()
    result = go(workspace, Say(url=script.url, silent=(1, 2), refused=(3,)), rows=10)
    assert script.told()["requests"] == 7
    assert (result.ledger["stage_1"].after, result.ledger["stage_1"].unusable) == (9, {"not_asked": 1})
    assert sum(row["said"] is None and row["_status"] == 0 for row in said(workspace)) == 2


AGAIN: dict[str, dict[str, Any]] = {
    "http_408": {"status": 408},
    "http_409": {"status": 409},
    "http_425": {"status": 425},
    "http_429": {"status": 429, "headers": {"Retry-After": "0"}},
    "http_500": {"status": 500},
    "http_503": {"status": 503, "body": "busy"},
    "not_json": {"status": 200, "body": "<html>"},
    "reset": {"do": "reset"},
    "timeout": {"do": "stall"},
}


def test_what_may_be_over_later_is_tried_again(workspace: Path, endpoint: Endpoint) -> None:
    """Each kind of failure twice; then there is an answer."""
    faults = [fault | {"text": f"picture {n}", "times": 2} for n, fault in enumerate(AGAIN.values())]
    script = endpoint.script(faults=faults)
    result = go(workspace, Say(url=script.url, attempts=3, timeout_seconds=2.0), rows=20)
    told = script.told()
    assert result.ledger["stage_1"].after == 20 and result.counts["stage_1"].requests == told["requests"]
    assert told["texts"] == {f"picture {n}": 3 if n < len(AGAIN) else 1 for n in range(20)}


def test_after_the_last_attempt_the_row_is_in_error(workspace: Path, endpoint: Endpoint) -> None:
    """The reason says why. `curate retry` asks again, a run does not."""
    faults = [fault | {"text": f"picture {n}"} for n, fault in enumerate(AGAIN.values())]
    script = endpoint.script(faults=faults)
    stage = Say(url=script.url, attempts=2, timeout_seconds=2.0)
    result = go(workspace, stage, rows=20)
    assert result.ledger["stage_1"].error == dict.fromkeys(AGAIN, 1) and result.ledger["stage_1"].after == 11
    assert go(workspace, stage, rows=20).counts["stage_1"].requests == 0
    assert script.told()["texts"]["picture 0"] == 2
    script.told({})
    result = go(workspace, stage, Options(retry={"stage_1": ()}), rows=20)
    assert result.ledger["stage_1"].after == 20 and script.told()["requests"] == len(AGAIN)


def test_nobody_listens(workspace: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        result = go(workspace, Say(url=f"http://127.0.0.1:{closed.getsockname()[1]}", attempts=2), rows=3)
    assert result.ledger["stage_1"].error == {"connect": 3}


def test_retry_after_is_kept_to(workspace: Path, endpoint: Endpoint) -> None:
    fault = {"text": "picture 0", "times": 1, "status": 429, "headers": {"retry-after-ms": "400"}}
    script = endpoint.script(faults=[fault])
    go(workspace, Say(url=script.url), rows=1)
    first, second = script.told()["times"]
    assert second - first >= 0.4


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_request_makes_its_row_unusable(workspace: Path, endpoint: Endpoint, status: int) -> None:
    script = endpoint.script(faults=[{"text": "picture 3", "status": status}])
    result = go(workspace, Say(url=script.url), rows=10)
    assert result.ledger["stage_1"].unusable == {f"refused_{status}": 1}
    assert script.told()["texts"]["picture 3"] == 1


@pytest.mark.parametrize(("status", "remedy"), [(401, "check the key"), (403, "the key allows"), (404, "the URL")])
def test_what_every_request_would_get_ends_the_run(
    workspace: Path, endpoint: Endpoint, status: int, remedy: str
) -> None:
    """In one line, with the stage's name. What was answered before is kept."""
    script = endpoint.script(faults=[{"text": "picture 9", "status": status, "body": "no\nentry"}])
    with pytest.raises(CurateError, match=rf"stage_1: {script.url}: {status} .*\(no entry\).*{remedy}") as raised:
        go(workspace, Say(url=script.url, max_in_flight=1), rows=20)
    assert "\n" not in str(raised.value)
    script.told({})
    go(workspace, Say(url=script.url), rows=20)
    assert script.told()["requests"] <= 11


def test_a_redirect_is_not_followed(workspace: Path, endpoint: Endpoint) -> None:
    """It would take the key along."""
    fault = {"status": 307, "headers": {"Location": "http://elsewhere.example/v1"}}
    with pytest.raises(CurateError, match=r"leads to 'http://elsewhere\.example/v1'"):
        go(workspace, Say(url=endpoint.script(faults=[fault]).url), rows=1)


def test_a_url_that_is_none(workspace: Path) -> None:
    with pytest.raises(CurateError, match="'nowhere' is not a URL"):
        go(workspace, Say(url="nowhere"), rows=1)


def test_an_answer_that_does_not_fit_the_schema_is_an_error_of_its_row(workspace: Path, endpoint: Endpoint) -> None:
    result = go(workspace, Loose(url=endpoint.script().url), rows=20)
    assert (result.ledger["stage_1"].after, result.ledger["stage_1"].error) == (18, {"bad_columns": 2})


def test_an_answer_that_is_too_large(workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_BYTES", 1000)
    script = endpoint.script(faults=[{"text": "picture 1", "status": 200, "body": '"' + "x" * 1000 + '"'}])
    assert go(workspace, Say(url=script.url), rows=3).ledger["stage_1"].error == {"answer_too_large": 1}


@pytest.mark.parametrize("stuck", [(4,), pytest.param((4, 7), marks=pytest.mark.long)])
def test_a_row_whose_answer_never_ends_is_named(workspace: Path, endpoint: Endpoint, stuck: tuple[int, ...]) -> None:
    """The unit ends no batch until the deadline. It is tried again without the row; of several, with each of them alone
    until it is known which. The others are asked once."""
    script = endpoint.script()
    stage = Stuck(url=script.url, stuck=stuck, flush_seconds=0.1)
    result = go(workspace, stage, Options(failure_budget=1.0, deadline=3.0), rows=20, shard_rows=20)
    assert result.ledger["stage_1"].error == {"hung": len(stuck)}
    assert result.ledger["stage_1"].after == script.told()["requests"] == 20 - len(stuck)


# --- kills and stops --------------------------------------------------------------------------------------------------

CHILD = """
import sys
from curate.engine.context import Options
from curate.engine.run import run
from tests.engine import asks, toys
stage = asks.Say(url=sys.argv[2], flush_seconds=0.1, max_in_flight=8)
run(toys.chain(stage, rows=int(sys.argv[3]), shard_rows=int(sys.argv[4])), sys.argv[1])
"""
ROWS, SHARD_ROWS, ANSWERED = 64, 16, 40


def child(workspace: Path, script: Scripted, rows: int = ROWS, shard_rows: int = SHARD_ROWS) -> list[str]:
    """Command of a run in a process of its own."""
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
        script.told({})
        result = go(workspace, Say(url=script.url), rows=ROWS, shard_rows=SHARD_ROWS)
        return script.told()["requests"], result

    return end


def test_a_killed_run_is_asked_again_what_was_in_flight(
    workspace: Path, interrupted: Callable[[int], tuple[int, Result]]
) -> None:
    requests, result = interrupted(signal.SIGKILL)
    assert requests == ROWS - ANSWERED and result.ledger["stage_1"].after == ROWS
    assert 0 < result.counts["stage_1"].asked_again <= ROWS - ANSWERED
    assert not segments(workspace)
    assert [row["said"] for row in said(workspace)] == sorted(f"said picture {n}" for n in range(ROWS))


def test_a_stopped_run_keeps_its_answers(workspace: Path, interrupted: Callable[[int], tuple[int, Result]]) -> None:
    """What got no answer is counted when it is asked again."""
    requests, result = interrupted(signal.SIGTERM)
    assert requests == ROWS - ANSWERED and result.ledger["stage_1"].after == ROWS
    assert 0 < result.counts["stage_1"].asked_again <= ROWS - ANSWERED
    assert not segments(workspace)


def test_a_stopped_run_takes_in_what_is_answered_soon(workspace: Path, endpoint: Endpoint) -> None:
    """Everything in flight, here: no row is asked twice."""
    script, stop = endpoint.script(latency_seconds=0.3, slots=4), threading.Event()
    pipeline = toys.chain(Say(url=script.url, max_in_flight=4), rows=32, shard_rows=32)

    def end() -> None:
        while script.told()["requests"] < 8:
            time.sleep(0.02)
        stop.set()

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(end)
        with pytest.raises(DrainedError):
            run(pipeline, str(workspace), options=LOSSES, stop=stop)
        ending.result()
    asked = script.told()["requests"]
    assert 8 <= asked == len(kept(workspace)) < 32
    result = run(pipeline, str(workspace), options=LOSSES)
    assert script.told()["texts"] == {f"picture {n}": 1 for n in range(32)}
    assert (result.counts["stage_1"].asked_again, result.ledger["stage_1"].after) == (0, 32)


def test_a_worker_that_dies_on_ray_leaves_its_answers_to_the_next(
    workspace: Path, endpoint: Endpoint, on_ray: Any, tmp_path: Path
) -> None:
    """It dies when its third segment is written. What is lost is at most what it had asked besides: twice as many as
    may be in flight."""
    script = endpoint.script(latency_seconds=0.2, slots=8)
    stage = Say(url=script.url, max_in_flight=8, flush_seconds=0.05)
    with deaths(on_ray, ["publish:facts/toy.say/*/log/*-000003-*:published"], tmp_path):
        result = go(workspace, stage, engine=on_ray, rows=64, shard_rows=64)
    counts = result.counts["stage_1"]
    assert result.ledger["stage_1"].after == 64 == counts.copied + counts.requests
    assert counts.copied >= 3 and 0 < counts.asked_again <= 2 * 8
    assert script.told()["requests"] <= 64 + 2 * 8
    assert [row["said"] for row in said(workspace)] == sorted(f"said picture {n}" for n in range(64))
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
    before, first = len(kept(workspace)), script.told()["requests"]
    result = go(workspace, Say(url=script.url), rows=ROWS, shard_rows=SHARD_ROWS)
    assert result.ledger["stage_1"].after == ROWS
    assert script.told()["requests"] - first == ROWS - before
    assert [row["said"] for row in said(workspace)] == sorted(f"said picture {n}" for n in range(ROWS))
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
    """Also of rows that it does not need itself: the darker half."""
    script = endpoint.script()
    made = toys.Pipeline().add("pool", toys.Numbers(namespace="toys", rows=20)).add("bright", toys.Brightness(), "pool")
    made.add("light", toys.Light(darkest=127.5), "bright").add("say", Say(url=script.url), "light")
    result = run(made.check(), str(workspace))
    assert script.told()["requests"] == 0 and 0 < result.ledger["say"].after < 20
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
    assert script.told()["requests"] == 0 and workspaces.rows_of(workspace, "toy.say") == 20
    assert not segments(workspace)


def test_a_log_that_somebody_writes_is_left_alone(workspace: Path, dead: str) -> None:
    storage = open_storage(str(workspace))
    other = f"{dead.rpartition('/')[0]}/{'0' * 32}"
    before = segments(workspace)
    with answer_log.lease.hold(storage, dead, lambda: False):
        answer_log.fold(storage, other)
    assert segments(workspace) == before
    answer_log.fold(storage, other)
    assert not segments(workspace) and workspaces.rows_of(workspace, "toy.say") == 20


def test_gc_keeps_logs_unless_told_otherwise(workspace: Path, dead: str) -> None:
    storage = open_storage(str(workspace))
    log = answer_log.folder_of(dead)
    assert not [path for path in gc.unreachable(storage, keep=0)[0] if path.startswith(log)]
    assert [path for path in gc.unreachable(storage, keep=0, costly=True)[0] if path.startswith(log)]


def refuse_segments(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """The storage refuses to write segments so many times. Returns which it has refused."""
    publish, refused = Storage.publish_table, list[str]()

    def broken(storage: Storage, relative: str, *args: Any, **options: Any) -> None:
        if f"/{answer_log.FOLDER}/" in relative and len(refused) < times:
            refused.append(relative)
            raise StorageError(f"{relative}: no answer")
        publish(storage, relative, *args, **options)

    monkeypatch.setattr(Storage, "publish_table", broken)
    return refused


@pytest.mark.parametrize("times", [2, sys.maxsize])
def test_a_log_that_cannot_be_written_ends_no_requests(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """For a while or for good: answers are in the tables at the unit's end."""
    refused = refuse_segments(monkeypatch, times)
    script = endpoint.script(latency_seconds=0.05, slots=4)
    result = go(workspace, Say(url=script.url, max_in_flight=4, flush_seconds=0.0), rows=40, shard_rows=40)
    assert len(refused) >= 2
    assert script.told()["texts"] == {f"picture {n}": 1 for n in range(40)}
    assert (result.counts["stage_1"].asked_again, result.ledger["stage_1"].after) == (0, 40)
    assert not segments(workspace)


def test_requests_in_flight_outlast_tables_of_others(workspace: Path) -> None:
    """A unit may publish what it has while requests are in flight; and it may end before any is answered."""
    storage, path = open_storage(str(workspace)), "facts/toy.say/stage/fingerprint"
    log = answer_log.Log(storage, path)
    log.ask("unit", b"x" * 16, "000", 7)
    log.end("unit")
    log.leave("unit")
    assert answer_log.left_by(storage, path, ["unit"]).asked == {"000": {b"x" * 16}}
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
    assert (script.told()["requests"], result.ledger["stage_1"].after) == (0, 20)
    assert not segments(workspace) and sum(seen) == held > 1
    assert max(seen) == (held if size else 1)


@pytest.mark.parametrize("times", [0, 1])
def test_a_unit_that_failed_leaves_its_answers_to_the_next_attempt(
    workspace: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Its tables could not be written, once; nor could its log."""
    refused = refuse_segments(monkeypatch, times)
    remember = answers.remember
    left = [OSError("try again")]

    def broken(*args: Any) -> None:
        if left:
            raise left.pop()
        remember(*args)

    monkeypatch.setattr(answers, "remember", broken)
    script = endpoint.script()
    result = go(workspace, Say(url=script.url), rows=10)
    assert script.told()["requests"] == 10 and result.ledger["stage_1"].after == 10
    assert len(refused) == times and result.counts["stage_1"].copied == 10 and not segments(workspace)
    assert go(workspace, Say(url=script.url), namespace="other", rows=10).counts["stage_1"].copied == 10


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "86400"}, asking.LONGEST_RETRY_AFTER),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after-ms": "250", "Retry-After": "3"}, 0.25),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert asking.retry_after(headers) == seconds


def test_retry_after_as_a_date() -> None:
    found = asking.retry_after({"Retry-After": email.utils.formatdate(time.time() + 30, usegmt=True)})
    assert found is not None and 20 < found <= 30


REQUESTS = st.recursive(st.text() | st.binary(), lambda inner: st.tuples(inner, inner))


@given(REQUESTS)
def test_a_request_weighs_what_it_holds(request_made: Any) -> None:
    def held(part: Any) -> int:
        return sum(map(held, part)) if isinstance(part, tuple) else len(part)

    assert weight(request_made) == held(request_made)


def test_a_forked_child_has_a_loop_of_its_own(endpoint: Endpoint) -> None:
    script = endpoint.script()
    asker = asking.Asker(Say(url=script.url))
    assert asker.ask("picture 1").result().columns
    child = os.fork()
    if not child:
        os._exit(0 if asking._process.loop is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    asker.close()
