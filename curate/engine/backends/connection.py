"""Connection to a Ray cluster: its address, checked in seconds where Ray retries for minutes, and its environment."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from curate.core.errors import LOST, RESUMES, CurateError, UnreachableError
from curate.core.secrets import FORWARDED

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a gRPC client sends first (RFC 9113, 3.4): the preface and an empty SETTINGS frame."""
SETTINGS = 4
"""Type (fourth byte) of the frame that a gRPC server answers with."""
HEAD_SECONDS = float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", 60)) - 10  # noqa: SIM112
"""How long a head may be away: one with fault tolerance comes back. Ten seconds later Ray would end the driver."""
CHECK_SECONDS = 1.0
DIED, RESTARTED = "Ray has died on this machine", "its head was restarted without its state"

PASSED_ON = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE")
"""Environment variables passed on to workers in addition to CURATE_…; Ray stores their values."""
SECRET_NAME = re.compile("KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL", re.IGNORECASE)


def checked(address: str) -> str:
    """The address to connect to; `auto` is this machine's cluster. Raises CurateError if no cluster answers."""
    given, place = f"--address {address}", address
    if address in ("auto", "local"):
        place = os.environ.get("RAY_ADDRESS", "") or _local_address()
        if not place or place == "auto":
            raise CurateError(f"{given}: no Ray cluster runs on this machine; start one with `ray start --head`")
        given += f" ({place})"
    host, _, port = place.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise CurateError(f"{given}: expected HOST:PORT of a Ray cluster (its port is 6379 by default), or auto")
    problem = _problem(host.strip("[]"), int(port))
    if problem:
        raise CurateError(f"{given}: no Ray cluster answers there ({problem}); check it with `ray status`")
    if place.startswith("ray://"):
        raise CurateError(f"{given}: Ray Client cannot run this; on a node of the cluster, give auto or HOST:PORT")
    return place


def to_raylet(path: str) -> socket.socket:
    """A connection to Ray's socket on this machine, which gets nothing until Ray ends."""
    made = socket.socket(socket.AF_UNIX)
    made.connect_ex(path)
    return made


class Head:
    """The head of a cluster, as its driver sees it without Ray, which ends the process when it is called after the head
    lost its state or Ray died on this machine, and when the head stays away."""

    def __init__(self, place: str, raylet: socket.socket, identity: Callable[[], str]) -> None:
        """`raylet`: see `to_raylet`. `identity` asks the head which cluster it has."""
        self._place, self._identity, self._seen = place, identity, set[str]()
        self.raylet, self._end, self._lock = raylet, select.poll(), threading.Lock()
        self._end.register(self.raylet, select.POLLIN)
        self._answered, self._checked, self._why = time.monotonic(), -CHECK_SECONDS, ""

    def trouble(self) -> str:
        """Why Ray must not be called now; "" if it may. Raises UnreachableError if the cluster is lost."""
        with self._lock:
            now = time.monotonic()
            if now - self._checked > CHECK_SECONDS:
                self._why, self._checked = self._silence(), now
                self._answered = self._answered if self._why else now
            why = DIED if self._end.poll(0) else self._why
            if why in (DIED, RESTARTED) or now - self._answered > HEAD_SECONDS:
                kept = "finished units are kept, those in progress are lost; start the cluster, and"
                raise UnreachableError(f"{LOST} at {self._place} ({why}); {kept} {RESUMES}")
            return why and f"the Ray head at {self._place} does not answer ({why}); waiting for it"

    def _silence(self) -> str:
        host, _, port = self._place.rpartition(":")
        try:
            if problem := _problem(host.strip("[]"), int(port)):
                return problem
            self._seen.add(self._identity())
            return RESTARTED if len(self._seen) > 1 else ""
        except Exception as error:  # noqa: BLE001 - Ray's own, while a head starts
            return " ".join(repr(error).split())


def _local_address() -> str:
    """Address of the cluster last started on this machine, from the file that Ray writes; "" if missing."""
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    return file.read_text().strip() if file.is_file() else ""


def _problem(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "1":
                return ""
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(GREETING)
            answer = connection.recv(9)
    except TimeoutError:
        return "it does not answer"
    except OSError as error:
        return error.strerror or str(error)
    return "" if len(answer) >= 4 and answer[3] == SETTINGS else "another service listens there"


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of the driver's environment that workers get. Secrets, such as object-store keys, are never passed on:
    each node must have its own."""
    wanted = {name: value for name, value in environment.items() if name.startswith(FORWARDED) or name in PASSED_ON}
    return {name: value for name, value in wanted.items() if not SECRET_NAME.search(name)}


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Restore our SIGTERM handler, which drains the run, after `ray.init` has replaced it in C and in Python. Ray may
    be started from a step's thread, where Python's `signal` must not be used."""
    libc, held = ctypes.CDLL(None), ctypes.create_string_buffer(1024)
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    libc.sigaction(signal.SIGTERM, None, held)
    yield
    if main and callable(before):
        signal.signal(signal.SIGTERM, before)
    libc.sigaction(signal.SIGTERM, held, None)


def store_bytes() -> int:
    """Size of the object store: enough for what a fit shares with its workers (centroids). Allocated only when used."""
    free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    return max(256 << 20, min(2 << 30, free // 4))
