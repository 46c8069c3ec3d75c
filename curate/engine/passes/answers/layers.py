"""Layers of the index of answers: sorted lines in files by range, which never change.

    facts/<op>/<stage>/index/<layer>/manifest.json     ranges, lines of each, what was merged
    facts/<op>/<stage>/index/<layer>/tables.parquet    the tables that lines refer to, by place
    facts/<op>/<stage>/index/<layer>/0000.lines        a range

Workers map the heads of range files into memory: on a local disk the files themselves, otherwise copies in the
machine's cache, which all its processes share. The pages are the system's to drop, so a look-up needs no memory of the
process and, once the heads are there, no request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.errors import CorruptError
from curate.core.hashing import digest
from curate.core.store.cache import cache_folder, locked
from curate.core.store.storage import Storage
from curate.engine.passes.answers.lines import HEAD, HIGH, TABLE, Place, head_bytes, matches, range_of, read_low

MANIFEST, TABLES_FILE = "manifest.json", "tables.parquet"
CACHE = "answers"
THREADS = 4
"""Heads that are copied in parallel, of at most 25 MB each."""
UNUSED_SECONDS = 3600.0
"""Copies of merged layers are removed after this time."""
log = logging.getLogger("curate")


@dataclass(frozen=True)
class Description:
    """Manifest of a layer."""

    bits: int
    """It has 2^bits ranges."""
    lines: tuple[int, ...]
    """Number of lines in each range."""
    tables: int
    sources: tuple[str, ...]
    """Files and layers that it replaces."""

    @property
    def total(self) -> int:
        return sum(self.lines)

    @classmethod
    def load(cls, storage: Storage, folder: str) -> Self:
        """Raises FileNotFoundError if the layer has been merged meanwhile, CorruptError if it cannot be read."""
        try:
            found = storage.read_json(f"{folder}/{MANIFEST}")
            return cls(found["bits"], tuple(found["lines"]), found["tables"], tuple(found["sources"]))
        except (ValueError, KeyError, TypeError) as error:
            raise corrupt(storage, folder, error) from error

    def commit(self, storage: Storage, folder: str) -> None:
        storage.create_json(f"{folder}/{MANIFEST}", asdict(self))


def corrupt(storage: Storage, folder: str, error: Exception) -> CorruptError:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return CorruptError(
        f"{storage.url_of(folder)}: this part of the index of answers is corrupt ({text}); remove the folder and rerun "
        "the recipe, which may ask for its answers again"
    )


def range_path(folder: str, number: int) -> str:
    return f"{folder}/{number:04d}.lines"


class Layer:
    """A layer that is searched."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self.storage, self.folder, self.about = storage, folder, Description.load(storage, folder)
        self._heads: dict[int, NDArray[np.uint8]] = {}

    @cached_property
    def _tables(self) -> pa.Table:
        return self.storage.read_table(f"{self.folder}/{TABLES_FILE}").combine_chunks()

    def find(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> list[tuple[int, Place]]:
        """(index of the input, table) for sorted inputs that have lines here."""
        ranges = range_of(high, self.about.bits)
        present, starts = np.unique(ranges, return_index=True)
        stops = np.append(starts[1:], len(ranges))
        filled = np.array(self.about.lines)[present] > 0
        present, starts, stops = (each[filled].tolist() for each in (present, starts, stops))
        self._open(present)
        found: list[tuple[int, Place]] = []
        for number, start, stop in zip(present, starts, stops, strict=True):
            hits = self._lines(number, high[start:stop], low[start:stop])
            found += [(start + at, self._place(table)) for at, table in hits]
        return found

    def _lines(self, number: int, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> list[tuple[int, int]]:
        """(index of the input, place of the table) in one range."""
        count, head = self.about.lines[number], self._heads[number]
        words = head[HEAD : HEAD + HIGH * count].view("<u8")
        tables = head[HEAD + HIGH * count : HEAD + (HIGH + TABLE) * count].view("<u4")
        found: list[tuple[int, int]] = []
        for at, first, last in zip(*(each.tolist() for each in matches(words, high)), strict=True):
            rows = np.arange(first, last)
            if len(rows) > 1:  # of a single line, the table will show whether it has the input
                rows = rows[read_low(self.storage, range_path(self.folder, number), count, first, last) == low[at]]
            found += [(at, int(tables[row])) for row in rows]
        return found

    def _place(self, table: int) -> Place:
        return Place(*(self._tables.column(name)[table].as_py() for name in ("path", "shard", "number")))

    def _open(self, ranges: Sequence[int]) -> None:
        """Map the heads of ranges."""
        missing = [number for number in ranges if number not in self._heads]
        if self.storage.local:
            for number in missing:
                path = self.storage.path(range_path(self.folder, number))
                try:
                    self._heads[number] = np.memmap(path, np.uint8, "r", shape=(head_bytes(self.about.lines[number]),))
                except ValueError as error:  # the file is too short
                    raise corrupt(self.storage, self.folder, error) from error
        elif missing:
            copies = cache_of(self.storage, self.folder.rpartition("/")[0]) / self.folder.rpartition("/")[2]
            with _locked(copies), ThreadPoolExecutor(THREADS) as pool:
                heads = list(pool.map(lambda number: self._copied(copies, number), missing))
            self._heads.update(zip(missing, heads, strict=True))

    def _copied(self, copies: Path, number: int) -> NDArray[np.uint8]:
        """The head of a range from the machine's cache, copied there if it is missing; in memory if that fails."""
        size, path = head_bytes(self.about.lines[number]), copies / f"{number:04d}.head"
        if not path.exists() or path.stat().st_size != size:
            data = self.storage.read_range(range_path(self.folder, number), 0, size)
            aside = path.with_suffix(f".{os.getpid()}")
            try:
                with open(aside, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())  # a truncated copy would hide answers
                aside.replace(path)
            except OSError as error:
                log.warning("%s: cannot cache a part of the index of answers (%s); keeping it in memory", path, error)
                with contextlib.suppress(OSError):
                    aside.unlink()
                return np.frombuffer(data, np.uint8)
        return np.memmap(path, np.uint8, "r", shape=(size,))


def cache_of(storage: Storage, index: str) -> Path:
    """Folder on this machine for copies of an index."""
    return cache_folder(CACHE) / digest(storage.url_of(index))


def forget(storage: Storage, index: str, layers: Collection[str]) -> None:
    """Remove copies of layers that the index does not have any more."""
    folder = cache_of(storage, index)
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name not in layers and time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Any:
    """Locks a folder of the cache; without a lock if the cache is not writable."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(locked(folder))
        yield
