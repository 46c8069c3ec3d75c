"""The sandbox's warm process: it imports all stages once and forks a limited process for every order.

    python -P -m curate.service.policy.template FD

FD is a socket to the service. Each message on it carries the socket of one order and its limits. The forked process
reads the order, writes its answer and exits; this process ends it at its time limit, with everything that it started,
and then appends how it ended. If the service dies, so do all.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from typing import Any

LIMITS = struct.Struct("!dQQ")
"""An order's limits: seconds, bytes of memory, bytes of a file that it writes."""
SIZE = struct.Struct("!Q")
"""Before an answer: its bytes."""
ENDED = struct.Struct("!?idQ")
"""After it: whether the time limit was reached, the exit status (of os.wait4), CPU seconds, most bytes of memory."""
OUT_OF_MEMORY = 2
"""Exit status of a process that got no more memory."""
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38


@dataclass
class Child:
    answer: socket.socket
    until: float
    """By the monotonic clock."""
    late: bool = False


class Template:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, Child] = {}
        self._wake, wake = socket.socketpair()
        for one in (self._wake, wake):
            one.setblocking(False)
        self._waker = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the service closes its end."""
        while True:
            ready, _, _ = select.select([self._control, self._wake], [], [], self._wait())
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
            self._end_late()
            self._reap()
            if self._control in ready and not self._take():
                self._end_all()
                return

    def _wait(self) -> float | None:
        if not self._children:
            return None
        waiting = [child.until for child in self._children.values() if not child.late]
        return max(0.0, min(waiting) - time.monotonic()) if waiting else 1.0

    def _take(self) -> bool:
        """Fork for the next order; False at the end of the connection."""
        message, sockets, _, _ = socket.recv_fds(self._control, LIMITS.size, 1)
        if not message:
            return False
        answer = socket.socket(fileno=sockets[0])
        seconds, memory, file = LIMITS.unpack(message)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(answer, parent, (seconds, memory, file))
        self._children[pid] = Child(answer, time.monotonic() + seconds)
        return True

    def _become_child(self, answer: socket.socket, parent: int, limits: tuple[float, int, int]) -> None:
        """Never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._control, self._wake, self._waker, *(child.answer for child in self._children.values())):
                one.close()
            confine(parent, *limits)
            work(answer)
            status = 0
        except MemoryError:
            status = OUT_OF_MEMORY
        except BaseException:  # noqa: BLE001 - a bug; the service's log has it, and this process must not return
            traceback.print_exc()
        finally:
            os._exit(status)

    def _end_late(self) -> None:
        now = time.monotonic()
        for pid, child in self._children.items():
            if now >= child.until and not child.late:
                child.late = True
                os.killpg(pid, signal.SIGKILL) if _is_leader(pid) else os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for pid in list(self._children):
            # the zombie keeps its number, so that the group that is killed is certainly its own
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            _, status, used = os.wait4(pid, 0)
            child = self._children.pop(pid)
            with contextlib.suppress(OSError):
                child.answer.settimeout(1.0)  # an answer may still fill the buffer
                child.answer.sendall(
                    ENDED.pack(child.late, status, used.ru_utime + used.ru_stime, used.ru_maxrss << 10)
                )
            child.answer.close()

    def _end_all(self) -> None:
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.killpg(pid, signal.SIGKILL)


def _is_leader(pid: int) -> bool:
    """Whether a child has its own process group yet."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def confine(parent: int, seconds: float, memory: int, file: int) -> None:
    """Limits of this process and of what it starts, in a separate session."""
    os.setsid()
    with contextlib.suppress(OSError, AttributeError):  # only Linux has prctl
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    whole = max(1, int(seconds) + 1)
    for what, soft in (
        (resource.RLIMIT_CPU, whole),
        (resource.RLIMIT_DATA, memory),  # of address space, libraries reserve far more than they use
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_NOFILE, 1024),
    ):
        hard = resource.getrlimit(what)[1]
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(what, (soft, soft))


def work(connection: socket.socket) -> None:
    """Read an order from the connection and write its answer."""
    data = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    answer = json.dumps(answered(json.loads(data))).encode()
    connection.sendall(SIZE.pack(len(answer)) + answer)


def answered(order: dict[str, Any]) -> Any:
    from curate.service.policy import checking
    from curate.service.policy.rules import Rules
    from curate.service.settings import Limits

    if order["want"] == "ops":
        return checking.described()
    rules, limits = Rules(**order["rules"]), Limits(**order["limits"])
    return asdict(
        checking.carried_out(
            checking.Order(order["text"], tuple(order["sets"]), rules, limits, order["want"] == "plan")
        )
    )


def warm() -> None:
    """Import what orders need, so that forked processes share it."""
    from curate.core.errors import CurateError
    from curate.core.recipe import registry
    from curate.service.policy import checking  # noqa: F401 - for its imports

    for op in registry.names():
        with contextlib.suppress(CurateError):  # a package that is not installed; recipes with it fail
            registry.resolve(op)
    gc.collect()
    gc.freeze()


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the service, which closes the connection
    warm()
    Template(control).serve()


if __name__ == "__main__":
    main()
