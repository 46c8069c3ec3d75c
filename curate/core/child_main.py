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
import time
import traceback
from typing import Any

import psutil

from curate.core.child import (
    ANSWER,
    ENDED,
    FRAME,
    ITSELF,
    LATE,
    OUT_OF_MEMORY,
    PART,
    RANGE,
    READ,
    READ_BYTES,
    UNWANTED,
    limit,
)

WATCH_SECONDS = 0.5
"""How often a process looks whether its parent is there."""
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
    if alone and LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC) == 0:
        isolated.add("network")
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # other processes of this user cannot read its memory and variables
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
    if alone:
        LIBC.unshare(CLONE_NEWPID)  # all that the child starts dies with it
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the child leaves behind becomes ours
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status.send(b"s")
    until = time.monotonic() + order["limits"]["seconds"]
    child = os.fork()
    if child == 0:
        _work(order, data, alone, os.getppid())
    data.close()
    ended, poll, cause = os.pidfd_open(child), select.poll(), LATE
    poll.register(ended, select.POLLIN)
    poll.register(status, select.POLLIN)
    while (left := until - time.monotonic()) > 0 and os.getppid() == warm:
        ready = dict(poll.poll(min(left, WATCH_SECONDS) * 1000 + 1))
        if ended in ready:
            cause = ITSELF
            break
        if ready:  # the caller has the answer, rejected it, or is gone
            poll.unregister(status)
            cause, until = UNWANTED, min(until, time.monotonic() + LEAVE_SECONDS)
    orphaned = os.getppid() != warm
    os.kill(child, signal.SIGKILL)
    _, code, used = os.wait4(child, 0)
    _end_rest()
    if not orphaned:  # otherwise it did nothing wrong
        with contextlib.suppress(BrokenPipeError):  # the caller has heard enough
            status.send(ENDED.pack(cause, code, used.ru_utime + used.ru_stime, used.ru_maxrss << 10))


def _end_rest() -> None:
    """End what the child left behind, until nothing is left."""
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for process in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                os.waitpid(-1, 0)


# --- the child ---


def _work(order: dict[str, Any], data: socket.socket, alone: bool, parent: int) -> None:
    """Never returns."""
    status = 1
    try:
        connection = _confine(data, alone, parent, **order["limits"])
        if alone:
            _enclose()
            limit(NOFILE=0)  # no file, pipe or socket can be opened any more
            isolated.add("files")
        answer = _function(order["function"])(_message(connection), Input(connection, order["input_bytes"]))
        if not isinstance(answer, bytes):
            for part in answer:
                connection.sendall(FRAME.pack(PART, len(part)) + part)
            answer = b""
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
            parts.append(_message(self._connection))
            if not parts[-1]:
                break
            offset += len(parts[-1])
        return b"".join(parts)


def _confine(
    data: socket.socket, alone: bool, parent: int, seconds: float, memory_bytes: int, file_bytes: int, open_files: int
) -> socket.socket:
    """The data's socket, beside which only the standard descriptors stay open."""
    os.setsid()
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() not in (parent, 0):  # 0 in a PID namespace
        os._exit(1)
    if alone:  # decoders print what they like
        os.dup2(0, 2)
    os.dup2(data.detach(), 3)
    os.closerange(4, 1 << 20)
    limit(CPU=int(seconds) + 1, CORE=0, FSIZE=file_bytes, NOFILE=open_files)
    limit(DATA=memory_bytes)  # of address space, libraries reserve far more than they use when they are imported
    if alone:
        with open("/proc/self/statm") as file:
            limit(AS=int(file.read().split()[0]) * resource.getpagesize() + memory_bytes)
    return socket.socket(fileno=3)


def _enclose() -> None:
    """Give up all capabilities and, where the kernel knows Landlock, the rights to open files and connections and to
    signal other processes."""
    LIBC.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    version = LIBC.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return
    rights = struct.pack("QQQ", (1 << FILE_RIGHTS.get(version, 16)) - 1, 3 * (version >= 4), 3 * (version >= 6))
    size = 8 * (1 + (version >= 4) + (version >= 6))
    rules = LIBC.syscall(LANDLOCK_CREATE_RULESET, rights, size, 0)
    if rules >= 0:
        LIBC.syscall(LANDLOCK_RESTRICT_SELF, rules, 0)


# --- shared ---


def _function(place: str) -> Any:
    """`module:function`; a module alone is imported, and the function does nothing."""
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else lambda: None


def _message(connection: socket.socket) -> bytes:
    return _receive(connection, int.from_bytes(_receive(connection, 8)))


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (part := connection.recv(min(size - len(data), 1 << 20))):
        data += part
    if len(data) < size:
        raise EOFError("the caller is gone")
    return bytes(data)
