"""The engine's groups: workers hold the parts and run steps on them; results come in part order; with checkpoints."""

from __future__ import annotations

import json
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.contracts import Fit
from curate.core.errors import RESUMES, CurateError, DrainedError, StageError
from curate.core.group import LEAST_PART_ROWS, PARTS, Arrays, PartFunction, cut, frozen, part_rows_for, shard_ranges
from curate.core.recipe.pipeline import Node
from curate.core.store.arrays import read_arrays, write_arrays
from curate.engine.backends import CallOptions
from curate.engine.context import Context
from curate.engine.progress import StepProgress
from curate.engine.state import Built
from curate.engine.units.fit.parts import (
    BlockTask,
    FromCells,
    FromFile,
    FromShards,
    Origin,
    agreed,
    agreed_provenance,
    cell_file,
    load_block,
    plain,
    run_partition,
    run_step,
)

WINDOW = 4
"""Blocks per worker whose results may wait for those before them."""
_JSON = "json"
REPORT_SECONDS = 5.0
"""Time between two events of a fit's progress."""
CHECKPOINTS = 2
"""Number of checkpoints kept."""


class _Results:
    """Results of a call, as they are consumed. Before another call starts, the rest is fetched: workers run one call at
    a time."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.wanted = True
        self._source, self._fetched = source, deque[Any]()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._fetched.popleft() if self._fetched else next(self._source)

    def fetch(self) -> None:
        for value in self._source:
            if self.wanted:
                self._fetched.append(value)


@dataclass
class Build:
    """State shared by the groups of one fit."""

    ctx: Context
    node: Node
    stage: Fit
    built: Built
    bar: StepProgress
    shared_provenance: Mapping[str, str] = field(default_factory=dict)
    calls: int = 0
    saved: int = 0
    names: dict[str, int] = field(default_factory=dict)
    """Name in use -> the call that stored under it, 0 for groups."""
    results: _Results | None = None
    reported: float = 0.0
    groups: weakref.WeakSet[EngineGroup] = field(default_factory=weakref.WeakSet)

    @property
    def base(self) -> str:
        return self.built.base

    @property
    def threads(self) -> int:
        return max(1, int(self.stage.resources().cpus))

    def load(self) -> tuple[EngineGroup, int]:
        """The group of the pool's rows, loaded by workers, and the number of live rows."""
        ctx, shards = self.ctx, self.ctx.outputs.pool(self.node).shards
        rows, ports = ctx.outputs.rows(self.node), ctx.outputs.ports(self.node)
        if not shards:
            raise CurateError(f"{self.stage.op}: no shards to fit; `curate status RUN` shows why")
        parts = shard_ranges([shard.rows for shard in shards], part_rows_for(sum(shard.rows for shard in shards)))
        origins = [
            FromShards(
                ctx.storage, self.stage, ctx.outputs.placed(rows, shards[a:b]), ports, self.base, tuple(shards[a:b])
            )
            for a, b in parts
        ]
        group = EngineGroup(self, "pool", [(number, origin) for number, origin in enumerate(origins)])
        loaded = list(self.run(load_block, group.tasks()))
        agreed(self.stage.op, [block.kinds for block in loaded])
        _, self.shared_provenance = agreed_provenance(self.stage.op, [block.provenance for block in loaded])
        group.known = [count for block in loaded for count in block.rows]
        return group, sum(block.alive for block in loaded)

    def take(self, name: str, call: int = 0) -> str:
        """Claim a name; the parts of one call may share it."""
        if plain(name) in self.names and not (call and self.names[name] == call):
            raise ValueError(f"{self.stage.op}: {name!r} is already a name of this fit")
        self.names[name] = call
        return name

    def run(self, function: Callable[..., Any], tasks: Sequence[BlockTask], shared: Any = None) -> Iterator[Any]:
        """Results in order of the tasks. Raises StageError, DrainedError."""
        if self.results is not None:
            self.results.fetch()
        results = self.results = _Results(self._in_order(function, tasks, shared))
        try:
            yield from results
        finally:
            results.wanted = False

    def _in_order(self, function: Callable[..., Any], tasks: Sequence[BlockTask], shared: Any) -> Iterator[Any]:
        early: dict[int, Any] = {}
        number = 0
        options = CallOptions(sticky=True, window=WINDOW, shared=frozen(shared))
        for outcome in self.ctx.tasks.run(function, tasks, self.stage.resources(), options, self.node.name):
            if outcome.error:
                raise StageError(f"{self.node.name}: {outcome.error}; fix the cause and rerun the same command")
            early[outcome.index] = outcome.value
            while number in early:
                yield early.pop(number)
                number += 1


@dataclass(eq=False)
class EngineGroup:
    """A group whose parts are in workers; see curate.core.group.Group."""

    build: Build
    name: str
    blocks: list[tuple[int, Origin]]
    """(first part, origin of its parts), in order."""
    known: list[int] | None = None
    """Rows of each part, once known."""

    threads: int = field(init=False)

    def __post_init__(self) -> None:
        self.threads = self.build.threads
        self.build.groups.add(self)

    @property
    def provenance(self) -> Mapping[str, str]:
        return self.build.shared_provenance

    @property
    def shards(self) -> Sequence[str]:
        return [shard.id for shard in self.build.ctx.outputs.pool(self.build.node).shards]

    @property
    def rows(self) -> Sequence[int]:
        if self.known is None:
            self.known = [rows for block in self.build.run(load_block, self.tasks()) for rows in block.rows]
        return self.known

    def tasks(self, **changes: Any) -> list[BlockTask]:
        build = self.build
        changes["groups"] = frozenset(group.name for group in build.groups)
        return [
            BlockTask(
                build.ctx.storage, build.node.name, build.base, self.name, first, origin, build.threads, **changes
            )
            for first, origin in self.blocks
        ]

    def each(self, step: PartFunction, **shared: Any) -> Iterator[Any]:
        self.build.calls += 1
        call = self.build.calls
        for block in self.build.run(run_step, self.tasks(step=step, call=call), shared):
            for value, stored in block:
                for name in stored:
                    self.build.take(name, call)
                yield frozen(value)

    def partition(self, name: str, step: PartFunction, cells: int, **shared: Any) -> EngineGroup:
        build = self.build
        build.calls += 1
        folder, files = f"{build.base}/work/{build.take(name)}", len(self.rows)
        existing = _numbers(build.ctx.storage.list(folder))
        edges = [first for first, _ in self.blocks[1:]] + [files]
        tasks = [
            replace(task, done=frozenset(range(task.first, stop)) & existing)
            for task, stop in zip(
                self.tasks(step=step, call=build.calls, folder=folder, cells=cells), edges, strict=True
            )
        ]
        total: NDArray[np.int64] = np.zeros(cells, dtype=np.int64)
        for block in build.run(run_partition, tasks, shared):
            for counts in block:
                total += counts
        rows = total.tolist()
        stretches = shard_ranges(rows, max(1, min(LEAST_PART_ROWS, sum(rows) // PARTS)))
        origins = [(a, FromCells(build.ctx.storage, folder, files, a, b)) for a, b in stretches]
        return EngineGroup(build, name, [*origins], rows)

    def scatter(self, name: str, arrays: Arrays) -> EngineGroup:
        storage, folder = self.build.ctx.storage, f"{self.build.base}/work/{self.build.take(name)}"
        there, parts = _numbers(storage.list(folder)), cut(arrays)
        for number, part in enumerate(parts):
            if number not in there:
                write_arrays(storage, cell_file(folder, number), part)
        return self._of_files(name, folder, [len(next(iter(part.values()))) for part in parts])

    def stored(self, name: str) -> EngineGroup:
        parts = len(self.rows)
        group = self._of_files(f"{name} stored", f"{self.build.base}/{plain(name)}", [0] * parts)
        group.known = None
        return group

    def _of_files(self, name: str, folder: str, rows: list[int]) -> EngineGroup:
        storage = self.build.ctx.storage
        origins = [(number, FromFile(storage, cell_file(folder, number))) for number in range(len(rows))]
        return EngineGroup(self.build, name, [*origins], rows)

    def save(self, state: Mapping[str, Any]) -> None:
        build, storage = self.build, self.build.ctx.storage
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        others = {name: value for name, value in state.items() if name not in arrays}
        text = json.dumps(others, sort_keys=True, default=_plain_number).encode()
        build.saved = max(build.saved, self._last_saved()) + 1
        head = {_JSON: np.frombuffer(text, dtype=np.uint8)}
        write_arrays(storage, self._checkpoint(build.saved), arrays, head=head)
        storage.remove(self._checkpoint(build.saved - CHECKPOINTS))
        build.ctx.events.emit("checkpoint", stage=build.node.name, number=build.saved)
        if build.ctx.backend.draining.is_set():
            raise DrainedError(f"stopped during {build.node.name}; {RESUMES}")

    def restored(self) -> dict[str, Any] | None:
        build = self.build
        build.saved = self._last_saved()
        if not build.saved:
            return None
        arrays = read_arrays(build.ctx.storage, self._checkpoint(build.saved))
        text = arrays.pop(_JSON).tobytes()
        build.ctx.events.emit("resumed", stage=build.node.name, number=build.saved)
        build.ctx.progress.say(f"{build.node.name}: resumes from checkpoint {build.saved}")
        return {**json.loads(text), **{name: np.array(array) for name, array in arrays.items()}}

    def _last_saved(self) -> int:
        if self.build.saved:
            return self.build.saved
        files = self.build.ctx.storage.list(f"{self.build.base}/work/checkpoints")
        return max(_numbers(files), default=0)

    def _checkpoint(self, number: int) -> str:
        return cell_file(f"{self.build.base}/work/checkpoints", number)

    def progress(self, done: float, text: str) -> None:
        build, now = self.build, time.monotonic()
        build.bar.progress(done, text)
        if now - build.reported > REPORT_SECONDS:
            build.reported = now
            build.ctx.events.emit("progress", stage=build.node.name, done=round(done, 4), text=text)
            build.ctx.events.flush()


def _numbers(files: Mapping[str, int]) -> frozenset[int]:
    """Numbers of the parts that have a file in a folder."""
    return frozenset(int(name.removesuffix(".npz")) for name in files if "/" not in name)


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a checkpoint holds arrays and JSON-able values, not {type(value).__name__}")
