"""Columns of the rows that are alive at a stage, as Arrow, shard by shard: `Workspace.table` and `curate table`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from curate.api.stages import make_stage
from curate.core.errors import CurateError, InputError
from curate.core.nouns.facts import WIDE_BYTES
from curate.core.store.storage import open_storage
from curate.core.vectors import from_binary, vector_dim
from curate.engine.record.live import LiveRows
from curate.engine.record.runs import RunRecord

WRITERS: dict[str, Callable[..., Any]] = {
    ".parquet": lambda path, schema: pq.ParquetWriter(path, schema, compression="zstd"),
    ".arrow": lambda path, schema: pa.ipc.new_file(str(path), schema),
    ".csv": lambda path, schema: pa_csv.CSVWriter(str(path), schema),
}


def table_of(run: RunRecord, stage: str, columns: Sequence[str], where: str | None = None) -> pa.RecordBatchReader:
    """Raises InputError for an unknown stage, column or expression."""
    rows = LiveRows(run, stage)
    if not columns:
        raise InputError(f"--columns is missing; the columns are {', '.join(rows.fields)}")
    fields = [rows.field(name) for name in columns]
    judge = None
    if where is not None:
        try:
            judge = make_stage("filter.where", keep=where, reason="other")
            judge.check(pa.schema([rows.field(name) for name in judge.reads()]))
        except CurateError as error:
            raise InputError(f"--where: {str(error).removeprefix('--').removeprefix('keep: ')}") from None
    read = list(dict.fromkeys(["key", *columns, *(judge.reads() if judge else ())]))
    schema = pa.schema([field.with_type(_shown(field.type)) for field in fields])

    def batches() -> Iterator[pa.RecordBatch]:
        for shard in rows.shards:
            table = rows.table(shard, read)
            if judge is not None:
                table = table.filter(pc.is_null(pa.array(judge.keep(table), pa.string())))
            shown = pa.table([_vectors(table.column(name)) for name in columns], schema=schema)
            yield from shown.combine_chunks().to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


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
    count = 0
    with open_storage(folder or slash or ".").publish(name) as path, WRITERS[suffix](path, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _shown(kind: pa.DataType) -> pa.DataType:
    """Vectors are shown as lists of float32."""
    wide = pa.types.is_fixed_size_binary(kind) and kind.byte_width >= WIDE_BYTES
    return pa.list_(pa.float32(), vector_dim(kind)) if wide else kind


def _vectors(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    kind = _shown(column.type)
    if kind == column.type:
        return column
    mask = column.is_null().combine_chunks()
    return pa.FixedSizeListArray.from_arrays(pa.array(from_binary(column).reshape(-1)), type=kind, mask=mask)
