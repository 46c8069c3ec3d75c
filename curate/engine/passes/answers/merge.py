"""Merging and rebuilding the index of a costly stage's answers (`index.py`), in workers of a run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.contracts import Resources
from curate.core.errors import CorruptError, StorageError
from curate.core.hashing import digest
from curate.core.nouns import facts
from curate.core.recipe.pipeline import Node
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.passes.answers.index import (
    COMPLETE,
    FOLDER,
    SCHEMA,
    Files,
    files_of,
    keys_of,
    mapped,
    named,
    publish,
    write,
)

LEAST_FILES, MOST_FILES = 4, 256
"""How many files are merged together."""
RATIO = 2
"""A file is merged with smaller ones if it has at most this many times their bytes."""
RANGE_LINES = 1 << 20
"""Lines that are merged at once, and lines of a record batch, about."""
TABLES = 64
"""Tables that one task reads to rebuild an index."""
Run = Callable[[Callable[[Any], bool], Sequence[Any]], bool]
"""Runs tasks in workers (function, tasks); returns whether all succeeded."""
log = logging.getLogger("curate")


def is_due(listing: Files) -> bool:
    """Whether an index has files to merge, or is not complete."""
    return bool(groups(files_of(listing))) or not _is_complete(listing)


def _is_complete(listing: Files) -> bool:
    return COMPLETE in listing and not _earlier(listing)


def _earlier(listing: Files) -> list[str]:
    """Files and folders of an index of an earlier version."""
    return sorted({file.partition("/")[0] for file in listing.keys() - files_of(listing).keys() - {COMPLETE}})


def groups(files: Files) -> list[tuple[str, ...]]:
    """Files to merge with one another: groups of similar size, the smallest first."""
    found, rest = list[tuple[str, ...]](), sorted(files, key=lambda file: (files[file], file))
    while rest:
        total = count = 0
        while count < min(len(rest), MOST_FILES) and (not count or files[rest[count]] <= RATIO * total):
            total, count = total + files[rest[count]], count + 1
        taken = count if count >= LEAST_FILES else 0
        found += [tuple(rest[:taken])] if taken else []
        rest = rest[taken or 1 :]
    return found


def merge_in_run(ctx: Context, node: Node, folder: str) -> dict[str, int]:
    """Merge what is due of a stage's index in a run's workers; returns what to search. One run at a time merges an
    index, under a lease."""

    def run(function: Callable[[Any], bool], tasks: Sequence[Any]) -> bool:
        outcomes = list(ctx.tasks.run(function, tasks, Resources()))
        return all(outcome.value for outcome in outcomes)

    with ctx.lease(node, f"{folder}/{FOLDER}"):
        merge(ctx.storage, folder, run)
    return files_of(ctx.storage.list(f"{folder}/{FOLDER}"))


def merge(storage: Storage, folder: str, run: Run) -> None:
    """Merge what is due. Requires the lease of the index. Raises StorageError if it cannot be rebuilt. Gives up a merge
    if a task fails; the next one repeats it. A kill leaves lines twice, which does no harm, and a later merge drops
    them."""
    index = f"{folder}/{FOLDER}"
    listing = storage.list(index)
    if not _is_complete(listing):
        _rebuild(storage, folder, listing, run)
    while due := groups(files := files_of(storage.list(index))):
        if not run(merge_files, [Merge(storage, index, {file: files[file] for file in group}) for group in due]):
            return


@dataclass(frozen=True)
class Merge:
    storage: Storage
    index: str
    files: Files


def merge_files(task: Merge) -> bool:
    """Merge files into one, and remove them. Returns False if another run has removed some."""
    storage, index = task.storage, task.index
    try:
        tables = [mapped(storage, index, file, size) for file, size in task.files.items()]
    except FileNotFoundError:
        return False
    publish(storage, f"{index}/{digest(sorted(task.files))}.arrow", _merged(tables))
    for file in task.files:
        storage.remove_file(f"{index}/{file}")
    return True


def _merged(tables: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    """The lines of sorted tables, each once, range by range."""
    batches = [batch for table in tables for batch in table.to_batches()]
    paths = pa.chunked_array([batch.column(1).dictionary for batch in batches], pa.string()).unique()
    places = [pc.index_in(batch.column(1).dictionary, paths).to_numpy() for batch in batches]
    bits = max(0, (sum(map(len, batches)) - 1) // RANGE_LINES).bit_length()
    edges = np.array([(number << 64 - bits).to_bytes(8) for number in range(1, 1 << bits)], "S16")
    stops = [[0, *np.searchsorted(keys_of(batch), edges).tolist(), len(batch)] for batch in batches]
    for number in range(1 << bits):
        parts = [slice(*of_batch[number : number + 2]) for of_batch in stops]
        given = np.concatenate([keys_of(batch)[part] for batch, part in zip(batches, parts, strict=True)])
        place = np.concatenate(
            [
                at[batch.column(1).indices.to_numpy()[part]]
                for at, batch, part in zip(places, batches, parts, strict=True)
            ]
        )
        order = np.lexsort((place, given))
        given, place = given[order], place[order]
        first = np.ones(len(given), dtype=bool)
        first[1:] = (given[1:] != given[:-1]) | (place[1:] != place[:-1])
        inputs = pa.Array.from_buffers(pa.binary(16), int(first.sum()), [None, pa.py_buffer(given[first].tobytes())])
        column = pa.DictionaryArray.from_arrays(pa.array(place[first], pa.int32()), paths)
        yield pa.record_batch([inputs, column], schema=SCHEMA)


# --- rebuilding -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rebuild:
    storage: Storage
    folder: str
    tables: tuple[str, ...]


def _rebuild(storage: Storage, folder: str, listing: Files, run: Run) -> None:
    """Add the answers of the existing tables to an index. Its files stay, unless they are corrupt or of an earlier
    version: they may have answers whose tables are not published yet."""
    index, tables = f"{folder}/{FOLDER}", _highest(storage.list(folder))
    parts = [Rebuild(storage, folder, tuple(tables[at : at + TABLES])) for at in range(0, len(tables), TABLES)]
    checks = [Merge(storage, index, {file: size}) for file, size in files_of(listing).items()]
    if not (run(remove_corrupt, checks) and run(rebuild_lines, parts)):
        raise StorageError(
            f"{storage.url_of(index)}: the index of answers could not be rebuilt because a task failed; rerun the same "
            "command"
        )
    for name in _earlier(listing):
        storage.remove(f"{index}/{name}")
    storage.publish_bytes(f"{index}/{COMPLETE}", b"{}")


def remove_corrupt(task: Merge) -> bool:
    """Remove files that cannot be read."""
    for file, size in task.files.items():
        try:
            with named(task.storage, task.index, file):
                mapped(task.storage, task.index, file, size).validate(full=True)
        except FileNotFoundError:
            continue
        except CorruptError as error:
            log.warning("%s; removed it", error)
            task.storage.remove_file(f"{task.index}/{file}")
    return True


def _highest(listing: Iterable[str]) -> list[str]:
    """The highest table of each shard under each fingerprint, from the listing of a stage's folder."""
    by_fingerprint: dict[str, list[str]] = {}
    for file in listing:
        fingerprint, _, rest = file.partition("/")
        by_fingerprint.setdefault(fingerprint, []).append(rest)
    return [
        facts.table_path(fingerprint, shard, number)
        for fingerprint, files in by_fingerprint.items()
        for shard, number in sorted(facts.latest(files).items())
    ]


def rebuild_lines(task: Rebuild) -> bool:
    """Write a file with the answers of some tables."""
    lines: list[tuple[bytes, str]] = []
    for path in task.tables:
        columns = [facts.INPUT, facts.STATUS_COLUMN, facts.MARKED]
        with contextlib.suppress(FileNotFoundError, pa.ArrowInvalid):  # its rows are recomputed
            table = task.storage.read_table(f"{task.folder}/{path}", columns)
            inputs = table.column(facts.INPUT).filter(pa.array(facts.rank(table) == 2)).to_pylist()
            lines += [(given, path) for given in inputs]
    if lines:
        write(task.storage, task.folder, sorted(lines))
    return True
