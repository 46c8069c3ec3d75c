"""Checks and plans recipes in a limited process, so that no recipe can harm the service.

The time, the memory and the files of the process are limited, its environment has no token of the service, and at most
two run at a time. They are forked from a warm process (`template`), because importing all stages takes seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from curate.service.policy.template import ENDED, LIMITS, OUT_OF_MEMORY, SIZE
from curate.service.problems import TooManyProblem, UnavailableProblem

if TYPE_CHECKING:
    from curate.service.policy.rules import Rules
    from curate.service.settings import Limits

AT_ONCE = 2
STARTING_SECONDS = 60.0
"""How long the warm process may take until it answers, beyond an order's own time."""
ANSWER_BYTES = 16 << 20
PLAN_FILE_BYTES = 64 << 20
"""A plan copies files of denied hosts; a check writes nothing."""
ENVIRONMENT = re.compile(
    r"PATH|HOME|LANG|LC_\w+|TZ|TMPDIR|USER|LOGNAME|PYTHONPATH|VIRTUAL_ENV|LD_LIBRARY_PATH|SSL_CERT_\w+|"
    r"(AWS|AZURE_STORAGE|GOOGLE|FSSPEC)_\w+|HF_(HOME|HUB_CACHE|HUB_OFFLINE|ENDPOINT)|(https?|no|all)_proxy|"
    r"(HTTPS?|NO|ALL)_PROXY"
)
"""Variables that the process gets: what it needs to import the package, and to read workspaces on object stores."""
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
"""A forked process has only the thread that forked it, so libraries must not start theirs when they are imported."""


@dataclass
class Outcome:
    """JSON-able. `mistakes`, `stages` and `plan` have the fields of the API's shapes."""

    mistakes: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    plan: list[dict[str, Any]] = field(default_factory=list)
    resolved: str = ""
    """The recipe that the job runs."""
    needs: dict[str, Any] = field(default_factory=dict)
    """The most GPUs of a task, and its stage."""
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    """Including memory that the process shares with the warm one."""


@dataclass(frozen=True)
class _Reply:
    answer: Any
    late: bool = False
    status: int = 0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class Sandbox:
    """Thread-safe. Starts its warm process at the first order, or by `start`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._running = threading.BoundedSemaphore(AT_ONCE)
        self._describing = threading.Lock()
        self._ops: list[dict[str, Any]] | None = None
        self._closed = False

    def check(self, text: str, sets: Sequence[str], rules: Rules) -> Outcome:
        """Whether the rules admit a recipe and it can be built. The caller has a turn (`Limiter.checks`), so that no
        thread waits here. Raises TooManyProblem or UnavailableProblem."""
        return self._outcome("check", text, sets, rules)

    def plan(self, text: str, sets: Sequence[str], rules: Rules) -> Outcome:
        """The same, with what a run would do."""
        return self._outcome("plan", text, sets, rules)

    def ops(self) -> list[dict[str, Any]]:
        """Descriptions of all ops."""
        with self._describing:
            if self._ops is None:
                reply = self._ask({"want": "ops"}, 0)
                if reply.answer is None:
                    raise UnavailableProblem("the list of ops cannot be made at the moment; try again")
                self._ops = reply.answer
            return self._ops

    def start(self) -> None:
        """Start the warm process, which is ready some seconds later. Does nothing if it runs."""
        with self._lock:
            self._connect()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    # --- one order ---

    def _outcome(self, want: str, text: str, sets: Sequence[str], rules: Rules) -> Outcome:
        size = len(text) + sum(map(len, sets))
        if size > self._limits.recipe_bytes:  # bytes are at least as many as characters
            most = f"at most {self._limits.recipe_bytes:,} bytes"
            return Outcome([_mistake("too_large", f"{size:,} characters with its overrides; {most}")])
        order = {"want": want, "text": text, "sets": list(sets), "rules": asdict(rules)}
        order["limits"] = self._limits.model_dump(mode="json")
        if not self._running.acquire(timeout=self._limits.check_seconds):
            raise TooManyProblem("too many recipes are being checked; try again in some seconds", 5.0)
        try:
            reply = self._ask(order, PLAN_FILE_BYTES if want == "plan" else 0)
        finally:
            self._running.release()
        answer = {"mistakes": [self._failure(want, reply)]} if reply.answer is None else reply.answer
        return Outcome(**answer | {"cpu_seconds": reply.cpu_seconds, "peak_bytes": reply.peak_bytes})

    def _failure(self, want: str, reply: _Reply) -> dict[str, Any]:
        if reply.late or (os.WIFSIGNALED(reply.status) and os.WTERMSIG(reply.status) == signal.SIGXCPU):
            seconds = f"{self._limits.check_seconds:g} s"
            if want == "plan":
                return _mistake("timeout", f"the plan takes more than {seconds}; submit the recipe without one")
            return _mistake("timeout", f"the check takes more than {seconds}; make the recipe smaller")
        if not os.WIFSIGNALED(reply.status) and os.waitstatus_to_exitcode(reply.status) != OUT_OF_MEMORY:
            return _mistake("recipe", f"the {want} failed unexpectedly; ask an admin to look into the service's log")
        most = f"{self._limits.check_bytes:,} bytes"
        return _mistake(
            "too_large", f"the {want} crashed, or needs more than {most} of memory; make the recipe smaller"
        )

    def _ask(self, order: dict[str, Any], file_bytes: int) -> _Reply:
        data = json.dumps(order).encode("utf-8", "surrogatepass")
        return self._attempt(data, file_bytes) or self._attempt(data, file_bytes) or _no_answer()

    def _attempt(self, data: bytes, file_bytes: int) -> _Reply | None:
        """None if the warm process died; the next attempt restarts it."""
        seconds = self._limits.check_seconds
        until = time.monotonic() + seconds + STARTING_SECONDS
        ours, theirs = socket.socketpair()
        control: socket.socket | None = None
        with contextlib.closing(ours), contextlib.closing(theirs):
            try:
                with self._lock:
                    control = self._connect()
                    limits = LIMITS.pack(seconds, self._limits.check_bytes, file_bytes)
                    socket.send_fds(control, [limits], [theirs.fileno()])
                theirs.close()
                ours.settimeout(seconds + STARTING_SECONDS)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # how it ended follows
                    ours.sendall(data)
                    ours.shutdown(socket.SHUT_WR)
                return _received(ours, until)
            except OSError:  # TimeoutError too
                with self._lock:
                    if self._control is control:  # otherwise another order has replaced it
                        self._end()
                return None

    # --- the warm process ---

    def _connect(self) -> socket.socket:
        """The connection to the warm process, which is started if it does not run. The caller holds the lock."""
        if self._closed:
            raise UnavailableProblem("the service is stopping; try again later")
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.closing(theirs):
            command = [sys.executable, "-P", "-m", "curate.service.policy.template", str(theirs.fileno())]
            environment = {name: value for name, value in os.environ.items() if ENVIRONMENT.fullmatch(name)}
            environment |= ONE_THREAD | {"PYTHONDONTWRITEBYTECODE": "1"}
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control = ours
        return ours

    def _end(self) -> None:
        """End the warm process and all that it forked. The caller holds the lock."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)
            self._process.kill()
            self._process.wait()
            self._process = None


def _received(connection: socket.socket, until: float) -> _Reply | None:
    """An answer and how its process ended; None if the warm process died before it could say so."""
    data = bytearray()
    while len(data) <= ANSWER_BYTES:
        connection.settimeout(max(0.01, until - time.monotonic()))
        part = connection.recv(1 << 20)
        if not part:
            break
        data += part
    if len(data) > ANSWER_BYTES:
        return _Reply(None, status=OUT_OF_MEMORY << 8)
    if len(data) < ENDED.size:
        return None
    ended = ENDED.unpack(data[-ENDED.size :])
    body = bytes(data[: -ENDED.size])
    if len(body) >= SIZE.size and len(body) == SIZE.size + SIZE.unpack(body[: SIZE.size])[0]:
        return _Reply(json.loads(body[SIZE.size :]), *ended)
    return _Reply(None, *ended)


def _no_answer() -> _Reply:
    raise UnavailableProblem("the process that checks recipes does not answer; try again, or ask an admin for its log")


def _mistake(code: str, text: str) -> dict[str, Any]:
    return {"code": code, "text": text, "stage": "", "line": None}
