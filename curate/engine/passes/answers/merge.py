"""Merges the files that units add to an index of answers into layers, and small layers into larger ones.

A worker merges a group of unit files into a layer. Layers are merged range by range, by one task each. A layer counts
once its manifest exists; what it replaces is removed after that. A kill in between leaves lines twice, which does no
harm, and the next merge removes the rest. One run at a time merges an index, under a lease.

Layers of similar size are merged, so that their number grows with the logarithm of their lines and a line is rewritten
a few times only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.core.contracts import Resources
from curate.core.errors import AlreadyExistsError
from curate.core.hashing import digest
from curate.core.recipe.pipeline import Node
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.passes.answers.layers import MANIFEST, TABLES_FILE, Description, range_path
from curate.engine.passes.answers.lines import Lines, read_lines, read_unit_file, write_range
from curate.engine.passes.answers.search import searched

LEAST_FILES, MOST_FILES = 16, 256
"""Unit files are merged once there are so many; and how many of them one task merges at most."""
DUE_BYTES = 16 << 20
"""Unit files with this many bytes are merged, however few; an index of an older version is a few large files."""
MOST_BYTES = 64 << 20
"""Bytes of unit files that one task merges, if they are several: about 4 million lines."""
LEAST_LAYERS, MOST_LAYERS = 4, 64
"""How many layers are merged together."""
RATIO = 2
"""A layer is merged with smaller ones if it has at most this many times their lines."""
RANGE_LINES = 1 << 21
"""Most lines of a range, of 20 bytes each."""
Run = Callable[[Callable[[Any], Any], Sequence[Any]], Sequence[Any]]
"""Runs tasks in workers: (function, tasks) -> results, None for each that failed."""


def is_due(listing: Mapping[str, int]) -> bool:
    """Whether an index has enough unit files to merge, from its listing."""
    sizes = [size for file, size in listing.items() if "/" not in file]
    return len(sizes) >= LEAST_FILES or sum(sizes) >= DUE_BYTES


def merge_in_run(ctx: Context, node: Node, index: str) -> tuple[str, ...]:
    """Merge what is due in a run's workers; returns what to search."""

    def run(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return [outcome.value for outcome in ctx.tasks.run(function, tasks, Resources())]

    with ctx.lease(node, index), contextlib.suppress(FileNotFoundError):  # a listing that lags: the next run merges
        merge(ctx.storage, index, run)
    return searched(ctx.storage.list(index))


def merge(storage: Storage, index: str, run: Run) -> None:
    """Merge what is due. Requires the lease of the index. Gives up if a task fails; the next merge repeats it."""
    done = _tidied(storage, index)
    while True:
        units = {file: size for file, size in done.items() if "/" not in file}
        if is_due(units):
            found = run(merge_units, [MergeUnits(storage, index, group) for group in _groups(units)])
        else:
            names = [name for name in searched(done) if name not in units]
            layers = {name: Description.load(storage, f"{index}/{name}") for name in names}
            chosen = _similar(layers)
            if not chosen:
                return
            found = [_merge_layers(storage, index, {name: layers[name] for name in chosen}, run)]
        if not all(found):
            return
        done = storage.list(index)


def _tidied(storage: Storage, index: str) -> dict[str, int]:
    """Listing of an index after removing what killed merges left: incomplete layers, and what others replace."""
    listing = storage.list(index)
    complete = {name for name in searched(listing) if not name.endswith(".parquet")}
    folders = {file.partition("/")[0] for file in listing if "/" in file}
    gone = {name for name in folders - complete if not storage.exists(f"{index}/{name}/{MANIFEST}")}
    for name in complete:
        there = {file.partition("/")[0] for file in listing}
        gone |= there.intersection(Description.load(storage, f"{index}/{name}").sources)
    for name in sorted(gone):
        _remove(storage, index, name)
    return {file: size for file, size in listing.items() if file.partition("/")[0] not in gone}


def _remove(storage: Storage, index: str, name: str) -> None:
    """Remove a unit file, or a layer, whose manifest goes first."""
    if name.endswith(".parquet"):
        storage.remove_file(f"{index}/{name}")
    else:
        storage.remove_file(f"{index}/{name}/{MANIFEST}")
        storage.remove(f"{index}/{name}")


def _groups(units: dict[str, int]) -> list[tuple[str, ...]]:
    """Unit files to merge together, in order of their names, which are digests."""
    groups: list[list[str]] = [[]]
    size = 0
    for file in sorted(units):
        if groups[-1] and (len(groups[-1]) == MOST_FILES or size + units[file] > MOST_BYTES):
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += units[file]
    return [tuple(group) for group in groups]


def _similar(layers: dict[str, Description]) -> list[str]:
    """Layers of similar size to merge, the smallest there are; none if they are too few."""
    names = sorted(layers, key=lambda name: (layers[name].total, name))
    for first in range(len(names)):
        chosen, total = [names[first]], layers[names[first]].total
        for name in names[first + 1 :][: MOST_LAYERS - 1]:
            if layers[name].total > RATIO * total:
                break
            chosen.append(name)
            total += layers[name].total
        if len(chosen) >= LEAST_LAYERS:
            return chosen
    return []


def _bits(lines: int) -> int:
    """So many bits that ranges of random inputs have at most RANGE_LINES."""
    return max(0, (lines - 1) // RANGE_LINES).bit_length()


# --- unit files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MergeUnits:
    storage: Storage
    index: str
    files: tuple[str, ...]


def merge_units(task: MergeUnits) -> bool:
    """Merge unit files into a layer, and remove them."""
    storage, folder = task.storage, f"{task.index}/{digest(list(task.files))}"
    several, tables = list[Lines](), list[pa.Table]()
    for file in task.files:
        lines, made = read_unit_file(storage, f"{task.index}/{file}", sum(table.num_rows for table in tables))
        several.append(lines)
        tables.append(made)
    whole = Lines.joined(several)
    bits = _bits(len(whole))
    counts = []
    for number in range(1 << bits):
        part = whole.of_range(bits, number)
        write_range(storage, range_path(folder, number), bits, number, part)
        counts.append(len(part))
    storage.publish_table(f"{folder}/{TABLES_FILE}", pa.concat_tables(tables))
    return _commit(storage, task.index, folder, Description(bits, tuple(counts), sum(map(len, tables)), task.files))


def _commit(storage: Storage, index: str, folder: str, about: Description) -> bool:
    """Commit a layer, then remove what it replaces. A merge that lost its lease may have lost files to the next one."""
    with contextlib.suppress(AlreadyExistsError):
        about.commit(storage, folder)
    there = storage.list(folder)
    if any(range_path("", number)[1:] not in there for number in range(len(about.lines))):
        storage.remove_file(f"{folder}/{MANIFEST}")
        return False
    for name in about.sources:
        _remove(storage, index, name)
    return True


# --- layers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MergeRange:
    storage: Storage
    index: str
    folder: str
    """Folder of the new layer."""
    bits: int
    number: int
    """One of 2^bits ranges."""
    layers: tuple[tuple[str, int, tuple[int, ...], int], ...]
    """To merge: name, its bits, the lines of its ranges, and what its places of tables are increased by."""


def merge_range(task: MergeRange) -> tuple[int, int]:
    """Write a range of a layer from the lines that other layers have there; returns (range, lines)."""
    several = []
    for name, bits, counts, first in task.layers:
        finer = task.bits - bits
        number = task.number >> finer
        path = range_path(f"{task.index}/{name}", number)
        lines = read_lines(task.storage, path, counts[number], task.number & ((1 << finer) - 1), 1 << finer)
        several.append(Lines(lines.high, lines.low, lines.table + first))
    whole = Lines.joined(several).of_range(task.bits, task.number)
    write_range(task.storage, range_path(task.folder, task.number), task.bits, task.number, whole)
    return task.number, len(whole)


def _merge_layers(storage: Storage, index: str, layers: dict[str, Description], run: Run) -> bool:
    names = sorted(layers)
    folder, bits = f"{index}/{digest(names)}", _bits(sum(about.total for about in layers.values()))
    bits = max([bits, *(about.bits for about in layers.values())])
    places, count = [], 0
    for name in names:
        places.append((name, layers[name].bits, layers[name].lines, count))
        count += layers[name].tables
    tables = [storage.read_table(f"{index}/{name}/{TABLES_FILE}") for name in names]
    storage.publish_table(f"{folder}/{TABLES_FILE}", pa.concat_tables(tables))
    tasks = [MergeRange(storage, index, folder, bits, number, tuple(places)) for number in range(1 << bits)]
    found = run(merge_range, tasks)
    if not all(found):
        return False
    lines = dict(found)
    counts = tuple(lines[number] for number in range(1 << bits))
    return _commit(storage, index, folder, Description(bits, counts, count, tuple(names)))
