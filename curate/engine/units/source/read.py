"""What workers do for a Source: read a portion, and publish its shard and its record."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from curate.codec.members import read_tar
from curate.codec.readers import FileReader, identity
from curate.codec.tars import TarWriter
from curate.core.contracts import BAD_ROW, Incoming, Portion, Source, detail_of, media_of
from curate.core.errors import RESUMES, AlreadyExistsError, CurateError, DrainedError, StorageError
from curate.core.fetches import DONE, HOSTS_OF_PORTION, Fetches
from curate.core.hashing import make_key, rank_below, ranks
from curate.core.ledger import Entry, Skips, skip
from curate.core.nouns.pools import MEDIA_COLUMNS, Shard, place_url, pool_table, read_pool
from curate.core.reader import LostError, Reader, as_reader
from curate.core.store.storage import Storage, open_storage
from curate.engine.tasks import beat
from curate.engine.tasks.stages import set_up
from curate.engine.units.common import content_id, dump, probed
from curate.engine.units.source.fetches import publish_fetches
from curate.engine.units.source.pulse import Pulse
from curate.engine.units.source.records import PortionRecord, announced, clear, read_record
from curate.engine.units.source.repeats import REPEATED

ERROR, UNUSABLE = "error", "unusable"


@dataclass(frozen=True)
class ImportTask:
    storage: Storage
    stage: Source
    name: str
    portion: Portion
    record: str
    """Path of the portion's record."""
    inside: float = 1.0
    """Share of the portion's rows to import, chosen by rank; below 1 in a canary run."""
    ports: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    """Place of the portion among all."""
    killed: bool = False
    """An earlier run was killed while it published a shard, whose files it has announced (`pending`)."""
    generation: int = 0
    """Number of the retry; 0 for the first shard of a portion."""
    earlier: tuple[PortionRecord, ...] = ()
    """For a later generation: records of the earlier ones."""
    reasons: tuple[str, ...] = ()
    """Reasons of the rows to retry; empty: all."""
    status: str = "error"
    """Status of the rows to retry."""

    @property
    def pending(self) -> str:
        return f"pools/{self.stage.namespace}/pending/{self.record.rpartition('/')[2]}"


@dataclass(frozen=True)
class Chosen:
    """Source ids that a canary run takes, by rank."""

    namespace: str
    share: float

    def __contains__(self, source_id: object) -> bool:
        return bool(rank_below(ranks(0, [make_key(self.namespace, str(source_id))]), self.share)[0])


@dataclass(frozen=True)
class Imported:
    """Result of a task. Without a record, a retry gained nothing."""

    record: PortionRecord | None
    rows: int
    lost: int
    """Rows that are not alive."""
    fetches: Mapping[str, Any]


def import_portion(task: ImportTask) -> Imported:
    """Publish the shard of one portion: its tar (unless it stays in place), then its table, then its record."""
    beat.current().doing(task.name)
    if task.ports or not task.stage.repeatable:
        task = replace(task, stage=set_up(f"pools/{task.stage.namespace}", task.stage, task.ports, task.storage))
    before: dict[str, str] = {}
    if task.earlier:
        before = _failed(task)
        ids = frozenset(before)
        task = replace(task, portion=replace(task.portion, only=ids))
    elif task.inside < 1.0:
        task = replace(task, portion=replace(task.portion, only=Chosen(task.stage.namespace, task.inside)))
    reading = Reading(task, before)
    place = task.stage.tar(task.portion)
    base = f"pools/{task.stage.namespace}/shards"
    files: Sequence[str] = ()
    if place is None:
        shard, table, files = _copy_in(task, reading, base)
    else:
        shard, table = _index_in_place(task, reading, base, place)
    if reading.fetches:
        reading.fetches.cover(reading.began, time.time())
    summary = reading.fetches.to_json(HOSTS_OF_PORTION) if reading.fetches else {}
    entry = _entry(table)
    entry.skipped = reading.skipped
    rows, lost = reading.rows, reading.rows - entry.after
    if task.earlier:
        if not shard.rows:
            return Imported(None, rows, lost, summary)
        entry = _replaced(task, before, table)
    if reading.lines:
        publish_fetches(task.storage, task.record, reading.lines, summary)
    record = PortionRecord(shard, json.dumps(entry.to_json(), sort_keys=True))
    return Imported(_publish(task, record, files), rows, lost, summary)


def _publish(task: ImportTask, record: PortionRecord, files: Sequence[str]) -> PortionRecord:
    """Publish the record. If the source may read something else each time and another attempt has published its record,
    that one wins. No attempt can win later, so the `files` that attempts have announced are removed, except for the
    record's."""
    if task.stage.repeatable:
        task.storage.publish_bytes(task.record, record.dump())
        return record
    try:
        task.storage.create(task.record, record.dump())
    except AlreadyExistsError:
        record = read_record(task.storage, task.record)
    clear(task.storage, task.pending, record, files)
    return record


def _entry(table: pa.Table) -> Entry:
    """Ledger of a shard's table."""
    entry = Entry(table.num_rows)
    for reason, status in zip(table.column("reject").to_pylist(), table.column("status").to_pylist(), strict=True):
        if reason is not None:
            {ERROR: entry.error, UNUSABLE: entry.unusable}.get(status, entry.rejected)[reason] += 1
    entry.after = entry.before - entry.lost.total()
    return entry


def _replaced(task: ImportTask, before: Mapping[str, str], table: pa.Table) -> Entry:
    """The ledger of a portion, in which the rows of a later generation replace the failed ones."""
    entry = task.earlier[-1].ledger
    retried = entry.unusable if task.status == UNUSABLE else entry.error
    names = ("source_id", "reject", "status")
    for source_id, reason, status in zip(*(table.column(name).to_pylist() for name in names), strict=True):
        retried[before[source_id]] -= 1
        if reason is None:
            entry.after += 1
        else:
            {ERROR: entry.error, UNUSABLE: entry.unusable}.get(status, entry.rejected)[reason] += 1
    entry.error, entry.unusable = +entry.error, +entry.unusable
    return entry


def _failed(task: ImportTask) -> dict[str, str]:
    """Source id -> reason, of the rows to retry: those with the status and reason after all earlier generations."""
    found: dict[str, str] = {}
    for record in task.earlier:
        table = read_pool(task.storage, record.shard.table, ["source_id", "reject", "status"])
        columns = (table.column(name).to_pylist() for name in ("source_id", "reject", "status"))
        for source_id, reason, status in zip(*columns, strict=True):
            if status == task.status:
                found[source_id] = reason
            else:
                found.pop(source_id, None)
    return {name: reason for name, reason in found.items() if not task.reasons or reason in task.reasons}


class Reading:
    """The samples of a portion, counted while they are read."""

    def __init__(self, task: ImportTask, before: Mapping[str, str]) -> None:
        self.pulse = Pulse(task.name)
        self.skipped: Skips = {}
        portion = replace(
            task.portion, stopped=self.pulse.stopped, received=self.pulse.received, skip=partial(skip, self.skipped)
        )
        self.task, self.before = replace(task, portion=portion), before
        self.rows = 0
        self.began = time.time()
        self.fetches = Fetches()
        self.lines: list[dict[str, Any]] = []
        """What it took to get each sample that was fetched."""

    def __iter__(self) -> Iterator[Incoming]:
        """Samples of the shard: of a later generation, those that are no longer in error."""
        task, pulse, only = self.task, self.pulse, self.task.portion.only
        passed: Incoming | None = None
        """The sample before, if it is not in the shard."""
        with contextlib.closing(iter(task.stage.read(task.portion))) as items:  # type: ignore[type-var]
            for item in items:
                size = 0 if item.data is None else as_reader(item.data).size
                if item.same_member and passed is not None:
                    item = replace(item, same_member=False, ext=passed.ext, data=passed.data)
                if only is None or item.source_id in only:
                    passed = None
                    self._count(item, make_key(task.stage.namespace, item.source_id))
                    if not (task.earlier and self._gains_nothing(item)):
                        yield item
                else:
                    passed = item
                pulse.yielded(size)
                if pulse.stopped() and not task.stage.repeatable:  # what is left may take long
                    raise DrainedError(f"stopped before {task.name}; {RESUMES}")
        pulse.tell()

    def _gains_nothing(self, item: Incoming) -> bool:
        """Whether a retried row is in error, or unusable for the same reason as before: its earlier row stays."""
        return item.status == ERROR or (item.status == UNUSABLE and item.reject == self.before[item.source_id])

    def _count(self, item: Incoming, key: str) -> None:
        self.rows += 1
        fetch = item.fetch
        if fetch is not None:
            code = item.reject or DONE
            self.fetches.count(fetch, (item.status or DONE, code))
            line = {"key": key, "code": code, "host": fetch.host, "tries": fetch.tries, "seconds": fetch.seconds}
            self.lines.append(line | {"bytes": fetch.bytes, "detail": fetch.detail or None})


def _copy_in(task: ImportTask, reading: Reading, base: str) -> tuple[Shard, pa.Table, Sequence[str]]:
    """The shard, its table, and the files to remove unless the record names them."""
    rows: list[dict[str, Any]] = []
    with task.storage.scratch(base) as path:
        with open(path, "wb") as file, TarWriter(file) as tar:
            for incoming in reading:
                row = _row(task.stage, incoming, incoming.data)
                if incoming.same_member:
                    row |= {name: rows[-1][name] for name in _OF_MEMBER}
                elif incoming.data is not None and row["sha256"] is not None:
                    start, data = tar.offset, as_reader(incoming.data)
                    try:
                        row["offset"], row["size"] = tar.add(f"{row['key']}.{row['ext'] or 'bin'}", data), data.size
                    except LostError as lost:
                        tar.truncate(start)
                        row = _row(task.stage, replace(incoming, reject=lost.reason), None)
                rows.append(row)
        table = _table(rows)
        identity = content_id(table)
        size = path.stat().st_size
        shard = Shard(identity, len(rows), f"{base}/{identity}.tar", size, f"{base}/{identity}.parquet")
        if task.earlier and not rows:
            return shard, table, ()
        files = _announce(task, shard)
        task.storage.adopt(path, shard.tar)
    task.storage.publish_table(shard.table, table)
    return shard, table, files


_OF_MEMBER = ("name", "offset", "size", "ext", "width", "height", "format", "sha256", *MEDIA_COLUMNS)
"""Columns that rows of one member have in common."""


def _announce(task: ImportTask, shard: Shard) -> tuple[str, ...]:
    """Announce the files that are about to be published and do not exist, beside those of earlier attempts, which may
    have read something else. Once the record exists, the announced files that it does not name are removed. Returns all
    these files."""
    if task.stage.repeatable:
        return ()
    earlier = announced(task.storage, task.pending) if task.killed or beat.current().again else ()
    files = [path for path in (shard.tar, shard.table) if path not in earlier and not task.storage.exists(path)]
    if files:
        task.storage.publish_bytes(task.pending, dump({"files": [*earlier, *files]}))
    return (*earlier, *files)


def _index_in_place(task: ImportTask, reading: Reading, base: str, place: str) -> tuple[Shard, pa.Table]:
    rows, size = (_rows_of_folder if place.endswith("/") else _rows_of_tar)(task, reading, place)
    table = _table(rows)
    identity = content_id(table)
    shard = Shard(identity, len(rows), place_url(place), size, f"{base}/{identity}.parquet")
    task.storage.publish_table(shard.table, table)
    return shard, table


def _rows_of_folder(task: ImportTask, reading: Reading, _: str) -> tuple[list[dict[str, Any]], int]:
    """Rows and the bytes of their files. The source has read each file, to find out whether it is still as planned."""
    rows, size = list[dict[str, Any]](), 0
    for item in reading:
        row = _row(task.stage, item, item.data)
        if item.data is not None and row["sha256"] is not None:
            row["offset"], row["size"] = 0, as_reader(item.data).size
            size += row["size"]
        rows.append(row)
    return rows, size


def _rows_of_tar(task: ImportTask, reading: Reading, place: str) -> tuple[list[dict[str, Any]], int]:
    """Rows and the bytes of the tar."""
    source = open_storage(place)
    size = int(source.fs.size(source.root))
    found = list(reading)
    spans = [(item.offset, item.size) for item in found if item.offset is not None and item.size is not None]
    data = read_tar(source, Shard("", len(found), place_url(place), size, ""), spans)
    rows = []
    for item in found:
        held = item.offset is not None and item.size is not None
        try:
            row = _made(task.stage, item, next(data) if held else None)
        except LostError as lost:
            raise StorageError(f"{lost}; run again when the tar is complete") from None
        row["offset"], row["size"] = (item.offset, item.size) if held else (None, None)
        rows.append(row)
    return rows, size


def _row(stage: Source, item: Incoming, data: bytes | Reader | None) -> dict[str, Any]:
    """A row of the pool's table; a file that is lost while it is read is rejected."""
    try:
        return _made(stage, item, data)
    except LostError as lost:
        return _described(stage, replace(item, reject=lost.reason), None)


def _made(stage: Source, item: Incoming, data: bytes | Reader | None) -> dict[str, Any]:
    """A row of the pool's table; a sample that no row can be made of is rejected."""
    try:
        return _described(stage, item, data)
    except (CurateError, OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - the sample boundary
        return _described(stage, Incoming(item.source_id, reject=BAD_ROW, meta=detail_of(error)), None)


def _described(stage: Source, item: Incoming, data: bytes | Reader | None) -> dict[str, Any]:
    key = make_key(stage.namespace, item.source_id)
    row: dict[str, Any] = {
        "key": key,
        "source_id": item.source_id.encode("utf-8", "replace").decode(),
        "name": item.name or key,
        "ext": item.ext,
        "caption": item.caption,
        "url": item.url,
        "source": item.source,
        "meta": json.dumps(item.meta, sort_keys=True, ensure_ascii=False),
        "reject": item.reject,
        "status": item.status,
        "sha256": _identity(stage, key, data) if data is not None else None,
    }
    row |= dict.fromkeys(("offset", "size", "parent", "root", "span", "parent_row"))
    return row | probed(data, media_of(stage))


def _identity(stage: Source, key: str, data: bytes | Reader) -> str:
    """The SHA-256, or of a large file in place the digest of its edges."""
    if (
        isinstance(data, FileReader)
        and getattr(stage, "in_place", False)
        and getattr(stage, "digest", "full") == "auto"
    ):
        return identity(key, data)
    return as_reader(data).sha256()


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """The pool table; a key of an earlier live row is rejected, as across shards."""
    seen: set[str] = set()
    for row in rows:
        if row["reject"] is None and row["key"] in seen:
            row["reject"] = REPEATED
        elif row["reject"] is None:
            seen.add(row["key"])
    try:
        return pool_table(rows)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):  # one value that a column cannot hold
        return pool_table([_fitting(row) for row in rows])


def _fitting(row: dict[str, Any]) -> dict[str, Any]:
    """A row, or what is known of its member and why the table cannot hold the row."""
    try:
        pool_table([row])
        return row
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        kept = {name: row[name] for name in ("key", "source_id", "offset", "size", "sha256")}
        return kept | {"name": row["key"], "reject": BAD_ROW, "meta": json.dumps(detail_of(error))}
