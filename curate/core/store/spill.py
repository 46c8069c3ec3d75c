"""Unnamed temporary files for memory-mapped rows of a worker. They vanish with the process, however it ends."""

from __future__ import annotations

import builtins
import errno
import io
import os
import tempfile
import weakref
from typing import IO, Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import StorageError
from curate.core.group import Arrays
from curate.core.reader import RawFile, Reader

SPILL = "CURATE_SPILL"
"""Environment variable with their folder (default: the system's folder for temporary files)."""


def unnamed() -> BinaryIO:
    folder = os.environ.get(SPILL) or None
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise explained(error) from error


def explained(error: OSError) -> Exception:
    place = os.environ.get(SPILL) or tempfile.gettempdir()
    if error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT):
        return StorageError(f"{place}: no room for a worker's rows ({error.strerror}); set {SPILL} to another folder")
    return error


def spilled(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An uninitialised array in an unnamed file."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if not size:
        return np.empty(shape, dtype)
    with unnamed() as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)  # otherwise a full disk kills the process
        except OSError as error:
            raise explained(error) from error
        return np.asarray(np.memmap(file, dtype, "r+", shape=shape))


class Spilled(Reader):
    """Bytes in an unnamed file."""

    def __init__(self, data: builtins.bytes = b"") -> None:
        self._file, self.size = unnamed(), 0
        weakref.finalize(self, self._file.close)
        self.append(data)

    def append(self, data: builtins.bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise explained(error) from error
        self.size += len(data)

    def read_at(self, offset: int, size: int) -> builtins.bytes:
        return os.pread(self._file.fileno(), size, offset)

    def bytes(self) -> builtins.bytes:
        return self.read_at(0, self.size)

    def open(self) -> IO[builtins.bytes]:
        return io.BufferedReader(RawFile(self))


class Spill:
    """Arrays by name that are appended to in files and memory-mapped once complete."""

    def __init__(self) -> None:
        self._files: dict[str, BinaryIO] = {}
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def append(self, arrays: Arrays) -> None:
        try:
            for name, array in arrays.items():
                if name not in self._files:
                    self._files[name], self._kinds[name] = unnamed(), (array.dtype, array.shape[1:])
                self._files[name].write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise explained(error) from error
        self.rows += len(next(iter(arrays.values())))

    def mapped(self) -> dict[str, NDArray[Any]]:
        found = {}
        for name, file in self._files.items():
            dtype, shape = self._kinds[name]
            file.flush()
            whole = (self.rows, *shape)
            empty = not np.prod(whole)  # an empty file cannot be mapped
            found[name] = np.empty(whole, dtype) if empty else np.asarray(np.memmap(file, dtype, "r", shape=whole))
        return found
