"""Runs a server as a child process, and ends it when this process's parent ends:

    keeper.py PARENT_PID GRACE_SECONDS COMMAND...

It is a separate program, because the parent may be killed. It notices that when its input ends or, if a fork of the
parent still holds the input open, when its parent is another process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

import psutil

POLL_SECONDS = 0.2
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36
"""Options of Linux's prctl."""


def main(parent: int, grace_seconds: float, command: list[str]) -> int:
    """Exit status of the server, -N if signal N ended it. grace_seconds: between SIGTERM and SIGKILL."""
    _prctl(SET_CHILD_SUBREAPER, 1)  # what the server leaves behind becomes ours, to be ended too
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_parent)
    input_ended = select.poll()
    input_ended.register(sys.stdin, select.POLLIN | select.POLLHUP)
    while server.poll() is None and os.getppid() == parent:
        if input_ended.poll(POLL_SECONDS * 1000):
            break
    return _end(server, grace_seconds)


def _end(server: subprocess.Popen[bytes], grace_seconds: float) -> int:
    """End the server and its descendants."""
    ending = psutil.Process().children(recursive=True)
    for process in ending:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(ending, grace_seconds)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return server.wait()


def _end_with_parent() -> None:
    """The server must not outlive the keeper."""
    _prctl(SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    code = main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
    if code < 0:  # end as the server did
        with contextlib.suppress(OSError):  # the action of SIGKILL cannot be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
