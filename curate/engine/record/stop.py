"""`curate stop`: a file beside the run's record tells its driver to stop, from any machine that sees the workspace.

The driver checks for the file every few seconds, drains as on SIGTERM, and ends. No clocks are compared: the run's
result, or its heartbeat, shows that it has ended.
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


def request(storage: Storage, run_id: str) -> dict[str, Any] | None:
    """Request a run to stop; None if it was requested before (see `requested`)."""
    fields = {"time": time.time(), "user": _user(), "host": socket.gethostname(), "pid": os.getpid()}
    try:
        storage.create(path(run_id), json.dumps(fields, indent=1, sort_keys=True).encode())
    except AlreadyExistsError:
        return None
    return fields


def requested(storage: Storage, run_id: str) -> dict[str, Any] | None:
    """The request to stop a run: time (seconds since the epoch, by the requester's clock), user, host, pid; or None."""
    try:
        return dict(storage.read_json(path(run_id)))
    except FileNotFoundError:
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        return str(os.getuid())
