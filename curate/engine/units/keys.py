"""A pool's index of keys, by range: the shard and row of each key, and which keys repeat.

    pools/<namespace>/keys/<shards>/<range>.parquet    key (16 bytes), shard (its place in the pool's list), row; sorted
    pools/<namespace>/keys/<shards>/work               intermediate files

Keys are hashes, so ranges of equal width have about the same number of keys. Workers write the rows of a stretch of
shards into one file by range; then each range is read from all files, sorted and published. Repeats go the other way,
from ranges to stretches of shards. Each shard's table is read once, in a pool of any size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.hashing import KEY_HEX, digest, key_words
from curate.core.nouns.manifest import Manifest, reading
from curate.core.nouns.pools import Shard, read_pool
from curate.core.recipe.pipeline import Node
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.tasks import beat
from curate.engine.units import shuffle
from curate.engine.units.common import fetched

ROW_GROUP = 1 << 14
"""Keys read by a look-up."""
AHEAD = 4
"""Tables of shards read ahead."""
KEY = pa.binary(16)
REPEATS = pa.schema([("shard", pa.int32()), ("row", pa.int32())])


def folder_of(namespace: str, shards: Sequence[Shard]) -> str:
    """Folder of the index of these shards. Rejecting repeated keys moves no row, so the index stays valid."""
    return f"pools/{namespace}/keys/{digest([shard.id for shard in shards])}"


def build_index(
    ctx: Context, node: Node, folder: str, shards: Sequence[Shard], with_repeats: bool = False
) -> dict[str, Any]:
    """Publish the missing parts of the index of some shards and, `with_repeats`, the files that `repeats` reads.
    Returns the index's entry for the pool's manifest."""
    ranges, stretches = _cut(shards)
    there = ctx.storage.list(folder)
    wanted = {number: [f"{number:06d}.parquet"] for number in range(ranges)}
    for number in wanted if with_repeats else ():
        wanted[number].append(_repeats_path("", number)[1:])
    missing = [number for number, files in wanted.items() if not there.keys() >= set(files)]
    if missing:
        deals = (
            DealTask(ctx.storage, node.name, folder, number, first, tuple(shards[first:stop]), ranges)
            for number, (first, stop) in enumerate(stretches)
        )
        dealt = ctx.tasks.must(deal_keys, deals, node.stage, node.name)
        starts = np.array([first for first, _ in stretches])
        sorts = (
            SortTask(ctx.storage, node.name, folder, number, shuffle.pieces(dealt, number), starts)
            for number in missing
        )
        for _ in ctx.tasks.each(sort_keys, sorts, node.stage, node.name):
            pass
    return {"folder": folder, "ranges": ranges}


def repeats(
    ctx: Context, folder: str, shards: Sequence[Shard]
) -> Iterator[tuple[tuple[int, int], tuple[shuffle.Piece, ...]]]:
    """Stretches of shards (first, stop) in which keys repeat, and the pieces for `read_repeats`. Call it between
    `build_index(with_repeats=True)` and `tidy_index`."""
    ranges, stretches = _cut(shards)
    paths = [_repeats_path(folder, number) for number in range(ranges)]
    found = list(fetched(lambda path: shuffle.load(ctx.storage, path), paths))
    for number, stretch in enumerate(stretches):
        pieces = shuffle.pieces(found, number)
        if pieces:
            yield stretch, pieces


def read_repeats(storage: Storage, pieces: Sequence[shuffle.Piece]) -> dict[int, list[int]]:
    """Place of a shard -> its rows, in order, whose key an earlier live row has."""
    table = shuffle.read(storage, pieces).sort_by([("shard", "ascending"), ("row", "ascending")])
    rows: dict[int, list[int]] = {}
    for shard, row in zip(table.column("shard").to_pylist(), table.column("row").to_pylist(), strict=True):
        rows.setdefault(shard, []).append(row)
    return rows


def tidy_index(storage: Storage, folder: str) -> None:
    storage.remove(f"{folder}/work")


def _cut(shards: Sequence[Shard]) -> tuple[int, list[tuple[int, int]]]:
    """Number of ranges, and the stretches of shards whose keys go into one file."""
    rows = [shard.rows for shard in shards]
    ranges = shuffle.buckets_for(sum(rows))
    return ranges, shuffle.stretches(rows, ranges)


def _range_of(high: NDArray[np.uint64], ranges: int) -> NDArray[np.int64]:
    """Range of each key, by its first word."""
    return ((high >> np.uint64(32)) * np.uint64(ranges) >> np.uint64(32)).astype(np.int64)


# --- what workers do --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DealTask:
    storage: Storage
    name: str
    folder: str
    number: int
    first: int
    """Place of the first shard in the pool's list."""
    shards: tuple[Shard, ...]
    ranges: int


def deal_keys(task: DealTask) -> shuffle.ShuffleFile:
    """Write the keys of a stretch of shards into one file, by range."""
    name = shuffle.stretch_name(task.number, [shard.id for shard in task.shards], task.ranges)
    path = f"{task.folder}/work/{name}"
    if task.storage.exists(path):
        return shuffle.load(task.storage, path)
    return shuffle.write(task.storage, path, _keys_by_range(task), task.ranges)


def _keys_by_range(task: DealTask) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    def read(shard: Shard) -> pa.Table:
        return read_pool(task.storage, shard.table, ["key", "reject", "status"])

    for number, table in enumerate(fetched(read, task.shards, AHEAD), task.first):
        with beat.working(task.name) as work:
            words = key_words(table.column("key").to_pylist())
            columns = {
                "key": _keys(words),
                "shard": pa.array(np.full(table.num_rows, number, dtype=np.int32)),
                "row": pa.array(np.arange(table.num_rows, dtype=np.int32)),
                "alive": pc.is_null(table.column("reject")),
                "failed": pc.is_valid(table.column("status")),
            }
            yield pa.table(columns), _range_of(words[:, 0], task.ranges)
            work.rows = table.num_rows


@dataclass(frozen=True)
class SortTask:
    storage: Storage
    name: str
    folder: str
    number: int
    """The range."""
    pieces: tuple[shuffle.Piece, ...]
    starts: NDArray[np.int64]
    """(stretches,): first shard of each."""


def sort_keys(task: SortTask) -> None:
    """Publish the live rows of one range that repeat an earlier row's key, then the index of the range."""
    with beat.working(task.name) as work:
        work.rows = _sort_keys(task)


def _sort_keys(task: SortTask) -> int:
    words, shard, row = np.zeros((0, 2), np.uint64), np.zeros(0, np.int32), np.zeros(0, np.int32)
    alive = failed = np.zeros(0, dtype=bool)
    if task.pieces:
        table = shuffle.read(task.storage, task.pieces)
        words = _words(table.column("key"))
        shard, row = (table.column(name).to_numpy() for name in ("shard", "row"))
        alive, failed = (table.column(name).to_numpy(zero_copy_only=False) for name in ("alive", "failed"))
    order = np.lexsort((row, shard, words[:, 1], words[:, 0]))
    live = order[alive[order]]
    again = live[1:][np.all(words[live[1:]] == words[live[:-1]], axis=1)]
    places = pa.table([pa.array(shard[again]), pa.array(row[again])], schema=REPEATS)
    stretch = np.searchsorted(task.starts, shard[again], side="right") - 1
    shuffle.write(task.storage, _repeats_path(task.folder, task.number), [(places, stretch)], len(task.starts))
    same = np.all(words[order[1:]] == words[order[:-1]], axis=1)
    order = np.delete(order, np.flatnonzero(failed[order[:-1]] & same))  # a later generation has the row
    columns = {"key": _keys(words[order]), "shard": pa.array(shard[order]), "row": pa.array(row[order])}
    path = f"{task.folder}/{task.number:06d}.parquet"
    task.storage.publish_table(path, pa.table(columns), row_group_size=ROW_GROUP, use_dictionary=False)
    return len(words)


def _repeats_path(folder: str, number: int) -> str:
    return f"{folder}/work/repeats-{number:06d}"


def _keys(words: NDArray[np.uint64]) -> pa.Array:
    data = np.ascontiguousarray(words).astype(">u8").tobytes()
    return pa.FixedSizeBinaryArray.from_buffers(KEY, len(words), [None, pa.py_buffer(data)])


def _words(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Keys as words (n, 2)."""
    parts = [np.frombuffer(part.buffers()[1], dtype=">u8").reshape(-1, 2) for part in column.chunks]
    parts = [words[part.offset : part.offset + len(part)] for words, part in zip(parts, column.chunks, strict=True)]
    return np.concatenate(parts).astype(np.uint64)


# --- looking up -------------------------------------------------------------------------------------------------------


def as_source_id(name: str) -> str:
    """The spelling that sources give names that are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def look_up(storage: Storage, manifest: Manifest, prefix: str) -> list[tuple[int, int]] | None:
    """(place of the shard, row) of the rows whose key begins with these hex characters; None if the pool has no index.
    Reads the footer and a row group of one or two ranges; more if the prefix spans more ranges."""
    index = manifest.extra.get("keys")
    if index is None:
        return None
    low, high = (bytes.fromhex(prefix.ljust(KEY_HEX, end)) for end in "0f")
    first, last = (_range_of(np.array([int.from_bytes(key[:8])], np.uint64), index["ranges"])[0] for key in (low, high))
    column, (least, most) = pc.field("key"), (pa.scalar(key, KEY) for key in (low, high))
    found: list[tuple[int, int]] = []
    for number in range(int(first), int(last) + 1):
        path = f"{index['folder']}/{number:06d}.parquet"
        pool = "/".join(index["folder"].split("/")[:2])
        remedy = f"remove the folders {index['folder']} and {pool}/versions, and rerun the recipe"
        with reading(storage, path, "index of keys", remedy):
            table = storage.read_table(path, filters=(column >= least) & (column <= most))
        found += zip(table.column("shard").to_pylist(), table.column("row").to_pylist(), strict=True)
    return found


def places_of(storage: Storage, manifest: Manifest, keys: Sequence[str]) -> Mapping[str, list[tuple[int, int]]] | None:
    """`look_up` of many keys."""
    if "keys" not in manifest.extra:
        return None
    return dict(zip(keys, fetched(lambda key: look_up(storage, manifest, key) or [], keys), strict=True))
