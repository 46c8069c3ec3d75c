"""Bytes of samples out of a dataset's tars: local tars in place, remote ones streamed once into temporary files.

Where this process takes less than a tenth of a tar (one of many ranks, or a pass over few samples), ranges are fetched
instead of the whole.
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
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.index import ITEM
from distill.samples.sources.mixture import Blend, as_blend

STREAM_SHARE = 0.1
OPEN_TARS = 64
_BLOCK = tarfile.BLOCKSIZE
_FOLLOWING = 2
"""Members behind the picture of a sample: its text, if it has one, and its JSON."""


class Members:
    """`read(row)` gives a sample's encoded picture; safe to call from many threads."""

    def __init__(self, dataset: Dataset | Blend, *, share: float = 1.0, open_tars: int = OPEN_TARS) -> None:
        """share: of each tar's samples that this process reads; open_tars: of each source kept open, and on disk."""
        self._blend = as_blend(dataset)
        self._where = [
            (int(first), *(source.index.numbers(name) for name in ("shard", "offset", "size")))
            for source, first in zip(self._blend.sources, self._blend.shards, strict=False)
        ]
        """Of each source: its first shard, then columns."""
        self._share = share
        self._shares: dict[int, float] = {}
        """Of shards of which less is read than of others, for as long as a pass takes."""
        self._open: dict[int, _Tar] = {}
        self._open_tars = open_tars * len(self._blend.sources)
        self._clock = 0
        self._lock = threading.Lock()

    def read(self, row: int) -> bytes:
        """Raises Reject shard_missing or truncated_member."""
        source, place = self._blend.place(row)
        first, shard, offset, size = self._where[source]
        return self._read(first + shard.item(place), offset.item(place), size.item(place))

    def member(self, row: int, name: str) -> bytes | None:
        """Another member of a sample by its extension (`txt`, `json`); None when it has none. Raises as `read`."""
        number, prefix = self._blend.number, "text" if name == "txt" else name
        source = self._blend.sources[self._blend.place(row)[0]]
        if source.index.has(f"{prefix}_offset"):
            offset = number(f"{prefix}_offset", row)
            return None if offset < 0 else self._read(number("shard", row), offset, number(f"{prefix}_size", row))
        return self._following(row, name) if source.has(ITEM) else None

    @contextmanager
    def passing(self, rows: NDArray[np.int64]) -> Iterator[None]:
        """While only these rows are read: of a tar with few of them, ranges are fetched."""
        shards, counts = np.unique(self._blend.take("shard", rows), return_counts=True)
        for shard, count in zip(shards.tolist(), counts.tolist(), strict=True):
            self._shares[shard] = min(self._share, count / self._blend.shard_samples(shard))
        try:
            yield
        finally:
            self._shares.clear()
            with self._lock:
                self._open = {shard: tar for shard, tar in self._open.items() if not isinstance(tar, _Remote)}

    def _following(self, row: int, name: str) -> bytes | None:
        """A member that the index does not place: in datasets of `curate` it comes right behind the picture."""
        number = self._blend.number
        sought = f"{self._blend.key(row)}-{number(ITEM, row)}-{number('copy', row)}.{name}"
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
        tar = self._open.get(shard) or self._opened(shard)
        tar.used = self._clock = self._clock + 1
        try:
            data = tar.read(offset, size)
        except FileNotFoundError as error:
            raise Reject("shard_missing", tar.name) from error
        if len(data) != size:
            raise Reject("truncated_member", f"{tar.name} at {offset}: {len(data)} of {size} bytes")
        return data

    def _opened(self, shard: int) -> _Tar:
        """A tar that was not open, in the place of the one that was read longest ago."""
        with self._lock:
            if shard not in self._open:
                storage, name = self._blend.tar(shard)
                whole = storage.local or self._shares.get(shard, self._share) >= STREAM_SHARE
                self._open[shard] = _Tar(storage, name) if whole else _Remote(storage, name)
            opened = self._open[shard]
            for _ in range(len(self._open) - self._open_tars):
                others = (number for number in self._open if number != shard)
                del self._open[min(others, key=lambda number: self._open[number].used)]
            return opened


class _Tar:
    """One tar, opened by its first reader while others of the same tar wait; closed with its last reference.

    `read` raises FileNotFoundError, each time, when it is not there.
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
        """A descriptor of the whole tar; a remote one's copy loses its name at once and goes with the descriptor."""
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
    """Ranges of a remote tar."""

    def read(self, offset: int, size: int) -> bytes:
        return self._storage.fs.cat_file(self._storage.path(self.name), start=offset, end=offset + size)
