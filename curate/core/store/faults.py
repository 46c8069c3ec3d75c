"""Fault points, at which tests kill this process to show that a kill at any point loses only time.

Off unless set in the environment. With `CURATE_FAULT_LOG=file`, each point that is passed appends its name to the file,
so that tests can list the points. `CURATE_FAULT_KILL=pattern|pattern` kills the process (SIGKILL) at a point whose name
matches a shell pattern; with `CURATE_FAULT_ONCE=folder`, each pattern kills one of the processes that share the folder.
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
    for number, pattern in enumerate(kill.split("|") if kill else ()):
        if fnmatch.fnmatchcase(name, pattern) and _first(number):
            os.kill(os.getpid(), signal.SIGKILL)


def _first(number: int) -> bool:
    once = os.environ.get("CURATE_FAULT_ONCE")
    if not once:
        return True
    try:
        os.close(os.open(os.path.join(once, str(number)), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
