"""Answers of units under way: a log per worker, so that a kill costs at most what was in flight and the last flush.

    facts/<op>/<stage>/log/<fingerprint>/<worker>-000001-<unit>-<unit>.parquet

A segment has the answers of all units of a worker since the last one: a table of facts with the `_shard` of each row,
and the units in its name. Requests that were in flight are in it too, without a status, so that the next run can count
what it asks again. When a unit has ended, its answers are in the tables of its shards, and segments that no other unit
needs are removed. What a dead worker leaves is found by whoever takes over its unit, and put into tables by the next
run before that asks anything (`fold`).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core import facts
from curate.core.facts import MISSING, Notes
from curate.core.hashing import digest
from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.engine.passes import answers

FOLDER = "log"
FLUSH_SECONDS = 10.0
FOLD_BYTES = 64 << 20
"""Segments are put into tables together until they hold so many bytes in memory."""
THREADS = 8
"""Shards whose tables are written side by side."""
SHARD = "_shard"
SHARD_FIELD = pa.field(SHARD, pa.string())
FLYING = pa.schema([*facts.FIXED, facts.INPUT_FIELD, SHARD_FIELD])
"""Columns of a segment that has no answers."""


def folder_of(path: str) -> str:
    """Where the segments of a folder of facts lie."""
    stage, _, fingerprint = path.rpartition("/")
    return f"{stage}/{FOLDER}/{fingerprint}"


def token(shards: Iterable[str]) -> str:
    """A unit's name in the names of segments."""
    return digest(list(shards))[:8]


@dataclass
class _Unit:
    """What of a unit is in no table yet."""

    fresh: list[pa.Table] = field(default_factory=list)
    """Answers since the last flush."""
    asked: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """Input -> shard and row of a request in flight."""
    segments: set[str] = field(default_factory=set)


class Log:
    """One worker's log of one folder of facts."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage, self.folder, self.worker = storage, folder_of(path), uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        """Of what follows."""
        self._writing = threading.Lock()
        """Held while a segment is published, so that nobody takes its units to be through."""
        self._units: dict[str, _Unit] = {}
        self._number = 0
        self._flushed = time.monotonic()

    def _unit(self, unit: str) -> _Unit:
        return self._units.setdefault(unit, _Unit())

    def ask(self, unit: str, given: bytes, shard: str, row: int) -> None:
        """A request of the unit is in flight."""
        with self._lock:
            self._unit(unit).asked[given] = shard, row

    def add(self, unit: str, inputs: Sequence[bytes], answered: pa.Table | None) -> None:
        """Requests have ended; `answered` are the rows of those that got a final answer."""
        with self._lock:
            held = self._unit(unit)
            for given in inputs:
                held.asked.pop(given, None)
            if answered is not None and answered.num_rows:
                held.fresh.append(answered)

    def flush(self, leaving: str = "") -> None:
        """Publish what is new, every FLUSH_SECONDS; at once for a unit that leaves, with its requests in flight."""
        if not leaving and time.monotonic() - self._flushed < FLUSH_SECONDS:
            return
        with self._writing:
            with self._lock:
                fresh = {name: unit.fresh for name, unit in self._units.items() if unit.fresh or name == leaving}
                if not fresh or not (leaving or time.monotonic() - self._flushed >= FLUSH_SECONDS):
                    return
                self._number, self._flushed = self._number + 1, time.monotonic()
                file = f"{self.worker}-{self._number:06d}-{'-'.join(sorted(fresh))}.parquet"
                tables = [table for held in fresh.values() for table in held]
                asked = {given: place for unit in self._units.values() for given, place in unit.asked.items()}
                for name in fresh:
                    self._units[name].fresh = []
                    self._units[name].segments.add(file)
            try:
                whole = pa.concat_tables([*tables, _in_flight(asked, tables[0].schema if tables else FLYING)])
                self.storage.publish_table(f"{self.folder}/{file}", whole)
            except BaseException:  # the answers are put back, whatever comes
                with self._lock:
                    for name, held in fresh.items():
                        self._unit(name).fresh[:0] = held
                raise

    def end(self, unit: str) -> None:
        """All answers of the unit so far are in tables."""
        with self._writing, self._lock:
            held = self._units.pop(unit, _Unit())
            if held.asked:  # others of its requests are in flight
                self._units[unit] = _Unit(asked=held.asked)
            needed = {file for other in self._units.values() for file in other.segments}
        for file in sorted(held.segments - needed):
            self.storage.remove_file(f"{self.folder}/{file}")

    def leave(self, unit: str) -> None:
        """The unit has ended, and its requests with it: if it has failed or was stopped, what is in no table is
        published, and which requests got no answer."""
        with self._lock:
            held = self._units.get(unit)
        if held is None:
            return
        try:
            if held.fresh or held.asked:
                self.flush(leaving=unit)
        finally:
            with self._lock:
                held.asked = {}


def _in_flight(asked: Mapping[bytes, tuple[str, int]], schema: pa.Schema) -> pa.Table:
    """Rows without a status."""
    shards, rows = [place[0] for place in asked.values()], [place[1] for place in asked.values()]
    made: dict[str, Any] = {facts.ROW: rows, facts.STATUS_COLUMN: [MISSING] * len(rows)}
    made |= {facts.MARKED: [False] * len(rows), facts.INPUT: list(asked), SHARD: shards}
    columns = [pa.array(made.get(item.name, [None] * len(rows)), item.type) for item in schema]
    return pa.table(columns, schema=schema)


_logs: dict[str, Log] = {}
_lock = threading.Lock()


def log_of(storage: Storage, path: str) -> Log:
    """This worker's log of a folder of facts, which all of its units share."""
    with _lock:
        return _logs.setdefault(storage.url_of(path), Log(storage, path))


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass
class Left:
    """What segments hold: answers, and inputs that were in flight and got none."""

    answers: pa.Table | None = None
    places: dict[bytes, int] = field(default_factory=dict)
    """Input -> row of `answers`."""
    asked: dict[str, set[bytes]] = field(default_factory=dict)
    """Shard -> inputs."""


def left_by(storage: Storage, path: str, units: Iterable[str]) -> Left:
    """What earlier attempts at some units have logged, here or in a worker that is dead."""
    wanted = set(units)
    files = [file for file in storage.list(folder_of(path)) if wanted & set(file[: -len(".parquet")].split("-")[2:])]
    return _read(storage, folder_of(path), files)


def _read(storage: Storage, folder: str, files: Iterable[str]) -> Left:
    tables = []
    for file in sorted(files):
        try:
            tables.append(storage.read_table(f"{folder}/{file}"))
        except FileNotFoundError:  # its worker has ended the unit meanwhile
            continue
    if not tables:
        return Left()
    whole = pa.concat_tables(tables, promote_options="default")
    final = pc.not_equal(whole.column(facts.STATUS_COLUMN), MISSING)
    found, flying = whole.filter(final), whole.filter(pc.invert(final))
    places = {given: row for row, given in enumerate(found.column(facts.INPUT).to_pylist())}
    left = Left(found, places)
    for given, shard in zip(flying.column(facts.INPUT).to_pylist(), flying.column(SHARD).to_pylist(), strict=True):
        if given not in places:
            left.asked.setdefault(shard, set()).add(given)
    return left


def fold(storage: Storage, path: str) -> dict[str, set[bytes]]:
    """Put what dead workers have logged into tables, of a folder of facts whose lease we hold, and of other
    fingerprints of the stage that nobody computes now. Returns inputs that were in flight in our folder, by shard.

    Segments are read one after the other and put into tables whenever they hold FOLD_BYTES: however many there are, no
    more than FOLD_BYTES and one segment are in memory, twice (as read, and grouped by shard), and the tables of THREADS
    shards."""
    stage, _, mine = path.rpartition("/")
    by_fingerprint: dict[str, list[str]] = {}
    for file in storage.list(f"{stage}/{FOLDER}"):
        fingerprint, _, name = file.partition("/")
        by_fingerprint.setdefault(fingerprint, []).append(name)
    asked: dict[str, set[bytes]] = {}
    for fingerprint, files in by_fingerprint.items():
        theirs = f"{stage}/{fingerprint}"
        if fingerprint != mine and _is_held(storage, theirs):
            continue
        flying = _fold(storage, theirs, sorted(files))
        for given, shard in flying.items() if fingerprint == mine else ():
            asked.setdefault(shard, set()).add(given)
    return asked


def _is_held(storage: Storage, output: str) -> bool:
    held = lease.read(storage, lease.lease_path(output))
    return held is not None and not lease.is_dead(held)


def _fold(storage: Storage, path: str, files: Sequence[str]) -> dict[bytes, str]:
    """Returns inputs that were in flight, with their shards."""
    folder, asked = folder_of(path), dict[bytes, str]()
    tables: list[pa.Table] = []
    done: list[str] = []
    for file in files:
        try:
            segment = storage.read_table(f"{folder}/{file}")
        except FileNotFoundError:  # its worker has ended the unit meanwhile
            continue
        final = pc.not_equal(segment.column(facts.STATUS_COLUMN), MISSING)
        answered, flying = segment.filter(final), segment.filter(pc.invert(final))
        for given in answered.column(facts.INPUT).to_pylist() if asked else ():
            asked.pop(given, None)
        asked |= zip(flying.column(facts.INPUT).to_pylist(), flying.column(SHARD).to_pylist(), strict=True)
        tables += [answered] if answered.num_rows else []
        done.append(file)
        if sum(table.nbytes for table in tables) >= FOLD_BYTES:
            _into_tables(storage, path, tables, done)
            tables, done = [], []
    _into_tables(storage, path, tables, done)
    return asked


def _into_tables(storage: Storage, path: str, segments: Sequence[pa.Table], files: Iterable[str]) -> None:
    """Put the answers of some segments into tables, and remove the segments' files."""
    if segments:
        whole = pa.concat_tables(segments).sort_by(SHARD).combine_chunks()
        parts, start = [], 0
        for found in pc.value_counts(whole.column(SHARD)).to_pylist():  # in the order in which they occur
            parts.append((found["values"], whole.slice(start, found["counts"])))
            start += found["counts"]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda part: _publish(storage, path, *part), parts))
    for file in files:
        storage.remove_file(f"{folder_of(path)}/{file}")


def _publish(storage: Storage, path: str, shard: str, logged: pa.Table) -> None:
    """Add the rows that a shard's highest table lacks to the next one."""
    rows = logged.column(facts.ROW).to_numpy()
    order = pa.array(np.unique(rows, return_index=True)[1])
    fresh = logged.drop_columns([SHARD]).take(order).combine_chunks()
    number = facts.latest(f"{shard}/{name}" for name in storage.list(f"{path}/{shard}")).get(shard, 0)
    base = facts.read(storage, path, shard, number) if number else None
    if base is not None:
        there = base.filter(pa.array(facts.rank(base) == 2)).column(facts.ROW)
        fresh = fresh.filter(pc.invert(pc.is_in(fresh.column(facts.ROW), there.combine_chunks())))
    if fresh.num_rows:
        inputs = fresh.column(facts.INPUT).to_pylist()
        answers.remember(storage, path.rpartition("/")[0], [(given, path, shard, number + 1) for given in inputs])
        facts.publish(storage, path, shard, number, base, fresh, Notes())
