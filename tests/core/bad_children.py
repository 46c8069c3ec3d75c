"""Functions that children call: honest ones, and hostile ones."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from curate.core import child_main
from curate.core.child import ANSWER, ANSWER_BYTES, FRAME, RANGE, READ, Reader

PR_GET_DUMPABLE = 3
DATA = 3
"""The child's descriptor of the connection to its parent."""


def upper(payload: bytes, _: Reader) -> bytes:
    return payload.upper()


def part(payload: bytes, source: Reader) -> bytes:
    offset, size = map(int, payload.split())
    return source.read_at(offset, size)


def told(_: bytes, __: Reader) -> bytes:
    """What it can reach."""
    found: dict[str, object] = {"isolated": sorted(child_main.isolated), "variables": dict(os.environ)}
    found["dumpable"] = child_main.LIBC.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
    found["open"] = sorted(int(name) for name in range(256) if _is_open(name))
    return json.dumps(found).encode()


def reaches(payload: bytes, _: Reader) -> bytes:
    """Which of a file, a port of this machine and a process can be reached."""
    order, found = json.loads(payload), []
    for name, reach in (
        ("file", lambda: Path(order["file"]).read_bytes()),
        ("network", lambda: socket.create_connection(("127.0.0.1", order["port"]), 1)),
        ("process", lambda: os.kill(order["pid"], 0)),
        ("socket", lambda: socket.socket(socket.AF_UNIX).connect(order["socket"])),
    ):
        try:
            reach()
            found.append(name)
        except OSError:
            pass
    return json.dumps({"reached": found, "isolated": sorted(child_main.isolated)}).encode()


def outlive(_: bytes, __: Reader) -> bytes:
    """Kill the process that watches this one, and stay until the caller closes the connection."""
    child_main.LIBC.prctl(child_main.PR_SET_PDEATHSIG, 0, 0, 0, 0)
    os.kill(os.getppid(), signal.SIGKILL)
    select.select([DATA], [], [], 600)
    return b""


def sleep(_: bytes, __: Reader) -> NoReturn:
    while True:
        time.sleep(1)


def leave(payload: bytes, _: Reader) -> bytes:
    """Leave a process in another session behind, which holds a pipe open."""
    held = os.open(payload, os.O_WRONLY)
    command = [sys.executable, "-c", "import os, time; os.fork(); os.setsid() if os.fork() else 0; time.sleep(600)"]
    subprocess.Popen(command, stdout=held, start_new_session=True)
    return b"left"


def leave_and_sleep(payload: bytes, source: Reader) -> NoReturn:
    leave(payload, source)
    sleep(payload, source)


def eat(_: bytes, __: Reader) -> bytes:
    return b"".join(bytes(64 << 20) for _ in range(100))


def crash(_: bytes, __: Reader) -> bytes:
    return ctypes.string_at(1)


def leaves(_: bytes, __: Reader) -> NoReturn:
    os._exit(9)


def raises(_: bytes, __: Reader) -> NoReturn:
    raise RuntimeError


def kill_parent(_: bytes, __: Reader) -> NoReturn:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
    raise AssertionError


def write(payload: bytes, _: Reader) -> bytes:
    return str(Path(payload.decode()).write_bytes(b"x")).encode()


def nonsense(payload: bytes, _: Reader) -> NoReturn:
    """Send what no honest child sends."""
    sent = {
        b"other": b"?" * 100,
        b"long": FRAME.pack(ANSWER, 1 << 60),
        b"more": FRAME.pack(ANSWER, ANSWER_BYTES + 1),
        b"short": FRAME.pack(ANSWER, 100) + b"x",
        b"far": FRAME.pack(READ, RANGE.size) + RANGE.pack(1 << 62, 1),
        b"wide": FRAME.pack(READ, RANGE.size) + RANGE.pack(0, 1 << 62),
        b"closed": b"",
    }[payload]
    os.write(DATA, sent)
    os.close(DATA)
    time.sleep(600)
    raise AssertionError


def endless(_: bytes, __: Reader) -> NoReturn:
    while True:
        os.write(DATA, FRAME.pack(READ, RANGE.size) + RANGE.pack(0, 1))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def parts(payload: bytes, _: Reader) -> Iterator[bytes]:
    """Parts of these sizes, and one that breaks off: `-1`."""
    for size in map(int, payload.split()):
        if size < 0:
            crash(b"", _)
        yield bytes(size)


def forever(_: bytes, __: Reader) -> Iterator[bytes]:
    while True:
        yield bytes(1000)


def part_and_death(payload: bytes, source: Reader) -> Iterator[bytes]:
    yield b"a"
    kill_parent(payload, source)
