"""Facts: a stage's results for samples, in numbered, immutable tables.

    facts/<op>/<stage>/<fingerprint>/<shard>/000001.parquet

A table has a row for each sample of the shard that has been needed so far, in pool order: its position, its status and
the stage's columns. Table n + 1 contains every row of table n; a status only improves, and existing values never
change. A fingerprint and a key therefore determine one value, whichever run computes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import AlreadyExistsError
from curate.core.nouns.manifest import read_lines, reading
from curate.core.store.storage import Storage

DONE, UNUSABLE, ERROR = 0, 1, 2
STATUS = ("done", "unusable", "error")
MISSING = -1
"""Status of a row that is in no table."""

ROW, STATUS_COLUMN, REASON, MARKED, INPUT = "_row", "_status", "_reason", "_marked", "_input"
FIXED = pa.schema(
    [
        pa.field(ROW, pa.int32(), metadata={"of": "place in the pool's shard"}),
        pa.field(STATUS_COLUMN, pa.int8(), metadata={"values": "0 done, 1 unusable, 2 error"}),
        pa.field(REASON, pa.string()),
        pa.field(MARKED, pa.bool_(), metadata={"of": "computed from the null of a row in error"}),
    ]
)
INPUT_FIELD = pa.field(INPUT, pa.binary(16), metadata={"of": "digest of every value that the row was computed from"})
NOTES = b"notes"
WIDE_BYTES = 64
"""Fixed-size binaries of at least this width are vectors, which no codec compresses."""


@dataclass(frozen=True)
class Notes:
    """Metadata of a table, apart from its rows."""

    counters: Counter[str] = field(default_factory=Counter)
    attempts: dict[int, int] = field(default_factory=dict)
    """Row in error -> number of attempts."""
    messages: dict[str, str] = field(default_factory=dict)
    """Reason -> an example of its message."""
    device: str = ""

    def __add__(self, other: Notes) -> Notes:
        tried = {**self.attempts}
        for row, count in other.attempts.items():
            tried[row] = tried.get(row, 0) + count
        counters = self.counters + other.counters
        return Notes(counters, tried, {**self.messages, **other.messages}, other.device or self.device)

    def dump(self) -> bytes:
        value = {"counters": dict(sorted(self.counters.items())), "messages": self.messages, "device": self.device}
        return json.dumps(value | {"attempts": {str(row): n for row, n in self.attempts.items()}}).encode()

    @classmethod
    def of(cls, schema: pa.Schema) -> Notes:
        value = json.loads((schema.metadata or {}).get(NOTES, b"{}"))
        tried = {int(row): n for row, n in value.get("attempts", {}).items()}
        return cls(Counter(value.get("counters", {})), tried, value.get("messages", {}), value.get("device", ""))


def table_path(folder: str, shard: str, number: int) -> str:
    return f"{folder}/{shard}/{number:06d}.parquet"


def listed(storage: Storage, folder: str, base: str, file: str = "shards.parquet") -> set[str]:
    """Paths of the tables in a list of shards and numbers."""
    shards, numbers = read_lines(storage, base, ["id", "number"], file).columns
    return {table_path(folder, *line) for line in zip(shards.to_pylist(), numbers.to_pylist(), strict=True)}


def latest(files: Iterable[str]) -> dict[str, int]:
    """Shard -> number of its latest table, from the listing of a fingerprint's folder."""
    found: dict[str, int] = {}
    for file in files:
        shard, _, name = file.partition("/")
        stem = name.removesuffix(".parquet")
        if stem.isdigit() and len(stem) == 6 and name.endswith(".parquet"):
            found[shard] = max(found.get(shard, 0), int(stem))
    return found


def read(storage: Storage, folder: str, shard: str, number: int, columns: list[str] | None = None) -> pa.Table:
    """Table `number`, with all or the named columns. Raises CorruptError, or StorageError if the store fails."""
    path = table_path(folder, shard, number)
    remedy = f"remove the folders {folder}/{shard} and masks, and rerun the recipe"
    with reading(storage, path, "table of facts", remedy):
        return storage.read_table(path, columns=columns)


def build(
    rows: NDArray[np.int64],
    status: NDArray[np.int8],
    reason: Iterable[str | None],
    marked: NDArray[np.bool_],
    columns: pa.Table,
    inputs: NDArray[Any] | None = None,
) -> pa.Table:
    """A table of facts; `columns` has n rows. Costly stages add `inputs`, digests (n,) of 16 bytes."""
    fixed = [pa.array(rows, pa.int32()), pa.array(status, pa.int8()), pa.array(list(reason), pa.string())]
    arrays = [*fixed, pa.array(marked, pa.bool_())]
    fields = list(FIXED)
    if inputs is not None:
        arrays.append(pa.array(list(inputs), pa.binary(16)))
        fields.append(INPUT_FIELD)
    return pa.table([*arrays, *columns.columns], schema=pa.schema([*fields, *columns.schema]))


def rank(table: pa.Table) -> NDArray[np.int8]:
    """Quality (n,) of each row: 0 error, 1 computed from the null of an error, 2 final."""
    status = table.column(STATUS_COLUMN).to_numpy()
    marked = table.column(MARKED).to_numpy(zero_copy_only=False)
    return np.where(status == ERROR, 0, np.where(marked, 1, 2)).astype(np.int8)


def merge(base: pa.Table, fresh: pa.Table) -> tuple[pa.Table, NDArray[np.bool_]]:
    """The rows of both in order, and which rows of `fresh` (m,) are among them. If both have a row, the better one is
    taken; the base's if they are equal, but the fresh one of two errors."""
    rows = np.concatenate([base.column(ROW).to_numpy(), fresh.column(ROW).to_numpy()])
    good = np.concatenate([rank(base), rank(fresh)])
    later = np.arange(len(rows))
    order = np.lexsort((np.where(good == 0, -later, later), -good, rows))
    first = np.ones(len(order), dtype=bool)
    first[1:] = rows[order][1:] != rows[order][:-1]
    chosen = order[first]
    used = np.zeros(len(rows), dtype=bool)
    used[chosen] = True
    if not used[base.num_rows :].any():
        return base, used[base.num_rows :]
    both = pa.concat_tables([base.replace_schema_metadata(None), fresh.replace_schema_metadata(None).cast(base.schema)])
    return _taken(both, chosen, base.num_rows), used[base.num_rows :]


def _taken(table: pa.Table, chosen: NDArray[np.int64], edge: int) -> pa.Table:
    """Rows of a table in an almost unchanged order: consecutive rows are sliced rather than copied one by one."""
    breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
    if len(breaks) > 256:
        return table.combine_chunks().take(pa.array(chosen))
    edges = [0, *breaks.tolist(), len(chosen)]
    parts = [table.slice(int(chosen[a]), b - a) for a, b in pairwise(edges) if b > a]
    return pa.concat_tables(parts) if parts else table.slice(0, 0)


@dataclass(frozen=True)
class Published:
    """Result of `publish`: the table that now contains the rows."""

    number: int
    table: pa.Table
    adopted: NDArray[np.int64]
    """Rows for which another writer published a value first, which is kept."""
    bytes: int = 0


def publish(
    storage: Storage, folder: str, shard: str, number: int, base: pa.Table | None, fresh: pa.Table, notes: Notes
) -> Published:
    """Create the table after `number` with the rows of `base` and `fresh`. If another writer has created it, read that
    table, keep its values, add the rows that only this writer has and try the next number. If there are none, use the
    other writer's table."""
    adopted: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    mine = fresh.column(ROW).to_numpy().astype(np.int64)
    lost_race = False
    while True:
        if base is None:
            merged, used = fresh, np.ones(fresh.num_rows, dtype=bool)
            merged_notes = notes
        else:
            merged, used = merge(base, fresh)
            merged_notes = Notes.of(base.schema) + notes
            if lost_race:
                adopted = mine[~used]
            if lost_race and not used.any():
                return Published(number, base, adopted)
        errors = set(merged.column(ROW).filter(pc.equal(merged.column(STATUS_COLUMN), ERROR)).to_pylist())
        attempts = {row: count for row, count in merged_notes.attempts.items() if row in errors}
        metadata = {NOTES: replace(merged_notes, attempts=attempts).dump()}
        table = merged.replace_schema_metadata({**(merged.schema.metadata or {}), **metadata})
        try:
            size = storage.create_table(table_path(folder, shard, number + 1), table, **options(table.schema))
            return Published(number + 1, table, adopted, size)
        except AlreadyExistsError:
            lost_race = True
            number += 1
            base = read(storage, folder, shard, number)


def options(schema: pa.Schema) -> dict[str, Any]:
    """Parquet options of a table: vectors uncompressed, the rest compressed."""
    wide = {name for f in schema if _is_wide(_of_list(f.type)) for name in _leaves(f.name, f.type)}
    leaves = [name for f in schema for name in _leaves(f.name, f.type)]
    texts = [name for f in schema if _is_text(_of_list(f.type)) for name in _leaves(f.name, f.type)]
    return {
        "compression": {name: "NONE" if name in wide else "ZSTD" for name in leaves},
        "use_dictionary": texts,
        "write_statistics": [ROW],
    }


def _leaves(name: str, kind: pa.DataType) -> list[str]:
    """Parquet's names of the leaves of a column."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _leaves(f"{name}.list.element", kind.value_type)
    if pa.types.is_struct(kind):
        return [leaf for item in kind for leaf in _leaves(f"{name}.{item.name}", item.type)]
    return [name]


def _of_list(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(kind) and kind.byte_width >= WIDE_BYTES)


def expanded(table: pa.Table, size: int, names: Iterable[str]) -> pa.Table:
    """Columns of a table of facts, extended to all rows of the shard; null if the table has no such row, or its status
    is not done."""
    if table.num_rows == size:  # rows are unique and in order
        return table.select(list(names))
    index = np.full(size, -1, dtype=np.int64)
    index[table.column(ROW).to_numpy()] = np.arange(table.num_rows)
    return table.select(list(names)).combine_chunks().take(pa.array(index, mask=index < 0))
