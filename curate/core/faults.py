"""Fault points: where a test may kill this process, to show that a kill anywhere costs nothing but time.

Off unless the environment asks for it. `CURATE_FAULT_LOG=file` appends each point's name as it is passed (that is how
the tests enumerate them); `CURATE_FAULT_KILL=pattern` kills the process (SIGKILL) at the first point whose name matches
the shell pattern; `CURATE_FAULT_ONCE=file` makes that happen once for all processes that share the file.
"""

from __future__ import annotations

import fnmatch
import os
import signal


def point(name: str) -> None:
    log, kill = os.environ.get("CURATE_FAULT_LOG"), os.environ.get("CURATE_FAULT_KILL")
    if log:
        with open(log, "a") as file:
            file.write(name + "\n")
    if kill and fnmatch.fnmatchcase(name, kill) and _first():
        os.kill(os.getpid(), signal.SIGKILL)


def _first() -> bool:
    once = os.environ.get("CURATE_FAULT_ONCE")
    if not once:
        return True
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
