"""A Ray head on this machine, as a child of the service: with a token, on loopback only, with its own ports and folder.

It ends with the service, however that ends, and starts again when it dies. Other Rays of the machine are left alone.
Run as a module, it replaces itself by a program that the kernel kills when its parent dies:

    python -m curate.service.local_ray PARENT_PID PROGRAM ARGUMENT...
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from curate.core.errors import PreflightError

LOG = logging.getLogger("curate.service")
PR_SET_PDEATHSIG = 1
AGAIN_SECONDS, LONGEST_SECONDS = 1.0, 60.0
"""Pause before the next start; it doubles while starts fail."""
STEADY_SECONDS = 120.0
"""A head that lived for longer had started well."""
KILL_SECONDS = 5.0
HIDDEN = ("CURATE_TOKEN", "CURATE_SERVER", "RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_API_SERVER_ADDRESS", "RAY_TMPDIR")


class LocalRay:
    """`moved` is called with the dashboard's URL at each start, before the head answers there."""

    def __init__(self, folder: Path, moved: Callable[[str], None], cpus: int | None = None) -> None:
        self.token, self._log, self._place = folder / "ray-token", folder / "ray.log", folder / "ray-folder"
        self._moved, self._cpus = moved, cpus
        self._ending = threading.Event()
        self._head: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="local-ray", daemon=True)

    def start(self) -> None:
        """Start it in the background. Raises PreflightError if Ray is not installed."""
        if not self.program().is_file():
            raise PreflightError(f"{self.program()}: Ray is not installed beside this Python; run make setup")
        if not self.token.exists():
            write_private(self.token, secrets.token_urlsafe(32))
        self._thread.start()

    def stop(self) -> None:
        """End the head and all that it started."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    @staticmethod
    def program() -> Path:
        return Path(sys.executable).parent / "ray"

    def _keep(self) -> None:
        """The head is a child of this thread, whose end would kill it."""
        pause = AGAIN_SECONDS
        while not self._ending.is_set():
            began = time.monotonic()
            try:
                self._once()
            except Exception:  # a full disk, a database that does not answer: tried again below
                LOG.exception("the local Ray cannot be started")
            if self._ending.is_set():
                return
            pause = AGAIN_SECONDS if time.monotonic() - began > STEADY_SECONDS else min(pause * 2, LONGEST_SECONDS)
            LOG.warning("the local Ray has ended; it starts again in %.0f s (its output: %s)", pause, self._log)
            self._ending.wait(pause)

    def _once(self) -> None:
        """Run a head until it ends or has to."""
        self._forget()
        place = tempfile.mkdtemp(prefix="curate-ray-", dir="/tmp")  # paths of sockets must be short
        self._place.write_text(place)
        dashboard, *others = free_ports(4)
        self._moved(f"http://127.0.0.1:{dashboard}")
        LOG.info("starting the local Ray; runs wait until it answers (its output: %s)", self._log)
        words = self._words(place, dashboard, *others)
        launch = [sys.executable, "-m", "curate.service.local_ray", str(os.getpid()), *words]
        with self._log.open("wb") as log:
            self._head = subprocess.Popen(
                launch, env=self._environment(os.environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
                cwd=place,  # Ray's fork servers import from the working folder, where a ray.py may lie
            )  # fmt: skip
        try:
            while self._head.poll() is None and not self._ending.wait(0.5):
                pass
        finally:
            end_tree(self._head)
            self._forget()

    def _words(self, place: str, dashboard: int, gcs: int, agent: int, client: int) -> list[str]:
        words = [str(self.program()), "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={gcs}"]
        words += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
        words += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
        words += [f"--temp-dir={place}/ray"]  # Ray lets everybody write there, but `place` is private
        words += [f"--object-store-memory={_store_bytes()}", "--disable-usage-stats"]
        return words if self._cpus is None else [*words, f"--num-cpus={self._cpus}"]

    def _forget(self) -> None:
        """Remove the folder of a head that has ended."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._place.read_text(), ignore_errors=True)
            self._place.unlink()

    def _environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """Jobs find `curate` and the token by it. Ray's token is in a file, never in an argument or a log."""
        folder = str(self.program().parent)
        kept = {name: value for name, value in own.items() if name not in HIDDEN}
        kept |= {"PATH": f"{folder}{os.pathsep}{own.get('PATH', os.defpath)}", "RAY_USAGE_STATS_ENABLED": "0"}
        kept |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token.absolute())}
        return kept | {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"
        }  # or Ray replaces 127.0.0.1 by an address of the network


def end_tree(head: subprocess.Popen[bytes]) -> None:
    """Kill the first process of a session, all its descendants and its session: if a head dies alone, agents of Ray
    outlive their parents for a minute, each with half of a core. By id and start time, so that no other process is
    hit."""
    try:
        whole = psutil.Process(head.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        whole = []
    whole += [process for process in psutil.process_iter() if _session(process) == head.pid]
    head.kill()
    for process in whole:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    head.wait()
    until = time.monotonic() + KILL_SECONDS
    while time.monotonic() < until and any(map(_alive, whole)):
        time.sleep(0.05)


def _session(process: psutil.Process) -> int | None:
    with contextlib.suppress(OSError):  # it has ended
        return os.getsid(process.pid)
    return None


def _alive(process: psutil.Process) -> bool:
    """False for a zombie, which a container may never reap."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def write_private(file: Path, text: str) -> None:
    """A new file that only this user may read."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _store_bytes() -> int:
    """Size of the object store, in shared memory; allocated only when used."""
    free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    return max(128 << 20, min(2 << 30, free // 4))


def main() -> None:
    parent, *words = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the call
        sys.exit(1)
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
