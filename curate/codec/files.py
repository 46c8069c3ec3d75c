"""Reads whole files of a folder: one by one where they are local, concurrently from an object store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence

from curate.codec.listing import FileInfo
from curate.core.errors import Reject
from curate.core.store.storage import Storage

BATCH_FILES = 16
BATCH_BYTES = 32 << 20
"""Files and bytes of a batch, which is held in memory; a larger file is read alone."""

REASONS = {
    "unreadable": "the file exists but cannot be read",
    "vanished": "the file was deleted after it was listed",
    "changed": "the file's size or time changed after it was listed; import again",
}
"""Reasons of `read_files`, with their meaning."""


def batches(files: Sequence[FileInfo]) -> Iterator[list[FileInfo]]:
    """The files in order, in batches that fit in memory."""
    batch: list[FileInfo] = []
    held = 0
    for file in files:
        if batch and (len(batch) == BATCH_FILES or held + file.size > BATCH_BYTES):
            yield batch
            batch, held = [], 0
        batch.append(file)
        held += file.size
    if batch:
        yield batch


def read_files(root: Storage, files: Sequence[FileInfo]) -> list[bytes | Reject]:
    """Bytes of each file, or the reject: unreadable, vanished or changed. The stamp of a local file is compared, if it
    has one. Never reads more than a byte beyond the listed size.

    Errors of the store itself (time-outs, refused connections) are raised, so that the task is retried.
    """
    if root.local:
        return [_read_local(root, file) for file in files]
    paths = [root.path(file.path) for file in files]
    # not `cat`, which takes `[` and `*` in a name for a pattern; an object without bytes has no ranges
    stops = [file.size + 1 if file.size else None for file in files]
    found = root.fs.cat_ranges(paths, [None] * len(paths), stops, on_error="return") if paths else []
    return [_checked(file, value) for file, value in zip(files, found, strict=True)]


def _read_local(root: Storage, file: FileInfo) -> bytes | Reject:
    try:
        with open(root.path(file.path), "rb") as opened:
            info = os.fstat(opened.fileno())
            if info.st_size != file.size or file.stamp not in (None, info.st_mtime_ns):
                return Reject("changed", f"{info.st_size} bytes, but {file.size} were listed")
            return _checked(file, opened.read(file.size + 1))
    except FileNotFoundError:
        return Reject("vanished", file.path)
    except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
        return Reject("unreadable", error.strerror or "")


def _checked(file: FileInfo, value: bytes | Exception) -> bytes | Reject:
    if isinstance(value, FileNotFoundError):
        return Reject("vanished", file.path)
    if isinstance(value, PermissionError):
        return Reject("unreadable", str(value))
    if isinstance(value, OSError) and value.errno == errno.EINVAL:  # the range is beyond the end
        return Reject("changed", f"fewer bytes than the {file.size} that were listed")
    if isinstance(value, Exception):
        raise value
    if len(value) != file.size:
        return Reject("changed", f"{len(value)} bytes, but {file.size} were listed")
    return bytes(value)
