"""Files that can be rebuilt, such as thumbnails, in a folder of bounded size."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

AT_ONCE, THREADS = 8, 2
"""Files that are made at a time ahead of requests, and threads that make them."""
MOST_COMING = 1000
WAIT_SECONDS = 20.0


class Cached:
    """Thread-safe; several processes may share the folder. Without one, it is a temporary one of this process."""

    def __init__(self, folder: str | None, most_bytes: int) -> None:
        self._given, self._most = folder, most_bytes
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.RLock()
        self._bytes: int | None = None
        self._coming: dict[str, Future[bytes]] = {}
        self._pool = ThreadPoolExecutor(THREADS, "curate-ahead")

    def ahead(self, names: Sequence[str], make: Callable[[Sequence[str]], Iterable[bytes]]) -> None:
        """Begin to make the files that are missing, because requests for them follow. `make`: some names -> the
        contents of each; empty if there is none."""
        with self._lock:
            missing = [name for name in names if name not in self._coming and not self._place(name).exists()]
            missing = missing[: MOST_COMING - len(self._coming)]
            self._coming |= {name: Future() for name in missing}
        for start in range(0, len(missing), AT_ONCE):
            self._pool.submit(self._make, missing[start : start + AT_ONCE], make)

    def _make(self, names: Sequence[str], make: Callable[[Sequence[str]], Iterable[bytes]]) -> None:
        try:
            for name, data in zip(names, make(names), strict=True):
                if data:
                    self.put(name, data)
                self._coming.pop(name).set_result(data)
        finally:
            for name in names:
                if name in self._coming:
                    self._coming.pop(name).set_result(b"")

    def get(self, name: str) -> bytes | None:
        coming = self._coming.get(name)
        if coming is not None:
            futures.wait([coming], WAIT_SECONDS)
            return coming.result() or None if coming.done() else None
        try:
            return self._place(name).read_bytes()
        except OSError:
            return None

    def mapped(self, name: str) -> NDArray[np.uint8] | None:
        """The bytes of a file, of which only those that are used are read."""
        try:
            return np.memmap(self._place(name), np.uint8, "r")
        except OSError:
            return None
        except ValueError:  # an empty file cannot be mapped
            return np.zeros(0, np.uint8)

    def put(self, name: str, data: bytes) -> None:
        """Does nothing if the disk is full or read-only: the file is rebuilt when it is needed."""
        place = self._place(name)
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            handle, aside = tempfile.mkstemp(dir=place.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(aside, place)
            self._count(len(data))

    def drop(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._place(name).unlink()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def _folder(self) -> Path:
        if self._given:
            return Path(self._given)
        with self._lock:
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="curate-cached-")
        return Path(self._temporary.name)

    def _place(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _count(self, more: int) -> None:
        """Remove the oldest files once there are too many bytes."""
        with self._lock:
            if self._bytes is not None and self._bytes + more <= self._most:
                self._bytes += more
                return
            files = [(path, path.stat()) for path in self._folder.glob("*/*")]
            files.sort(key=lambda one: one[1].st_mtime)
            self._bytes = sum(about.st_size for _, about in files)
            for path, about in files:
                if self._bytes <= 0.8 * self._most:
                    break
                path.unlink(missing_ok=True)
                self._bytes -= about.st_size
