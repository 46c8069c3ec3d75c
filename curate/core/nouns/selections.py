"""Selections: how many copies of each row, or of each item of a row, were selected."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from curate.core.nouns.manifest import read_lines, reading
from curate.core.store.storage import Storage, open_storage

FORMAT_OF_SELECTION = 2
"""Part of a selection's fingerprint. Format 1 had a file per bucket."""
SELECTION_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("item", pa.string()),
        pa.field("copies", pa.int32()),
        pa.field("shard", pa.string()),
        pa.field("row", pa.int64()),
        pa.field("unit", pa.int64(), metadata={"of": "what the quota was given to"}),
        pa.field("reject", pa.string()),
    ]
)
"""Lines of a selection; a column `expected` follows if the choice is random."""


class Lines(NamedTuple):
    """Location of a shard's lines in a selection: rows start .. start + rows - 1 of a row group of a file. `copies` is
    their sum."""

    file: str
    group: int
    start: int
    rows: int
    copies: int


@lru_cache(maxsize=8)
def selection_places(url: str, base: str) -> dict[str, Lines]:
    """Shard -> location of its lines in a committed selection, in pool order."""
    table = read_lines(open_storage(url), base, ["id", *Lines._fields])
    columns = [table.column(name).to_pylist() for name in table.column_names]
    return {shard: Lines(*place) for shard, *place in zip(*columns, strict=True)}


def read_selected(storage: Storage, base: str, place: Lines | None, columns: list[str] | None = None) -> pa.Table:
    """A shard's lines of a selection, ordered by row, then item."""
    if place is None or not place.rows:
        table = SELECTION_SCHEMA.empty_table()
        return table if columns is None else table.select([name for name in columns if name in table.column_names])
    path = f"{base}/{place.file}"
    with _reading_selection(storage, base, path):
        return _row_group(storage.url, path, place.group, None if columns is None else tuple(columns)).slice(
            place.start, place.rows
        )


@lru_cache(maxsize=4)
def _row_group(url: str, path: str, group: int, columns: tuple[str, ...] | None) -> pa.Table:
    """A row group; cached, because small shards share one and tasks read shards in order."""
    storage = open_storage(url)
    with storage.open(path) as file, pq.ParquetFile(file, metadata=_footer(url, path), pre_buffer=True) as parquet:
        existing = set(parquet.schema_arrow.names)
        return parquet.read_row_group(group, columns and [name for name in columns if name in existing])


@lru_cache(maxsize=16)
def _footer(url: str, path: str) -> pq.FileMetaData:
    with open_storage(url).open(path) as file:
        return pq.read_metadata(file)


def _reading_selection(storage: Storage, base: str, path: str) -> AbstractContextManager[None]:
    return reading(storage, path, "table of a selection", f"remove the folder {base} and rerun the recipe")


def read_selection(
    storage: Storage, base: str, file: str, columns: list[str] | None = None, **options: Any
) -> pa.Table:
    """A table of a selection, such as `quotas.parquet`. `options`: see `Storage.read_table`."""
    with _reading_selection(storage, base, f"{base}/{file}"):
        return storage.read_table(f"{base}/{file}", columns=columns, **options)
