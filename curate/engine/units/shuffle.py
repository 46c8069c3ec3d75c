"""Shuffles through files: the rows of a stretch of shards go into one file, sorted by bucket; a bucket reads its range
of each file.

A file is a sequence of Arrow streams in order of bucket, then a JSON trailer and its length (8 bytes, little-endian).
Writers return the byte range of each bucket, so readers need no extra request. S shards and B buckets take about
3 S / B files, hence 3 range reads per shard for any S.
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
from curate.core.nouns.manifest import reading
from curate.core.store.spill import unnamed
from curate.core.store.storage import Storage
from curate.engine.units.common import fetched

LEAST_ROWS, MOST_ROWS = 1 << 13, 1 << 20
"""Average rows of a bucket in small and in very large pools: one worker has a bucket in memory."""
FEW = 256
"""Up to this number of buckets, a bucket has LEAST_ROWS. Larger pools get larger buckets first, because each bucket
costs a range read per file."""
RANGES_A_SHARD = 3
"""Approximate range reads per shard in pools of many shards."""
STRETCH_ROWS, STRETCH_SHARDS = 1 << 14, 1 << 10
"""A stretch ends at this many rows or shards, unless that costs more than RANGES_A_SHARD reads."""
HELD_BYTES = 1 << 28
"""Rows that a writer holds in memory; beyond, it writes sorted runs to unnamed files and merges them at the end."""
PACKED = pa.binary(KEY_HEX // 2)
_TAIL = 1 << 17
_LENGTH = 8

Piece = tuple[str, int, int]
"""Path, first byte, and byte after the last."""


def buckets_for(rows: int, most: int | None = None) -> int:
    """Number of buckets. Outputs depend on it, so it depends on the rows alone, not on the machine. `most`: rows of a
    bucket."""
    size = min(most or MOST_ROWS, max(LEAST_ROWS, rows // FEW))
    return max(1, -(-rows // size))


def stretches(rows: Sequence[int], buckets: int) -> list[tuple[int, int]]:
    """Rows of each shard -> stretches (first shard, shard after the last), one for each file."""
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
    """Name of a stretch's file. It depends on the shards and on everything else that decides its rows (`more`), so that
    an interrupted build finds its own files only."""
    return f"{number:06d}-{digest([*ids, *more])[:12]}"


@dataclass(frozen=True)
class ShuffleFile:
    """A file and the places of its buckets."""

    path: str
    rows: NDArray[np.int64]
    """(B,) rows of each bucket."""
    edges: NDArray[np.int64]
    """(B + 1,): bucket b has bytes edges[b] .. edges[b + 1] - 1."""
    note: dict[str, Any] = field(default_factory=dict)
    """Further results of the task that wrote the file."""

    @property
    def bytes(self) -> int:
        return int(self.edges[-1])


def pieces(files: Iterable[ShuffleFile], bucket: int) -> tuple[Piece, ...]:
    """Places of a bucket's rows, in file order."""
    return tuple(
        (file.path, int(file.edges[bucket]), int(file.edges[bucket + 1])) for file in files if file.rows[bucket]
    )


def write(
    storage: Storage,
    path: str,
    parts: Iterable[tuple[pa.Table, NDArray[np.integer]]],
    buckets: int,
    note: dict[str, Any] | None = None,
    *,
    held_bytes: int | None = None,
    codec: str | pa.Codec | None = "zstd",
) -> ShuffleFile:
    """Publish parts (a table, and the bucket (n,) of each row) as one file; a bucket's rows keep their order. `note` is
    read after the last part. Holds `held_bytes` (default HELD_BYTES) of rows in memory, the rest in unnamed files."""
    most = HELD_BYTES if held_bytes is None else held_bytes
    with ExitStack() as stack:
        runs: list[tuple[BinaryIO, ShuffleFile]] = []
        held: list[tuple[pa.Table, NDArray[np.integer]]] = []
        size = 0
        for part in parts:
            held.append(part)
            size += part[0].nbytes
            if size >= most:
                aside = stack.enter_context(unnamed())
                runs.append((aside, _sorted_into(aside, held, buckets, path, codec)))
                held, size = [], 0
        with storage.publish(path) as final, open(final, "wb") as out:
            if not runs:
                file = _sorted_into(out, held, buckets, path, codec)
            else:
                aside = stack.enter_context(unnamed())
                runs.append((aside, _sorted_into(aside, held, buckets, path, codec)))
                file = _joined(out, runs, path)
            trailer = {"rows": file.rows.tolist(), "edges": file.edges.tolist(), "note": note or {}}
            data = json.dumps(trailer, sort_keys=True).encode()
            out.write(data + len(data).to_bytes(_LENGTH, "little"))
    return ShuffleFile(path, file.rows, file.edges, note or {})


def _sorted_into(
    out: BinaryIO,
    parts: Sequence[tuple[pa.Table, NDArray[np.integer]]],
    buckets: int,
    path: str,
    codec: str | pa.Codec | None,
) -> ShuffleFile:
    rows, edges = np.zeros(buckets, np.int64), np.zeros(buckets + 1, np.int64)
    if parts:
        table = pa.concat_tables([table for table, _ in parts], promote_options="permissive")
        bucket = np.concatenate([place for _, place in parts])
        if buckets <= 1 << 16:
            bucket = bucket.astype(np.uint16)  # numpy sorts these by radix
        table = table.combine_chunks().take(pa.array(np.argsort(bucket, kind="stable"))).combine_chunks()
        rows += np.bincount(bucket, minlength=buckets)
        options = ipc.IpcWriteOptions(compression=codec)
        starts = np.concatenate([[0], np.cumsum(rows)])
        for number in np.flatnonzero(rows):
            with ipc.new_stream(out, table.schema, options=options) as writer:
                writer.write_table(table.slice(starts[number], rows[number]))
            edges[number + 1] = out.tell()
    return ShuffleFile(path, rows, np.maximum.accumulate(edges))


def _joined(out: BinaryIO, runs: Sequence[tuple[BinaryIO, ShuffleFile]], path: str) -> ShuffleFile:
    """Concatenate the runs' streams of each bucket."""
    for number in range(len(runs[0][1].rows)):
        for file, run in runs:
            file.seek(run.edges[number])
            out.write(file.read(run.edges[number + 1] - run.edges[number]))
    rows, edges = (np.sum([getattr(run, name) for _, run in runs], axis=0) for name in ("rows", "edges"))
    return ShuffleFile(path, rows, edges)


def load(storage: Storage, path: str) -> ShuffleFile:
    """An existing file, as `write` returned it."""
    with reading(storage, path, "file between two steps", f"remove {path} and rerun the recipe"):
        data = storage.read_range(path, -_TAIL, None)
        size = int.from_bytes(data[-_LENGTH:], "little") + _LENGTH
        if size > len(data):
            data = storage.read_range(path, -size, None)
        trailer = json.loads(data[-size:-_LENGTH])
    rows, edges = (np.array(trailer[name], dtype=np.int64) for name in ("rows", "edges"))
    return ShuffleFile(path, rows, edges, trailer["note"])


def read(storage: Storage, wanted: Sequence[Piece]) -> pa.Table:
    """Rows of one or more pieces, in order; a column that a piece does not have is null there."""
    tables = [table for of_piece in fetched(lambda piece: list(_streams(storage, piece)), wanted) for table in of_piece]
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _streams(storage: Storage, piece: Piece) -> Iterator[pa.Table]:
    path, start, stop = piece
    with reading(storage, path, "file between two steps", f"remove {path} and rerun the recipe"):
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
