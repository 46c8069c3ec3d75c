"""Names of the service's processes in the database."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from functools import cache


def name() -> str:
    """The name of this process: HOST:PID:RANDOM."""
    return _name(os.getpid())


@cache
def _name(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}:{secrets.token_hex(4)}"


def has_ended(other: str) -> bool:
    """Whether a process of this machine has ended. False for one of another machine, which cannot be seen from here."""
    host, pid, _ = other.rsplit(":", 2)
    if other == name() or host != socket.gethostname():
        return False
    if int(pid) == os.getpid():  # of a container, in which each process has the number of the one before
        return True
    with suppress(PermissionError):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
    return False
