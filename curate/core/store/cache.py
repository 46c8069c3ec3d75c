"""The user's cache of downloaded and compiled files, shared by all runs on a machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder in $CURATE_CACHE or ~/.cache/curate; it may not exist yet."""
    named = os.environ.get("CURATE_CACHE")
    return (Path(named) if named else Path.home() / ".cache" / "curate") / name


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks `folder` for one process at a time, and creates it if missing. Raises OSError if it is not writable."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
