"""Index of a costly stage's answers: which table has the answer to an input, in sorted Arrow files.

    facts/<op>/<stage>/index/<digest>.arrow
    facts/<op>/<stage>/index/complete.json

Each unit adds a file. Before a pass and after it, workers merge files of similar size, so that a look-up opens few
files however many units there were. Processes map the files into memory: on a local disk the files themselves,
otherwise copies in the machine's cache, which all its processes share. The system may drop these pages, so a look-up
needs no memory of the process and, once the files are mapped, no request.

The tables have the answers; an index without `complete.json`, or one of an earlier version, is rebuilt from them. The
first run of a stage writes `complete.json` before its units begin, and a rebuild writes it last.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import CorruptError
from curate.core.hashing import digest
from curate.core.store.cache import cache_folder, locked
from curate.core.store.storage import Storage

FOLDER = "index"
"""Folder of the index, in the folder of a stage."""
COMPLETE = "complete.json"
"""File of an index that has a line for each answer of the tables."""
TABLE = r"^[^/]+/[^/]+/[0-9]+\.parquet$"
SCHEMA = pa.schema([pa.field("input", pa.binary(16)), pa.field("table", pa.dictionary(pa.int32(), pa.string()))])
"""Lines of a file, sorted. `table`: path of a table of facts in the folder of the stage."""
RECENT_LINES = 1 << 17
"""Lines that a process wrote last and searches too, because its pass does not list the index again."""
CACHE = "answers"
COPY_BYTES, THREADS = 16 << 20, 4
"""Bytes of a file that are copied at once, and how many times at the same time."""
UNUSED_SECONDS = 3600.0
"""Copies of merged files are removed after this time."""
MOST_OPEN = 256
"""Files that a process keeps mapped."""
Files = Mapping[str, int]
"""File of an index -> bytes."""
log = logging.getLogger("curate")


def files_of(listing: Files) -> dict[str, int]:
    """What to search of an index, from its listing."""
    return {file: size for file, size in listing.items() if file.endswith(".arrow")}


# --- writing ----------------------------------------------------------------------------------------------------------


def add(storage: Storage, folder: str, answers: Iterable[tuple[bytes, str]]) -> None:
    """Add new answers (input, path of the table in the stage's folder) to a stage's index, as a new file."""
    lines = sorted(set(answers))
    if lines:
        _recent.add(storage.url_of(folder), write(storage, folder, lines))


def write(storage: Storage, folder: str, lines: Sequence[tuple[bytes, str]]) -> pa.Table:
    """Publish sorted lines."""
    inputs = pa.array([given for given, _ in lines], pa.binary(16))
    table = pa.table([inputs, pa.array([path for _, path in lines], pa.string()).dictionary_encode()], schema=SCHEMA)
    name = digest([[given.hex(), path] for given, path in lines])
    publish(storage, f"{folder}/{FOLDER}/{name}.arrow", table.to_batches())
    return table


def publish(storage: Storage, path: str, batches: Iterable[pa.RecordBatch]) -> None:
    with storage.publish(path) as aside, pa.OSFile(str(aside), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)


class _Recent:
    """The lines that the process wrote last, by the URL of their stage's folder."""

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table]] = {}
        self._lock = threading.Lock()

    def add(self, folder: str, table: pa.Table) -> None:
        with self._lock:
            tables = [*self._tables.get(folder, ()), table]
            while len(tables) > 1 and sum(map(len, tables)) > RECENT_LINES:
                del tables[0]
            self._tables[folder] = tables

    def of(self, folder: str) -> Sequence[pa.Table]:
        return self._tables.get(folder, ())

    def clear(self) -> None:
        self._tables.clear()


_recent = _Recent()


# --- searching --------------------------------------------------------------------------------------------------------


def search_recent(storage: Storage, folder: str, inputs: Iterable[bytes]) -> list[tuple[bytes, str]]:
    """(input, path of a table in the stage's folder), among the lines that this process wrote last."""
    wanted = sorted(inputs)
    return [found for table in _recent.of(storage.url_of(folder)) for found in _search(table, wanted)]


def search(storage: Storage, folder: str, files: Files, inputs: Iterable[bytes]) -> list[tuple[bytes, str]]:
    """(input, path of a table in the stage's folder) for inputs that may have an answer there: a table may be gone.
    Raises FileNotFoundError if files have been merged meanwhile, CorruptError if one cannot be read."""
    wanted, index = sorted(inputs), f"{folder}/{FOLDER}"
    if not storage.local:
        _forget_copies(storage, index, files)
    found: list[tuple[bytes, str]] = []
    for file, table in _opened(storage, index, files):
        with named(storage, index, file):
            found += _search(table, wanted)
    return found


def _search(table: pa.Table, wanted: Sequence[bytes]) -> Iterator[tuple[bytes, str]]:
    """Lines of some sorted inputs."""
    sought = np.array(wanted, "S16")
    for batch in table.to_batches():
        keys, column = keys_of(batch), batch.column(1)
        if not len(keys):
            continue
        begin, end = int(np.searchsorted(sought, keys[0])), int(np.searchsorted(sought, keys[-1], "right"))
        mine = sought[begin:end]
        first = np.searchsorted(keys, mine)
        hits = np.flatnonzero(keys[first] == mine)  # no input of `mine` is beyond the last key
        last = np.searchsorted(keys, mine[hits], "right")
        for hit, start, stop in zip(hits.tolist(), first[hits].tolist(), last.tolist(), strict=True):
            for place in column.indices[start:stop].to_pylist():
                if place is None or not 0 <= place < len(column.dictionary):  # Arrow would read beyond its memory
                    raise pa.ArrowInvalid(f"table {place} of {len(column.dictionary)}")
                yield wanted[begin + hit], column.dictionary[place].as_py()


def keys_of(batch: pa.RecordBatch) -> NDArray[np.bytes_]:
    """Inputs (n,) of a batch, without a copy. numpy compares them as if they ended in zeros, which all 16 bytes do."""
    column = batch.column(0)
    return np.frombuffer(column.buffers()[1], "S16", len(column), 16 * column.offset)


_lock = threading.Lock()
_open: dict[str, dict[str, pa.Table]] = {}
"""URL of an index -> its files that this process has mapped."""


def _opened(storage: Storage, index: str, files: Files) -> Iterator[tuple[str, pa.Table]]:
    """Files, which the units of a process share."""
    with _lock:
        known = _open.setdefault(storage.url_of(index), {})
        for file in known.keys() - files.keys():
            del known[file]
    for file, size in files.items():
        table = known.get(file)
        if table is None:
            table = mapped(storage, index, file, size)
            if len(known) < MOST_OPEN:
                known[file] = table
        yield file, table


def mapped(storage: Storage, index: str, file: str, size: int) -> pa.Table:
    """Map a file. Its lines are not checked, which would read all of it; the paths of tables are, which are few."""
    with named(storage, index, file):
        table = pa.ipc.open_file(_source(storage, index, file, size)).read_all()
        table.validate()
        for paths in [chunk.dictionary for chunk in table.column(1).chunks[:1]]:  # the batches share it
            paths.validate(full=True)
            if pc.all(pc.match_substring_regex(paths, TABLE)).as_py() is False:
                raise pa.ArrowInvalid("not the paths of tables")
        return table


@contextlib.contextmanager
def named(storage: Storage, index: str, file: str) -> Iterator[None]:
    """Raise CorruptError if a file cannot be read, and forget its copy on this machine."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        if not storage.local:
            with contextlib.suppress(OSError):
                (_copies(storage, index) / file).unlink()
        text = " ".join(str(error).split())[:200]
        raise CorruptError(
            f"{storage.url_of(f'{index}/{file}')}: this file of the index of answers is corrupt ({text}); remove "
            f"{index}/{COMPLETE} and rerun the recipe, which rebuilds the index"
        ) from error


def _source(storage: Storage, index: str, file: str, size: int) -> Any:
    """The file, or a copy in the machine's cache, made if it is missing; in memory if that fails."""
    path = f"{index}/{file}"
    if storage.local:
        return pa.memory_map(storage.path(path))
    copy = _copies(storage, index) / file
    try:
        with locked(copy.parent):
            if not copy.exists() or copy.stat().st_size != size:
                aside = copy.with_suffix(f".{os.getpid()}")
                with open(aside, "wb") as target, ThreadPoolExecutor(THREADS) as pool:
                    list(pool.map(partial(_copy, storage, path, target.fileno(), size), range(0, size, COPY_BYTES)))
                    os.fsync(target.fileno())
                aside.replace(copy)
        return pa.memory_map(str(copy))
    except FileNotFoundError:
        raise
    except OSError as error:
        log.warning("%s: cannot cache a part of the index of answers (%s); keeping it in memory", copy, error)
        return pa.BufferReader(storage.read(path))


def _copy(storage: Storage, path: str, target: int, size: int, start: int) -> None:
    os.pwrite(target, storage.read_range(path, start, min(size, start + COPY_BYTES)), start)


def _copies(storage: Storage, index: str) -> Path:
    """Folder on this machine for copies of an index."""
    return cache_folder(CACHE) / digest(storage.url_of(index))


def _forget_copies(storage: Storage, index: str, files: Files) -> None:
    """Remove copies of files that the index does not have any more."""
    with contextlib.suppress(OSError):
        for path in _copies(storage, index).iterdir():
            if path.name not in files and time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                path.unlink()


def forget() -> None:
    """Forget what this process has written and opened, as in another process."""
    _recent.clear()
    with _lock:
        _open.clear()
