"""What workers do for a Collect: deal rows into buckets, leave out the rows of earlier portions, divide the rest into
portions."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.core.contracts import Collect, Portion
from curate.core.contracts.collect import GROUP, ROW
from curate.core.hashing import digest
from curate.core.nouns.artifacts import read_portion
from curate.core.nouns.manifest import reading
from curate.core.store.storage import Storage
from curate.engine.tasks import beat
from curate.engine.units import shuffle
from curate.engine.units.common import dump, fetched

HELD_BYTES, HELD_OF_BUCKET = 64 << 20, 128 << 10
"""Rows that a deal holds in memory: little, because new memory costs more time than further runs of its file; more if
there are many buckets, because each run has a stream per bucket."""
FAST = -4
"""Level of LZ4 for rows on their way to an object store: 8 % larger than its default, in 3/4 of the time."""
LINE = pa.schema(
    [
        pa.field("first", pa.int32(), metadata={"of": "first bucket of its rows"}),
        pa.field("last", pa.int32(), metadata={"of": "last bucket of its rows"}),
        pa.field("base", pa.string(), metadata={"of": "folder of the artifact that has its rows"}),
        pa.field("file", pa.string()),
        pa.field("index", pa.int32(), metadata={"of": "row group in the file"}),
        pa.field("rows", pa.int64()),
        pa.field("digest", pa.string(), metadata={"of": "digest of its rows"}),
    ]
)
_META = b"collected"


def names_of(lines: pa.Table) -> list[str]:
    """Names of portions within an artifact and the artifacts that it builds on."""
    columns = (lines.column(name).to_pylist() for name in ("base", "file", "index"))
    return [f"{base}/{file}#{index}" for base, file, index in zip(*columns, strict=True)]


@dataclass(frozen=True)
class DealTask:
    storage: Storage
    stage: Collect
    name: str
    path: str
    parts: tuple[Portion, ...]
    buckets: int


def deal_rows(task: DealTask) -> shuffle.ShuffleFile:
    """Write the rows of some parts into one file, by bucket; its note counts them."""
    if task.storage.exists(task.path):
        return shuffle.load(task.storage, task.path)
    note: dict[str, Any] = {"rows": 0, "dropped": Counter()}
    held = min(shuffle.HELD_BYTES, max(HELD_BYTES, task.buckets * HELD_OF_BUCKET))
    codec = None if task.storage.local else pa.Codec("lz4", FAST)
    parts = _dealt(task, note)
    return shuffle.write(task.storage, task.path, parts, task.buckets, note, held_bytes=held, codec=codec)


def _dealt(task: DealTask, note: dict[str, Any]) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
    for part in task.parts:
        tables = task.stage.read(part)
        while True:
            with beat.working(task.name) as work:
                table = next(tables, None)
                if table is None:
                    break
                work.rows = table.num_rows
            note["rows"] += table.num_rows
            usable = pc.is_valid(table[GROUP])
            if pc.all(usable).as_py() is False:
                note["dropped"].update(table.filter(pc.invert(usable))["reject"].to_pylist())
                table = table.filter(usable)
            group = table[GROUP].to_numpy()
            yield table, ((group >> np.uint64(32)) * np.uint64(task.buckets) >> np.uint64(32)).astype(np.int64)


def _distinct(table: pa.Table) -> tuple[pa.Table, int]:
    """(rows sorted by group, without later copies of a row, number of copies). Rows of a group keep their order."""
    group, row = (table[name].to_numpy() for name in (GROUP, ROW))
    by_group = np.argsort(group)  # not stable, but several times as fast
    equal = group[by_group[1:]] == group[by_group[:-1]]
    together = np.append(equal, False) | np.insert(equal, 0, False)
    several = np.sort(by_group[together])
    by_group[together] = several[np.argsort(group[several], kind="stable")]
    order = several[np.lexsort((row[several], group[several]))]
    again = np.zeros(len(group), dtype=bool)
    again[order[1:]] = (group[order[1:]] == group[order[:-1]]) & (row[order[1:]] == row[order[:-1]])
    return table.take(pa.array(by_group[~again[by_group]])).combine_chunks(), int(again.sum())


def _files_of(pieces: tuple[shuffle.Piece, ...]) -> list[str]:
    """Their files, whose names stand for their rows. Not their places, which depend on the compression."""
    return [path for path, _, _ in pieces]


@dataclass(frozen=True)
class SubtractTask:
    storage: Storage
    name: str
    base: str
    bucket: int
    pieces: tuple[shuffle.Piece, ...]
    lines: pa.Table
    """Earlier portions with rows of this bucket."""

    @property
    def path(self) -> str:
        inputs = [*_files_of(self.pieces), *names_of(self.lines)]
        return f"{self.base}/work/new-{self.bucket:06d}-{digest(inputs)[:12]}.parquet"


@dataclass(frozen=True)
class Fresh:
    """Rows of a bucket that earlier portions lack."""

    bucket: int
    path: str
    rows: int
    duplicates: int
    present: dict[str, int] = field(default_factory=dict)
    """Earlier portion -> number of its rows in this bucket that are still there."""


def subtract_rows(task: SubtractTask) -> Fresh:
    """Publish the rows of a bucket that are in none of the earlier portions."""
    if task.storage.exists(task.path):
        note = json.loads(_metadata(task.storage, task.path))
        return Fresh(task.bucket, task.path, **note)
    with beat.working(task.name) as work:
        table, duplicates = _distinct(shuffle.read(task.storage, task.pieces)) if task.pieces else (None, 0)
        earlier = _rows_of(task.storage, task.lines)
        present: dict[str, int] = {}
        if table is not None:
            mine = pl.DataFrame({name: table[name].to_numpy() for name in (GROUP, ROW)})
            still = earlier.join(mine, on=[GROUP, ROW], how="semi").group_by("line").len()
            names = names_of(task.lines)
            present = {names[line]: count for line, count in sorted(still.iter_rows())}
            known = mine.join(earlier, on=[GROUP, ROW], how="left", maintain_order="left")["line"]
            table = table.filter(pa.array(known.is_null().to_numpy()))
            work.rows = table.num_rows
        note = {"rows": table.num_rows if table else 0, "duplicates": duplicates, "present": present}
        if table is not None:
            task.storage.publish_table(task.path, table.replace_schema_metadata({_META: dump(note)}))
    return Fresh(task.bucket, task.path, **note)


def _rows_of(storage: Storage, lines: pa.Table) -> pl.DataFrame:
    """Hashes of the rows of portions, and the place of their line."""

    def read(line: tuple[int, dict[str, Any]]) -> pl.DataFrame:
        table = read_portion(storage, line[1], [GROUP, ROW])
        hashes = {name: table[name].to_numpy() for name in (GROUP, ROW)}
        return pl.DataFrame(hashes | {"line": np.full(table.num_rows, line[0], np.int32)})

    empty = pl.DataFrame(schema={GROUP: pl.UInt64, ROW: pl.UInt64, "line": pl.Int32})
    return pl.concat([empty, *fetched(read, enumerate(lines.to_pylist()))])


@dataclass(frozen=True)
class CutTask:
    storage: Storage
    name: str
    base: str
    most: int
    first: int
    last: int
    """Buckets of its rows."""
    pieces: tuple[shuffle.Piece, ...] = ()
    files: tuple[str, ...] = ()
    """Without pieces: files of rows that earlier portions lack."""

    @property
    def file(self) -> str:
        return f"rows/{self.first:06d}-{digest([*_files_of(self.pieces), *self.files, self.most])[:12]}.parquet"


def cut_rows(task: CutTask) -> dict[str, Any]:
    """Publish the portions of one or more buckets. Returns their lines and the number of duplicate rows."""
    path = f"{task.base}/{task.file}"
    if task.storage.exists(path):
        return dict(json.loads(_metadata(task.storage, path)))
    with beat.working(task.name) as work:
        if task.pieces:
            table, duplicates = _distinct(shuffle.read(task.storage, task.pieces))
        else:
            tables = list(fetched(task.storage.read_table, task.files))
            table, duplicates = pa.concat_tables(tables, promote_options="permissive").combine_chunks(), 0
        work.rows = table.num_rows
        lines = []
        with task.storage.publish(path) as aside:
            table = table.replace_schema_metadata(None)
            options = {"compression": "zstd", "compression_level": 1, "use_dictionary": ["reject"]}
            with pq.ParquetWriter(aside, table.schema, **options) as writer:
                edges = cuts(table[GROUP].to_numpy(), task.most)
                for index, (start, stop) in enumerate(pairwise(edges)):
                    rows = table.slice(start, stop - start)
                    writer.write_table(rows, row_group_size=stop - start)
                    line = {"first": task.first, "last": task.last, "file": task.file, "index": index}
                    lines.append(line | {"rows": stop - start, "digest": _digest(rows)})
                note = {"lines": lines, "duplicates": duplicates}
                writer.add_key_value_metadata({_META: dump(note)})
    return note


def cuts(group: NDArray[np.uint64], most: int) -> list[int]:
    """Edges of portions of about equal size, at most about `most` rows each; groups (sorted) stay whole."""
    rows = len(group)
    count = -(-rows // most)
    starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
    wanted = np.arange(1, count) * rows / count
    edges = starts[np.minimum(np.searchsorted(starts, wanted), len(starts) - 1)]
    return sorted({0, *edges.tolist(), rows})


def _digest(rows: pa.Table) -> str:
    """Digest of the values. Not of Arrow's buffers, which have anything where a value is null."""
    hasher = hashlib.sha256()  # processors have instructions for it
    for name in rows.column_names:
        for part in (name.encode(), *_bytes_of(rows[name])):
            hasher.update(part)
    return hasher.hexdigest()[:32]


def _bytes_of(column: pa.ChunkedArray) -> Iterator[bytes | memoryview]:
    array = pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)
    yield pc.is_valid(array).to_numpy(zero_copy_only=False).tobytes()
    if pa.types.is_string(array.type):
        array = pc.fill_null(array, "")
        _, offsets, data = array.buffers()
        edges = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        yield np.diff(edges).tobytes()
        yield memoryview(data or b"")[edges[0] : edges[-1]]
    elif pa.types.is_integer(array.type):
        yield pc.fill_null(array, 0).to_numpy().tobytes()
    else:
        yield json.dumps(array.to_pylist()).encode()


def _metadata(storage: Storage, path: str) -> bytes:
    with reading(storage, path, "file of rows", f"remove {path} and rerun the recipe"), storage.open(path) as file:
        return bytes(pq.read_metadata(file).metadata[_META])
