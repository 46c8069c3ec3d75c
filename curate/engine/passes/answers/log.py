"""Answers of unfinished units: a log per worker, so that a kill loses only requests in flight and unflushed answers.

    facts/<op>/<stage>/log/<fingerprint>/<worker>-000001-<unit>-<unit>.parquet

A segment has the answers of all units of a worker since the last segment: a table of facts with the `_shard` of each
row, and the units in its name. It also has rows without a status, with their unit as reason: the requests in flight and
those that will be sent before the next segment is due. No request is sent before a segment has it, so the next run can
count those that it may repeat; the last segment with a unit decides. Requests that ended in error count as well: the
next run sends them again. Once a unit has ended, its answers are in the
tables of its shards, and segments that no other unit needs are removed. The worker that takes over a dead worker's unit
reads its segments; the next run puts them into tables before it sends a request (`fold`). What it may repeat stays in
a segment without a unit until it has a result, as that run may die too.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.errors import StorageError
from curate.core.hashing import digest
from curate.core.nouns import facts
from curate.core.nouns.facts import DONE, ERROR, MISSING, UNUSABLE, Notes
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


Place = tuple[str, int]


@dataclass
class _Unit:
    """Answers of a unit that are not in a table yet, and its requests in flight."""

    fresh: list[pa.Table] = field(default_factory=list)
    """Answers since the last flush."""
    announced: dict[bytes, Place] = field(default_factory=dict)
    """Input of a request that a segment has and that is not sent yet -> its shard and row."""
    in_flight: dict[bytes, Place] = field(default_factory=dict)
    in_error: dict[bytes, Place] = field(default_factory=dict)
    """Requests that ended in error, which only a table keeps."""
    segments: set[str] = field(default_factory=set)

    def without_answer(self) -> dict[bytes, Place]:
        return self.in_error | self.in_flight | self.announced


class Log:
    """One worker's log of one folder of facts."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.storage, self.folder, self.worker = storage, folder_of(path), uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        """Guards the fields below."""
        self._writing = threading.Lock()
        """Held while a segment is published, so that its units do not end meanwhile."""
        self._units: dict[str, _Unit] = {}
        self._number = self._ended = 0
        """`_ended`: requests since the last segment."""
        self._flushed = time.monotonic()
        self._rate = 0.0
        """Requests that end per second."""

    def _unit(self, unit: str) -> _Unit:
        return self._units.setdefault(unit, _Unit())

    def ahead(self) -> int:
        """How many further requests a unit will send before the next segment is due."""
        with self._lock:
            units = sum(bool(unit.in_flight or unit.announced) for unit in self._units.values())
            return int(self._rate * FLUSH_SECONDS / max(1, units))

    def is_announced(self, unit: str, given: bytes) -> bool:
        with self._lock:
            return given in self._unit(unit).announced

    def announce(self, unit: str, places: Mapping[bytes, Place]) -> None:
        """Publish requests (input -> shard and row) before they are sent."""
        with self._lock:
            self._unit(unit).announced |= places
        with self._writing:
            self._publish()

    def sent(self, unit: str, given: bytes, shard: str, row: int) -> None:
        """Note a request in flight."""
        with self._lock:
            self._unit(unit).announced.pop(given, None)
            self._unit(unit).in_flight[given] = shard, row

    def add(self, unit: str, inputs: Sequence[bytes], answered: pa.Table | None, failed: Iterable[bytes] = ()) -> None:
        """Note requests that have ended; `answered` has the rows with a final answer."""
        with self._lock:
            noted = self._unit(unit)
            self._ended += len(inputs)
            noted.in_error |= {given: noted.in_flight[given] for given in failed if given in noted.in_flight}
            for given in inputs:
                noted.in_flight.pop(given, None)
                noted.announced.pop(given, None)
            if answered is not None and answered.num_rows:
                noted.fresh.append(answered)

    def flush(self) -> None:
        """Publish new answers every FLUSH_SECONDS."""
        if time.monotonic() - self._flushed < FLUSH_SECONDS:
            return
        with self._writing:
            with self._lock:
                due = time.monotonic() - self._flushed >= FLUSH_SECONDS
                due = due and any(unit.fresh for unit in self._units.values())
            if due:
                self._publish()

    def _publish(self, also: str = "") -> None:
        """Publish a segment: new answers, and the requests without an answer, of all units that have some, and of the
        unit `also`. Requires `_writing`."""
        with self._lock:
            told = {n: u for n, u in self._units.items() if u.fresh or u.without_answer() or n == also}
            now = time.monotonic()
            if now > self._flushed:
                self._rate = self._ended / (now - self._flushed)
            self._number, self._flushed, self._ended = self._number + 1, now, 0
            file = f"{self.worker}-{self._number:06d}-{'-'.join(sorted(told))}.parquet"
            fresh = {name: unit.fresh for name, unit in told.items()}
            tables = [table for of_unit in fresh.values() for table in of_unit]
            rest = _without_status({n: u.without_answer() for n, u in told.items()}, tables)
            for unit in told.values():
                unit.fresh = []
                unit.segments.add(file)
        try:
            self.storage.publish_table(f"{self.folder}/{file}", pa.concat_tables([*tables, rest]))
        except BaseException:  # put the answers back before any exception, also a KeyboardInterrupt
            with self._lock:
                for name, unpublished in fresh.items():
                    self._unit(name).fresh[:0] = unpublished
            raise

    def end(self, unit: str) -> None:
        """Remove a unit's segments: all of its answers so far are in tables."""
        with self._writing:
            with self._lock:
                ended = self._units.pop(unit, _Unit())
                if ended.in_flight:  # the unit continues
                    self._units[unit] = _Unit(announced=ended.announced, in_flight=ended.in_flight)
            try:
                if ended.in_flight and ended.segments:
                    self._publish()
            except (StorageError, OSError):  # keep the segments that have these requests
                self._units[unit].segments |= ended.segments
            self._remove(ended)

    def _remove(self, ended: _Unit) -> None:
        """Remove the segments of a unit that no other one needs."""
        with self._lock:
            needed = {file for other in self._units.values() if other is not ended for file in other.segments}
        for file in sorted(ended.segments - needed):
            self.storage.remove_file(f"{self.folder}/{file}")

    def leave(self, unit: str) -> None:
        """A unit has ended, and its requests with it. If it failed or was stopped, publish its answers that are not in
        a table, and its requests without an answer; what it has announced will not be sent."""
        with self._writing:
            with self._lock:
                ended = self._units.get(unit)
                if ended is None:
                    return
                changed = bool(ended.fresh or ended.without_answer())
                ended.announced = {}
            try:
                if changed:
                    self._publish(also=unit)
            finally:
                with self._lock:
                    ended.in_flight, ended.in_error = {}, {}


def _without_status(units: Mapping[str, Mapping[bytes, Place]], answers: Sequence[pa.Table]) -> pa.Table:
    """Rows of requests without an answer, with the schema of the `answers` they are published with."""
    schema = answers[0].schema if answers else FLYING
    lines = [(name or None, given, *place) for name, of_unit in units.items() for given, place in of_unit.items()]
    names, inputs, shards, rows = (list(column) for column in zip(*lines, strict=True)) if lines else ([], [], [], [])
    made: dict[str, Any] = {facts.ROW: rows, facts.STATUS_COLUMN: [MISSING] * len(rows), facts.REASON: names}
    made |= {facts.MARKED: [False] * len(rows), facts.INPUT: inputs, SHARD: shards}
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
    times: Counter[bytes] = field(default_factory=Counter)
    """Input -> workers that had it in flight: the counts of workers that died are lost with them."""


def logged_by(storage: Storage, path: str, units: Iterable[str]) -> Logged:
    """Segments that earlier attempts at some units have logged, in this worker or a dead one."""
    wanted = set(units)
    last = {file: named & wanted for file, named in _last_named(storage.list(folder_of(path))).items()}
    files = sorted(file for file in last if wanted & _units_of(file))
    answers, flying = [], []
    for file in files:
        for segment in _segments(storage, folder_of(path), [file]):
            answers.append(segment.filter(_answered(segment)))
            flying.append(_without_answer(segment, last[file]))
    if not answers:
        return Logged()
    found = pa.concat_tables(answers, promote_options="default")
    places = {given: row for row, given in enumerate(found.column(facts.INPUT).to_pylist())}
    logged = Logged(found, places)
    for given, (shard, _) in (line for lines in flying for line in lines.items()):
        if given not in places:
            logged.in_flight.setdefault(shard, set()).add(given)
            logged.times[given] += 1
    return logged


def _units_of(file: str) -> set[str]:
    return set(file[: -len(".parquet")].split("-")[2:])


def _last_named(files: Iterable[str]) -> dict[str, set[str]]:
    """Segment -> the units of its worker that no later one names. Their requests without an answer are those it has."""
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, str]] = set()
    for file in sorted(files, reverse=True):
        worker = file.partition("-")[0]
        found[file] = {unit for unit in _units_of(file) if (worker, unit) not in seen}
        seen |= {(worker, unit) for unit in found[file]}
    return found


def _segments(storage: Storage, folder: str, files: Iterable[str]) -> Iterator[pa.Table]:
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # its worker ended the unit meanwhile
            yield storage.read_table(f"{folder}/{file}")


def _answered(segment: pa.Table) -> pa.ChunkedArray:
    return pc.not_equal(segment.column(facts.STATUS_COLUMN), MISSING)


def _without_answer(segment: pa.Table, units: set[str]) -> dict[bytes, Place]:
    """A segment's requests without an answer, of some units."""
    rows = segment.filter(pc.invert(_answered(segment)))
    columns = (rows.column(name).to_pylist() for name in (facts.INPUT, SHARD, facts.ROW, facts.REASON))
    return {given: (shard, row) for given, shard, row, unit in zip(*columns, strict=True) if not unit or unit in units}


def fold(storage: Storage, path: str, *, ended: bool = False) -> dict[str, set[bytes]]:
    """Put segments of dead workers into tables: of a folder of facts whose lease we hold, and of other fingerprints of
    the stage that no run computes now. Returns shard -> inputs that were in flight and have no result, for our folder.
    ended: our run has gone over all rows, so that errors are results.

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
        flying = _fold(storage, theirs, sorted(files), ended and fingerprint == mine)
        for given, shard in flying.items() if fingerprint == mine else ():
            in_flight.setdefault(shard, set()).add(given)
    return in_flight


def _is_held(storage: Storage, output: str) -> bool:
    held = lease.read(storage, lease.lease_path(output))
    return held is not None and not lease.is_dead(held)


def _fold(storage: Storage, path: str, files: Sequence[str], ended: bool) -> dict[bytes, str]:
    """Returns inputs that were in flight and have no result -> their shards; a segment keeps them."""
    folder, in_flight, last = folder_of(path), dict[bytes, Place](), _last_named(files)
    tables: list[pa.Table] = []
    for file in files:
        for segment in _segments(storage, folder, [file]):
            answered = segment.filter(_answered(segment))
            for given in answered.column(facts.INPUT).to_pylist() if in_flight else ():
                in_flight.pop(given, None)
            in_flight |= _without_answer(segment, last[file])
            tables += [answered] if answered.num_rows else []
        if sum(table.nbytes for table in tables) >= FOLD_BYTES:
            _into_tables(storage, path, tables)
            tables = []
    _into_tables(storage, path, tables)
    left = _without_result(storage, path, in_flight, ended)
    kept = _keep(storage, folder, left, files)
    for file in files:
        if file != kept:
            storage.remove_file(f"{folder}/{file}")
    return {given: shard for given, (shard, _) in left.items()}


def _without_result(storage: Storage, path: str, in_flight: Mapping[bytes, Place], errors: bool) -> dict[bytes, Place]:
    """Those of some requests that their shard's table has no result of. errors: they are results."""
    results = pa.array([DONE, UNUSABLE, *([ERROR] if errors else [])], pa.int8())
    ended: set[bytes] = set()
    for shard in {shard for shard, _ in in_flight.values()}:
        number = facts.latest(f"{shard}/{name}" for name in storage.list(f"{path}/{shard}")).get(shard, 0)
        if number:
            table = facts.read(storage, path, shard, number, [facts.INPUT, facts.STATUS_COLUMN])
            found = table.filter(pc.is_in(table.column(facts.STATUS_COLUMN), results))
            ended.update(found.column(facts.INPUT).to_pylist())
    return {given: place for given, place in in_flight.items() if given not in ended}


def _keep(storage: Storage, folder: str, left: Mapping[bytes, Place], files: Sequence[str]) -> str:
    """Publish a segment with these requests alone, unless it is one of `files`; returns its name."""
    file = f"{digest(sorted(given.hex() for given in left))[:12]}-000000.parquet"
    if left and file not in files:
        storage.publish_table(f"{folder}/{file}", _without_status({"": left}, ()))
    return file if left else ""


def _into_tables(storage: Storage, path: str, segments: Sequence[pa.Table]) -> None:
    """Put the answers of some segments into tables."""
    if segments:
        whole = pa.concat_tables(segments).sort_by(SHARD).combine_chunks()
        parts, start = [], 0
        for found in pc.value_counts(whole.column(SHARD)).to_pylist():  # in order of occurrence
            parts.append((found["values"], whole.slice(start, found["counts"])))
            start += found["counts"]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda part: _publish(storage, path, *part), parts))


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
