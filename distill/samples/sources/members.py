"""Reads members of samples from a dataset's tars: local tars in place, remote tars downloaded once to temporary files.

If this process needs less than a tenth of a remote tar (one of many ranks, or few samples), it fetches ranges instead.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import Reject
from curate.core.store.storage import Storage
from distill.samples.sources.clips import split_span
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.index import FRAMES, ITEM
from distill.samples.sources.mixture import Mixture, as_mixture

STREAM_SHARE = 0.1
OPEN_TARS = 64
_BLOCK = tarfile.BLOCKSIZE
_FOLLOWING = 3
"""Members after the image of a sample: the file of a clip and its text, if it has them, and its JSON."""


class MemberReader:
    """`read(row)` returns a sample's encoded image, `frames(row)` the frames of a clip. Thread-safe."""

    def __init__(self, dataset: Dataset | Mixture, *, share: float = 1.0, open_tars: int = OPEN_TARS) -> None:
        """share: fraction of each tar's samples that this process reads; open_tars: tars per source kept open."""
        self._mixture = as_mixture(dataset)
        self._columns = [
            (int(first), source.index.numbers("shard"), source.index.numbers("offset"), source.index.numbers("size"))
            for source, first in zip(self._mixture.sources, self._mixture.shards, strict=False)
        ]
        """(first shard, shards, offsets, sizes) of each source."""
        self._share = share
        self._shares: dict[int, float] = {}
        """Fraction read of each shard during `reading`."""
        self._open: dict[int, _Tar] = {}
        self._open_tars = open_tars * len(self._mixture.sources)
        self._clock = 0
        self._lock = threading.Lock()

    def read(self, row: int) -> bytes:
        """Raises Reject shard_missing or truncated_member."""
        source, place = self._mixture.locate(row)
        first, shard, offset, size = self._columns[source]
        return self._read(first + shard.item(place), offset.item(place), size.item(place))

    def frames(self, row: int) -> list[bytes]:
        """The encoded frames of a clip, all of them in order. Raises Reject as `read` does, and corrupt_clip."""
        number = self._mixture.number
        shard, offset, size = (number(name, row) for name in ("shard", "offset", "size"))
        try:
            found = split_span(self._read(shard, offset - _BLOCK, size + _BLOCK))
        except Reject as error:
            raise Reject(error.reason, f"{error.detail}, in the frames of {self._mixture.key(row)}") from error
        except ValueError:
            found = []
        if len(found) != (stored := number(FRAMES, row)):
            where = f"{self._mixture.tar(shard)[1]} at {offset}"
            raise Reject("corrupt_clip", f"{where}: {len(found)} of {stored} frames of {self._mixture.key(row)}")
        return found

    def member(self, row: int, name: str) -> bytes | None:
        """Another member of a sample by its extension (`txt`, `json`), or None. Raises Reject as `read` does."""
        number, prefix = self._mixture.number, "text" if name == "txt" else name
        source = self._mixture.sources[self._mixture.locate(row)[0]]
        if source.index.has(f"{prefix}_offset"):
            offset = number(f"{prefix}_offset", row)
            return None if offset < 0 else self._read(number("shard", row), offset, number(f"{prefix}_size", row))
        return self._following(row, name) if source.has(ITEM) else None

    @contextmanager
    def reading(self, rows: NDArray[np.int64]) -> Iterator[None]:
        """Declare that the block reads only these rows, so that a tar with few of these rows is read by ranges."""
        shards, counts = np.unique(self._mixture.take("shard", rows), return_counts=True)
        for shard, count in zip(shards.tolist(), counts.tolist(), strict=True):
            self._shares[shard] = min(self._share, count / self._mixture.shard_samples(shard))
        try:
            yield
        finally:
            self._shares.clear()
            with self._lock:
                self._open = {shard: tar for shard, tar in self._open.items() if not isinstance(tar, _Remote)}

    def _following(self, row: int, name: str) -> bytes | None:
        """A member that is not in the index. Datasets of `curate` have it right after the image."""
        number = self._mixture.number
        sought = f"{self._mixture.key(row)}-{number(ITEM, row)}-{number('copy', row)}.{name}"
        shard, at = number("shard", row), number("offset", row) + number("size", row)
        for _ in range(_FOLLOWING):
            at += -at % _BLOCK
            try:
                header = tarfile.TarInfo.frombuf(self._read(shard, at, _BLOCK), "utf-8", "surrogateescape")
            except tarfile.HeaderError:
                return None
            if header.name == sought:
                return self._read(shard, at + _BLOCK, header.size)
            at += _BLOCK + header.size
        return None

    def _read(self, shard: int, offset: int, size: int) -> bytes:
        tar = self._open.get(shard) or self._open_tar(shard)
        tar.used = self._clock = self._clock + 1
        try:
            data = tar.read(offset, size)
        except FileNotFoundError as error:
            raise Reject("shard_missing", tar.name) from error
        if len(data) != size:
            raise Reject("truncated_member", f"{tar.name} at {offset}: {len(data)} of {size} bytes")
        return data

    def _open_tar(self, shard: int) -> _Tar:
        """Open a tar, and close the least recently used one if too many are open."""
        with self._lock:
            if shard not in self._open:
                storage, name = self._mixture.tar(shard)
                whole = storage.local or self._shares.get(shard, self._share) >= STREAM_SHARE
                self._open[shard] = _Tar(storage, name) if whole else _Remote(storage, name)
            opened = self._open[shard]
            for _ in range(len(self._open) - self._open_tars):
                others = (number for number in self._open if number != shard)
                del self._open[min(others, key=lambda number: self._open[number].used)]
            return opened


class _Tar:
    """One tar, opened by its first reader while other readers of it wait, and closed with its last reference.

    `read` raises FileNotFoundError if the tar is missing.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self.name, self.used = name, 0
        self._storage = storage
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        if self._descriptor is None:
            with self._lock:
                if self._descriptor is None:
                    self._descriptor = self._fetch()
        return os.pread(self._descriptor, size, offset)

    def _fetch(self) -> int:
        """File descriptor of the whole tar; a remote tar is copied to a file that is unlinked at once."""
        path = self._storage.path(self.name)
        if self._storage.local:
            return os.open(path, os.O_RDONLY)
        with tempfile.TemporaryDirectory(prefix="distill-") as folder:
            copy = Path(folder, "tar")
            self._storage.fs.get_file(path, str(copy))
            return os.open(copy, os.O_RDONLY)

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


class _Remote(_Tar):
    """A remote tar, read by ranges."""

    def read(self, offset: int, size: int) -> bytes:
        return self._storage.fs.cat_file(self._storage.path(self.name), start=offset, end=offset + size)
