"""A runner's process, as its parent sees it: JSON lines to its stdin and from its stdout."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from curate.core.child import how_ended, kill, launch
from curate.core.errors import StorageError

MAIN = Path(__file__).parents[1] / "runner" / "main.py"
POLL_SECONDS = 0.2
PIPE_BYTES = 1 << 20
"""The process can send thousands of answers while its parent does something else."""
LOG_BYTES = 4096
"""How much of the end of its log is searched for the reason of its death."""


class Stopped(Exception):
    """The caller asked to stop."""


class DiedError(Exception):
    """The process ended, or hung and was killed."""


class Child:
    def __init__(self, python: Path, variables: Mapping[str, str], files: Collection[int]) -> None:
        """files: descriptors that it inherits."""
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - `close` closes it
        self.quiet_seconds = math.inf
        """A process that sends nothing or decodes one image for so long hangs."""
        pipe = subprocess.PIPE
        self._process = launch([python, "-I", MAIN], variables, files, stdin=pipe, stdout=pipe, stderr=self._log)
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        with contextlib.suppress(OSError):  # a user may have few large pipes
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._pending = b""
        self._ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: Mapping[str, Any]) -> None:
        """The message must fit into a pipe (64 KiB), so that a hanging process does not block its parent."""
        with contextlib.suppress(BrokenPipeError):  # `messages` says why it died
            os.write(self._in, json.dumps(message).encode() + b"\n")

    def messages(self, end: float, stopped: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Messages until the time `end`; what it sent by then is complete only after `kill`. Raises Stopped, DiedError,
        and StorageError or RuntimeError if the process reports that it cannot continue."""
        heard = time.monotonic()
        while True:
            if stopped():
                raise Stopped
            found = self._read(POLL_SECONDS)
            now = time.monotonic()
            heard = now if found else heard
            for message in found:
                if "failed" in message:
                    self.kill()
                    raise _failure(message)
                if (message.get("alive") or 0.0) > self.quiet_seconds:
                    self.kill()
                    raise DiedError(f"decoded one image for {self.quiet_seconds:g} s")
                yield message
            if self._ended:
                self.kill()
                raise DiedError(self._epitaph())
            if now >= end:
                return
            if now - heard > self.quiet_seconds:
                self.kill()
                raise DiedError(f"was silent for {self.quiet_seconds:g} s")

    def rest(self) -> Iterator[dict[str, Any]]:
        """After `kill`: what it had sent."""
        while not self._ended:
            yield from self._read(0.0)

    def kill(self) -> None:
        """End it and whatever it started; what it sent can still be read."""
        kill(self._process)

    def close(self) -> None:
        self.kill()
        assert self._process.stdin and self._process.stdout
        for file in (self._process.stdin, self._process.stdout, self._log):
            file.close()

    def _read(self, seconds: float) -> list[dict[str, Any]]:
        if self._ended or not self._poll.poll(seconds * 1000):
            return []
        more = os.read(self._out, 2**18)
        self._ended = not more
        *lines, self._pending = (self._pending + more).split(b"\n")
        return [json.loads(line) for line in lines]

    def _epitaph(self) -> str:
        """How it ended, with the last line of its log."""
        how = how_ended(self._process.wait())
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
        lines = self._log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {last[:300]}" if last else how


def _failure(message: Mapping[str, Any]) -> Exception:
    if message["errno"] is None:
        return RuntimeError(message["failed"])
    return disk_error(OSError(message["errno"], os.strerror(message["errno"])))


def disk_error(cause: OSError) -> StorageError:
    error = StorageError(
        f"the runner's files in {tempfile.gettempdir()}: {cause.strerror}; expected room for what a portion fetches; "
        "free some or set TMPDIR"
    )
    error.__cause__ = cause
    return error
