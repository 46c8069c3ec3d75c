"""Results of costly stages before their unit's tables are published: segments of a log, which outlast a kill.

    facts/<op>/<stage>/log/<fingerprint>/<attempt>-000001-<unit>.parquet

A segment has the results that an attempt at a unit got since its last one: a table of facts with the `_shard` of each
row. Answers of endpoints are written within a second, results of other stages at longer intervals. Once the unit's
tables have them, its segments are removed. Segments of an attempt that ended early are put into tables (`fold`): by
the next attempt at the unit, and by the next run before it looks up what it has to compute.

Segments of an earlier version may have rows of several units, and rows without a status: requests in flight.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.hashing import digest
from curate.core.nouns import facts
from curate.core.nouns.facts import MISSING, Notes
from curate.core.secrets import redact
from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.engine.passes.answers import index

FOLDER = "log"
FLUSH_SECONDS = 0.5
"""How long an answer of an endpoint waits for others that are written with it."""
TRIES, PAUSE_SECONDS = 3, 0.5
"""How often the last segment of an attempt is tried, and the pause after a try that fails."""
THREADS = 8
"""Segments that are read, and shards whose tables are written, in parallel."""
SHARD = "_shard"
SHARD_FIELD = pa.field(SHARD, pa.string())
log = logging.getLogger("curate")


def folder_of(path: str) -> str:
    """Folder of the segments for a folder of facts."""
    stage, _, fingerprint = path.rpartition("/")
    return f"{stage}/{FOLDER}/{fingerprint}"


def token(shards: Iterable[str]) -> str:
    """A unit's name in the names of segments."""
    return digest(list(shards))[:8]


class Log:
    """What one attempt at a unit has computed of a folder of facts since its tables were published."""

    def __init__(
        self,
        storage: Storage,
        path: str,
        unit: str,
        to_rows: Callable[[list[Any]], pa.Table],
        before: Sequence[Log] = (),
    ) -> None:
        """to_rows: makes a table of facts with SHARD out of what was added. before: logs of what this one's results
        were computed from, which are written first: a result must not outlast its input, which may come out
        differently the next time."""
        self.storage, self.folder, self.unit, self.to_rows = storage, folder_of(path), unit, to_rows
        self.before = before
        self.failure: tuple[float, Exception] | None = None
        """Since when segments cannot be written (time.monotonic()), and why."""
        self._attempt = uuid.uuid4().hex[:12]
        self._segments: list[str] = []
        self._fresh: list[Any] = []
        self._lock, self._writing = threading.Lock(), threading.Lock()
        """`_lock` guards `_fresh`; `_writing` is held while a segment is written."""
        self._added, self._closed = threading.Event(), threading.Event()
        self._writer: threading.Thread | None = None

    def add(self, several: Iterable[Any]) -> None:
        with self._lock:
            self._fresh += several
        self._added.set()

    def flush(self) -> None:
        """Write what was added before."""
        with self._writing:
            with self._lock:
                fresh = list(self._fresh)
            if not fresh:
                return
            for other in self.before:
                other.flush()
            rows = self.to_rows(fresh)
            if rows.num_rows:
                file = f"{self._attempt}-{len(self._segments) + 1:06d}-{self.unit}.parquet"
                self.storage.publish_table(f"{self.folder}/{file}", rows)
                self._segments.append(file)
            with self._lock:
                del self._fresh[: len(fresh)]

    def start(self) -> None:
        """From now on write in a thread, FLUSH_SECONDS after something was added: the unit's thread may be busy."""
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, daemon=True, name="log")
            self._writer.start()

    def _write(self) -> None:
        while True:
            self._added.wait()
            if self._closed.wait(FLUSH_SECONDS):
                return
            self._added.clear()
            if self._closed.is_set():  # closed since the wait: nothing is added any more, so nothing would wake it
                return
            self._try()

    def _try(self) -> bool:
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - the unit's thread raises it if it does not pass
            log.warning("%s: cannot log answers (%s); trying again", self.folder, redact(str(error)))
            self.failure = (self.failure[0] if self.failure else time.monotonic()), error
            self._added.set()
            return False
        self.failure = None
        return True

    def close(self, published: bool) -> None:
        """The attempt has ended. published: tables have all that was added; otherwise the log has to keep it."""
        self._closed.set()
        self._added.set()
        if self._writer is not None:
            self._writer.join()
        for _ in range(0 if published else TRIES):
            if self._try():
                break
            time.sleep(PAUSE_SECONDS)
        for file in self._segments if published else ():
            self.storage.remove_file(f"{self.folder}/{file}")


# --- into tables ------------------------------------------------------------------------------------------------------


def fold_all(storage: Storage, path: str) -> None:
    """Put segments of dead attempts into tables: of a folder of facts whose lease we hold, and of other fingerprints of
    the stage that no run computes now."""
    stage, _, mine = path.rpartition("/")
    for fingerprint in {file.partition("/")[0] for file in storage.list(f"{stage}/{FOLDER}")}:
        other = f"{stage}/{fingerprint}"
        if fingerprint == mine or not _is_held(storage, other):
            fold(storage, other)


def _is_held(storage: Storage, output: str) -> bool:
    held = lease.read(storage, lease.lease_path(output))
    return held is not None and not lease.is_dead(held)


def fold(storage: Storage, path: str, units: Collection[str] | None = None) -> None:
    """Put segments into tables: those of `units`, none of which is under way, or all. One unit's rows are in memory at
    a time."""
    by_units: dict[str, list[str]] = {}
    for file in storage.list(folder_of(path)):
        named = file.removesuffix(".parquet").split("-")[2:]
        if units is None or not set(units).isdisjoint(named):
            by_units.setdefault("-".join(named), []).append(f"{folder_of(path)}/{file}")
    for files in by_units.values():
        with ThreadPoolExecutor(THREADS) as pool:
            read = pool.map(lambda file: _answers(storage, file), files)
            _into_tables(storage, path, [rows for rows in read if rows.num_rows])
            list(pool.map(storage.remove_file, files))


def _answers(storage: Storage, segment: str) -> pa.Table:
    """Rows of a segment that have a result; none if its attempt has removed it meanwhile."""
    try:
        rows = storage.read_table(segment)
    except FileNotFoundError:
        return pa.table({})
    return rows.filter(pc.not_equal(rows.column(facts.STATUS_COLUMN), MISSING))


def _into_tables(storage: Storage, path: str, segments: Sequence[pa.Table]) -> None:
    if segments:
        whole = pa.concat_tables(segments)
        shards = {shard: pc.equal(whole.column(SHARD), shard) for shard in pc.unique(whole.column(SHARD)).to_pylist()}
        notes = dict.fromkeys(shards, Notes())
        for segment in segments:
            notes[segment.column(SHARD)[0].as_py()] += Notes.of(segment.schema)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda of: _publish(storage, path, of, whole.filter(shards[of]), notes[of]), shards))


def _publish(storage: Storage, path: str, shard: str, logged: pa.Table, notes: Notes) -> None:
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
        folder, _, fingerprint = path.rpartition("/")
        inputs = fresh.column(facts.INPUT).to_pylist()

        def add(to: int) -> None:
            index.add(storage, folder, [(given, facts.table_path(fingerprint, shard, to)) for given in inputs])

        add(number + 1)
        made = facts.publish(storage, path, shard, number, base, fresh, notes)
        if made.number != number + 1:  # another run published that one
            add(made.number)
