"""A dataset without some of its samples: the other tars are the same files."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.codec.tars import members
from curate.core.errors import CorruptError, StorageError
from curate.core.hashing import digest
from curate.core.nouns.manifest import Manifest, read_index
from curate.core.recipe import registry
from curate.core.store.storage import Storage
from curate.engine.takedown.find import tars_of

_OFFSETS = ("offset", "text_offset", "json_offset", "clip_offset")
"""Columns of the index with places in a tar."""
_BLOCK = 8 << 20
Range = tuple[int, int]


def without(storage: Storage, base: str, keys: Collection[str]) -> str:
    """Publish a dataset without the samples of these keys; returns its base. A killed call is resumed by the next.

    Its fingerprint is the digest of the predecessor's and of the keys removed, which its manifest names.
    """
    before = Manifest.load(storage, base)
    if before is None:
        raise StorageError(f"{storage.url_of(base)}: the dataset is gone; run the takedown again")
    gone = pa.array(sorted(keys), pa.string())
    lines = read_index(storage, base, ["key", "shard", "row"], filters=pc.is_in(pc.field("key"), value_set=gone))
    removed = sorted(set(lines.column("key").to_pylist()))
    fingerprint = digest({"predecessor": before.fingerprint, "removed": removed})
    made = f"{base.rpartition('/')[0]}/{fingerprint}"
    if Manifest.load(storage, made) is not None:
        return made
    rows: dict[int, list[int]] = {}
    for shard, row in zip(lines.column("shard").to_pylist(), lines.column("row").to_pylist(), strict=True):
        rows.setdefault(shard, []).append(row)
    tars, cuts, there = tars_of(storage, base), dict[int, list[Range]](), storage.list(base)
    for number, tar in enumerate(tars):
        if number in rows:
            cuts[number] = _cut(storage, f"{base}/{tar}", f"{made}/{tar}", removed)
        else:
            for name in filter(there.__contains__, (tar, f"{tar}.idx")):
                storage.link(f"{base}/{name}", f"{made}/{name}")
    counts = _write_index(storage, base, made, gone, {shard: sorted(own) for shard, own in rows.items()}, cuts)
    stage: Any = registry.resolve(before.op)(**before.parameters)
    samples = [(tar, counts.get(number, 0)) for number, tar in enumerate(tars)]
    index = partial(_tables, storage, made)
    files = stage.finish(samples, fingerprint, index)
    for number, table in _of_tars(index(), [one for one in cuts if f"{tars[one]}.idx" in there]).items():
        files |= stage.beside(tars[number], table)
    for name, content in files.items():
        if name in there:  # an older layout has fewer
            with storage.publish(f"{made}/{name}") as aside:
                aside.write_bytes(content) if isinstance(content, bytes) else content(aside)
    sizes = storage.list(made)
    extra = {**before.extra, "predecessor": before.fingerprint, "removed": removed, "committed": time.time()}
    manifest = replace(
        before, fingerprint=fingerprint, inputs={"predecessor": before.fingerprint}, rows=sum(counts.values()),
        bytes=sum(sizes[tar] for tar in tars), seconds=0.0, built_rows=0, extra=extra,
    )  # fmt: skip
    lines = [{"file": tar, "bytes": sizes[tar]} for tar in tars] if "shards.parquet" in there else ()
    manifest.commit(storage, made, lines)
    return made


def _cut(storage: Storage, source: str, target: str, keys: Collection[str]) -> list[Range]:
    """Copy a tar without the members of samples of these keys; returns the ranges left out. All else is copied as it
    is, headers too."""
    ranges, start = list[Range](), 0
    with storage.open(source) as file:
        for member in members(file):
            if member.reject:
                raise CorruptError(f"{storage.url_of(source)}: {member.detail}; pack the dataset again")
            end = member.offset + member.size + -member.size % 512
            if member.name.partition("-")[0] in keys:
                if ranges and ranges[-1][1] == start:
                    start = ranges.pop()[0]
                ranges.append((start, end))
            start = end
        with storage.publish(target) as aside, open(aside, "wb") as out:
            for first, stop in _rest(ranges, file.seek(0, 2)):
                file.seek(first)
                while first < stop:
                    block = file.read(min(_BLOCK, stop - first))
                    out.write(block)
                    first += len(block)
    return ranges


def _rest(ranges: Sequence[Range], size: int) -> Iterator[Range]:
    """What lies between ranges."""
    at = 0
    for start, stop in ranges:
        yield at, start
        at = stop
    yield at, size


def _write_index(
    storage: Storage, base: str, made: str, gone: pa.Array, rows: dict[int, list[int]], cuts: dict[int, list[Range]]
) -> dict[int, int]:
    """Write the index without these keys, with the places that are now; returns the samples of each tar."""
    counts: dict[int, int] = {}
    with (
        storage.open(f"{base}/index.parquet") as file,
        storage.publish(f"{made}/index.parquet") as aside,
    ):
        parquet = pq.ParquetFile(file)
        with pq.ParquetWriter(aside, parquet.schema_arrow, compression="zstd") as out:
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group)
                table = table.filter(pc.invert(pc.is_in(table.column("key"), value_set=gone)))
                shards = table.column("shard").to_pylist()
                for shard, number in zip(*np.unique(shards, return_counts=True), strict=True):
                    counts[int(shard)] = counts.get(int(shard), 0) + int(number)
                if not cuts.keys().isdisjoint(shards):
                    table = _moved(table, rows, cuts)
                out.write_table(table)
    return counts


def _tables(storage: Storage, base: str) -> Iterator[pa.Table]:
    """The index, in tables of whole tars."""
    with storage.open(f"{base}/index.parquet") as file:
        parquet = pq.ParquetFile(file)
        yield from map(parquet.read_row_group, range(parquet.num_row_groups))


def _of_tars(index: Iterator[pa.Table], numbers: Sequence[int]) -> dict[int, pa.Table]:
    """The rows of each of these tars."""
    wanted = pa.array(numbers, pa.int32())
    some = pa.concat_tables(table.filter(pc.is_in(table.column("shard"), value_set=wanted)) for table in index)
    return {number: some.filter(pc.equal(some.column("shard"), number)) for number in numbers}


def _moved(table: pa.Table, rows: dict[int, list[int]], cuts: dict[int, list[Range]]) -> pa.Table:
    """Lines of the index with the rows and offsets that are left after the cuts."""
    shards = table.column("shard").to_numpy()
    for name in ("row", *(name for name in _OFFSETS if name in table.column_names)):
        place, column = table.column_names.index(name), table.column(name).combine_chunks()
        values, none = column.fill_null(-1).to_numpy().copy(), column.is_null().to_numpy(zero_copy_only=False)
        for shard in cuts.keys() & set(shards.tolist()):
            edges, lost = np.array(rows[shard]), np.arange(len(rows[shard]) + 1)
            if name != "row":
                starts, edges = np.array(cuts[shard]).T
                lost = np.cumsum([0, *(edges - starts)])
            mine = (shards == shard) & (values >= 0)
            values[mine] -= lost[np.searchsorted(edges, values[mine], side="right")].astype(values.dtype)
        table = table.set_column(place, table.schema.field(place), pa.array(values, column.type, mask=none))
    return table
