"""Payloads in a child process: SIGTERM, which a drain sends to all processes of a run, ends none of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from curate.engine.tasks import beat
from curate.engine.tasks import running as tasks
from curate.engine.tasks.beat import Beat
from curate.engine.tasks.job import Outcome

SECONDS = 60.0


def until_stopped(folder: str) -> str:
    """Says that it runs, and winds down when its parent says so."""
    Path(folder, "pid").write_text(str(os.getpid()))
    until = time.monotonic() + SECONDS
    while not beat.current().stopping:
        assert time.monotonic() < until
        time.sleep(0.01)
    return "wound down"


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_child_survives_a_drain(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent tells it to stop; if it died, its rows would count as poison."""
    monkeypatch.setattr(tasks, "START_METHOD", method)
    monkeypatch.setattr(tasks, "PRELOADED", tasks.PRELOADED[:1])
    mine, outcomes = Beat("unit 1", "cpu"), list[Outcome]()

    def supervise() -> None:
        with beat.beating(mine):
            outcomes.append(tasks.run_isolated(until_stopped, str(tmp_path), 7))

    thread = threading.Thread(target=supervise)
    thread.start()
    until = time.monotonic() + SECONDS
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    child = psutil.Process(int((tmp_path / "pid").read_text()))
    hit = [child] if method == "fork" else [child, child.parent()]
    assert all(process is not None and process.pid != os.getpid() for process in hit)
    for process in hit:
        os.kill(process.pid, signal.SIGTERM)
    time.sleep(2 * tasks.RELAY_SECONDS)  # they would have died by then
    assert all(process.is_running() for process in hit) and not outcomes
    mine.stopping = True
    thread.join(SECONDS)
    assert outcomes == [Outcome(7, "wound down")]
    if method == "forkserver":
        assert hit[1].is_running() and "forkserver" in " ".join(hit[1].cmdline())
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN, sys.orig_argv
