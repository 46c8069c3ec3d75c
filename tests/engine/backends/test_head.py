"""A head that dies during a run: what the command line says, and that the same command resumes on another cluster."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from curate.api import Workspace
from curate.core.errors import LOST, RESUMES
from curate.engine.backends.connection import checked
from curate.service.local_ray import end_tree, free_ports
from tests.e2e.commands import curate_process
from tests.engine.gates import Gate
from tests.scopes import ROOT

TOYS = """
stages:
  pool: {op: "tests.engine.toys.rows:Numbers", namespace: toys}
  costly: {op: "tests.engine.toys.rows:Costly", from: pool, gate: GATE}
"""
PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "13"}
"""Ten seconds more than the run waits."""


@contextlib.contextmanager
def head(port: int, client: int) -> Iterator[subprocess.Popen[bytes]]:
    program = Path(sys.executable).parent / "ray"
    words = [str(program), "start", "--head", "--block", "--num-cpus=1", f"--port={port}", "--include-dashboard=false"]
    words += [f"--ray-client-server-port={client}", "--object-store-memory=104857600", "--disable-usage-stats"]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as place:
        made = subprocess.Popen(
            [*words, f"--temp-dir={place}"], env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until = time.monotonic() + 120
            while not any(process.name() == "raylet" for process in psutil.Process(made.pid).children(recursive=True)):
                assert made.poll() is None and time.monotonic() < until
                time.sleep(0.2)
            checked(f"127.0.0.1:{port}")
            yield made
        finally:
            end_tree(made)


@pytest.mark.nightly
@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("dies", ["gcs_server", "ray"])
def test_a_head_that_dies_is_one_line_and_the_same_command_resumes(workspace: Path, gate: Gate, dies: str) -> None:
    file, (port, client) = workspace.parent / "toys.yaml", free_ports(2)
    file.write_text(TOYS.replace("GATE", str(gate.folder)))
    words = ["run", file, "-w", workspace, "--engine", "ray", "--address", f"127.0.0.1:{port}"]
    with head(port, client) as ray:
        program = Path(sys.executable).parent / "curate"
        run = subprocess.Popen(
            [program, *map(str, words), "--run-id", "one"], cwd=ROOT, env=os.environ | PATIENCE,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        gate.wait()
        if dies == "ray":
            end_tree(ray)
        else:
            tree = psutil.Process(ray.pid).children(recursive=True)
            psutil.Process(ray.pid).suspend()  # it would end the rest of the node
            next(process for process in tree if process.name() == dies).kill()
        said = run.communicate(timeout=200)[1].splitlines()
    why = "Ray has died on this machine" if dies == "ray" else "Connection refused"
    (line,) = said
    assert run.returncode == 1 and line.startswith(f"curate: {LOST} at ") and line.endswith(f"and {RESUMES}")
    assert f" ({why}); finished units are kept" in line
    place = Workspace(str(workspace))
    assert place.attempt("one").state == "open" and place.heartbeat("one").look() is False
    assert place.summary("one").state == "failed" and LOST in place.summary("one").error
    file.write_text(TOYS.replace("GATE", "''"))
    with head(port, client):
        again = curate_process(*words, "--run-id", "two")
    assert again.code == 0, again
    assert place.run("two").wait(timeout=60).reused["pool"]
