"""A Ray head in a separate network with its own host name, as on another machine. The network can be cut.

Only the files are shared. A pair of virtual network cards leads from this network to the head's; the service reaches
the head, its dashboard and nothing else by it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from curate.engine.jobs import JobServer
from curate.service.local_ray import end_tree
from tests.scopes import ROOT

START_SECONDS = 240.0
PORT, DASHBOARD = 6379, 8265
LIVE = {"pending", "running"}


class NotPermittedError(Exception):
    """This process may not make networks."""


class Head:
    """`url` is its dashboard's. It may be killed and started again; each time it knows no jobs."""

    def __init__(self) -> None:
        number = os.getpid() % 16384 * 4  # a network of four addresses for each process of tests
        net = f"198.18.{number // 256}"
        self.here, self.there = f"{net}.{number % 256 + 1}", f"{net}.{number % 256 + 2}"
        self.card = f"far{os.getpid()}"
        self.url = f"http://{self.there}:{DASHBOARD}"
        self._room: subprocess.Popen[bytes] | None = None
        self._ray: subprocess.Popen[bytes] | None = None
        self._place: tempfile.TemporaryDirectory[str] | None = None

    # --- the network ---

    def open(self) -> None:
        """Make the network. Raises NotPermittedError."""
        words = ["unshare", "--net", "--uts", "sh", "-c", "hostname far-head && echo ready && exec sleep infinity"]
        try:
            self._room = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert self._room.stdout is not None
            if self._room.stdout.readline() != b"ready\n":
                raise NotPermittedError("`unshare --net --uts` is not permitted")
            _run("ip", "link", "add", self.card, "type", "veth", "peer", "name", "card", "netns", str(self._room.pid))
            _run("ip", "address", "add", f"{self.here}/30", "dev", self.card)
            _run("ip", "link", "set", self.card, "up")
            for line in ("link set lo up", f"address add {self.there}/30 dev card", "link set card up"):
                self._inside("ip", *line.split())
        except OSError as error:
            raise NotPermittedError(f"networks cannot be made: {error}") from None

    def cut(self) -> None:
        """Packets vanish in both directions; nothing is closed."""
        self._inside("ip", "link", "set", "card", "down")

    def mend(self) -> None:
        self._inside("ip", "link", "set", "card", "up")

    def close(self) -> None:
        self.kill()
        if self._room is not None:  # the network ends with its last process
            self._room.kill()
            self._room.wait()
            assert self._room.stdout is not None
            self._room.stdout.close()

    def _inside(self, *words: str) -> None:
        _run(*self._enter(), *words)

    def _enter(self) -> list[str]:
        assert self._room is not None
        return [str(shutil.which("nsenter")), "--target", str(self._room.pid), "--net", "--uts"]

    # --- Ray ---

    def start(self) -> None:
        """Start Ray, and wait until its job server answers."""
        folder = Path(sys.executable).parent
        self._place = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")  # sockets' paths must be short
        words = [str(folder / "ray"), "start", "--head", "--block", "--num-cpus=2", f"--port={PORT}"]
        words += [f"--node-ip-address={self.there}", "--include-dashboard=true", f"--dashboard-host={self.there}"]
        words += [f"--dashboard-port={DASHBOARD}", "--object-store-memory=104857600", "--disable-usage-stats"]
        words.append(f"--temp-dir={self._place.name}")
        own = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        environment = os.environ | own | {"RAY_AUTH_MODE": "disabled"}
        for name in ("RAY_ADDRESS", "CURATE_SERVER", "CURATE_TOKEN"):
            environment.pop(name, None)
        with (Path(self._place.name) / "said").open("wb") as said:
            self._ray = subprocess.Popen(
                [sys.executable, "-m", "curate.service.local_ray", str(os.getpid()), *self._enter(), *words],
                env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True, cwd=self._place.name,
            )  # fmt: skip
        until = time.monotonic() + START_SECONDS
        with contextlib.closing(JobServer(self.url)) as jobs:
            while time.monotonic() < until and self._ray.poll() is None:
                with contextlib.suppress(Exception):  # not up yet
                    jobs.info("none")
                    return
                time.sleep(0.2)
        raise RuntimeError(f"no Ray head at {self.url}")

    def kill(self) -> None:
        """SIGKILL Ray and all that it has started, its drivers too."""
        if self._ray is not None:
            end_tree(self._ray)
            self._ray = None
        if self._place is not None:
            self._place.cleanup()
            self._place = None

    def jobs(self, run: str) -> dict[str, str]:
        """Attempt -> status of its job, as far as this head knows."""
        with contextlib.closing(JobServer(self.url)) as server:
            return jobs_of(server, run)


def jobs_of(server: JobServer, run: str) -> dict[str, str]:
    """Attempt, of the first four -> status of its job, as far as the server knows."""
    found = {attempt: server.info(attempt) for attempt in (f"{run}-{number}" for number in range(1, 5))}
    return {attempt: info.status for attempt, info in found.items() if info is not None}


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermittedError(f"{' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def started() -> Iterator[Head]:
    head = Head()
    try:
        head.open()
        head.start()
        yield head
    finally:
        head.close()
