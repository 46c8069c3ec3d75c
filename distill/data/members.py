"""Bytes of samples out of a dataset's tars: local tars in place, remote ones streamed once into temporary files.

Where this process takes less than a tenth of every tar (many ranks), ranges are fetched instead of whole tars.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

from curate.core.errors import Reject
from curate.core.storage import Storage
from distill.data.dataset import Dataset

STREAM_SHARE = 0.1


class Members:
    """`read(row)` gives a sample's encoded picture; safe to call from many threads."""

    def __init__(self, dataset: Dataset, *, share: float = 1.0, open_tars: int = 64) -> None:
        """share: of each tar's samples that this process reads; open_tars: tars kept open, and on disk, at most."""
        self._storage, self._tars = dataset.storage, dataset.tars
        self._shard = dataset.integers("shard")
        self._offset, self._size = dataset.integers("offset"), dataset.integers("size")
        self._whole = self._storage.local or share >= STREAM_SHARE
        self._open: OrderedDict[int, _Tar] = OrderedDict()
        self._open_tars = open_tars
        self._lock = threading.Lock()

    def read(self, row: int) -> bytes:
        """Raises Reject shard_missing or truncated_member."""
        shard, offset, size = int(self._shard[row]), int(self._offset[row]), int(self._size[row])
        name = self._tars[shard]
        try:
            if self._whole:
                data = self._tar(shard).read(offset, size)
            else:
                data = self._storage.fs.cat_file(self._storage.path(name), start=offset, end=offset + size)
        except FileNotFoundError as error:
            raise Reject("shard_missing", name) from error
        if len(data) != size:
            raise Reject("truncated_member", f"{name} at {offset}: {len(data)} of {size} bytes")
        return data

    def _tar(self, shard: int) -> _Tar:
        with self._lock:
            tar = self._open.get(shard)
            if tar is None:
                tar = self._open[shard] = _Tar(self._storage, self._tars[shard])
            self._open.move_to_end(shard)
            while len(self._open) > self._open_tars:
                self._open.popitem(last=False)
        return tar


class _Tar:
    """One tar, opened by its first reader while others of the same tar wait; closed with its last reference.

    Raises FileNotFoundError, each time, when it is not there.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        with self._lock:
            if self._descriptor is None:
                self._descriptor = self._fetch()
        return os.pread(self._descriptor, size, offset)

    def _fetch(self) -> int:
        """A descriptor of the whole tar; a remote one's copy loses its name at once and goes with the descriptor."""
        path = self._storage.path(self._name)
        if self._storage.local:
            return os.open(path, os.O_RDONLY)
        with tempfile.TemporaryDirectory(prefix="distill-") as folder:
            copy = Path(folder, "tar")
            self._storage.fs.get_file(path, str(copy))
            return os.open(copy, os.O_RDONLY)

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
