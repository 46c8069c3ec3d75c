"""One pass over one shard: every connected Map that still lacks it, with one read and one decode of each picture.

A producer thread reads members and hands them to decoding threads, two chunks ahead of the models and no more encoded
bytes than AHEAD_BYTES. Rows that anything upstream refused are never prepared or computed; they stay null. Each member
publishes its own columns.

A chunk is as long as the largest batch of the pixel stages (of all, where none looks at pixels), so that a text stage's
thousands of rows do not become thousands of decoded pictures. Their batches begin at multiples of their own
`batch_rows`; a stage without pixels that asks for more rows than a chunk gets batches of a chunk. What a stage says of
a row must not depend on the other rows of its batch: which ones those are depends on the stages in the pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.codec.images import decode
from curate.codec.tars import read_spans
from curate.core.contracts import Map, Sample
from curate.core.errors import CurateError, Reject
from curate.core.ledger import ERROR_PREFIX, Entry
from curate.core.nouns import Shard, in_place
from curate.core.rows import Rows, rejects_to_mask
from curate.core.storage import Storage, open_storage
from curate.engine import ahead, segments
from curate.engine.backend import set_up
from curate.engine.batches import Produced, run_batch, scatter

ATTEMPTS = "attempts"
KILLED = ERROR_PREFIX + "killed"


@dataclass(frozen=True)
class Member:
    """One Map of a pass: where its columns go and what its rows are."""

    name: str
    stage: Map
    path: str
    rows: Rows
    ports: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.path


@dataclass(frozen=True)
class PassTask:
    storage: Storage
    members: tuple[Member, ...]
    work: tuple[tuple[Shard, frozenset[str]], ...]
    """Shards, each with the names of the members that lack it."""
    poison: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Shard id -> member name -> rows that kill the process."""
    segment_seconds: float = 60.0
    mark: bool = False
    """Leave a mark while a shard is under way: in one process, it is how the next run knows what killed this one."""
    probe: tuple[int, int] | None = None
    """Compute only these rows and publish nothing: how a row that kills the process is looked for."""


def run_pass(task: PassTask) -> list[dict[str, Any]]:
    """Columns of each shard for each member that lacked it -> what the ledger needs to know."""
    keep = frozenset(member.key for member in task.members)
    stages = {m.name: set_up(m.key, m.stage, m.ports, task.storage, keep) for m in task.members}
    results = []
    for shard, lacking in task.work:
        members = [member for member in task.members if member.name in lacking]
        mark = f"{members[0].path}/{ATTEMPTS}/{shard.id}" if task.mark else None
        if mark:
            task.storage.mark(mark)
        results.extend(_ShardPass(task, shard, members, stages).run())  # type: ignore[arg-type]
        if mark:
            task.storage.remove(mark)
    return results


class _ShardPass:
    def __init__(self, task: PassTask, shard: Shard, members: list[Member], stages: dict[str, Map]) -> None:
        self.task, self.shard, self.members, self.stages = task, shard, members, stages
        self.storage = task.storage
        own = {member.path: member.name for member in members}
        self.inside = {m.name: tuple(own[ref.path] for ref in m.rows.columns if ref.path in own) for m in members}
        """Which of a member's ancestors run in this same pass."""
        outside = {m.name: self._outside(m, own) for m in members}
        alive = {rows: rows.alive(shard) for rows in set(outside.values())}
        self.base = {name: alive[rows] for name, rows in outside.items()}
        tables = {rows: rows.table(shard, self._read_outside(rows, outside)) for rows in alive}
        self.tables = {name: tables[rows] for name, rows in outside.items()}
        """What a member reads and this pass does not make for it: branches may give a name to different columns."""
        self.places = next(iter(tables.values()))
        self.poison = {name: set(rows) for name, rows in task.poison.get(shard.id, {}).items()}
        pixel = [member for member in members if member.stage.pixels]
        self.chunk = max(member.stage.batch_rows for member in pixel or members)
        self.room = ahead.Room(ahead.AHEAD_BYTES)
        self.seconds = dict.fromkeys((m.name for m in members), 0.0)
        self.done: dict[str, list[Produced]] = {m.name: [] for m in members}

    def _outside(self, member: Member, own: dict[str, str]) -> Rows:
        outside = tuple(ref for ref in member.rows.columns if ref.path not in own)
        return Rows(self.storage, outside, member.rows.selection)

    def _read_outside(self, rows: Rows, outside: dict[str, Rows]) -> tuple[str, ...]:
        """Columns that members with these rows read and this pass does not make for them; and where pictures are."""
        names = ["offset", "size"]
        for member in (m for m in self.members if outside[m.name] == rows):
            made = {name for up in self.members if up.name in self.inside[member.name] for name in up.stage.writes()}
            names += [name for name in member.stage.reads() if name not in made]
        return tuple(names)

    # --- the loop ---

    def run(self) -> list[dict[str, Any]]:
        first, last = self.task.probe or (0, self.shard.rows)
        costly = self.task.probe is None and any(m.stage.costly for m in self.members)
        if costly:
            first, self.done = segments.restore(self.storage, self.shard, self.members, self.done)
        flushed = time.monotonic()
        saved = first
        for start, stop, prepared in self._prepared(first, last):
            self._compute(start, stop, prepared)
            if costly and time.monotonic() - flushed > self.task.segment_seconds:
                segments.save(self.storage, self.shard, self.members, self.done, saved, stop)
                saved, flushed = stop, time.monotonic()
        return [] if self.task.probe else [self._publish(member) for member in self.members]

    def _prepared(self, first: int, last: int) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
        """Chunks (start, stop, per row: member -> prepared value or Reject), in order, decoded ahead."""
        starts = range(first - first % self.chunk, last, self.chunk)
        spans = [(max(start, first), min(start + self.chunk, last)) for start in starts]
        pixel = [m for m in self.members if m.stage.pixels]
        if not pixel:
            yield from ((a, b, [{} for _ in range(b - a)]) for a, b in spans)
            return
        wanted = np.zeros(self.shard.rows, dtype=bool)
        wanted[first:last] = np.any([self.base[m.name][first:last] for m in pixel], axis=0)
        threads = max(1, max(int(getattr(m.stage, "threads", 1)) for m in pixel))
        with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
            yield from ahead.read_ahead(lambda: self._submit(pool, pixel, spans, wanted))

    def _submit(
        self, pool: ThreadPoolExecutor, pixel: list[Member], spans: list[tuple[int, int]], wanted: NDArray[np.bool_]
    ) -> Iterator[tuple[int, int, list[Future[dict[str, Any]] | None]]]:
        rows = np.flatnonzero(wanted)
        held = self.places.take(pa.array(rows))
        places = list(zip(held.column("offset").to_pylist(), held.column("size").to_pylist(), strict=True))
        fs, path = locate(self.storage, self.shard)
        data = read_spans(fs, path, places, self.shard.tar_bytes)
        for start, stop in spans:
            futures: list[Future[dict[str, Any]] | None] = []
            for row in range(start, stop):
                futures.append(self._decode(pool, row, next(data), pixel) if wanted[row] else None)
            yield start, stop, futures

    def _decode(self, pool: ThreadPoolExecutor, row: int, data: bytes, pixel: list[Member]) -> Future[dict[str, Any]]:
        """Hand a picture to the decoding threads as soon as there is room for its bytes."""
        size = len(data)
        self.room.take(size)
        future = pool.submit(self._prepare, row, data, pixel)
        future.add_done_callback(lambda _: self.room.give(size))
        return future

    def _prepare(self, row: int, data: bytes, pixel: list[Member]) -> dict[str, Any]:
        sample = Sample(data, decode)
        values: dict[str, Any] = {}
        for member in pixel:
            refused = any(isinstance(values.get(up), Reject) for up in self.inside[member.name])
            if refused or not self.base[member.name][row]:
                continue
            began = time.perf_counter()
            try:
                if row in self.poison.get(member.name, ()):
                    raise Reject(KILLED)
                values[member.name] = self.stages[member.name].prepare(sample)
            except Reject as reject:
                values[member.name] = reject
            except CurateError:
                raise
            except Exception as error:  # noqa: BLE001 - the sample boundary: one bad sample is a reject with its reason
                values[member.name] = Reject(ERROR_PREFIX + type(error).__name__, str(error))
            self.seconds[member.name] += (time.perf_counter() - began) / max(1, getattr(member.stage, "threads", 1))
        return values

    def _compute(self, start: int, stop: int, prepared: list[dict[str, Any]]) -> None:
        chunk: dict[str, pa.Table] = {}
        for member in self.members:
            began = time.perf_counter()
            table = self.tables[member.name].slice(start, stop - start)
            alive = self.base[member.name][start:stop].copy()
            for up in self.inside[member.name]:
                alive &= rejects_to_mask(chunk[up])
            produced = self._compute_member(member, start, table, chunk, alive, prepared)
            chunk[member.name] = produced.table
            self.done[member.name].append(produced)
            self.seconds[member.name] += time.perf_counter() - began

    def _compute_member(
        self,
        member: Member,
        start: int,
        table: pa.Table,
        chunk: dict[str, pa.Table],
        alive: NDArray[np.bool_],
        prepared: list[dict[str, Any]],
    ) -> Produced:
        stage = self.stages[member.name]
        refused = {
            i: prepared[i][member.name].reason
            for i in np.flatnonzero(alive)
            if isinstance(prepared[i].get(member.name), Reject)
        }
        poison = self.poison.get(member.name, ())
        refused |= {i: KILLED for i in np.flatnonzero(alive) if start + i in poison}
        columns = [table]
        for up in self.inside[member.name]:
            columns.append(chunk[up].select([n for n in stage.reads() if n in chunk[up].column_names]))
        view = _beside(columns)
        parts: list[Produced] = []
        for low in range(0, len(alive), stage.batch_rows):
            rows = np.arange(low, min(low + stage.batch_rows, len(alive)))
            live = np.array([i for i in rows if alive[i] and i not in refused], dtype=np.int64)
            values = [prepared[i][member.name] for i in live] if stage.pixels else []
            parts.append(run_batch(stage, view.take(pa.array(live)), values))
        live = np.array([i for i in np.flatnonzero(alive) if i not in refused], dtype=np.int64)
        return scatter(stage.schema(), parts, live, len(alive), alive, refused)

    def _publish(self, member: Member) -> dict[str, Any]:
        produced = self.done[member.name]
        schema = self.stages[member.name].schema().append(pa.field("reject", pa.string()))
        tables = [p.table for p in produced] or [schema.empty_table()]
        table = pa.concat_tables(tables).combine_chunks()
        if table.num_rows != self.shard.rows:
            raise AssertionError(f"{member.name}: {table.num_rows} rows for a shard of {self.shard.rows}")
        entry = sum((p.entry for p in produced), Entry()).check(member.name)
        # the footer holds what a later run needs, and nothing that differs between two ways to the same columns
        footer = {"shard": self.shard.id, "rows": self.shard.rows, "entry": entry.to_json()}
        table = table.replace_schema_metadata({"ledger": segments.dump(footer)})
        self.storage.publish_table(f"{member.path}/{self.shard.id}.parquet", table)
        if any(m.stage.costly for m in self.members):
            segments.drop(self.storage, self.shard, member)
        messages = {reason: text for p in reversed(produced) for reason, text in p.messages.items()}
        seconds = round(self.seconds[member.name], 4)
        return footer | {"stage": member.name, "messages": messages, "seconds": seconds}


def locate(storage: Storage, shard: Shard) -> tuple[Any, str]:
    """File system and path of the shard's tar: in the workspace, or where it was imported in place."""
    if in_place(shard):
        other = open_storage(shard.tar)
        return other.fs, other.root
    return storage.fs, storage.path(shard.tar)


def _beside(tables: list[pa.Table]) -> pa.Table:
    first = tables[0]
    for table in tables[1:]:
        for name in table.column_names:
            first = first.append_column(table.schema.field(name), table.column(name))
    return first
