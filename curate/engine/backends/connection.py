"""Connection to a Ray cluster: its address, checked in seconds where Ray retries for minutes, and its environment."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from curate.core.errors import CurateError
from curate.core.secrets import FORWARDED

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a gRPC client sends first (RFC 9113, 3.4): the preface and an empty SETTINGS frame."""
SETTINGS = 4
"""Type (fourth byte) of the frame that a gRPC server answers with."""

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
    return place


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
