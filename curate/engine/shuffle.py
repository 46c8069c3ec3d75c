"""Shuffles through files: the rows of a stretch of shards go into one file, sorted by bucket; a bucket reads its range
of each file.

A file is a run of Arrow streams, those of bucket 0 first, then a JSON trailer and its length (8 bytes, little-endian).
Writers return where each bucket lies, so readers open no file to find out. For S shards and B buckets there are about
3 S / B files, hence 3 range reads a shard, whatever S is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from numpy.typing import NDArray

from curate.core.hashing import KEY_HEX, digest
from curate.core.nouns import reading
from curate.core.store.spill import unnamed
from curate.core.store.storage import Storage
from curate.engine.units.common import fetched

LEAST_ROWS, MOST_ROWS = 1 << 13, 1 << 20
"""Rows that one bucket holds on average, in small and in very large pools: what one worker has in memory."""
FEW = 256
"""Buckets up to which they stay small; beyond, they grow first, because there are as many ranges as buckets."""
RANGES_A_SHARD = 3
"""How many ranges of a step's files are read for each shard, about, where there are many shards."""
STRETCH_ROWS, STRETCH_SHARDS = 1 << 14, 1 << 10
"""A stretch ends at so many rows, or shards, unless that is more than RANGES_A_SHARD."""
HELD_BYTES = 1 << 28
"""Rows that a writer holds before it writes them aside, sorted, to be joined with the others at the end."""
PACKED = pa.binary(KEY_HEX // 2)
_TAIL = 1 << 17
_LENGTH = 8

Piece = tuple[str, int, int]
"""Path, first byte and byte after the last one."""


def buckets_for(rows: int, most: int | None = None) -> int:
    """Part of what outputs are, so a function of the rows alone, never of the machine. `most`: rows of a bucket."""
    size = min(most or MOST_ROWS, max(LEAST_ROWS, rows // FEW))
    return max(1, -(-rows // size))


def stretches(rows: Sequence[int], buckets: int) -> list[tuple[int, int]]:
    """Rows of each shard -> (first, after the last) shard of the stretches that go into one file each."""
    least = -(-buckets // RANGES_A_SHARD)
    edges, held = [0], 0
    for place, more in enumerate(rows, 1):
        held += more
        count = place - edges[-1]
        if count >= least and (held >= STRETCH_ROWS or count >= STRETCH_SHARDS):
            edges.append(place)
            held = 0
    if edges[-1] < len(rows):
        edges.append(len(rows))
    return list(pairwise(edges))


def stretch_name(number: int, ids: Sequence[str], *more: Any) -> str:
    """Of a stretch's file: another one for other shards, buckets or whatever decides its rows, so that an interrupted
    build finds its own files and no others."""
    return f"{number:06d}-{digest([*ids, *more])[:12]}"


@dataclass(frozen=True)
class Scattered:
    """Where the buckets of one file lie."""

    path: str
    rows: NDArray[np.int64]
    """(B,): of each bucket."""
    edges: NDArray[np.int64]
    """(B + 1,): bucket b is bytes edges[b] .. edges[b + 1] - 1."""
    note: dict[str, Any] = field(default_factory=dict)
    """What else its writer had to say."""

    @property
    def bytes(self) -> int:
        return int(self.edges[-1])


def pieces(files: Iterable[Scattered], bucket: int) -> tuple[Piece, ...]:
    """Where a bucket's rows lie, in the order of the files."""
    return tuple(
        (file.path, int(file.edges[bucket]), int(file.edges[bucket + 1])) for file in files if file.rows[bucket]
    )


def write(
    storage: Storage,
    path: str,
    parts: Iterable[tuple[pa.Table, NDArray[np.integer]]],
    buckets: int,
    note: dict[str, Any] | None = None,
) -> Scattered:
    """Publish parts (a table, and the bucket (n,) of each row) as one file; a bucket's rows keep their order. `note` is
    looked at once all parts are there. Holds HELD_BYTES of rows, and the rest in files without a name."""
    with ExitStack() as stack:
        runs: list[tuple[BinaryIO, Scattered]] = []
        held: list[tuple[pa.Table, NDArray[np.integer]]] = []
        size = 0
        for part in parts:
            held.append(part)
            size += part[0].nbytes
            if size >= HELD_BYTES:
                aside = stack.enter_context(unnamed())
                runs.append((aside, _sorted_into(aside, held, buckets, path)))
                held, size = [], 0
        with storage.publish(path) as final, open(final, "wb") as out:
            if not runs:
                found = _sorted_into(out, held, buckets, path)
            else:
                aside = stack.enter_context(unnamed())
                runs.append((aside, _sorted_into(aside, held, buckets, path)))
                found = _joined(out, runs, path)
            trailer = {"rows": found.rows.tolist(), "edges": found.edges.tolist(), "note": note or {}}
            data = json.dumps(trailer, sort_keys=True).encode()
            out.write(data + len(data).to_bytes(_LENGTH, "little"))
    return Scattered(path, found.rows, found.edges, note or {})


def _sorted_into(
    out: BinaryIO, parts: Sequence[tuple[pa.Table, NDArray[np.integer]]], buckets: int, path: str
) -> Scattered:
    rows, edges = np.zeros(buckets, np.int64), np.zeros(buckets + 1, np.int64)
    if parts:
        table = pa.concat_tables([table for table, _ in parts], promote_options="permissive")
        bucket = np.concatenate([place for _, place in parts])
        if buckets <= 1 << 16:
            bucket = bucket.astype(np.uint16)  # numpy sorts these by radix
        table = table.combine_chunks().take(pa.array(np.argsort(bucket, kind="stable"))).combine_chunks()
        rows += np.bincount(bucket, minlength=buckets)
        options = ipc.IpcWriteOptions(compression="zstd")
        starts = np.concatenate([[0], np.cumsum(rows)])
        for number in np.flatnonzero(rows):
            with ipc.new_stream(out, table.schema, options=options) as writer:
                writer.write_table(table.slice(starts[number], rows[number]))
            edges[number + 1] = out.tell()
    return Scattered(path, rows, np.maximum.accumulate(edges))


def _joined(out: BinaryIO, runs: Sequence[tuple[BinaryIO, Scattered]], path: str) -> Scattered:
    """The streams of each bucket, one run's after the other's."""
    for number in range(len(runs[0][1].rows)):
        for file, run in runs:
            file.seek(run.edges[number])
            out.write(file.read(run.edges[number + 1] - run.edges[number]))
    rows, edges = (np.sum([getattr(run, name) for _, run in runs], axis=0) for name in ("rows", "edges"))
    return Scattered(path, rows, edges)


def found(storage: Storage, path: str) -> Scattered:
    """What `write` returned of a file that is there."""
    with reading(storage, path, "file between two steps", f"remove {path} and run the recipe again"):
        data = storage.read_range(path, -_TAIL, None)
        size = int.from_bytes(data[-_LENGTH:], "little") + _LENGTH
        if size > len(data):
            data = storage.read_range(path, -size, None)
        trailer = json.loads(data[-size:-_LENGTH])
    rows, edges = (np.array(trailer[name], dtype=np.int64) for name in ("rows", "edges"))
    return Scattered(path, rows, edges, trailer["note"])


def read(storage: Storage, wanted: Sequence[Piece]) -> pa.Table:
    """The rows of some pieces, at least one, in their order; columns that only some of them have are null elsewhere."""
    tables = [table for found in fetched(lambda piece: list(_streams(storage, piece)), wanted) for table in found]
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _streams(storage: Storage, piece: Piece) -> Iterator[pa.Table]:
    path, start, stop = piece
    with reading(storage, path, "file between two steps", f"remove {path} and run the recipe again"):
        file = pa.BufferReader(storage.read_range(path, start, stop))
        if file.size() != stop - start:
            raise ValueError(f"{file.size()} bytes at {start}, expected {stop - start}")
        while file.tell() < file.size():
            yield ipc.open_stream(file).read_all()


def packed(keys: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Keys (n strings of 32 hex characters) -> 16 bytes each."""
    array = pa.concat_arrays(keys.chunks or [pa.array([], pa.string())]) if isinstance(keys, pa.ChunkedArray) else keys
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1] if len(array) else [0]
    text = str(data[int(edges[0]) : int(edges[-1])], "ascii") if data is not None else ""
    if len(text) != KEY_HEX * len(array) or array.null_count:
        raise ValueError(f"keys: {len(text)} characters for {len(array)} keys; each must be {KEY_HEX} hex characters")
    return pa.Array.from_buffers(PACKED, len(array), [None, pa.py_buffer(bytes.fromhex(text))])


def words_of(keys: pa.Array) -> NDArray[np.uint64]:
    """Packed keys (n,) -> words (n, 2) that sort as the keys do."""
    data = keys.buffers()[1]
    words = np.frombuffer(data, dtype=">u8") if data is not None else np.zeros(0, dtype=">u8")
    return words.astype(np.uint64).reshape(-1, 2)[keys.offset : keys.offset + len(keys)]


def unpacked(keys: pa.Array) -> pa.Array:
    """Packed keys (n,) -> strings of 32 hex characters."""
    start = keys.offset * (KEY_HEX // 2)
    data = keys.buffers()[1]
    text = bytes(data[start : start + len(keys) * (KEY_HEX // 2)]).hex().encode() if data is not None else b""
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * KEY_HEX
    return pa.Array.from_buffers(pa.string(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
