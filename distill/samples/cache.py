"""Lets several processes build an index in one cache folder.

Machines that share the folder may not see each other's locks, so a lock only avoids duplicate work. An index is
published atomically under its final name, and a process that comes second keeps the existing one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from curate.core.errors import StorageError

_DAY = 86_400.0


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Exclusive lock among the processes of one machine, if the file system supports locks."""
    with explain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def explain_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the remedy."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot write the index ({error.strerror or error}); set CURATE_CACHE to another folder"
        ) from error


@contextmanager
def publish_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to. It is renamed to `folder` if the block succeeds, unless `folder` exists by then."""
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}")
    aside.mkdir()
    try:
        yield aside
        try:
            os.rename(aside, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def mark_used(folder: Path) -> None:
    """Keep `remove_older` from removing the folder for a day."""
    with suppress(OSError):
        os.utime(folder)


def remove_older(folder: Path) -> None:
    """Remove other folders of the same origin (ORIGIN-…), finished or not, that were not used for a day: another
    machine may still read a newer one."""
    origin, now = folder.name.partition("-")[0], time.time()
    for other in folder.parent.iterdir():
        with suppress(OSError):
            same = other != folder and other.name.lstrip(".").startswith(f"{origin}-")
            if same and now - other.stat().st_mtime > _DAY:
                shutil.rmtree(other, ignore_errors=True)
