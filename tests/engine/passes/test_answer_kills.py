"""Answers survive kills and stops: what the next run repeats, and how it counts that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.core.errors import DrainedError
from curate.engine.run import Result, run
from tests.engine import toys
from tests.engine.asks import LOSSES, Say, answer_rows, go, segments
from tests.engine.deaths import deaths
from tests.servers.scripted import Endpoint, Scripted

ROOT = Path(__file__).parents[3]
CHILD = """
import sys
from curate.engine.state import Options
from curate.engine.run import run
from tests.engine import asks, toys
stage = asks.Say(url=sys.argv[2], flush_seconds=float(sys.argv[5]), max_in_flight=8)
run(toys.chain(stage, rows=int(sys.argv[3]), shard_rows=int(sys.argv[4])), sys.argv[1])
"""
ROWS, SHARD_ROWS, ANSWERED = 64, 16, 40


def child(
    workspace: Path, script: Scripted, rows: int = ROWS, shard_rows: int = SHARD_ROWS, flush_seconds: float = 0.1
) -> list[str]:
    """Command of a run in a separate process."""
    return [sys.executable, "-c", CHILD, str(workspace), script.url, str(rows), str(shard_rows), str(flush_seconds)]


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


def test_no_request_is_repeated_without_being_counted(workspace: Path, endpoint: Endpoint) -> None:
    """Also those that were sent and answered since the last flush: here, since the start."""
    script = endpoint.script(latency_seconds=0.05, slots=8)
    with subprocess.Popen(child(workspace, script, 200, 100, flush_seconds=1000.0), cwd=ROOT) as process:
        try:
            until = time.monotonic() + 60
            while script.stats()["answered"] < 90:
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.02)
        finally:
            process.kill()
    result = go(workspace, Say(url=script.url), rows=200, shard_rows=100)
    asked = script.stats()["texts"]
    repeated, counted = sum(asked.values()) - len(asked), result.counts["stage_1"].asked_again
    assert len(asked) == result.ledger["stage_1"].after == 200 and max(asked.values()) == 2
    assert 0 < repeated <= counted <= result.counts["stage_1"].requests
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n}" for n in range(200))
    assert not segments(workspace)


def test_requests_of_several_killed_runs_are_counted(workspace: Path, endpoint: Endpoint) -> None:
    """The second run dies before it repeats all that the first one lost."""
    script = endpoint.script(latency_seconds=0.05, slots=8)
    for more in (60, 1):
        until, wanted = time.monotonic() + 60, script.stats()["answered"] + more
        with subprocess.Popen(child(workspace, script, 100, 50, flush_seconds=1000.0), cwd=ROOT) as process:
            try:
                while script.stats()["answered"] < wanted:
                    assert time.monotonic() < until and process.poll() is None
                    time.sleep(0.01)
            finally:
                process.kill()
    before = script.stats()["texts"]
    result = go(workspace, Say(url=script.url), rows=100, shard_rows=50)
    repeated = sum(script.stats()["texts"][text] > times for text, times in before.items())
    assert 20 < repeated <= result.counts["stage_1"].asked_again
    assert result.ledger["stage_1"].after == 100 and not segments(workspace)


def test_requests_that_ended_in_error_are_counted_after_a_kill(workspace: Path, endpoint: Endpoint) -> None:
    """Their result was in no table yet, so they are sent again."""
    faults = [{"text": f"picture {n}", "status": 200, "body": "<html>"} for n in range(10)]
    script = endpoint.script(stall_after=100, faults=faults)
    with subprocess.Popen(child(workspace, script, 64, 64, flush_seconds=0.1), cwd=ROOT) as process:
        try:
            until = time.monotonic() + 60
            while len(kept(workspace)) < 50:  # each of the ten is asked five times
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.02)
        finally:
            process.kill()
    before = script.stats()["texts"]
    script.change(stall_after=-1)
    result = go(workspace, Say(url=script.url), rows=64, shard_rows=64)
    repeated = sum(script.stats()["texts"][text] > times for text, times in before.items())
    assert 10 <= repeated <= result.counts["stage_1"].asked_again
    assert result.ledger["stage_1"].error == Counter(not_json=10) and not segments(workspace)


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
    may be in flight. The few that it would have sent until the next segment count too."""
    script = endpoint.script(latency_seconds=0.2, slots=8)
    stage = Say(url=script.url, max_in_flight=8, flush_seconds=0.05)
    with deaths(on_ray, ["publish:facts/toy.say/*/log/*-000003-*:published"], tmp_path):
        result = go(workspace, stage, engine=on_ray, rows=64, shard_rows=64)
    counts = result.counts["stage_1"]
    assert result.ledger["stage_1"].after == 64 == counts.copied + counts.requests
    assert counts.copied >= 1 and 0 < counts.asked_again <= 2 * 8 + 8
    assert script.stats()["requests"] <= 64 + 2 * 8
    assert sum(script.stats()["texts"].values()) - 64 <= counts.asked_again
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
