"""Answers survive kills and stops: what the next run may repeat, counted by the endpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.core.errors import DrainedError
from curate.engine.passes.answers import log
from curate.engine.run import Result, run
from tests.draw import drawn
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
                process.communicate(timeout=120)
            finally:
                process.kill()
        script.stats({})
        result = go(workspace, Say(url=script.url), rows=ROWS, shard_rows=SHARD_ROWS)
        return script.stats()["requests"], result

    return end


@pytest.mark.long
def test_requests_in_flight_of_a_killed_run_are_repeated(
    workspace: Path, interrupted: Callable[[int], tuple[int, Result]]
) -> None:
    requests, result = interrupted(signal.SIGKILL)
    assert requests == ROWS - ANSWERED and result.ledger["stage_1"].after == ROWS
    assert not segments(workspace)
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n}" for n in range(ROWS))


NOTING = """
import json, sys, threading, time
from curate.engine.passes.answers.log import Log
add, flush, lock = Log.add, Log.flush, threading.Lock()

def note(what, about=None):
    with lock, open(sys.argv[6], "a") as file:
        file.write(json.dumps([what, time.monotonic(), about]) + "\\n")

def adding(log, several):
    several = list(several)
    for _, answered in several:
        note("arrived", answered.columns["said"].removeprefix("said "))
    add(log, several)

def flushing(log):
    note("begun", id(log))
    flush(log)
    note("ended", id(log))

def beating():
    while True:
        note("beat")
        time.sleep(0.1)

Log.add, Log.flush = adding, flushing
threading.Thread(target=beating, daemon=True).start()
"""
"""Notes when answers arrive and segments are written, and how late a thread of the process wakes."""


def delays(notes: list[tuple[str, float, Any]], killed: float) -> tuple[float, float]:
    """The longest write of a segment, and the longest sleep beyond 0.1 s, with those that the kill ended."""
    beats = [at for what, at, _ in notes if what == "beat"] + [killed]
    begun: dict[int, float] = {}
    writes = [0.0]
    for what, at, name in notes:
        if what == "begun":
            begun[name] = at
        if what == "ended":
            writes.append(at - begun.pop(name))
    return max([*writes, *(killed - at for at in begun.values())]), max(b - a for a, b in pairwise(beats)) - 0.1


@pytest.mark.long
def test_no_request_whose_answer_arrived_a_second_before_a_kill_is_repeated(
    workspace: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Twice, by the endpoint's count. A busy machine adds what it delays a thread and a write by, as the run notes."""
    script = endpoint.script(latency_seconds=0.3, latency_sigma=0.3, slots=8)
    rows, each = 240, 80
    times: dict[str, int] = {}
    """Text of a request whose answer must outlast a kill -> how often it was sent until then."""
    for kill in (1, 2):
        file = tmp_path / f"notes-{kill}"
        command = child(workspace, script, rows, each, log.FLUSH_SECONDS)
        noting = [*command[:2], NOTING + CHILD, *command[3:], str(file)]
        with subprocess.Popen(noting, cwd=ROOT, start_new_session=True) as process:
            try:
                until = time.monotonic() + 60
                while script.stats()["answered"] < kill * each:
                    assert time.monotonic() < until and process.poll() is None
                    time.sleep(0.02)
            finally:
                killed = time.monotonic()
                os.killpg(process.pid, signal.SIGKILL)  # a unit in a separate process would log for a moment longer
        notes = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("]")]
        write, late = delays(notes, killed)
        sent, last = script.stats()["texts"], killed - 1.0 - 2 * write - late
        times |= {text: sent[text] for what, at, text in notes if what == "arrived" and at < last}
    result = go(workspace, Say(url=script.url), rows=rows, shard_rows=each)
    assert result.ledger["stage_1"].after == rows and times
    assert {text: script.stats()["texts"][text] for text in times} == times
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n}" for n in range(rows))
    assert not segments(workspace)


@pytest.mark.long
def test_a_stopped_run_keeps_its_answers(workspace: Path, interrupted: Callable[[int], tuple[int, Result]]) -> None:
    requests, result = interrupted(signal.SIGTERM)
    assert requests == ROWS - ANSWERED and result.ledger["stage_1"].after == ROWS
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
    assert result.ledger["stage_1"].after == 32


@pytest.mark.long
def test_a_worker_that_dies_on_ray_leaves_its_answers_to_the_next(
    workspace: Path, endpoint: Endpoint, on_ray: Any, tmp_path: Path
) -> None:
    """The worker dies when its third segment is written. It loses what it has not written by then: the requests in
    flight, twice as many as may be sent at once, and the answers since."""
    script = endpoint.script(latency_seconds=0.2, slots=8)
    stage = Say(url=script.url, max_in_flight=8, flush_seconds=0.05)
    with deaths(on_ray, ["publish:facts/toy.say/*/log/*-000003-*:published"], tmp_path):
        result = go(workspace, stage, engine=on_ray, rows=64, shard_rows=64)
    assert result.ledger["stage_1"].after == 64 > result.counts["stage_1"].requests
    assert 64 < script.stats()["requests"] <= 64 + 3 * 8 and len(script.stats()["texts"]) == 64
    assert [row["said"] for row in answer_rows(workspace)] == sorted(f"said picture {n}" for n in range(64))
    assert not segments(workspace)


POINTS = (
    "publish:facts/toy.say/*/log/*-000001-*:written",
    "publish:facts/toy.say/*/log/*-000002-*:published",
    "publish:facts/toy.say/*/index/*:written",
    "publish:facts/toy.say/*/index/*:published",
    "publish:facts/toy.say/*/000001.parquet:written",
    "publish:facts/toy.say/*/000001.parquet:published",
)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_kill_anywhere_costs_what_was_not_flushed(workspace: Path, endpoint: Endpoint) -> None:
    """What is neither in tables nor in segments then, and nothing else.

    A unit gets its answers in at least four waves, so that it writes a second segment well before its tables."""
    visited = drawn(POINTS)
    assert visited
    for number, point in enumerate(visited):
        script, at = endpoint.script(latency_seconds=0.4, slots=8), workspace / str(number)
        kill = os.environ | {"CURATE_FAULT_KILL": point}
        command = child(at, script, shard_rows=ROWS // 2, flush_seconds=0.01)
        assert subprocess.run(command, cwd=ROOT, env=kill, timeout=200).returncode == -signal.SIGKILL, point
        before, first = len(kept(at)), script.stats()["requests"]
        result = go(at, Say(url=script.url), rows=ROWS, shard_rows=ROWS // 2)
        assert result.ledger["stage_1"].after == ROWS, point
        assert script.stats()["requests"] - first == ROWS - before, point
        assert [row["said"] for row in answer_rows(at)] == sorted(f"said picture {n}" for n in range(ROWS)), point
        assert not segments(at), point
