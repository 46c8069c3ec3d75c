"""The warm process of `curate.core.child.Warm`: it imports modules once and forks for every call.

Each message on its socket is a call: the function, limits, and two more sockets, for data and for how the call ended. A
forked process watches the call: it forks the limited child, ends it at its deadline with everything that it started,
whatever session that is in, and says how it ended. If the caller dies, so do all.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
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
from typing import Any

from curate.core.child import ANSWER, ENDED, FRAME, ITSELF, LATE, OUT_OF_MEMORY, RANGE, READ, READ_BYTES, UNWANTED

WATCH_SECONDS = 1.0
LEAVE_SECONDS = 0.2
"""How long a child may stay after its answer."""
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many rights on files a version of Landlock knows; 16 from version 5."""
LIBC = ctypes.CDLL(None, use_errno=True)
isolated: set[str] = set()
"""What this process cannot reach: `network`, `files`."""


def main(arguments: list[str]) -> None:
    control, alone = socket.socket(fileno=int(arguments[0])), arguments[1] == "1"
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the caller, which closes the connection
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    if alone and _unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC):
        isolated.add("network")
    _prctl(PR_SET_DUMPABLE, 0)  # other processes of this user cannot read its memory and variables
    for module in arguments[2:]:
        _function(module)()
    gc.collect()
    gc.freeze()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while os.getppid() == parent:  # a fork of the caller may hold the connection open
        if poll.poll(WATCH_SECONDS * 1000) and not _take(control, alone):
            return


def _take(control: socket.socket, alone: bool) -> bool:
    """Fork for the next call; False at the end of the connection."""
    message, files, _, _ = socket.recv_fds(control, 1 << 16, 2)
    if not message:
        return False
    sockets = [socket.socket(fileno=file) for file in files]
    warm = os.getpid()
    with contextlib.suppress(OSError):  # no more processes: the caller sees that the call was not started
        if os.fork() == 0:
            try:
                control.close()
                _watch(json.loads(message), sockets[0], sockets[1], warm, alone)
            except BaseException:  # noqa: BLE001 - a bug; the log has it, and this process must not return
                traceback.print_exc()
            finally:
                os._exit(0)
    for one in sockets:
        one.close()
    return True


# --- the process that watches a call ---


def _watch(order: dict[str, Any], data: socket.socket, status: socket.socket, warm: int, alone: bool) -> None:
    wake, waker = socket.socketpair()
    for one in (wake, waker):
        one.setblocking(False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    if alone:
        _unshare(CLONE_NEWPID)  # whatever the child starts dies with it
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # what the child leaves behind becomes ours
    status.send(b"s")
    until = time.monotonic() + order["limits"]["seconds"]
    child = os.fork()
    if child == 0:
        _work(order, data, alone, os.getppid())
    data.close()
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(status, select.POLLIN)
    cause = ITSELF
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        left = until - time.monotonic()
        if left <= 0 or os.getppid() != warm:
            cause = cause or LATE
            break
        if status.fileno() in dict(poll.poll(left * 1000 + 1)):  # the caller has the answer, wants none, or is gone
            poll.unregister(status)
            cause, until = UNWANTED, min(until, time.monotonic() + LEAVE_SECONDS)
        with contextlib.suppress(BlockingIOError):
            wake.recv(4096)
    else:
        cause = ITSELF
    orphaned = os.getppid() != warm
    os.kill(child, signal.SIGKILL)
    _, code, used = os.wait4(child, 0)
    _end_rest()
    if not orphaned:  # otherwise it did nothing wrong
        status.send(ENDED.pack(cause, code, used.ru_utime + used.ru_stime, used.ru_maxrss << 10))


def _end_rest() -> None:
    """End what the child left behind, until nothing is left."""
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                import psutil

                for process in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                os.waitpid(-1, 0)


# --- the child ---


def _work(order: dict[str, Any], data: socket.socket, alone: bool, parent: int) -> None:
    """Never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        connection = _only(data, alone)
        _confine(parent, **order["limits"])
        if alone and _enclose():
            isolated.add("files")
        payload = _receive(connection, int.from_bytes(_receive(connection, 8)))
        answer = _function(order["function"])(payload, Input(connection, order["input_bytes"]))
        connection.sendall(FRAME.pack(ANSWER, len(answer)) + answer)
        status = 0
    except MemoryError:
        status = OUT_OF_MEMORY
    except BaseException:  # noqa: BLE001 - a bug of the function, or the caller is gone; the log has it
        traceback.print_exc()
    finally:
        os._exit(status)


class Input:
    """The reader of the call, in the child."""

    def __init__(self, connection: socket.socket, size: int) -> None:
        self._connection, self.size = connection, size

    def read_at(self, offset: int, size: int, /) -> bytes:
        """Fewer bytes at the end."""
        end, parts = min(offset + size, self.size), []
        while offset < end:
            body = RANGE.pack(offset, min(end - offset, READ_BYTES))
            self._connection.sendall(FRAME.pack(READ, len(body)) + body)
            parts.append(_receive(self._connection, int.from_bytes(_receive(self._connection, 8))))
            offset += len(parts[-1])
            if not parts[-1]:
                break
        return b"".join(parts)


def _only(data: socket.socket, alone: bool) -> socket.socket:
    """Close all descriptors but the standard ones and the data's."""
    if alone:  # decoders print what they like
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(data.detach(), 3)
    os.closerange(4, 1 << 20)
    return socket.socket(fileno=3)


def _confine(parent: int, seconds: float, memory_bytes: int, file_bytes: int, open_files: int) -> None:
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if os.getppid() not in (parent, 0):  # 0 in a PID namespace
        os._exit(1)
    limit(CPU=int(seconds) + 1, CORE=0, FSIZE=file_bytes, NOFILE=open_files)
    limit(DATA=memory_bytes)  # of address space, libraries reserve far more than they use


def limit(**most: int) -> None:
    """Set limits of this process for good, by the ends of their names: CPU, DATA …"""
    for name, value in most.items():
        what = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def _enclose() -> bool:
    """Give up all capabilities, and the right to open files and connections and to signal other processes; False if the
    kernel knows no Landlock."""
    if sys.platform != "linux":
        return False
    LIBC.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    version = LIBC.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    rights = struct.pack("QQQ", (1 << FILE_RIGHTS.get(version, 16)) - 1, 3 * (version >= 4), 3 * (version >= 6))
    size = 8 * (1 + (version >= 4) + (version >= 6))
    rules = LIBC.syscall(LANDLOCK_CREATE_RULESET, rights, size, 0)
    return rules >= 0 and LIBC.syscall(LANDLOCK_RESTRICT_SELF, rules, 0) == 0


# --- shared ---


def _function(place: str) -> Any:
    """`module:function`; of a module, what does nothing."""
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else lambda: None


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError("the caller is gone")
        data += part
    return bytes(data)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        LIBC.prctl(option, value, 0, 0, 0)


def _unshare(flags: int) -> bool:
    return sys.platform == "linux" and LIBC.unshare(flags) == 0
