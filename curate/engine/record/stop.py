"""`curate stop`: a file beside the run's record asks its driver to stop, from any machine that sees the workspace.

The driver looks for the file every few seconds, drains as on SIGTERM, and ends. No clock is compared: who asks reads
from the run's result, or from its heartbeat, that it has ended.
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

POLL_SECONDS = 2.0
"""How often a driver looks."""


def path(run_id: str) -> str:
    return f"runs/{run_id}/stop.json"


def ask(storage: Storage, run_id: str) -> dict[str, Any] | None:
    """Ask a run to stop; None if somebody has asked already (see `asked`)."""
    request = {"time": time.time(), "user": _user(), "host": socket.gethostname(), "pid": os.getpid()}
    try:
        storage.create(path(run_id), json.dumps(request, indent=1, sort_keys=True).encode())
    except AlreadyExistsError:
        return None
    return request


def asked(storage: Storage, run_id: str) -> dict[str, Any] | None:
    """Who has asked a run to stop: time (seconds since the epoch, by the asker's clock), user, host, pid; or None."""
    try:
        return dict(storage.read_json(path(run_id)))
    except FileNotFoundError:
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        return str(os.getuid())
