"""Lines of the index of answers: the input of an answer and the table that has it, sorted by input, in arrays.

A range file has the lines of one range of inputs, those with the same leading bits:

    256ths   257 x uint64   where each 256th of the range begins
    high     n x uint64     the first 8 bytes of each input, ascending
    table    n x uint32     place of the table in the layer's list
    low      n x uint64     the other 8 bytes of each input

A look-up needs all but `low` (the head of the file). Inputs are random digests: two that differ have the same first 8
bytes once in 10^11 look-ups among 100 million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.store.storage import Storage

FOLDER = "index"
"""Folder of the index, in the folder of a stage."""
SCHEMA = pa.schema(
    [
        pa.field("input", pa.binary(16)),
        pa.field("path", pa.string()),
        pa.field("shard", pa.string()),
        pa.field("number", pa.int32()),
    ]
)
"""Columns of a unit's file; without `input`, of a list of tables."""
TABLES = pa.schema(list(SCHEMA)[1:])
PARTS = 256
HEAD = 8 * (PARTS + 1)
"""Bytes before `high`."""
HIGH, TABLE, LOW = 8, 4, 8
"""Bytes of a line in each array."""


class Place(NamedTuple):
    """A table of facts."""

    path: str
    """Folder of the fingerprint."""
    shard: str
    number: int


@dataclass(frozen=True)
class Lines:
    """Lines in memory. All arrays have the shape (n,)."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    table: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.high)

    @classmethod
    def of(cls, inputs: bytes | memoryview, table: NDArray[np.uint32]) -> Self:
        """Lines of inputs (16 bytes each), unsorted."""
        high, low = words(inputs)
        return cls(high, low, table)

    @classmethod
    def joined(cls, several: Sequence[Lines]) -> Self:
        """Lines of several in order of their inputs, each once."""
        high, low, table = (
            np.concatenate([getattr(lines, name) for lines in several]) for name in ("high", "low", "table")
        )
        order = np.lexsort((table, low, high))
        high, low, table = high[order], low[order], table[order]
        first = np.ones(len(high), dtype=bool)
        first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1]) | (table[1:] != table[:-1])
        return cls(high[first], low[first], table[first])

    def part(self, start: int, stop: int) -> Lines:
        return Lines(self.high[start:stop], self.low[start:stop], self.table[start:stop])

    def of_range(self, bits: int, number: int) -> Lines:
        """The sorted lines of one of 2^bits ranges."""
        first, after = (
            int(np.searchsorted(self.high, edge(bits, at))) if at < 1 << bits else len(self)
            for at in (number, number + 1)
        )
        return self.part(first, after)


def words(inputs: bytes | memoryview) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The first and the other 8 bytes of each input, as integers in the same order."""
    both = np.frombuffer(inputs, ">u8").reshape(-1, 2).astype(np.uint64)
    return both[:, 0], both[:, 1]


def edge(bits: int, number: int) -> Any:
    """The first word of range `number` of 2^bits."""
    return np.uint64(number << (64 - bits))


def range_of(high: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """Range (n,) of each word, of 2^bits ranges."""
    return (high >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(high), np.int64)


def matches(high: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> tuple[NDArray[np.int64], ...]:
    """(index in `wanted`, first line, line after the last) of each wanted word that occurs in sorted words."""
    start = np.searchsorted(high, wanted, "left")
    hit = np.flatnonzero(start < len(high))
    hit = hit[high[start[hit]] == wanted[hit]]
    return hit, start[hit], np.searchsorted(high, wanted[hit], "right")


# --- files ------------------------------------------------------------------------------------------------------------


def read_unit_file(storage: Storage, path: str, first: int) -> tuple[Lines, pa.Table]:
    """(lines of a unit's file, its tables), where the tables have the places from `first` on."""
    table = storage.read_table(path).combine_chunks()
    return of_columns(table, first)


def of_columns(table: pa.Table, first: int) -> tuple[Lines, pa.Table]:
    """(lines of a table with the columns of SCHEMA in one chunk, its tables)."""
    codes = np.zeros(table.num_rows, np.int64)
    for name in TABLES.names:
        values = table.column(name).combine_chunks().dictionary_encode()
        values = values.chunk(0) if isinstance(values, pa.ChunkedArray) else values
        codes = codes * len(values.dictionary) + values.indices.to_numpy()
    _, at, codes = np.unique(codes, return_index=True, return_inverse=True)
    column = table.column("input").combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    raw = memoryview(column.buffers()[1] or b"")[16 * column.offset :][: 16 * len(column)]
    return Lines.of(raw, (codes + first).astype(np.uint32)), table.select(TABLES.names).take(pa.array(at)).cast(TABLES)


def write_range(storage: Storage, path: str, bits: int, number: int, lines: Lines) -> None:
    """Publish the sorted lines of range `number` of 2^bits."""
    edges = [edge(bits + 8, number * PARTS + part) for part in range(PARTS)]
    starts = np.append(np.searchsorted(lines.high, np.array(edges, np.uint64)), len(lines))
    with storage.publish(path) as aside, open(aside, "wb") as file:
        for values, kind in ((starts, "<u8"), (lines.high, "<u8"), (lines.table, "<u4"), (lines.low, "<u8")):
            np.ascontiguousarray(values, kind).tofile(file)


def head_bytes(count: int) -> int:
    """Bytes of a file of `count` lines that a look-up needs."""
    return HEAD + (HIGH + TABLE) * count


def read_low(storage: Storage, path: str, count: int, start: int, stop: int) -> NDArray[np.uint64]:
    begin = head_bytes(count)
    return np.frombuffer(storage.read_range(path, begin + LOW * start, begin + LOW * stop), "<u8")


def read_lines(storage: Storage, path: str, count: int, part: int = 0, parts: int = 1) -> Lines:
    """Lines of one of `parts` equal parts (a power of two) of the file's range."""
    start, stop = 0, count
    if parts > 1:
        step = max(1, PARTS // parts)
        first = part * PARTS // parts
        starts = np.frombuffer(storage.read_range(path, 0, HEAD), "<u8")
        start, stop = int(starts[first]), int(starts[first + step])
    at = HEAD
    found: list[Any] = []
    for size, kind in ((HIGH, "<u8"), (TABLE, "<u4"), (LOW, "<u8")):
        begin = at + size * start
        data = storage.read_range(path, begin, at + size * stop) if stop > start else b""
        found.append(np.frombuffer(data, kind).astype(kind[1:]))
        at += size * count
    high, table, low = found
    return Lines(high, low, table)
