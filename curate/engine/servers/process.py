"""One server process, from its start to its end, and the slot that it occupies."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from curate.core import child
from curate.core.endpoints import Endpoint, Launch
from curate.engine.servers.commands import HOST, command, variables

KEEPER = Path(__file__).with_name("keeper.py")
GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL."""
END_SECONDS = 15.0
"""How long its end may take."""
ANSWER_SECONDS = 10.0
"""Limit of an answer about its health."""
LINES = 50
"""Last lines of its output that are kept for the log."""
QUOTED = 300
"""Characters of its last line in a message."""
REQUEST = re.compile(r'"(GET|POST) /\S* HTTP/[\d.]+" 200')
"""A line about an answered request, which is not kept."""
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
log = logging.getLogger("curate.servers")


class Died(Exception):
    """The server ended, or was ended because it was unhealthy."""


class Process:
    """The keeper, with the server as its child. slot: stays locked until both have ended."""

    def __init__(self, endpoint: Endpoint, launch: Launch, slot: IO[str]) -> None:
        with socket.create_server((HOST, 0)) as free:
            self.port = free.getsockname()[1]
        self._lines: deque[str] = deque(maxlen=LINES)
        keeper = [sys.executable, "-I", str(KEEPER), str(os.getpid()), str(GRACE_SECONDS)]
        self._keeper = child.launch(
            [*keeper, *command(endpoint, self.port)],
            variables(launch),
            (slot.fileno(),),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._in, self._out = self._keeper.stdin, self._keeper.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN | select.POLLHUP)
        self._pending = ""

    @property
    def pid(self) -> int:
        """The keeper's."""
        return self._keeper.pid

    @property
    def output(self) -> str:
        return "\n".join(self._lines)

    @property
    def last_line(self) -> str:
        return f"its last line: {self._lines[-1].strip()[:QUOTED]}" if self._lines else "it printed nothing"

    def read(self, seconds: float) -> None:
        """Read its output, or wait for it for so long. Raises Died."""
        if self._poll.poll(seconds * 1000):
            more = os.read(self._out, 1 << 16)
            *lines, self._pending = re.split(r"[\r\n]+", self._pending + more.decode(errors="replace"))
            for line in filter(str.strip, (CONTROL.sub("", line) for line in lines)):
                log.debug("%s", line)
                if not REQUEST.search(line):
                    self._lines.append(line)
            if not more:
                self._keeper.wait(END_SECONDS)
        code = self._keeper.poll()
        if code is not None:
            raise Died(child.how_ended(code))

    def end(self) -> None:
        """End it, and wait until it has."""
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            self._keeper.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()  # and with it the server
            self._keeper.wait()
        assert self._keeper.stdout is not None
        self._keeper.stdout.close()


# --- health -----------------------------------------------------------------------------------------------------------


def base_url(port: int) -> str:
    return f"http://{HOST}:{port}/v1"


def health(port: int) -> int:
    """Status of the answer about its health: 200 if it is well, 0 if there is none."""
    return _get(port, "/health")[0]


def is_up(port: int, endpoint: Endpoint, launch: Launch) -> bool:
    """Whether it is healthy and serves the model. transformers loads the model before it answers at all, and lists what
    is in its cache instead."""
    if health(port) != 200:
        return False
    if launch.server == "transformers":
        return True
    status, body = _get(port, "/v1/models")
    return status == 200 and endpoint.model in set(_models(body))


def _get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of an answer; 0 if there is none."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)  # never through a proxy
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _models(body: bytes) -> Iterator[str]:
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        yield from (str(one["id"]) for one in json.loads(body)["data"])


# --- slots ------------------------------------------------------------------------------------------------------------


class Slot:
    """A server's place on this machine, which processes with the same GPUs share: for instance a worker, and the child
    in which it tries a shard that crashed. The process that locks its file starts the server, and writes its port."""

    def __init__(self, endpoint: Endpoint, launch: Launch) -> None:
        devices = variables(launch).get("CUDA_VISIBLE_DEVICES", "")
        name = hashlib.sha256(f"{endpoint.model}\0{launch.model_dump_json()}\0{devices}".encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"curate-servers-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        self._path = folder / name

    def take(self) -> IO[str] | None:
        """The locked file; None if another process has it."""
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        file.truncate(0)
        return file

    def port(self) -> int:
        """The port of the server that another process has started; 0 while it is not healthy."""
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return 0


def publish(slot: IO[str], port: int) -> None:
    slot.write(str(port))
    slot.flush()
