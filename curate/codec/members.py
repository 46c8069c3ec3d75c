"""Reads the members of a pool's shard: spans of its tar, or the files of a folder that stay in place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from curate.codec.files import batches, read_files
from curate.codec.listing import FileInfo
from curate.codec.tars import read_spans
from curate.core.errors import Reject
from curate.core.nouns.pools import Shard, in_folder, in_place
from curate.core.store.storage import Storage, open_storage

COLUMNS = ("offset", "size")


def member_columns(shards: Iterable[Shard]) -> tuple[str, ...]:
    """Columns of the pool that `read_members` needs."""
    return (*COLUMNS, "source_id", "sha256") if any(in_folder(shard) for shard in shards) else COLUMNS


def read_members(storage: Storage, shard: Shard, rows: Mapping[str, Sequence[Any]]) -> Iterator[bytes | Reject]:
    """Bytes of each row, in the given order; `rows` are lists of equal length, by name as in `member_columns`.

    Rows of a tar should have ascending offsets; StorageError if the tar ends early. A file that was changed or deleted
    is a Reject in its place: whether to lose the row or to end the run is up to the caller.
    """
    if in_folder(shard):
        return _read_folder(open_storage(shard.tar), rows)
    place = open_storage(shard.tar) if in_place(shard) else storage
    path = place.root if in_place(shard) else storage.path(shard.tar)
    return read_spans(place.fs, path, list(zip(rows["offset"], rows["size"], strict=True)), shard.tar_bytes)


def _read_folder(root: Storage, rows: Mapping[str, Sequence[Any]]) -> Iterator[bytes | Reject]:
    files = [FileInfo(path, size) for path, size in zip(rows["source_id"], rows["size"], strict=True)]
    digests = iter(rows["sha256"])
    for batch in batches(files):
        for file, data in zip(batch, read_files(root, batch), strict=True):
            yield _same(file, data, next(digests))


def _same(file: FileInfo, data: bytes | Reject, sha256: str) -> bytes | Reject:
    """The bytes, if they are those that the pool has recorded; names the file otherwise."""
    if isinstance(data, Reject):
        return Reject(data.reason, f"{file.path}: {data.detail}" if data.reason == "changed" else data.detail)
    if hashlib.sha256(data).hexdigest() != sha256:
        return Reject("changed", f"{file.path}: other bytes than when it was imported")
    return data
