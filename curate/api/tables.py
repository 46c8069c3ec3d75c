"""Columns of the rows that are alive at a stage, as Arrow: pages, histograms, and `curate table`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.api.stages import make_stage
from curate.core.errors import CurateError, InputError
from curate.core.hashing import digest
from curate.core.nouns.facts import WIDE_BYTES
from curate.core.store.storage import open_storage
from curate.core.vectors import vector_dim
from curate.engine.record.live import LiveRows
from curate.engine.record.runs import RunRecord
from curate.engine.units.common import fetched
from curate.kernels.meta import META

READERS = 4
MOST_BINS = 100_000
CURSOR = re.compile("([0-9a-f]{12}):([0-9]{1,9}):([0-9]{1,18})")
WRITERS: dict[str, Callable[..., Any]] = {
    ".parquet": lambda path, schema: pq.ParquetWriter(path, schema, compression="zstd"),
    ".arrow": lambda path, schema: pa.ipc.new_file(str(path), schema),
    ".csv": lambda path, schema: pa_csv.CSVWriter(str(path), schema),
}


@dataclass(frozen=True)
class Page:
    """Rows of a table; `pl.from_arrow(page.table)` makes a data frame of them."""

    table: pa.Table
    next: str
    """The cursor that continues after them; "" after the last."""


@dataclass(frozen=True)
class Histogram:
    """Counts of a column's values. Each row is in exactly one of the counts."""

    edges: list[float]
    counts: list[int]
    """Values between two edges; the last edge is in the last bin."""
    below: int
    """Values below the first edge."""
    above: int
    nulls: int
    nans: int


class Reads:
    """Columns of the rows that pass a stage. Raises InputError for an unknown stage, column or expression."""

    def __init__(self, run: RunRecord, stage: str, columns: Sequence[str], where: str | None = None) -> None:
        listed = isinstance(columns, list | tuple) and all(isinstance(name, str) for name in columns)
        _expect("stage", stage, isinstance(stage, str), "the name of a stage")
        _expect("columns", columns, listed, "a list of names")
        _expect("where", where, where is None or isinstance(where, str), "an expression, as in `filter.where`")
        self.rows, self.columns, self.about = LiveRows(run, stage), list(columns), [run.run_id, stage, *columns, where]
        if not columns:
            raise InputError(f"--columns is missing; the columns are {', '.join(self.rows.fields)}")
        repeated = [name for name, count in Counter(columns).items() if count > 1]
        _expect("columns", columns, not repeated, f"each column once, not {', '.join(repeated)} again")
        fields = [self.rows.one_field(name) for name in columns]
        self.schema = pa.schema([field.with_type(_shown(field.type)) for field in fields])
        self.judge, self.judged = None, list[str]()
        if where is not None:
            try:
                self.judge = make_stage("filter.where", keep=where, reason="other")
                named = self.judge.expression.columns
                self.judged = list(dict.fromkeys("meta" if name.startswith(META) else name for name in named))
                self.judge.check_columns(pa.schema([self.rows.one_field(name) for name in self.judged]))
            except CurateError as error:
                raise InputError(f"--where: {str(error).removeprefix('--').removeprefix('keep: ')}") from None

    def shard(self, place: int) -> pa.Table:
        """The rows of one shard."""
        table = self.rows.table(self.rows.shards[place], list(dict.fromkeys([*self.columns, *self.judged])))
        return self.shown(self.matching(table))

    def matching(self, table: pa.Table) -> pa.Table:
        """The rows for which the expression is true."""
        if self.judge is None:
            return table
        return table.filter(pc.is_null(pa.array(self.judge.keep(table.select(self.judged)), pa.string())))

    def shown(self, table: pa.Table) -> pa.Table:
        """Its columns, vectors as lists."""
        return pa.table([_halves(table.column(name)) for name in self.columns], schema=self.schema)

    def page(self, shards: int | Sequence[int] | None, cursor: str | None, limit: int | None) -> Page:
        count = len(self.rows.shards)
        places = list(range(count)) if shards is None or isinstance(shards, int) else _listed(shards)
        right = all(_whole(place, 0) and place < count for place in places) and len(set(places)) == len(places)
        right &= not isinstance(shards, int) or _whole(shards, 1)
        kinds = f"a number of shards from 1 on, or a list of some of 0 to {count - 1}, each once"
        _expect("shards", shards, right, kinds)
        _expect("limit", limit, limit is None or _whole(limit, 1), "a number of rows from 1 on")
        named = {self.rows.places[column][0] for column in (*self.columns, *self.judged)}
        bases = {name: self.rows.bases[name] for name in named.union(self.rows.path)}
        mark = digest([*self.about, bases, places])[:12]
        at, skip = self.after(cursor, mark, places)
        last = min(len(places), at + shards) if isinstance(shards, int) else len(places)
        largest = max([shard.rows for shard in self.rows.shards], default=0) or 1
        readers = READERS if limit is None else min(READERS, 1 + limit // largest)
        tables, left = [self.schema.empty_table()], None if limit is None else min(limit, len(places) * largest)
        for table in fetched(self.shard, places[at:last], readers):
            part = table.slice(skip, left)
            tables.append(part)
            skip += len(part)
            left = None if left is None else left - len(part)
            if skip >= len(table):
                at, skip = at + 1, 0
            if left == 0:
                break
        return Page(pa.concat_tables(tables), f"{mark}:{at}:{skip}" if at < len(places) else "")

    def after(self, cursor: str | None, mark: str, places: Sequence[int]) -> tuple[int, int]:
        """(index of the first shard, its rows that were read before)."""
        _expect("cursor", cursor, cursor is None or isinstance(cursor, str), "`next` of another page")
        if not cursor:
            return 0, 0
        found = CURSOR.fullmatch(cursor)
        if found is None or found[1] != mark:
            whose = "`next` of a page of this run, stage, columns, where and shards"
            raise InputError(f"cursor {cursor[:80]!r}: expected {whose}")
        at, skip = int(found[2]), int(found[3])
        inside = at < len(places) and skip < max(1, self.rows.shards[places[at]].rows)
        _expect("cursor", cursor, inside, f"`next` of another page; this one is beyond the {len(places)} shards")
        return at, skip

    def batches(self) -> pa.RecordBatchReader:
        """All rows, a batch per shard, which is read when it is asked for."""
        tables = (self.shard(place).combine_chunks() for place in range(len(self.rows.shards)))
        batches = (batch for table in tables for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)


def histogram(
    run: RunRecord, stage: str, column: str, bins: int, limits: Sequence[float] | None, where: str | None
) -> Histogram:
    _expect("column", column, isinstance(column, str), "the name of a column")
    _expect("bins", bins, _whole(bins, 1) and bins <= MOST_BINS, f"a whole number from 1 to {MOST_BINS}")
    pair = isinstance(limits, list | tuple) and len(limits) == 2 and all(map(_finite, limits))
    rising = limits is None or (pair and limits[0] < limits[1])
    _expect("range", limits, rising, "two finite numbers, the smaller one first")
    reads = Reads(run, stage, [column], where)
    kind = reads.schema.types[0]
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise InputError(f"{column}: holds {kind}; expected a column of numbers")

    def values(place: int) -> tuple[int, NDArray[np.float64]]:
        found = reads.shard(place).column(0)
        return found.null_count, found.drop_null().to_numpy().astype(np.float64)

    def extent(place: int) -> tuple[float, float]:
        found = values(place)[1]
        found = found[np.isfinite(found)]
        return (float(found.min()), float(found.max())) if len(found) else (np.inf, -np.inf)

    def counted(place: int) -> NDArray[np.int64]:
        nulls, found = values(place)
        inside = found[(found >= low) & (found <= high)]
        ends = [(found < low).sum(), (found > high).sum(), nulls, np.isnan(found).sum()]
        return np.concatenate([ends, np.histogram(inside, edges)[0]])

    places = range(len(reads.rows.shards))
    low, high = limits or (0.0, 1.0)
    if limits is None:
        ends = np.array([*fetched(extent, places, READERS)]).reshape(-1, 2)
        least, most = ends[:, 0].min(initial=np.inf), ends[:, 1].max(initial=-np.inf)
        low, high = (least, most) if least <= most else (low, high)
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        high = max(high, low + 2 * bins * float(np.spacing(max(abs(low), abs(high)))))
    try:
        with np.errstate(all="ignore"):
            edges = np.histogram_bin_edges([], bins, (low, high))
    except ValueError:
        expected = f"one that floating-point numbers can divide into {bins} bins"
        raise InputError(f"range: {low:g} to {high:g} of {column}; expected {expected}") from None
    low, high = edges[0], edges[-1]
    counts = sum(fetched(counted, places, READERS), np.zeros(4 + bins, np.int64)).tolist()
    return Histogram(edges.tolist(), counts[4:], *counts[:4])


def write(reader: pa.RecordBatchReader, target: str) -> int:
    """Write a table to a file or URL, complete or not at all; returns its rows. Raises InputError for a format that is
    not known or cannot hold the columns."""
    folder, slash, name = target.rpartition("/")
    suffix = PurePosixPath(name).suffix.lower()
    nested = [field.name for field in reader.schema if pa.types.is_nested(field.type) or _is_bytes(field.type)]
    if suffix not in WRITERS:
        raise InputError(f"--to {target}: expected a name that ends in {', '.join(WRITERS)}")
    if suffix == ".csv" and nested:
        raise InputError(
            f"--to {target}: CSV cannot hold the lists and bytes of {', '.join(nested)}; write .parquet or .arrow"
        )
    count, schema = 0, pa.schema([field.with_type(_single(field.type)) for field in reader.schema])
    with open_storage(folder or slash or ".").publish(name) as path, WRITERS[suffix](path, schema) as writer:
        for batch in reader:
            writer.write_batch(batch.cast(schema))
            count += batch.num_rows
    return count


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _single(kind: pa.DataType) -> pa.DataType:
    """In files, vectors are lists of float32, which every reader knows."""
    halves = pa.types.is_fixed_size_list(kind) and pa.types.is_float16(kind.value_type)
    return pa.list_(pa.float32(), kind.list_size) if halves else kind


def _expect(name: str, value: Any, right: Any, expected: str) -> None:
    if not right:
        raise InputError(f"{name}: expected {expected}; not {str(value)[:80]!r}")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | range) else [value]


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _shown(kind: pa.DataType) -> pa.DataType:
    """Vectors are shown as lists of halves, as they are stored."""
    wide = pa.types.is_fixed_size_binary(kind) and kind.byte_width >= WIDE_BYTES
    return pa.list_(pa.float16(), vector_dim(kind)) if wide else kind


def plain_vectors(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in the form of files: vectors as lists of float32."""
    shown = _halves(column)
    return shown.cast(_single(shown.type))


def _halves(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A vector column as lists, in the same memory."""
    kind = _shown(column.type)
    if kind == column.type:
        return column
    chunks = []
    for chunk in column.chunks:
        valid, data = chunk.buffers()
        size, start = len(chunk), chunk.offset
        flat = pa.Array.from_buffers(pa.float16(), (start + size) * kind.list_size, [None, data])
        chunks.append(pa.Array.from_buffers(kind, size, [valid], offset=start, children=[flat]))
    return pa.chunked_array(chunks, kind)
