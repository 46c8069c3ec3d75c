"""Launched servers: their health, their restarts and their ends, with a program that stands in for vLLM."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from curate.core.endpoints import Endpoint
from curate.core.errors import CurateError
from curate.engine import servers
from curate.engine.servers import process, server
from tests.conftest import ROOT
from tests.engine.servers.conftest import Make

WAIT_SECONDS = 60


def url(one: servers.Server) -> str:
    return asyncio.run(asyncio.wait_for(one.base_url(), WAIT_SECONDS))


def program(keeper: int) -> psutil.Process:
    """The server itself."""
    return psutil.Process(keeper).children()[0]


def gone(*processes: psutil.Process) -> bool:
    return not psutil.wait_procs(processes, WAIT_SECONDS)[1]


def test_it_answers_once_it_is_healthy(make: Make) -> None:
    one = servers.join("big", make(wait=0.3))
    with urllib.request.urlopen(url(one) + "/models") as answer:
        assert json.load(answer)["data"] == [{"id": "captioner"}]
    assert url(one).startswith("http://127.0.0.1:")


def test_users_of_a_process_share_it_and_it_ends_after_the_last(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.05)
    first, second = servers.join("big", make()), servers.join("same", make())
    assert first is second and url(first) == url(second)
    keeper = psutil.Process(first.pid)
    first.leave()
    assert server._servers
    second.leave()
    assert gone(keeper) and not server._servers
    again = servers.join("big", make())
    assert again is not first and url(again)


def test_other_launches_are_other_servers(make: Make) -> None:
    first, second = servers.join("a", make()), servers.join("b", make(wait=0.01))
    assert url(first) != url(second)


@pytest.mark.parametrize("how", ["server", "keeper"])
def test_it_is_started_again_if_it_is_killed(make: Make, how: str) -> None:
    one = servers.join("big", make())
    before, keeper = url(one), psutil.Process(one.pid)
    old = program(one.pid)
    (old if how == "server" else keeper).kill()
    assert gone(keeper, old)
    while url(one) == before:
        assert one.thread.is_alive()
    assert one.pid != keeper.pid


@pytest.mark.parametrize("what", ["sick", "silent"])
def test_it_is_started_again_if_it_stays_unhealthy(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    monkeypatch.setattr(server, "HEALTH_SECONDS", 0.05)
    monkeypatch.setattr(server, "UNHEALTHY_SECONDS" if what == "sick" else "SILENT_SECONDS", 0.1)
    monkeypatch.setattr(process, "ANSWER_SECONDS", 0.2)
    one = servers.join("big", make(**{what: 5}))
    before = url(one)
    assert gone(program(one.pid))
    while url(one) == before:
        assert one.thread.is_alive()
    assert f"vllm was {'unhealthy' if what == 'sick' else 'silent'} for" in caplog.text


def test_a_server_that_dies_repeatedly_ends_the_run(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "HEALTH_SECONDS", 0.02)
    one = servers.join("big", make(lives=1))
    with caplog.at_level(logging.INFO, "curate"):
        one.thread.join(WAIT_SECONDS)
    with pytest.raises(CurateError) as raised:
        url(one)
    assert str(raised.value) == (
        "endpoint big: vllm ended with status 3 5 times in a row; its last line: engine core died; "
        "check its arguments and its environment"
    )
    assert caplog.text.count("is healthy after") == server.DEATHS
    assert servers.join("big", make(lives=1)) is not one


def test_a_server_that_cannot_start_is_tried_twice(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = servers.join("big", make(fails="Traceback\n  somewhere\nValueError: not enough memory"))
    with caplog.at_level(logging.INFO, "curate"), pytest.raises(CurateError) as raised:
        url(one)
    assert str(raised.value) == (
        "endpoint big: vllm ended with status 1 before it was healthy; its last line: ValueError: not enough memory; "
        "check its arguments and its environment"
    )
    assert caplog.text.count("starting vllm with captioner") == 2
    assert "  somewhere" in caplog.text


@pytest.mark.parametrize("fake", [{"wait": 60}, {"models": ["another"]}])
def test_a_server_that_is_not_healthy_in_time_is_ended(make: Make, fake: dict[str, Any]) -> None:
    one = servers.join("big", make(startup_seconds=0.5, **fake))
    with pytest.raises(CurateError, match=r"big: vllm is not healthy after 0\.5 s; .*; raise `startup_seconds`"):
        url(one)
    one.thread.join(WAIT_SECONDS)
    assert not psutil.pid_exists(one.pid)


def test_a_missing_program_is_one_line(make: Make, environment: Path) -> None:
    (environment / "bin" / "vllm").unlink()
    with pytest.raises(CurateError, match=r"endpoint big: no program .*/bin/vllm to launch; expected"):
        url(servers.join("big", make()))


@pytest.mark.long
def test_what_ignores_sigterm_is_killed_and_leaves_nothing(make: Make, tmp_path: Path) -> None:
    one = servers.join("big", make(deaf=True, child=str(tmp_path / "child")))
    url(one)
    processes = [psutil.Process(one.pid), program(one.pid), psutil.Process(int((tmp_path / "child").read_text()))]
    one.end()
    assert gone(*processes)


WORKER = """
import asyncio, os, sys
from curate.core.endpoints import Endpoint
from curate.engine import servers
one = servers.join("big", Endpoint.model_validate_json(sys.argv[1]))
asyncio.run(one.base_url())
fork = os.fork() if sys.argv[2] == "forked" else 0
if fork or sys.argv[2] != "forked":
    print(one.pid, fork, flush=True)
sys.stdin.read()
"""


def written(endpoint: Endpoint) -> str:
    return endpoint.model_dump_json(exclude_defaults=True, by_alias=True)


def worker_with(endpoint: str, way: str = "") -> subprocess.Popen[str]:
    """Prints the pid of what keeps its server, and of its fork; ends when its input is closed."""
    command = [sys.executable, "-c", WORKER, endpoint, way]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "way", ["killed", pytest.param("forked", marks=pytest.mark.long), pytest.param("ends", marks=pytest.mark.long)]
)
def test_it_ends_with_its_worker(make: Make, tmp_path: Path, way: str) -> None:
    """Killed, killed while a fork of it lives on, and as programs end."""
    with worker_with(written(make(child=str(tmp_path / "child"))), way) as worker:
        keeper, fork = map(int, worker.stdout.readline().split())  # type: ignore[union-attr]
        processes = [psutil.Process(keeper), psutil.Process(int((tmp_path / "child").read_text()))]
        processes += processes[0].children()
        if way == "ends":
            worker.stdin.close()  # type: ignore[union-attr]
        else:
            worker.kill()
        assert gone(*processes)
        if fork:
            os.kill(fork, 9)


# --- processes that share GPUs ----------------------------------------------------------------------------------------


def test_processes_with_the_same_gpus_share_a_server(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is killed, and this one starts a server in its place."""
    with worker_with(written(make())) as worker:
        keeper = psutil.Process(int(worker.stdout.readline().split()[0]))  # type: ignore[union-attr]
        one = servers.join("big", make())
        before = url(one)
        assert one.pid == 0 and f"--port {before.split(':')[-1].removesuffix('/v1')}" in " ".join(keeper.cmdline())
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        other = servers.join("big", make(wait=0.01))
        assert url(other) != before and other.pid
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        worker.kill()
        assert gone(keeper)
        while url(one) == before:
            assert one.thread.is_alive()
        assert one.pid


@pytest.mark.long
def test_a_server_that_another_process_restarts_is_found_again(make: Make) -> None:
    with worker_with(written(make())) as worker:
        keeper = psutil.Process(int(worker.stdout.readline().split()[0]))  # type: ignore[union-attr]
        one = servers.join("big", make())
        before = url(one)
        program(keeper.pid).kill()
        while url(one) == before:
            assert one.thread.is_alive()
        worker.kill()
