"""`Reader`: the bytes of a sample, of which a stage reads what it needs."""

from __future__ import annotations

import builtins
import hashlib
import io
from collections.abc import Iterator
from typing import IO

from curate.core.errors import Reject

BLOCK_BYTES = 4 << 20


class LostError(Reject):
    """The bytes of a member are gone, or others than before. Unlike other rejects it may pass: the row is in error."""


class Reader:
    """Bytes in memory; those of a large member are read from its file (`curate.codec.readers.FileReader`)."""

    def __init__(self, data: builtins.bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_at(self, offset: int, size: int) -> builtins.bytes:
        """At most `size` bytes; fewer at the end. Raises LostError."""
        return self._data[offset : offset + size]

    def bytes(self) -> builtins.bytes:
        """All bytes, for what is small. Raises LostError."""
        return self._data

    def blocks(self) -> Iterator[builtins.bytes]:
        """All bytes, in blocks."""
        for offset in range(0, self.size, BLOCK_BYTES):
            yield self.read_at(offset, BLOCK_BYTES)

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block)
        return digest.hexdigest()

    def open(self) -> IO[builtins.bytes]:
        """A seekable file, for decoders that need one."""
        return io.BytesIO(self._data)


def as_reader(data: bytes | Reader) -> Reader:
    return data if isinstance(data, Reader) else Reader(data)


class RawFile(io.RawIOBase):
    """A seekable file over a reader."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._at = reader, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._reader.size}[whence])
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._reader.read_at(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
