"""Reads the members of a pool's shard: spans of its tar, files of a folder that stay in place, or extracts from their
parents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from curate.codec import media
from curate.codec.files import batches, read_files
from curate.codec.listing import FileInfo, Stamp
from curate.codec.readers import MEMORY_BYTES, FileReader, identity
from curate.codec.tars import read_spans
from curate.core.errors import Reject, StorageError, Undecodable
from curate.core.nouns.pools import EDGES, Shard, in_folder, in_place, is_virtual, read_pool
from curate.core.reader import LostError, Reader, as_reader
from curate.core.store.storage import Storage, open_storage

COLUMNS = ("offset", "size")
OF_FOLDER = ("key", "source_id", "sha256")
OF_VIRTUAL = ("parent_row", "span")


def member_columns(shards: Iterable[Shard]) -> tuple[str, ...]:
    """Columns of the pool that `read_members` needs."""
    shards = list(shards)
    folder = OF_FOLDER if any(in_folder(shard) for shard in shards) else ()
    return (*COLUMNS, *folder, *(OF_VIRTUAL if any(is_virtual(shard) for shard in shards) else ()))


def read_members(storage: Storage, shard: Shard, rows: Mapping[str, Sequence[Any]]) -> Iterator[Reader | Reject]:
    """A reader of each row, in the given order; `rows` are lists of equal length, by name as in `member_columns`. The
    bytes of up to 64 MiB are in memory already; larger ones are read when they are asked for.

    Rows should be ordered as in the pool; StorageError if a tar ends early. A file that was changed or deleted is a
    Reject in its place: whether to lose the row or to end the run is up to the caller.
    """
    if is_virtual(shard):
        return _extract(storage, shard.parent_shard(), list(zip(rows["parent_row"], rows["span"], strict=True)))
    if in_folder(shard):
        return _read_folder(open_storage(shard.tar), rows)
    return map(_unless_erased, read_tar(storage, shard, list(zip(rows["offset"], rows["size"], strict=True))))


def _extract(storage: Storage, above: Shard, rows: list[tuple[int, str]]) -> Iterator[Reader | Reject]:
    """Virtual members: a parent is read once for those of its children that are asked for one after the other."""
    groups = [(row, [json.loads(span) for _, span in part]) for row, part in groupby(rows, lambda about: about[0])]
    names = list(dict.fromkeys((*member_columns([above]), "media")))
    table = read_pool(storage, above.table, names).take(pa.array([row for row, _ in groups], pa.int64()))
    kinds = table.column("media").to_pylist()
    parents = read_members(storage, above, table.to_pydict())
    for (row, spans), kind, parent in zip(groups, kinds, parents, strict=True):
        made, lost = 0, Reject("changed", f"row {row} of shard {above.id} no longer has the children that it had")
        try:
            if isinstance(parent, Reject):
                raise parent
            for data in media.of(kind or media.DEFAULT.name).extract(parent, spans):
                made += 1
                yield data if isinstance(data, Reject) else as_reader(data)
        except Reject as reject:
            lost = reject
        for _ in spans[made:]:
            yield lost


def read_tar(storage: Storage, shard: Shard, spans: list[tuple[int, int]]) -> Iterator[Reader]:
    """A reader of each span (offset, size) of the shard's tar. StorageError if the tar has another size or is gone."""
    place, name = (open_storage(shard.tar), "") if in_place(shard) else (storage, shard.tar)
    small = [span for span in spans if span[1] <= MEMORY_BYTES]
    data = read_spans(place.fs, place.path(name), small, shard.tar_bytes)
    whole = None if len(small) == len(spans) else _of_tar(place, name, shard)
    for offset, size in spans:
        yield Reader(next(data)) if size <= MEMORY_BYTES else FileReader(place, name, size, offset, whole)


def _unless_erased(reader: Reader) -> Reader | Reject:
    """A takedown replaces a member's bytes by zeros; no medium begins with 512 of them. Large members are not read."""
    if 0 < reader.size <= MEMORY_BYTES and not any(reader.read_at(0, min(reader.size, 512))):
        return Undecodable("erased", "a takedown has removed the bytes")
    return reader


def _of_tar(place: Storage, name: str, shard: Shard) -> tuple[int, Stamp]:
    try:
        whole = FileReader(place, name).whole
        if whole[0] != shard.tar_bytes:
            raise LostError("changed", f"{place.path(name)}: {whole[0]} bytes, expected {shard.tar_bytes}")
    except LostError as lost:
        raise StorageError(f"{lost}; restore the tar, or import it again") from None
    return whole


def _read_folder(root: Storage, rows: Mapping[str, Sequence[Any]]) -> Iterator[Reader | Reject]:
    names = ("source_id", "size", "sha256", "key")
    found = [(FileInfo(path, size), sha256, key) for path, size, sha256, key in zip(*map(rows.get, names), strict=True)]
    for large, part in groupby(found, lambda about: about[0].size > MEMORY_BYTES):
        if large:
            yield from (_large(root, *about) for about in part)
            continue
        some = list(part)
        digests = iter(sha256 for _, sha256, _ in some)
        for batch in batches([file for file, _, _ in some]):
            for file, data in zip(batch, read_files(root, batch), strict=True):
                yield _same(file, data, next(digests))


def _large(root: Storage, file: FileInfo, sha256: str, key: str) -> Reader | Reject:
    """The reader of a file, if the file has the recorded identity: a SHA-256 of all bytes, or of the edges."""
    try:
        reader = FileReader(root, file.path)
        if reader.size == file.size and sha256 == (
            identity(key, reader) if sha256.startswith(EDGES) else reader.sha256()
        ):
            return reader
    except LostError as lost:
        return lost
    return Reject("changed", f"{file.path}: another size, time or bytes than when it was imported")


def _same(file: FileInfo, data: bytes | Reject, sha256: str) -> Reader | Reject:
    """The bytes, if they are those that the pool has recorded; names the file otherwise."""
    if isinstance(data, Reject):
        return Reject(data.reason, f"{file.path}: {data.detail}" if data.reason == "changed" else data.detail)
    if hashlib.sha256(data).hexdigest() != sha256:
        return Reject("changed", f"{file.path}: other bytes than when it was imported")
    return Reader(data)
