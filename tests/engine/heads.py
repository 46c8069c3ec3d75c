"""A Ray head with a dashboard and its job server, as a cluster has one. It takes some 20 seconds to start."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from curate.service.local_ray import end_tree

START_SECONDS = 120.0


@contextlib.contextmanager
def started() -> Iterator[str]:
    """URL of the dashboard."""
    gcs, dashboard, agent, client = _free_ports(4)
    folder = Path(sys.executable).parent
    words = [folder / "ray", "start", "--head", "--block", "--num-cpus=2", f"--port={gcs}", "--include-dashboard=true"]
    words += [f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"]
    words += [f"--ray-client-server-port={client}", "--object-store-memory=104857600", "--disable-usage-stats"]
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as place:  # sockets' paths must be short
        words.append(f"--temp-dir={place}")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        head = subprocess.Popen(words, env=environment, **quiet)  # type: ignore[call-overload]
        try:
            _wait(f"http://127.0.0.1:{dashboard}", head)
            yield f"http://127.0.0.1:{dashboard}"
        finally:
            end_tree(head)  # after SIGTERM a head drains for 30 s


def _wait(url: str, head: subprocess.Popen[bytes]) -> None:
    """Until the job server answers."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and head.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/api/jobs/", timeout=5):
            return
        time.sleep(0.5)
    raise RuntimeError(f"no job server at {url}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
