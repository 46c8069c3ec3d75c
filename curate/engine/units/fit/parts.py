"""What a worker holds of a Fit's groups, and the steps it runs over that.

Parts come in blocks of neighbours, each loaded at once by the worker that first needs it and kept until another build
needs the place: from shards of the pool, from the files that a regrouping has left, or from files by part. What does
not lie in a file that can be mapped is spilled to a file without a name, which cannot outlive the process.
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
from curate.core.group import Arrays, Part, Step, frozen
from curate.core.nouns import Shard
from curate.core.rows import Rows
from curate.core.store import faults
from curate.core.store.arrays import CHUNK_BYTES, Member, members, read_arrays, read_rows, write_arrays
from curate.core.store.spill import Spill, spilled
from curate.core.store.storage import Storage
from curate.engine.backends import set_up
from curate.engine.workers import beat

Kinds = Mapping[str, tuple[str, tuple[int, ...], str]]
"""Name -> dtype and shape of a row, and the shard that was found to have them."""
Made = tuple[str, Mapping[str, str]]
"""A shard with rows ("" where there is none), and what `Fit.made` says of it."""
_ONE_KIND = (
    "all rows must come from one encoder with one setting; refuse the others upstream or import them as a pool of "
    "their own"
)
EDGES = "edges"


class Origin(Protocol):
    """Where a block's parts come from."""

    def load(self, block: Block) -> list[Arrays]: ...


@dataclass
class Block:
    """Neighbouring parts in one worker."""

    parts: list[Part] = field(default_factory=list)
    alive: int = 0
    """Live rows that `load` was shown."""
    kinds: Kinds = field(default_factory=dict)
    made: Made = ("", {})
    stored: dict[str, int] = field(default_factory=dict)
    """Name -> rows, of what the part at work has stored."""


@dataclass(frozen=True)
class FromShards:
    """One part: the rows of some shards, as the stage wants them."""

    storage: Storage
    stage: Fit
    rows: Rows
    ports: Mapping[str, str]
    base: str
    shards: tuple[Shard, ...]

    def load(self, block: Block) -> list[Arrays]:
        stage: Fit = set_up(self.base, self.stage, dict(self.ports), self.storage)  # type: ignore[assignment]
        with Spill() as spill:
            return [self._append(stage, spill, block) or spill.mapped()]

    def _append(self, stage: Fit, spill: Spill, block: Block) -> Arrays:
        """The shards' rows onto the spill, one shard at a time; arrays of no rows where there are none."""
        empty: Arrays = {}
        for shard in self.shards:
            table = self.rows.live_table(shard, stage.reads())
            block.alive += table.num_rows
            arrays = {name: np.asarray(value) for name, value in stage.load(table).items()}
            if len({len(value) for value in arrays.values()}) != 1:
                raise ValueError(f"{stage.op}.load: arrays of {[len(v) for v in arrays.values()]} rows")
            kinds = {name: (value.dtype.str, value.shape[1:], shard.id) for name, value in arrays.items()}
            if len(next(iter(arrays.values()))):
                block.kinds = agreed(stage.op, [block.kinds, kinds])
                block.made = alike(stage.op, [block.made, (shard.id, stage.made(table.schema))])
                spill.append(arrays)
            else:
                empty = arrays
        return {} if spill.rows else empty


def agreed(op: str, found: Sequence[Kinds]) -> Kinds:
    """What all shards with rows have in common. Raises InputError naming two that differ."""
    first: Kinds = {}
    for kinds in found:
        for name in {**first, **kinds} if first and kinds else ():
            if name not in kinds or name not in first or first[name][:2] != kinds[name][:2]:
                a, b = (_kind(name, have) for have in (first, kinds))
                raise InputError(f"{op}: {a}, but {b}: {_ONE_KIND}")
        first = first or kinds
    return first


def alike(op: str, found: Sequence[Made]) -> Made:
    """What all shards with rows say of how they were made. Raises InputError naming two that differ."""
    known = [made for made in found if made[0]]
    for shard, made in known[1:]:
        first, before = known[0]
        for name in sorted({**before, **made}):
            if before.get(name) != made.get(name):
                told = [repr(of[name]) if name in of else "unknown" for of in (before, made)]
                raise InputError(f"{op}: {name} of shard {first} is {told[0]}, but of {shard} {told[1]}: {_ONE_KIND}")
    return known[0] if known else ("", {})


def _kind(name: str, kinds: Kinds) -> str:
    if name not in kinds:
        return f"shard {next(iter(kinds.values()))[2]} has no {name!r}"
    dtype, shape, shard = kinds[name]
    return f"{name!r} of shard {shard} holds {np.dtype(dtype).name} {'x'.join(map(str, shape)) or 'numbers'} per row"


@dataclass(frozen=True)
class FromCells:
    """Parts first .. stop - 1 of a group that `partition` has made: cells, out of a file per old part. The cells of a
    block lie side by side in every file, so a file is read once per array, however many cells there are."""

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
        held: dict[str, dict[str, Member]],
        name: str,
        edges: NDArray[Any],
        counts: NDArray[Any],
        start: NDArray[Any],
    ) -> NDArray[Any]:
        """One array of the block, cell by cell, within a cell in the order of the files."""
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
    """One part, out of its own file."""

    storage: Storage
    path: str

    def load(self, block: Block) -> list[Arrays]:
        if self.storage.local:
            return [read_arrays(self.storage, self.path)]
        return [{name: self._fetch(name, kind) for name, kind in members(self.storage, self.path).items()}]

    def _fetch(self, name: str, kind: Member) -> NDArray[Any]:
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
    """Of the fit in its recipe."""
    base: str
    """Of the artifact that is being built."""
    group: str
    first: int
    """Index of the block's first part."""
    origin: Origin
    threads: int
    call: int = 0
    step: Step | None = None
    folder: str = ""
    """Of a regrouping's files."""
    cells: int = 0
    there: frozenset[int] = frozenset()
    """Parts whose file is there already."""
    groups: frozenset[str] = frozenset()
    """The fit's groups that are still in use; parts of others are let go."""


_held: dict[str, dict[tuple[str, int], Block]] = {}
"""URL of the build -> its blocks by group and first part."""


def hold(task: BlockTask) -> Block:
    """The block of a task, loaded unless this process has it. Blocks that nobody will ask for are let go."""
    build, key = task.storage.url_of(task.base), (task.group, task.first)
    for other in [url for url in _held if url != build]:
        _held.pop(other, None)
    blocks = _held.setdefault(build, {})
    for other in [key for key in blocks if key[0] not in task.groups]:
        del blocks[other]
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
    """A name as part of a path. Raises ValueError."""
    if not PLAIN_NAME.fullmatch(name) or name == "work":
        raise ValueError(f"{name!r} cannot name a group: letters, digits, . - and _, and a letter or digit first")
    return name


def let_go(build: str) -> None:
    """Forget the parts of a build that is over."""
    _held.pop(build, None)


@dataclass(frozen=True)
class Loaded:
    alive: int
    rows: list[int]
    kinds: Kinds
    made: Made


def load_block(task: BlockTask) -> Loaded:
    block = hold(task)
    return Loaded(block.alive, [part.rows for part in block.parts], block.kinds, block.made)


def run_step(task: BlockTask, shared: Mapping[str, Any]) -> list[tuple[Any, dict[str, int]]]:
    """What the step returns for each part of a block, and what it stored there."""
    return [(value, stored) for _, value, stored in _stepped(task, shared)]


def _stepped(task: BlockTask, shared: Mapping[str, Any]) -> Iterator[tuple[Part, Any, dict[str, int]]]:
    assert task.step is not None
    block, pulse = hold(task), beat.current()
    for part in block.parts:
        began = time.monotonic()
        pulse.doing(task.name)
        if part.index in task.there:
            yield part, None, {}
            continue
        place = f"step:{task.call}:{task.group}:{part.index}"
        faults.point(f"{place}:begun")
        block.stored.clear()
        value = task.step(part, shared)
        faults.point(f"{place}:done")
        yield part, value, dict(block.stored)
        pulse.done(task.name, 0, time.monotonic() - began)  # a fit tells itself how far it is: no rows


def run_partition(task: BlockTask, shared: Mapping[str, Any]) -> list[NDArray[np.int64]]:
    """Rows of each cell (cells,) for each part of a block, once they lie in the part's file, sorted by cell."""
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
        raise ValueError(f"{task.folder}: arrays of {len(cell)} rows each are expected, none of them called {EDGES!r}")
    order = np.argsort(cell, kind="stable")
    edges = np.searchsorted(cell[order], np.arange(task.cells + 1)).astype(np.int64)
    write_arrays(task.storage, path, arrays, order, head={EDGES: edges})
    return edges
