"""The spool: an open file without a name, to which images are appended, and videos written while they come."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable

from curate.codec.formats import SNIFF_BYTES

BLOCK_BYTES = 8 << 20
"""Room that a video takes at a time. Several are fetched at once, of unknown sizes."""


class Spool:
    def __init__(self, file: int, fail: Callable[[str, int | None], None]) -> None:
        """fail: called with an error of the disk, which no row has caused; it does not return."""
        self.file, self._fail = file, fail
        self._end = 0
        self._free: list[int] = []
        """Blocks of fetches that failed."""
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A new portion: write after the existing bytes."""
        self._end, self._free = os.fstat(self.file).st_size, []

    def append(self, data: bytes) -> int:
        """Write at the end; the offset."""
        with self._lock:
            offset, self._end = self._end, self._end + len(data)
        self.write(data, offset)
        return offset

    def take_block(self) -> int:
        with self._lock:
            if self._free:
                return self._free.pop()
            offset, self._end = self._end, self._end + BLOCK_BYTES
            return offset

    def give_back(self, blocks: list[int]) -> None:
        with self._lock:
            self._free += blocks

    def write(self, data: bytes | memoryview, offset: int) -> None:
        view, written = memoryview(data), 0
        try:
            while written < len(view):
                written += os.pwrite(self.file, view[written:], offset + written)
        except OSError as error:
            self._fail(f"the spool: {error}", error.errno)
            raise


class SpoolSink:
    """Where the video of one row goes: blocks of the spool. For one thread."""

    def __init__(self, spool: Spool, digests: tuple[str, ...]) -> None:
        """digests: names of those to compute."""
        self._spool, self._names = spool, {"sha256", *digests}
        self._blocks: list[int] = []
        self.clear()

    def clear(self) -> None:
        self._spool.give_back(self._blocks)
        self._blocks, self.size, self.head = [], 0, b""
        self._digests = {name: hashlib.new(name, usedforsecurity=False) for name in self._names}

    def write(self, data: bytes) -> None:
        self.head += data[: SNIFF_BYTES - len(self.head)]
        for digest in self._digests.values():
            digest.update(data)
        view = memoryview(data)
        while len(view):
            used = self.size % BLOCK_BYTES
            if not used:
                self._blocks.append(self._spool.take_block())
            part = view[: BLOCK_BYTES - used]
            self._spool.write(part, self._blocks[-1] + used)
            self.size += len(part)
            view = view[len(part) :]

    def digest(self, name: str) -> str:
        return self._digests[name].hexdigest()

    def extents(self) -> list[tuple[int, int]]:
        """(offset, size) of its parts in the spool, in order."""
        found: list[tuple[int, int]] = []
        left = self.size
        for offset in self._blocks:
            size = min(BLOCK_BYTES, left)
            left -= size
            if found and sum(found[-1]) == offset:
                offset, size = found[-1][0], found.pop()[1] + size
            found.append((offset, size))
        return found
