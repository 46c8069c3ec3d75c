"""Searches an index of answers: its layers, and the files of units that are in no layer yet."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.store.storage import Storage
from curate.engine.passes.answers.layers import MANIFEST, Layer, forget
from curate.engine.passes.answers.lines import SCHEMA, Lines, Place, matches, read_unit_file, words

HELD_LINES = 1 << 22
"""Lines of unit files that are kept in memory, of about 20 bytes each. The files beyond, which only an index that was
never merged has, are read for each search."""
MOST_INDEXES = 8
"""Indexes that a process keeps open."""


def searched(files: Iterable[str]) -> tuple[str, ...]:
    """What to search of an index, from its listing: files of units, and names of complete layers."""
    found = [file for file in files if "/" not in file]
    return (*sorted(found), *sorted(file.rpartition("/")[0] for file in files if file.endswith(f"/{MANIFEST}")))


class Index:
    """The files and layers of an index, as listed at some time."""

    def __init__(self, storage: Storage, folder: str, files: Sequence[str]) -> None:
        """Raises FileNotFoundError if some have been merged meanwhile."""
        self.storage, self.folder, self.files = storage, folder, tuple(files)
        layers = [name for name in files if not name.endswith(".parquet")]
        if not storage.local:
            forget(storage, folder, layers)
        self._layers = [Layer(storage, f"{folder}/{name}") for name in layers]
        self._rest: list[str] = []
        """Files of units that are not in memory."""
        self._lines, self._tables = self._read_units([name for name in files if name.endswith(".parquet")])

    def _read_units(self, files: Sequence[str]) -> tuple[Lines, pa.Table]:
        several, tables, count = [Lines.of(b"", np.zeros(0, np.uint32))], list[pa.Table](), 0
        for number, file in enumerate(files):
            if sum(map(len, several)) >= HELD_LINES:
                self._rest = list(files[number:])
                break
            lines, made = read_unit_file(self.storage, f"{self.folder}/{file}", count)
            several.append(lines)
            tables.append(made)
            count += made.num_rows
        return Lines.joined(several), pa.concat_tables(tables) if tables else SCHEMA.empty_table()

    def find(self, inputs: Sequence[bytes]) -> list[tuple[bytes, Place]]:
        """(input, table) for inputs that may have an answer there: a table may be gone, and digests may begin alike."""
        wanted = sorted(inputs)
        high, low = words(b"".join(wanted))
        found = [(wanted[at], place) for layer in self._layers for at, place in layer.find(high, low)]
        lines = self._lines
        for at, first, last in zip(*(each.tolist() for each in matches(lines.high, high)), strict=True):
            rows = np.flatnonzero(lines.low[first:last] == low[at]) + first
            found += [(wanted[at], place) for place in _places(self._tables, lines.table[rows].tolist())]
        given = pa.array(wanted, pa.binary(16))
        for file in self._rest:
            path, among = f"{self.folder}/{file}", pc.field("input").isin(given)
            table = self.storage.read_table(path, filters=among)
            found += zip(table.column("input").to_pylist(), _places(table, range(table.num_rows)), strict=True)
        return found


def _places(tables: pa.Table, rows: Iterable[int]) -> list[Place]:
    path, shard, number = (tables.column(name) for name in Place._fields)
    return [Place(path[row].as_py(), shard[row].as_py(), number[row].as_py()) for row in rows]


_lock = threading.Lock()
_open: OrderedDict[tuple[str, tuple[str, ...]], Index] = OrderedDict()


def index_of(storage: Storage, folder: str, files: tuple[str, ...]) -> Index:
    """An index, which the units of a process share. Raises FileNotFoundError if files have been merged meanwhile."""
    key = storage.url_of(folder), files
    with _lock:
        if key not in _open:
            _open[key] = Index(storage, folder, files)
            while len(_open) > MOST_INDEXES:
                _open.popitem(last=False)
        _open.move_to_end(key)
        return _open[key]


def close() -> None:
    """Forget the open indexes, as in another process."""
    with _lock:
        _open.clear()
