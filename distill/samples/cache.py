"""Who writes an index into its cache folder.

The folder may be shared by machines whose locks do not reach each other, so a lock only saves work: what is written
appears whole under its final name, and whoever comes second keeps what is there.
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
def locked(folder: Path) -> Iterator[None]:
    """Processes of one machine wait for the one that is at it, where the file system has locks."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot keep the index there ({error.strerror or error}); set CURATE_CACHE"
        ) from error


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """A folder to write to, which is called `folder` when the block ends well, unless there is one by then."""
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


def used(folder: Path) -> None:
    """So that it is not removed as an old one."""
    with suppress(OSError):
        os.utime(folder)


def remove_older(folder: Path) -> None:
    """Of folders ORIGIN-…, finished or not, those of the same origin that nobody has used for a day: another machine
    may still have a younger one open."""
    origin, now = folder.name.partition("-")[0], time.time()
    for other in folder.parent.iterdir():
        with suppress(OSError):
            same = other != folder and other.name.lstrip(".").startswith(f"{origin}-")
            if same and now - other.stat().st_mtime > _DAY:
                shutil.rmtree(other, ignore_errors=True)
