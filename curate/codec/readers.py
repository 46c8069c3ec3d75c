"""Readers of large members: spans of a local file, or ranges of an object."""

from __future__ import annotations

import builtins
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from curate.codec.listing import Stamp, file_info, read_errors
from curate.core.errors import StorageError
from curate.core.nouns.pools import EDGES
from curate.core.reader import BLOCK_BYTES, LostError, RawFile, Reader
from curate.core.store.storage import Storage

MEMORY_BYTES = 64 << 20
"""Members up to this size are read into memory, and files in place identified by their SHA-256."""
_EDGE_BYTES = 1 << 20
_LEAST_AHEAD = 1 << 18


class FileReader(Reader):
    """Part of a file, by default all; on an object store it reads ahead by 256 KiB after a jump, and by up to 4 MiB
    while reads follow one another. A read raises LostError once the file has another size or stamp than at the first,
    or than those that were given, and StorageError if the store fails. For one thread at a time."""

    def __init__(
        self, root: Storage, path: str, size: int | None = None, offset: int = 0, whole: tuple[int, Stamp] | None = None
    ) -> None:
        self.root, self.path, self.offset = root, path, offset
        self._name = path or root.url
        self._open: Any = None
        self._next, self._ahead = 0, _LEAST_AHEAD
        self.whole = whole or self._found()
        self.size = self.whole[0] if size is None else size
        self.stamp = self.whole[1]

    def read_at(self, offset: int, size: int) -> builtins.bytes:
        size = max(0, min(size, self.size - offset))
        if not size:
            return b""
        data = (self._local if self.root.local else self._remote)(self.offset + offset, size)
        if self._found() != self.whole:  # the bytes read may be those of another version
            raise LostError("changed", f"{self._name}: another size or time than when it was imported or first read")
        if len(data) != size:
            raise LostError("changed", f"{self._name}: ends before byte {self.offset + offset + size}; import it again")
        return data

    def bytes(self) -> builtins.bytes:
        return self.read_at(0, self.size)

    def open(self) -> IO[builtins.bytes]:
        return io.BufferedReader(RawFile(self), buffer_size=1 << (16 if self.root.local else 20))

    def _local(self, offset: int, size: int) -> builtins.bytes:
        with self._explained(), open(self.root.path(self.path), "rb") as file:
            file.seek(offset)
            return file.read(size)

    def _remote(self, offset: int, size: int) -> builtins.bytes:
        with self._explained():
            if self._open is None:
                path = self.root.path(self.path)
                self._open = self.root.fs.open(path, "rb", block_size=BLOCK_BYTES, cache_type="readahead")
            self._ahead = min(BLOCK_BYTES, 2 * self._ahead) if offset == self._next else _LEAST_AHEAD
            self._open.cache.blocksize, self._next = self._ahead, offset + size
            try:
                self._open.seek(offset)
                data = builtins.bytes(self._open.read(size))
            except ValueError as error:  # fsspec's, before it downloads the whole
                raise StorageError(
                    f"{self.root.url_of(self.path)}: the server ignores ranges ({error}); copy the file to a server "
                    "or store that answers them"
                ) from None
            if offset + size == self.offset + self.size:  # many readers may wait, each with megabytes read ahead
                self._open = None
            return data

    def _found(self) -> tuple[int, Stamp]:
        with self._explained():
            path = self.root.path(self.path)
            if self.root.local:
                local = os.stat(path)
                return local.st_size, local.st_mtime_ns
            found = file_info(self.root, path, self.root.fs.info(path))
            return found.size, found.stamp

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
            raise LostError("unreadable", f"{self._name}: {error.strerror or error}") from None
        except read_errors(self.root) as error:
            cause: Any = error
            if isinstance(error, FileNotFoundError):
                cause = error.__cause__  # fsspec's HTTP also says so of a server that does not answer
                if isinstance(cause, FileNotFoundError) or not isinstance(cause, read_errors(self.root)):
                    raise LostError("vanished", self._name) from None
            if type(error).__name__ == "FileExpired":  # s3fs's: another ETag
                raise LostError("changed", f"{self._name}: was written again while it was read") from None
            what = f"{type(cause).__name__}: {cause}"
            raise StorageError(f"{self.root.url_of(self.path)}: reading failed ({what}); check the store") from error


def identity(key: str, reader: FileReader) -> str:
    """For the column `sha256`: a digest of key, size, first and last MiB, and the stamp that the file has.
    With the key, since files with equal edges may differ in between."""
    digest = hashlib.sha256(f"{key} {reader.size} ".encode())
    digest.update(reader.read_at(0, _EDGE_BYTES))
    digest.update(reader.read_at(max(0, reader.size - _EDGE_BYTES), _EDGE_BYTES))
    return f"{EDGES}{digest.hexdigest()}:{reader.stamp or ''}"
