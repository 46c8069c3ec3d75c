"""Child processes with limits: how they are launched and killed, and why they ended.

`Warm` is a process that has imported some modules once. It forks a limited child for each call of a function, which
takes milliseconds, and reports how the child ended: see `curate/core/child_main.py`. The functions may work on
untrusted input, so nothing that a child does or sends raises an error here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from curate.core.errors import PreflightError

START_SECONDS = 60.0
"""How long a warm process may take until it answers, beyond a call's own time."""
END_SECONDS = 10.0
"""How long a child that was ended may take until it is gone."""
ANSWER_BYTES = 16 << 20
READ_BYTES = 16 << 20
"""The most that a child reads of its input at a time."""
FRAME = struct.Struct("!cQ")
"""Before what a child sends: its kind and its bytes."""
READ, PART, ANSWER = b"R", b"P", b"A"
RANGE = struct.Struct("!QQ")
"""Offset and size of what a child reads."""
ENDED = struct.Struct("!BidQ")
"""How a child ended: by whom, exit status (of os.wait4), CPU seconds, most bytes of memory."""
ITSELF, LATE, UNWANTED = range(3)
"""By whom: killed at its deadline, or because the caller listened no more."""
OUT_OF_MEMORY = 77
"""Exit status of a child that got no more memory."""
KEPT = r"PATH|HOME|LANG|LC_\w+|TZ|TMPDIR|USER|LOGNAME|PYTHONPATH|VIRTUAL_ENV|LD_LIBRARY_PATH"
"""Variables that a warm process gets."""
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
"""A forked process has only the thread that forked it, so libraries must not start theirs when they are imported."""


class Reader(Protocol):
    """An input that a child reads through its parent, so that it needs neither the file nor the network."""

    @property
    def size(self) -> int: ...

    def read_at(self, offset: int, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What a call may use."""

    seconds: float
    memory_bytes: int
    file_bytes: int = 0
    """The largest file that it may write."""
    open_files: int = 64


@dataclass(frozen=True, slots=True)
class Ended:
    answer: bytes | None
    how: str = ""
    """Why there is none: timeout, memory, signal, status, answer (a wrong one) or lost (the process that watched the
    child died, if there was time for a second try in both)."""
    detail: str = ""
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    """Including memory that it shares with the warm process."""
    read_seconds: float = 0.0
    """How long its input took to read, by the caller's reader."""
    parts: int = 0
    """How many it had yielded."""


def environment(kept: str, **extra: str) -> dict[str, str]:
    """Variables of this process whose names match the pattern `kept`, and others."""
    return {name: value for name, value in os.environ.items() if re.fullmatch(kept, name)} | extra


def launch(
    command: Sequence[str | Path], variables: Mapping[str, str], files: Collection[int], **streams: Any
) -> subprocess.Popen[bytes]:
    """A process in a separate session, with these variables and descriptors only."""
    return subprocess.Popen(command, env=variables, cwd="/", start_new_session=True, pass_fds=files, **streams)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a launched process and its group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def limit(**most: int) -> None:
    """Set limits of this process, which it cannot raise again, by the ends of their names: CPU, DATA …"""
    for name, value in most.items():
        what = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def how_ended(code: int) -> str:
    """For a message. code: the status, or -N for signal N, as in `Popen.returncode`."""
    names = {one.value: one.name for one in signal.Signals}  # real-time signals have none
    return f"was killed by {names.get(-code, f'signal {-code}')}" if code < 0 else f"ended with status {code}"


class Warm:
    """Thread-safe. Starts its process at the first call, or by `start`; replaces one that died."""

    def __init__(self, *modules: str, alone: bool = True, kept: str = KEPT) -> None:
        """modules: what the process imports; `module:function` is called too. alone: children open no file and no
        socket, and have no network where the kernel allows that. kept: a pattern of variables' names."""
        self._modules, self._alone, self._kept = modules, alone, kept
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._closed = False
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, which is ready some time later. Does nothing if it runs."""
        with self._lock:
            self._connect()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def call(self, function: str, payload: bytes, limits: Limits, reader: Reader | None = None) -> Ended:
        """Call `module:function` in a child with the payload and the reader's counterpart; it returns bytes.

        If the child is lost because processes that it does not own died, another warm process tries once more, with
        this call alone. Raises PreflightError if no process starts, and what the reader raises."""
        parts = self.stream(function, payload, limits, reader)
        while True:
            try:
                next(parts)
            except StopIteration as end:
                return end.value

    def stream(
        self, function: str, payload: bytes, limits: Limits, reader: Reader | None = None
    ) -> Generator[bytes, None, Ended]:
        """The same for a function that yields bytes, which arrive one by one; the answer is then empty. A call that is
        lost after the first of them is not tried again. The child waits for its caller while its time passes."""
        order = {"function": function, "input_bytes": reader.size if reader else 0, "limits": asdict(limits)}
        message = json.dumps(order).encode()
        began = time.monotonic()
        ended = yield from self._attempt(message, payload, limits, reader)
        lost = ended is not None and ended.how == "lost" and not ended.parts
        if ended is None or (lost and time.monotonic() - began < limits.seconds):
            with contextlib.closing(Warm(*self._modules, alone=self._alone, kept=self._kept)) as other:
                ended = yield from other._attempt(message, payload, limits, reader)
        if ended is None:
            raise PreflightError(
                f"no child process starts for {function}; expected one that imports {', '.join(self._modules)}; "
                "the log may have its traceback"
            )
        return ended

    def _attempt(
        self, message: bytes, payload: bytes, limits: Limits, reader: Reader | None
    ) -> Generator[bytes, None, Ended | None]:
        """None if the child was never started."""
        until = time.monotonic() + limits.seconds + START_SECONDS
        started = False
        with contextlib.ExitStack() as stack:
            data, its_data = map(stack.enter_context, socket.socketpair())
            status, its_status = map(stack.enter_context, socket.socketpair(type=socket.SOCK_SEQPACKET))
            with self._lock:
                control = self._connect()
                with contextlib.suppress(OSError):  # it has just died: the call is not started
                    socket.send_fds(control, [message], [its_data.fileno(), its_status.fileno()])
            its_data.close()
            its_status.close()
            try:
                started = bool(_receive(status, 1, until))
                until = min(until, time.monotonic() + limits.seconds + END_SECONDS)
                call = _Call(data, status, until)
                answer = (yield from call.serve(payload, reader)) if started else None
                data.close()
                with contextlib.suppress(OSError):
                    status.shutdown(socket.SHUT_WR)  # a child that is still there is killed
                end = _receive(status, ENDED.size, until)
            except TimeoutError:
                with self._lock:
                    if self._control is control:  # otherwise another call has replaced it
                        self._end()
                end = b""
        if len(end) == ENDED.size:
            told = _told(answer, limits, *ENDED.unpack(end))
            return replace(told, read_seconds=call.read_seconds, parts=call.parts)
        return Ended(None, "lost", "the process that watched it died", parts=call.parts) if started else None

    def _connect(self) -> socket.socket:
        """The connection to the process, which is started if it does not run. The caller holds the lock."""
        if self._closed:
            raise PreflightError("the child processes were closed; expected no more calls")
        if self._control is not None and self.process is not None and self.process.poll() is None:
            return self._control
        self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(START_SECONDS)
        with theirs:
            start = "import sys; from curate.core.child_main import main; main(sys.argv[1:])"
            command = [sys.executable, "-P", "-c", start, str(theirs.fileno()), str(int(self._alone)), *self._modules]
            variables = environment(self._kept, PYTHONDONTWRITEBYTECODE="1", **ONE_THREAD)
            null = subprocess.DEVNULL
            self.process = launch(command, variables, [theirs.fileno()], stdin=null, stdout=null)
        self._control = ours
        return ours

    def _end(self) -> None:
        """End the process; its children end with it. The caller holds the lock."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
            kill(self.process)
            self.process = None


class _Call:
    """What a child is sent and sends while it runs."""

    def __init__(self, data: socket.socket, status: socket.socket, until: float) -> None:
        self._data, self._status, self._until = data, status, until
        self.read_seconds, self.parts = 0.0, 0
        self._poll = select.poll()
        for one in (data, status):
            self._poll.register(one, select.POLLIN)

    def serve(self, payload: bytes, reader: Reader | None) -> Generator[bytes, None, bytes | None]:
        """Send the payload and what the child reads of the input, and yield its parts. Its answer; None if that makes
        no sense."""
        self._send(payload)
        while len(header := self._receive(FRAME.size)) == FRAME.size:
            kind, size = FRAME.unpack(header)
            if size > (RANGE.size if kind == READ else ANSWER_BYTES):
                return None
            body = self._receive(size)
            if len(body) != size:
                return None
            if kind == ANSWER:
                return body
            if kind == PART:
                self.parts += 1
                yield body
                continue
            if kind != READ or len(body) != RANGE.size or reader is None:
                return None
            offset, wanted = RANGE.unpack(body)
            if wanted > READ_BYTES or offset + wanted > reader.size:
                return None
            began = time.monotonic()
            part = reader.read_at(offset, wanted)
            self.read_seconds += time.monotonic() - began
            self._send(part)
        return None

    def _send(self, data: bytes) -> None:
        self._data.settimeout(max(0.01, self._until - time.monotonic()))
        with contextlib.suppress(OSError):  # how it ended follows
            self._data.sendall(len(data).to_bytes(8) + data)

    def _receive(self, size: int) -> bytes:
        """Fewer bytes at the end of the connection, once the child has ended (what it left behind may hold the
        connection open), or if it is too late."""
        data = bytearray()
        while len(data) < size:
            ready = dict(self._poll.poll(max(0.0, self._until - time.monotonic()) * 1000))
            part = b""
            if self._data.fileno() in ready:
                with contextlib.suppress(OSError):
                    part = self._data.recv(min(size - len(data), 1 << 20))
            if not part:
                break
            data += part
        return bytes(data)


def _receive(connection: socket.socket, size: int, until: float) -> bytes:
    """Raises TimeoutError."""
    connection.settimeout(max(0.01, until - time.monotonic()))
    try:
        return connection.recv(size)
    except ConnectionError:
        return b""


def _told(answer: bytes | None, limits: Limits, cause: int, status: int, cpu_seconds: float, peak: int) -> Ended:
    """How a child ended, with the reason if it gave no answer."""
    code = os.waitstatus_to_exitcode(status)
    if answer is not None:
        return Ended(answer, "", "", cpu_seconds, peak)
    if cause == LATE or cpu_seconds >= int(limits.seconds) + 1:
        how, detail = "timeout", f"took more than {limits.seconds:g} s"
    elif cause == UNWANTED or code == 0:
        how, detail = "answer", f"gave no answer, or none of at most {ANSWER_BYTES:,} bytes"
    elif code == OUT_OF_MEMORY:
        how, detail = "memory", f"needs more than {limits.memory_bytes:,} bytes of memory"
    elif code == -signal.SIGKILL:
        how, detail = "memory", "was killed by SIGKILL, as the kernel does when memory is short"
    else:
        how, detail = ("signal" if code < 0 else "status"), how_ended(code)
    return Ended(None, how, detail, cpu_seconds, peak)
