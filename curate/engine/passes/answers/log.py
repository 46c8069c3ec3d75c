"""Answers of unfinished units: a log per worker, so that a kill loses only requests in flight and unflushed answers.

    facts/<op>/<stage>/log/<fingerprint>/<worker>-000001-<unit>-<unit>.parquet

A segment has the answers of all units of a worker since the last segment: a table of facts with the `_shard` of each
row, and the units in its name. It also has the requests in flight, without a status, so that the next run can count the
requests that it repeats. Once a unit has ended, its answers are in the tables of its shards, and segments that no other
unit needs are removed. The worker that takes over a dead worker's unit reads its segments; the next run puts them into
tables before it sends a request (`fold`).
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

from curate.core.hashing import digest
from curate.core.nouns import facts
from curate.core.nouns.facts import MISSING, Notes
from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.engine.passes.answers import index

FOLDER = "log"
FLUSH_SECONDS = 10.0
FOLD_BYTES = 64 << 20
"""Segments are put into tables together, up to this size in memory."""
THREADS = 8
"""Shards whose tables are written in parallel."""
SHARD = "_shard"
SHARD_FIELD = pa.field(SHARD, pa.string())
FLYING = pa.schema([*facts.FIXED, facts.INPUT_FIELD, SHARD_FIELD])
"""Columns of a segment without answers."""


def folder_of(path: str) -> str:
    """Folder of the segments for a folder of facts."""
    stage, _, fingerprint = path.rpartition("/")
    return f"{stage}/{FOLDER}/{fingerprint}"


def token(shards: Iterable[str]) -> str:
    """A unit's name in the names of segments."""
    return digest(list(shards))[:8]


@dataclass
class _Unit:
    """Answers of a unit that are not in a table yet, and its requests in flight."""

    fresh: list[pa.Table] = field(default_factory=list)
    """Answers since the last flush."""
    in_flight: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """Input of a request -> its shard and row."""
    segments: set[str] = field(default_factory=set)


class Log:
    """One worker's log of one folder of facts."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage, self.folder, self.worker = storage, folder_of(path), uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        """Guards the fields below."""
        self._writing = threading.Lock()
        """Held while a segment is published, so that its units do not end meanwhile."""
        self._units: dict[str, _Unit] = {}
        self._number = 0
        self._flushed = time.monotonic()

    def _unit(self, unit: str) -> _Unit:
        return self._units.setdefault(unit, _Unit())

    def sent(self, unit: str, given: bytes, shard: str, row: int) -> None:
        """Note a request in flight."""
        with self._lock:
            self._unit(unit).in_flight[given] = shard, row

    def add(self, unit: str, inputs: Sequence[bytes], answered: pa.Table | None) -> None:
        """Note requests that have ended; `answered` has the rows with a final answer."""
        with self._lock:
            noted = self._unit(unit)
            for given in inputs:
                noted.in_flight.pop(given, None)
            if answered is not None and answered.num_rows:
                noted.fresh.append(answered)

    def flush(self, leaving: str = "") -> None:
        """Publish new answers and the requests in flight, every FLUSH_SECONDS, or at once for the unit `leaving`."""
        if not leaving and time.monotonic() - self._flushed < FLUSH_SECONDS:
            return
        with self._writing:
            with self._lock:
                fresh = {name: unit.fresh for name, unit in self._units.items() if unit.fresh or name == leaving}
                if not fresh or not (leaving or time.monotonic() - self._flushed >= FLUSH_SECONDS):
                    return
                self._number, self._flushed = self._number + 1, time.monotonic()
                file = f"{self.worker}-{self._number:06d}-{'-'.join(sorted(fresh))}.parquet"
                tables = [table for unfinished in fresh.values() for table in unfinished]
                in_flight = {given: place for unit in self._units.values() for given, place in unit.in_flight.items()}
                for name in fresh:
                    self._units[name].fresh = []
                    self._units[name].segments.add(file)
            try:
                whole = pa.concat_tables([*tables, _without_status(in_flight, tables[0].schema if tables else FLYING)])
                self.storage.publish_table(f"{self.folder}/{file}", whole)
            except BaseException:  # put the answers back before any exception, also a KeyboardInterrupt
                with self._lock:
                    for name, unpublished in fresh.items():
                        self._unit(name).fresh[:0] = unpublished
                raise

    def end(self, unit: str) -> None:
        """Remove a unit's segments: all of its answers so far are in tables."""
        with self._writing, self._lock:
            ended = self._units.pop(unit, _Unit())
            if ended.in_flight:  # the unit continues
                self._units[unit] = _Unit(in_flight=ended.in_flight)
            needed = {file for other in self._units.values() for file in other.segments}
        for file in sorted(ended.segments - needed):
            self.storage.remove_file(f"{self.folder}/{file}")

    def leave(self, unit: str) -> None:
        """A unit has ended, and its requests with it. If it failed or was stopped, publish its answers that are not in
        a table, and its requests without an answer."""
        with self._lock:
            ended = self._units.get(unit)
        if ended is None:
            return
        try:
            if ended.fresh or ended.in_flight:
                self.flush(leaving=unit)
        finally:
            with self._lock:
                ended.in_flight = {}


def _without_status(in_flight: Mapping[bytes, tuple[str, int]], schema: pa.Schema) -> pa.Table:
    """Rows of requests in flight."""
    shards, rows = [place[0] for place in in_flight.values()], [place[1] for place in in_flight.values()]
    made: dict[str, Any] = {facts.ROW: rows, facts.STATUS_COLUMN: [MISSING] * len(rows)}
    made |= {facts.MARKED: [False] * len(rows), facts.INPUT: list(in_flight), SHARD: shards}
    columns = [pa.array(made.get(item.name, [None] * len(rows)), item.type) for item in schema]
    return pa.table(columns, schema=schema)


_logs: dict[str, Log] = {}
_lock = threading.Lock()


def log_of(storage: Storage, path: str) -> Log:
    """This worker's log of a folder of facts; its units share it."""
    with _lock:
        return _logs.setdefault(storage.url_of(path), Log(storage, path))


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass
class Logged:
    """Contents of segments: answers, and inputs that were in flight and got no answer."""

    answers: pa.Table | None = None
    places: dict[bytes, int] = field(default_factory=dict)
    """Input -> row of `answers`."""
    in_flight: dict[str, set[bytes]] = field(default_factory=dict)
    """Shard -> inputs."""


def logged_by(storage: Storage, path: str, units: Iterable[str]) -> Logged:
    """Segments that earlier attempts at some units have logged, in this worker or a dead one."""
    wanted = set(units)
    files = [file for file in storage.list(folder_of(path)) if wanted & set(file[: -len(".parquet")].split("-")[2:])]
    return _read(storage, folder_of(path), files)


def _read(storage: Storage, folder: str, files: Iterable[str]) -> Logged:
    tables = []
    for file in sorted(files):
        try:
            tables.append(storage.read_table(f"{folder}/{file}"))
        except FileNotFoundError:  # its worker ended the unit meanwhile
            continue
    if not tables:
        return Logged()
    whole = pa.concat_tables(tables, promote_options="default")
    final = pc.not_equal(whole.column(facts.STATUS_COLUMN), MISSING)
    found, flying = whole.filter(final), whole.filter(pc.invert(final))
    places = {given: row for row, given in enumerate(found.column(facts.INPUT).to_pylist())}
    logged = Logged(found, places)
    for given, shard in zip(flying.column(facts.INPUT).to_pylist(), flying.column(SHARD).to_pylist(), strict=True):
        if given not in places:
            logged.in_flight.setdefault(shard, set()).add(given)
    return logged


def fold(storage: Storage, path: str) -> dict[str, set[bytes]]:
    """Put segments of dead workers into tables: of a folder of facts whose lease we hold, and of other fingerprints of
    the stage that no run computes now. Returns shard -> inputs that were in flight, for our folder.

    Segments are read in turn and put into tables whenever they hold FOLD_BYTES. Memory is bounded by FOLD_BYTES and one
    segment, twice (as read, and grouped by shard), and the tables of THREADS shards."""
    stage, _, mine = path.rpartition("/")
    by_fingerprint: dict[str, list[str]] = {}
    for file in storage.list(f"{stage}/{FOLDER}"):
        fingerprint, _, name = file.partition("/")
        by_fingerprint.setdefault(fingerprint, []).append(name)
    in_flight: dict[str, set[bytes]] = {}
    for fingerprint, files in by_fingerprint.items():
        theirs = f"{stage}/{fingerprint}"
        if fingerprint != mine and _is_held(storage, theirs):
            continue
        flying = _fold(storage, theirs, sorted(files))
        for given, shard in flying.items() if fingerprint == mine else ():
            in_flight.setdefault(shard, set()).add(given)
    return in_flight


def _is_held(storage: Storage, output: str) -> bool:
    held = lease.read(storage, lease.lease_path(output))
    return held is not None and not lease.is_dead(held)


def _fold(storage: Storage, path: str, files: Sequence[str]) -> dict[bytes, str]:
    """Returns inputs that were in flight -> their shards."""
    folder, in_flight = folder_of(path), dict[bytes, str]()
    tables: list[pa.Table] = []
    done: list[str] = []
    for file in files:
        try:
            segment = storage.read_table(f"{folder}/{file}")
        except FileNotFoundError:  # its worker ended the unit meanwhile
            continue
        final = pc.not_equal(segment.column(facts.STATUS_COLUMN), MISSING)
        answered, flying = segment.filter(final), segment.filter(pc.invert(final))
        for given in answered.column(facts.INPUT).to_pylist() if in_flight else ():
            in_flight.pop(given, None)
        in_flight |= zip(flying.column(facts.INPUT).to_pylist(), flying.column(SHARD).to_pylist(), strict=True)
        tables += [answered] if answered.num_rows else []
        done.append(file)
        if sum(table.nbytes for table in tables) >= FOLD_BYTES:
            _into_tables(storage, path, tables, done)
            tables, done = [], []
    _into_tables(storage, path, tables, done)
    return in_flight


def _into_tables(storage: Storage, path: str, segments: Sequence[pa.Table], files: Iterable[str]) -> None:
    """Put the answers of some segments into tables, then remove the segments."""
    if segments:
        whole = pa.concat_tables(segments).sort_by(SHARD).combine_chunks()
        parts, start = [], 0
        for found in pc.value_counts(whole.column(SHARD)).to_pylist():  # in order of occurrence
            parts.append((found["values"], whole.slice(start, found["counts"])))
            start += found["counts"]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda part: _publish(storage, path, *part), parts))
    for file in files:
        storage.remove_file(f"{folder_of(path)}/{file}")


def _publish(storage: Storage, path: str, shard: str, logged: pa.Table) -> None:
    """Publish the shard's next table with the logged rows that its highest table does not have."""
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
        index.add(storage, path.rpartition("/")[0], [(given, path, shard, number + 1) for given in inputs])
        facts.publish(storage, path, shard, number, base, fresh, Notes())
