"""One pass over a unit of shards: every connected Map and Filter, with one read and one decode of each image.

A unit is a few shards, one after the other, as one stretch of rows. Every member goes over the rows in order, as far as
the members that it depends on have got: a Map collects the rows that are alive and lack its facts until a batch is
full, a Filter judges at once. So batches are full across chunks and shards, and no row that an earlier member has lost
is computed. Tables are published in DAG order, then the mask at the points that later steps read.

Images are decoded in threads, two batches ahead of the models and no more encoded bytes than AHEAD_BYTES. An image is
prepared for every member that may need it: whether a filter of this same pass rejects it is known too late to spare
that, but soon enough to spare the model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.codec.images import decode
from curate.codec.tars import read_spans
from curate.core import facts
from curate.core.contracts import AsyncMap, Filter, Map, Sample
from curate.core.errors import CurateError, Reject, StorageError
from curate.core.hashing import digest
from curate.core.masks import Fate, columns_of
from curate.core.nouns import Shard, in_place
from curate.core.recipe.secrets import redact
from curate.core.rows import POOL_COLUMNS, Known, Rows
from curate.core.store.storage import Storage, open_storage
from curate.engine.passes import ahead
from curate.engine.passes.async_map import AsyncMember
from curate.engine.passes.map import Failed, MapMember
from curate.engine.passes.member import FilterMember, Member
from curate.engine.passes.unit import Unit
from curate.engine.workers import beat

ATTEMPTS = "attempts"
LAST_SECONDS = 3.0
"""How long a unit that is told to stop waits for answers to requests in flight."""
Poison = Mapping[str, Mapping[str, Mapping[int, str]]]


@dataclass(frozen=True)
class Step:
    """A Map or a Filter of a pass, as the driver describes it."""

    name: str
    place: int
    """In the DAG."""
    stage: Map | Filter
    inputs: tuple[str, ...]
    """Those of this pass."""
    base: Rows | None
    """Who is alive on the ways from outside of the pass (None: there is none), and the columns from there."""
    makers: Mapping[str, str]
    """Column -> the step of this pass that writes it, for those that the stage reads."""
    columns: Rows
    """Columns from outside of the pass."""
    path: str = ""
    """Folder of a Map's facts."""
    ports: Mapping[str, str] = field(default_factory=dict)
    keep_null: bool = False
    may_mark: bool = False
    """Whether anything upstream lets rows in error go on."""
    family: str = ""
    """What an item filter's reasons are of."""
    families: Mapping[str, str] = field(default_factory=dict)
    """Per-item column -> family, for what the stage reads."""
    where: str = ""
    """Its place in the recipe, for messages."""
    earlier: Filter | None = None
    """The filter as the last run had it, for a dry pass to hold this one against."""


@dataclass(frozen=True)
class Point:
    """A place in the DAG whose mask is stored: where the ways through some stages meet."""

    name: str
    inputs: tuple[str, ...]
    """Stages of this pass."""
    base: Rows | None
    """The ways from outside that meet there too."""


@dataclass(frozen=True)
class PassTask:
    storage: Storage
    steps: tuple[Step, ...]
    points: tuple[Point, ...]
    shards: tuple[Shard, ...]
    known: Mapping[str, Mapping[str, int]]
    """Step -> shard -> number of its highest table."""
    places: Known
    """Tables and masks of the shards that steps outside of the pass have made."""
    chain: str
    """Folder of the mask."""
    names: tuple[str, ...]
    """Stages by place in the DAG."""
    bases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Shard -> what else its mask depends on: files of masks from outside."""
    others: Mapping[str, Mapping[str, tuple[tuple[str, int], ...]]] = field(default_factory=dict)
    """Costly step -> shard -> tables under other fingerprints."""
    indexes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Costly step -> files of its index of answers."""
    units: tuple[str, ...] = ()
    """Names of this unit, and of those its shards were part of before, in logs of answers."""
    asked: Mapping[str, Mapping[str, tuple[bytes, ...]]] = field(default_factory=dict)
    """AsyncMap -> shard -> inputs of requests that were in flight when an earlier run died."""
    retry: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Step -> reasons whose rows in error are tried again (none named: all)."""
    poison: Poison = field(default_factory=dict)
    """Shard -> step -> row that kills the process, or never ends -> the reason that it gets."""
    careful: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Shard -> rows among which one has hung: each is computed alone, so that the next time it is known which."""
    segment_seconds: float = 60.0
    mark: bool = False
    """Leave a mark while a unit is under way: in one process, it is how the next run knows what killed this one."""
    again: bool = False
    """An earlier attempt hung: it may have published some tables."""
    probe: tuple[int, int] | None = None
    """Compute only these rows and publish nothing: how a row that kills the process is looked for."""
    aside: str = ""
    """Why the unit's only shard was set aside: every row without a status gets an error."""
    dry: bool = False
    """Compute and publish nothing: count what is lacking."""

    def placed(self) -> PassTask:
        """The same task whose rows from outside know where theirs are."""
        if self.places.plan:
            return self

        known = self.places
        if not self.aside:  # such a shard's own table may be what cannot be read
            known = replace(known, pool_columns=self._pool_columns(), pools={})

        def told(rows: Rows | None) -> Any:
            return None if rows is None else rows.knowing(known)

        steps = tuple(replace(step, base=told(step.base), columns=told(step.columns)) for step in self.steps)
        points = tuple(replace(point, base=told(point.base)) for point in self.points)
        return replace(self, steps=steps, points=points, places=known)

    def _pool_columns(self) -> tuple[str, ...]:
        """What the steps read of the pool, and what says who is alive there and where images lie."""
        read = {name for step in self.steps for name in step.stage.reads() if name in POOL_COLUMNS}
        pixels = any(isinstance(step.stage, Map) and step.stage.pixels for step in self.steps)
        derived = any(shard.parent for shard in self.shards)
        read |= {"offset", "size", "sha256"} if pixels else set()
        return ("key", "reject", *(["parent_row"] if derived else []), *sorted(read - {"key"}))


class Adopted(Exception):
    """Another run published other values first: what was computed from ours has to be computed again."""


class Stopped(Exception):
    """The run was told to stop: what is computed is published, the rest is left for the next run."""


def run_pass(task: PassTask) -> list[dict[str, Any]] | None:
    """What the driver needs to know of each shard; None where the unit was told to wind down before its end."""
    task = task.placed()
    known = {name: dict(numbers) for name, numbers in task.known.items()}
    for step in task.steps if (task.again or beat.current().again) and not task.dry else ():
        if step.path and step.stage.costly:  # type: ignore[union-attr]
            known[step.name] |= _published(task, step)
    counts: dict[str, dict[str, Any]] = {step.name: {} for step in task.steps}
    mark = f"{task.chain}/{ATTEMPTS}/{task.shards[0].id}"
    try:
        if task.mark:
            task.storage.mark(mark, " ".join(shard.id for shard in task.shards).encode())
        while True:
            try:
                return _Pass(task, known, counts).run()
            except Adopted:  # another run was first with other values: later members look at those
                continue
            except Stopped:
                return None
    finally:  # what raises has not killed the process
        if task.mark:
            task.storage.remove_file(mark)


def _published(task: PassTask, step: Step) -> dict[str, int]:
    """Numbers of the highest tables of the unit's shards as they are now: an earlier attempt at it may have died after
    it had saved some answers."""
    found: dict[str, int] = {}
    for shard in task.shards:
        found |= facts.latest(f"{shard.id}/{name}" for name in task.storage.list(f"{step.path}/{shard.id}"))
    return found


class _Pass:
    def __init__(self, task: PassTask, known: dict[str, dict[str, int]], counts: dict[str, dict[str, Any]]) -> None:
        self.task, self.storage = task, task.storage
        self.unit = Unit(task.storage, task.shards, task.places)
        keep = frozenset(step.path for step in task.steps if step.path)
        self.members: dict[str, Member] = {}
        for step in task.steps:
            made = {name: self.members[name] for name in {*step.inputs, *step.makers.values()}}
            if isinstance(step.stage, Filter):
                self.members[step.name] = FilterMember(task, step, self.unit, made)
            else:
                numbers, counted = known[step.name], counts[step.name]
                kind = AsyncMember if isinstance(step.stage, AsyncMap) else MapMember
                self.members[step.name] = kind(task, step, self.unit, made, keep, numbers, counted)
        self.maps = [member for member in self.members.values() if isinstance(member, MapMember)]
        self.pixel = [] if task.dry or task.aside else [m for m in self.maps if m.stage.pixels]
        self.chunk = max([1, *(member.stage.batch_rows // ahead.CHUNKS for member in self.pixel)])
        self.beat = beat.current()
        self.careful = {
            int(self.unit.edges[index]) + row
            for index, shard in enumerate(task.shards)
            for row in task.careful.get(shard.id, ())
        }
        self.saved = time.monotonic()
        for member in self.maps:
            member.careful = self.careful
            member.after_batch = partial(self._after_batch, member)

    def run(self) -> list[dict[str, Any]]:
        try:
            return self._run()
        finally:
            for member in self.maps:
                member.close()

    def _run(self) -> list[dict[str, Any]]:
        first, last = self.task.probe or (0, self.unit.rows)
        for member in self.members.values():
            member.start(first, last)
        try:
            self._go(first, last)
        except CurateError as error:
            ends_the_run = not isinstance(error, StorageError)  # which is tried again
            if ends_the_run and not (self.task.probe or self.task.dry):
                self._publish(whole=False)
            raise
        if self.task.probe:
            return []
        if not self.task.dry:
            self._publish()
        return self._results()

    def _go(self, first: int, last: int) -> None:
        """Every member over all rows, as far as images are decoded and those before it have got; then to the end."""
        for stop in self._prepared(first, last):
            for member in self.members.values():
                with member.named():
                    member.advance(stop)
        for member in self.members.values():
            with member.named():
                member.advance(last)
                member.flush()

    def _after_batch(self, member: MapMember) -> None:
        """Make what a costly stage has computed durable, now and then; wind down if the run was told to stop."""
        if self.task.probe is not None or self.task.dry:
            return
        if self.beat.stopping:
            until = time.monotonic() + LAST_SECONDS
            self._publish(whole=False)  # whoever takes too long to stop is killed
            came = [other.last_answers(until) for other in self.maps]
            if any(came):
                self._publish(whole=False)
            raise Stopped
        if member.stage.costly and time.monotonic() - self.saved > self.task.segment_seconds:
            self._publish(whole=False)
            self.saved = time.monotonic()

    def _publish(self, whole: bool = True) -> None:
        """Tables in DAG order. Where another run's values stand, what was computed from ours is forgotten."""
        for member in self.maps:
            if member.publish(whole):
                raise Adopted

    # --- decoding ---

    def _prepared(self, first: int, last: int) -> Iterator[int]:
        """Up to which row images are decoded and prepared, in steps."""
        wanted = np.zeros(self.unit.rows, dtype=bool)
        for member in self.pixel:
            with member.named():
                wanted |= member.may_need()
        wanted[:first] = wanted[last:] = False
        if not wanted.any():
            return
        spans = [span for span in self._spans(first, last) if wanted[slice(*span)].any()]
        threads = max(1, max(int(getattr(member.stage, "threads", 1)) for member in self.pixel))
        with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
            read = ahead.read_ahead(
                lambda: self._submit(pool, spans, wanted),
                lambda start, stop: self.beat.doing(self.pixel[0].name, range(start, stop)),
            )
            for start, stop, prepared in read:
                for row, values in zip(range(start, stop), prepared, strict=True):
                    for name, value in values.items():
                        self.members[name].prepared[row] = value  # type: ignore[attr-defined]
                yield stop

    def _spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Chunks of rows; one that may hang is a chunk of its own."""
        start = first
        while start < last:
            stop = start + 1
            while start not in self.careful and stop < min(start + self.chunk, last) and stop not in self.careful:
                stop += 1
            yield start, stop
            start = stop

    def _submit(
        self, pool: ThreadPoolExecutor, spans: list[tuple[int, int]], wanted: NDArray[np.bool_]
    ) -> Iterator[tuple[int, int, list[Future[dict[str, Any]] | None]]]:
        data = self._bytes(np.flatnonzero(wanted))
        for start, stop in spans:
            futures: list[Future[dict[str, Any]] | None] = []
            for row in range(start, stop):
                futures.append(self._decode(pool, row, next(data)) if wanted[row] else None)
            yield start, stop, futures

    def _bytes(self, rows: NDArray[np.int64]) -> Iterator[bytes]:
        """Encoded images of some rows (ascending), shard by shard."""
        held = self.unit.pool(("offset", "size")).take(pa.array(rows))
        places = list(zip(held.column("offset").to_pylist(), held.column("size").to_pylist(), strict=True))
        for index, shard in enumerate(self.unit.shards):
            low, high = np.searchsorted(rows, self.unit.edges[index : index + 2])
            if low < high:
                fs, path = locate(self.storage, shard)
                yield from read_spans(fs, path, places[low:high], shard.tar_bytes)

    def _decode(self, pool: ThreadPoolExecutor, row: int, data: bytes) -> Future[dict[str, Any]]:
        """Hand an image to the decoding threads as soon as there is room for its bytes."""
        size = len(data)
        ahead.ROOM.take(size)
        future = pool.submit(self._prepare, row, data)
        future.add_done_callback(lambda _: ahead.ROOM.give(size))
        return future

    def _prepare(self, row: int, data: bytes) -> dict[str, Any]:
        sample = Sample(data, decode)
        values: dict[str, Any] = {}
        for member in self.pixel:
            lost = any(isinstance(values.get(name), Exception) for name in member.depends)
            if lost or not member.wanted[row] or row in member.poison:
                continue
            began = time.perf_counter()
            try:
                values[member.name] = member.stage.prepare(sample)
            except Reject as reject:
                values[member.name] = reject
            except CurateError:
                raise
            except Exception as error:  # noqa: BLE001 - the sample boundary: one bad sample is one row's status
                text = redact(f"{type(error).__name__}: {error}", member.stage.secrets().values())
                values[member.name] = Failed(type(error).__name__, text)
            member.seconds += (time.perf_counter() - began) / max(1, getattr(member.stage, "threads", 1))
        return values

    # --- what came out ---

    def _results(self) -> list[dict[str, Any]]:
        points = {point.name: self._fate(point) for point in self.task.points}
        results = []
        for index, shard in enumerate(self.unit.shards):
            start, stop = self.unit.edges[index], self.unit.edges[index + 1]
            steps = {m.name: m.result(index, start, stop) for m in self.members.values()}
            found: dict[str, Any] = {"shard": shard.id, "rows": shard.rows, "steps": steps}
            fates = {name: fate.slice(start, stop) for name, fate in points.items()}
            found["contents"] = {name: fate.content() for name, fate in fates.items()}
            found["reasons"] = {name: fate.reasons() for name, fate in fates.items()}
            if self.task.dry:
                found["fates"] = fates
                copied = [member for member in self.maps if steps[member.name]["copied"]]
                found["tables"] = {member.name: member.foreseen(index) for member in copied}
            else:
                found["file"] = self._save_mask(shard, fates)
            results.append(found)
        return results

    def _save_mask(self, shard: Shard, fates: Mapping[str, Fate]) -> str:
        """Publish a shard's mask; returns its file."""
        numbers = {member.name: member.held.numbers.get(shard.id, 0) for member in self.maps}
        file = mask_file(self.task.chain, shard.id, numbers, self.task.bases.get(shard.id, ()))
        columns: dict[str, pa.Array] = {}
        for name, fate in fates.items():
            columns |= columns_of(name, fate, self.task.names)
        if columns:
            self.storage.publish_table(file, pa.table(columns))
        return file

    def _fate(self, point: Point) -> Fate:
        fates = [self.members[name].after for name in point.inputs]
        if point.base is not None:
            fates.append(self.unit.fate(point.base))
        found = fates[0]
        for fate in fates[1:]:
            found = found.also(fate)
        return found


def mask_file(chain: str, shard: str, numbers: Mapping[str, int], bases: tuple[str, ...]) -> str:
    """Name of a shard's mask: a digest of the tables and masks that it folds."""
    return f"{chain}/{shard}-{digest([dict(numbers), list(bases)])[:16]}.parquet"


def locate(storage: Storage, shard: Shard) -> tuple[Any, str]:
    """File system and path of the shard's tar: in the workspace, or where it was imported in place."""
    if in_place(shard):
        other = open_storage(shard.tar)
        return other.fs, other.root
    return storage.fs, storage.path(shard.tar)
