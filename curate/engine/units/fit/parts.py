"""Parts of a Fit's groups in a worker, and the steps that run on them.

Parts come in blocks of neighbours. The worker that first needs a block loads it from shards of the pool, from the files
of a regrouping, or from a file per part, and keeps it until another build needs the memory. If no file can be mapped
for an array, the array is spilled to an unnamed file, which cannot outlive the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from curate.core.contracts import PLAIN_NAME, Fit
from curate.core.errors import InputError
from curate.core.group import Arrays, Part, PartFunction, frozen
from curate.core.nouns.pools import Shard
from curate.core.rows import Rows
from curate.core.store import faults
from curate.core.store.arrays import CHUNK_BYTES, ArrayFile, members, read_arrays, read_rows, write_arrays
from curate.core.store.spill import Spill, spilled
from curate.core.store.storage import Storage
from curate.engine.tasks import beat
from curate.engine.tasks.stages import set_up

Kinds = Mapping[str, tuple[str, tuple[int, ...], str]]
"""Name -> dtype and shape of a row, and a shard that has them."""
Provenance = tuple[str, Mapping[str, str]]
"""A shard with rows ("" if no shard has any), and its `Fit.provenance`."""
_ONE_KIND = (
    "all rows must come from one encoder with the same settings; reject the others upstream, or import them as a "
    "separate pool"
)
EDGES = "edges"


class Origin(Protocol):
    """The source of a block's parts."""

    def load(self, block: Block) -> list[Arrays]: ...


@dataclass
class Block:
    """Neighbouring parts in one worker."""

    parts: list[Part] = field(default_factory=list)
    alive: int = 0
    """Live rows passed to `Fit.load`."""
    kinds: Kinds = field(default_factory=dict)
    provenance: Provenance = ("", {})
    stored: dict[str, int] = field(default_factory=dict)
    """Name -> rows stored by the part in progress."""


@dataclass(frozen=True)
class FromShards:
    """One part: the rows of some shards, loaded by the stage."""

    storage: Storage
    stage: Fit
    rows: Rows
    ports: Mapping[str, str]
    base: str
    shards: tuple[Shard, ...]

    def load(self, block: Block) -> list[Arrays]:
        stage = set_up(self.base, self.stage, self.ports, self.storage)
        with Spill() as spill:
            return [self._append(stage, spill, block) or spill.mapped()]

    def _append(self, stage: Fit, spill: Spill, block: Block) -> Arrays:
        """Append the shards' rows to the spill, one shard at a time; returns arrays of no rows if there are none."""
        empty: Arrays = {}
        for shard in self.shards:
            table = self.rows.live_table(shard, stage.reads())
            block.alive += table.num_rows
            arrays = {name: np.asarray(value) for name, value in stage.load(table).items()}
            if len({len(value) for value in arrays.values()}) != 1:
                lengths = {name: len(value) for name, value in arrays.items()}
                raise ValueError(f"{stage.op}.load: arrays of {lengths} rows; return arrays of one length per shard")
            kinds = {name: (value.dtype.str, value.shape[1:], shard.id) for name, value in arrays.items()}
            if len(next(iter(arrays.values()))):
                block.kinds = agreed(stage.op, [block.kinds, kinds])
                block.provenance = agreed_provenance(
                    stage.op, [block.provenance, (shard.id, stage.provenance(table.schema))]
                )
                spill.append(arrays)
            else:
                empty = arrays
        return {} if spill.rows else empty


def agreed(op: str, found: Sequence[Kinds]) -> Kinds:
    """Kinds of the arrays of all shards with rows. Raises InputError, naming two shards, if they differ."""
    first: Kinds = {}
    for kinds in found:
        for name in {**first, **kinds} if first and kinds else ():
            if name not in kinds or name not in first or first[name][:2] != kinds[name][:2]:
                a, b = (_kind(name, have) for have in (first, kinds))
                raise InputError(f"{op}: {a}, but {b}: {_ONE_KIND}")
        first = first or kinds
    return first


def agreed_provenance(op: str, found: Sequence[Provenance]) -> Provenance:
    """Provenance of all shards with rows. Raises InputError, naming two shards, if they differ."""
    known = [pair for pair in found if pair[0]]
    for shard, provenance in known[1:]:
        first, before = known[0]
        for name in sorted({**before, **provenance}):
            if before.get(name) != provenance.get(name):
                a, b = (repr(of[name]) if name in of else "unknown" for of in (before, provenance))
                raise InputError(f"{op}: {name} of shard {first} is {a}, but of {shard} {b}: {_ONE_KIND}")
    return known[0] if known else ("", {})


def _kind(name: str, kinds: Kinds) -> str:
    if name not in kinds:
        return f"shard {next(iter(kinds.values()))[2]} has no {name!r}"
    dtype, shape, shard = kinds[name]
    return f"{name!r} of shard {shard} holds {np.dtype(dtype).name} {'x'.join(map(str, shape)) or 'numbers'} per row"


@dataclass(frozen=True)
class FromCells:
    """Parts first .. stop - 1 of a group by `partition`: cells, from a file per old part. The cells of a block are
    adjacent in every file, so a file is read once per array for any number of cells."""

    storage: Storage
    folder: str
    files: int
    first: int
    stop: int

    def load(self, block: Block) -> list[Arrays]:
        paths = [cell_file(self.folder, number) for number in range(self.files)]
        held = {path: members(self.storage, path) for path in paths}
        edges = np.stack([read_rows(self.storage, p, EDGES, self.first, self.stop + 1, held[p]) for p in paths])
        counts = np.diff(edges, axis=1)  # (files, cells)
        start = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
        names = [name for name in held[paths[0]] if name != EDGES]
        arrays = {name: self._gather(held, name, edges, counts, start[:-1]) for name in names}
        return [{name: array[a:b] for name, array in arrays.items()} for a, b in pairwise(start)]

    def _gather(
        self,
        held: dict[str, dict[str, ArrayFile]],
        name: str,
        edges: NDArray[Any],
        counts: NDArray[Any],
        start: NDArray[Any],
    ) -> NDArray[Any]:
        """One array of the block, by cell, and within a cell in file order."""
        kind = next(iter(held.values()))[name]
        out = spilled((int(counts.sum()), *kind.shape[1:]), kind.dtype)
        place = start.copy()  # of the next row of each cell
        for path, edge, count in zip(held, edges, counts, strict=True):
            rows = read_rows(self.storage, path, name, int(edge[0]), int(edge[-1]), held[path])
            if len(rows) and (rows.dtype, rows.shape[1:]) != (out.dtype, out.shape[1:]):
                raise ValueError(f"{path}: {name!r} is {rows.dtype} {rows.shape[1:]}, in other parts {kind}")
            before = np.cumsum(count) - count
            out[np.repeat(place - before, count) + np.arange(len(rows))] = rows
            place += count
        return out


@dataclass(frozen=True)
class FromFile:
    """One part, from a separate file."""

    storage: Storage
    path: str

    def load(self, block: Block) -> list[Arrays]:
        if self.storage.local:
            return [read_arrays(self.storage, self.path)]
        return [{name: self._fetch(name, kind) for name, kind in members(self.storage, self.path).items()}]

    def _fetch(self, name: str, kind: ArrayFile) -> NDArray[Any]:
        out, step = spilled(kind.shape, kind.dtype), max(1, CHUNK_BYTES // max(1, kind.row_bytes))
        for start in range(0, len(out), step):
            stop = min(start + step, len(out))
            out[start:stop] = read_rows(self.storage, self.path, name, start, stop)
        return out


def cell_file(folder: str, part: int) -> str:
    return f"{folder}/{part:06d}.npz"


# --- what a worker does -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockTask:
    storage: Storage
    name: str
    """Name of the fit in its recipe."""
    base: str
    """Base of the artifact under construction."""
    group: str
    first: int
    """Index of the block's first part."""
    origin: Origin
    threads: int
    call: int = 0
    step: PartFunction | None = None
    folder: str = ""
    """Folder of a regrouping's files."""
    cells: int = 0
    done: frozenset[int] = frozenset()
    """Parts with an existing file."""
    groups: frozenset[str] = frozenset()
    """Groups of the fit that are in use; parts of others are dropped."""


_blocks: dict[str, dict[tuple[str, int], Block]] = {}
"""URL of the build -> its blocks by group and first part."""


def block_of(task: BlockTask) -> Block:
    """The block of a task, loaded unless this process has it. Blocks that are no longer needed are dropped."""
    build, key = task.storage.url_of(task.base), (task.group, task.first)
    for url in [url for url in _blocks if url != build]:
        _blocks.pop(url, None)
    blocks = _blocks.setdefault(build, {})
    for unused in [key for key in blocks if key[0] not in task.groups]:
        del blocks[unused]
    if key not in blocks:
        pulse, began = beat.current(), time.monotonic()
        pulse.doing(task.name)
        faults.point(f"load:{task.group}:{task.first}")
        block = Block()
        for number, arrays in enumerate(task.origin.load(block), task.first):
            store = _storing(task.storage, task.base, number, block.stored)
            part = Part(number, frozen(dict(arrays)), store, partial(_stored, task.storage, task.base), task.threads)
            block.parts.append(part)
        blocks[key] = block
        pulse.done(task.name, 0, time.monotonic() - began)
    return blocks[key]


def _storing(storage: Storage, base: str, index: int, stored: dict[str, int]) -> Callable[[str, Arrays], None]:
    def store(name: str, arrays: Arrays) -> None:
        write_arrays(storage, cell_file(f"{base}/{plain(name)}", index), arrays)
        stored[name] = len(next(iter(arrays.values())))

    return store


def _stored(storage: Storage, base: str, name: str, index: int) -> Arrays:
    return frozen(FromFile(storage, cell_file(f"{base}/{plain(name)}", index)).load(Block())[0])


def plain(name: str) -> str:
    """The name, as part of a path. Raises ValueError if it is not valid."""
    if not PLAIN_NAME.fullmatch(name) or name == "work":
        raise ValueError(f"{name!r} is not a valid name: use letters, digits, . - and _, with a letter or digit first")
    return name


def drop(build: str) -> None:
    """Drop the parts of a build that has ended."""
    _blocks.pop(build, None)


@dataclass(frozen=True)
class Loaded:
    alive: int
    rows: list[int]
    kinds: Kinds
    provenance: Provenance


def load_block(task: BlockTask) -> Loaded:
    block = block_of(task)
    return Loaded(block.alive, [part.rows for part in block.parts], block.kinds, block.provenance)


def run_step(task: BlockTask, shared: Mapping[str, Any]) -> list[tuple[Any, dict[str, int]]]:
    """The step's result for each part of a block, and name -> rows that it stored."""
    return [(value, stored) for _, value, stored in _stepped(task, shared)]


def _stepped(task: BlockTask, shared: Mapping[str, Any]) -> Iterator[tuple[Part, Any, dict[str, int]]]:
    assert task.step is not None
    block, pulse = block_of(task), beat.current()
    for part in block.parts:
        began = time.monotonic()
        pulse.doing(task.name)
        if part.index in task.done:
            yield part, None, {}
            continue
        place = f"step:{task.call}:{task.group}:{part.index}"
        faults.point(f"{place}:begun")
        block.stored.clear()
        value = task.step(part, shared)
        faults.point(f"{place}:done")
        yield part, value, dict(block.stored)
        pulse.done(task.name, 0, time.monotonic() - began)  # no rows: a fit reports its own progress


def run_partition(task: BlockTask, shared: Mapping[str, Any]) -> list[NDArray[np.int64]]:
    """Write each part of a block into its file, sorted by cell; returns the rows of each cell (cells,) by part."""
    counts = []
    for part, value, _ in _stepped(task, shared):
        path = cell_file(task.folder, part.index)
        if value is None:
            edges = read_rows(task.storage, path, EDGES, 0, task.cells + 1)
        else:
            edges = _write_cells(task, path, *value)
        counts.append(np.diff(edges))
    return counts


def _write_cells(task: BlockTask, path: str, cell: NDArray[Any], arrays: Arrays) -> NDArray[np.int64]:
    if len(cell) and not 0 <= int(cell.min()) <= int(cell.max()) < task.cells:
        raise ValueError(f"{task.folder}: cells {cell.min()} .. {cell.max()}, expected 0 .. {task.cells - 1}")
    if EDGES in arrays or any(len(array) != len(cell) for array in arrays.values()):
        raise ValueError(f"{task.folder}: expected arrays of {len(cell)} rows, none of them named {EDGES!r}")
    order = np.argsort(cell, kind="stable")
    edges = np.searchsorted(cell[order], np.arange(task.cells + 1)).astype(np.int64)
    write_arrays(task.storage, path, arrays, order, head={EDGES: edges})
    return edges
