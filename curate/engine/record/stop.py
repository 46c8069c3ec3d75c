"""`curate stop`: a file beside the run's record tells its driver to stop, from any machine that sees the workspace.

    runs/<id>/stop.json    drain as on SIGTERM: commit finished work, then end
    runs/<id>/kill.json    end at once

The driver checks for the files every few seconds. No clocks are compared: the run's result, or its heartbeat, shows
that it has ended.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from typing import Any

from curate.core.errors import AlreadyExistsError
from curate.core.store.storage import Storage


def path(run_id: str) -> str:
    return f"runs/{run_id}/stop.json"


def kill_path(run_id: str) -> str:
    return f"runs/{run_id}/kill.json"


def request(storage: Storage, run_id: str, user: str = "") -> dict[str, Any] | None:
    """Request a run to stop, also before it begins; None if it was requested before (see `requested`). user: who
    requests it, if not the user of this process."""
    return _create(storage, path(run_id), user)


def request_kill(storage: Storage, run_id: str, user: str = "") -> dict[str, Any] | None:
    """Request a run's process to end at once; None if it was requested before."""
    return _create(storage, kill_path(run_id), user)


def requested(storage: Storage, run_id: str) -> dict[str, Any] | None:
    """The request to stop a run: time (seconds since the epoch, by the requester's clock), user, host, pid; or None."""
    return _read(storage, path(run_id))


def kill_requested(storage: Storage, run_id: str) -> dict[str, Any] | None:
    """The request to kill a run, or None."""
    return _read(storage, kill_path(run_id))


def _create(storage: Storage, file: str, user: str) -> dict[str, Any] | None:
    fields = {"time": time.time(), "user": user or _user(), "host": socket.gethostname(), "pid": os.getpid()}
    try:
        storage.create(file, json.dumps(fields, indent=1, sort_keys=True).encode())
    except AlreadyExistsError:
        return None
    return fields


def _read(storage: Storage, file: str) -> dict[str, Any] | None:
    try:
        return dict(storage.read_json(file))
    except FileNotFoundError:
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        return str(os.getuid())
