"""The children of one shard's parents: computed by workers, and published as a tar and a table."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from curate.codec import media
from curate.codec.members import COLUMNS, member_columns, read_members
from curate.codec.tars import TarWriter
from curate.core.contracts import Child, Derive, Sample, media_of, trait
from curate.core.errors import AlreadyExistsError, CurateError, Reject, Undecodable
from curate.core.hashing import canonical, digest, make_child_key
from curate.core.ledger import SET_ASIDE
from curate.core.nouns import facts
from curate.core.nouns.pools import EXTRACTED, Shard, pool_table, read_pool
from curate.core.reader import LostError, Reader
from curate.core.rows import Rows
from curate.core.secrets import redact
from curate.engine.passes.task import UnitTask, under_way
from curate.engine.tasks import beat
from curate.engine.tasks.stages import set_up
from curate.engine.units.common import columns_of, content_id, probed
from curate.engine.units.derive.record import (
    DONE,
    ERROR,
    ERROR_UPSTREAM,
    RECORD,
    UNUSABLE,
    Parent,
    ParentsResult,
    Record,
    read_record,
    result_of,
)

INHERITED = ("source_id", "name", "caption", "url", "source")
READ = ("key", *INHERITED, "meta", "root", "media", "sha256", *COLUMNS)
"""Columns of a parent that its children need."""


@dataclass(frozen=True, kw_only=True)
class DeriveTask(UnitTask):
    stage: Derive
    name: str
    rows: Rows
    """The parents."""
    ports: Mapping[str, str]
    folder: str
    numbers: tuple[int, ...]
    """Number of each shard's highest table."""
    retry: tuple[str, ...] | None = None
    """Reasons whose parents in error are retried (empty: all); None: no retries."""


def derive_shards(task: DeriveTask) -> list[ParentsResult]:
    """Compute missing children; returns a result for each shard."""
    starts = np.cumsum([0, *(shard.rows for shard in task.shards)]).tolist()
    with under_way(task, task.folder):
        return [_derive(task, *about) for about in zip(task.shards, task.numbers, starts[:-1], strict=True)]


def _derive(task: DeriveTask, shard: Shard, number: int, start: int) -> ParentsResult:
    """`start`: the shard's first row in the unit."""
    alive = task.rows.alive(shard)
    record = read_record(task.storage, task.folder, shard.id, number)
    marked = task.rows.marked(shard, task.stage.reads())
    wanted = record.missing(np.flatnonzero(alive).tolist(), task.retry, marked)
    first, stop = task.only or (0, shard.rows)
    wanted = [row for row in wanted if first <= row < stop]
    computed = repeated = 0
    while wanted:
        made = _make(task, shard, number + 1, record, wanted, start)
        if task.sink == "discard":
            return {}
        computed += len(wanted)
        try:
            number, record, wanted = number + made.create(task, record), record.merged(made.record), []
        except AlreadyExistsError:  # another run published this number first
            number += 1
            record = read_record(task.storage, task.folder, shard.id, number)
            left = record.missing(wanted, task.retry, marked)
            repeated, wanted = repeated + len(wanted) - len(left), left
    return result_of(shard, alive, number, record) | {"computed": computed, "repeated": repeated}


@dataclass
class _Made:
    record: Record
    table: pa.Table
    path: str

    def create(self, task: DeriveTask, before: Record) -> int:
        """Create the table and return 1; return 0 without a table if every retry failed as before."""
        if all(before.parents.get(row) == parent for row, parent in self.record.parents.items()):
            return 0
        table = self.table.replace_schema_metadata({RECORD: before.merged(self.record).dump()})
        task.storage.create_table(self.path, table)
        return 1


def _make(task: DeriveTask, shard: Shard, number: int, before: Record, rows: list[int], start: int) -> _Made:
    """The children of some parents; publishes their tar but not their table."""
    folder = f"{task.folder}/{shard.id}"
    path = facts.table_path(task.folder, shard.id, number)
    with task.storage.scratch(folder) as aside:
        with open(aside, "w+b") as file:
            children = _Children(task, shard, number, file, start)
            children.add(rows)
            children.tar.close()
        record, table = children.record, pool_table(children.lines)
        if children.lines and task.sink == "publish":
            name = content_id(table)
            if task.stage.virtual:
                record.shards[number] = Shard(name, table.num_rows, "", 0, path)
            else:
                tar = f"{folder}/{number:06d}-{name[:16]}.tar"
                record.shards[number] = Shard(name, table.num_rows, tar, aside.stat().st_size, path)
                task.storage.adopt(aside, tar)
    for row, parent in record.parents.items():  # a retry with the same error changes nothing
        known = before.parents.get(row)
        if known is not None and (known.status, known.reason) == (parent.status, parent.reason):
            record.parents[row] = known
    return _Made(record, table, path)


class _Children:
    """Computes children and writes them into a tar."""

    def __init__(self, task: DeriveTask, shard: Shard, number: int, file: BinaryIO, start: int) -> None:
        self.task, self.shard, self.start = task, shard, start
        self.number, self.tar = number, TarWriter(file)
        self.record = Record()
        self.lines: list[dict[str, Any]] = []

    def add(self, rows: list[int]) -> None:
        if self.task.aside:
            for row in rows:
                self._fail(row, ERROR, SET_ASIDE)
            return
        stage = set_up(self.task.folder, self.task.stage, self.task.ports, self.task.storage)
        poison = self.task.poison.get(self.shard.id, {}).get(self.task.name, {})
        marked = self.task.rows.marked(self.shard, self.task.stage.reads())
        for row, parent, data in self._parents(rows):
            began = time.monotonic()
            beat.current().doing(self.task.name, [self.start + row])
            if row in poison:
                self._fail(row, ERROR, poison[row])
            elif marked[row]:
                self._fail(row, ERROR, ERROR_UPSTREAM)
            elif data is None:
                self._fail(row, UNUSABLE, "no_data")
            elif isinstance(data, Undecodable):  # it cannot be extracted, also at another time
                self._fail(row, UNUSABLE, data.reason)
            elif isinstance(data, Reject):
                self._fail(row, ERROR, data.reason, str(data))
            else:
                self._derive(stage, row, parent, data)
            size = data.size if isinstance(data, Reader) else 0
            beat.current().done(self.task.name, 1, time.monotonic() - began, size)

    def _parents(self, rows: list[int]) -> Iterator[tuple[int, dict[str, Any], Reader | Reject | None]]:
        task, shard = self.task, self.shard
        names = list(dict.fromkeys((*READ, *member_columns([shard]))))
        table = read_pool(task.storage, shard.table, names).take(pa.array(rows, pa.int64()))
        read = self.task.rows.table(shard, self.task.stage.reads()).take(pa.array(rows, pa.int64()))
        parents = [row | {"read": more} for row, more in zip(table.to_pylist(), read.to_pylist(), strict=True)]
        present = table.filter(table.column("offset").is_valid())
        data = read_members(task.storage, shard, present.select(member_columns([shard])).to_pydict())
        for row, parent in zip(rows, parents, strict=True):
            yield row, parent, None if parent["offset"] is None else next(data)

    def _derive(self, stage: Derive, row: int, parent: dict[str, Any], data: Reader) -> None:
        """Add all children of a parent, or none of them."""
        start, lines = self.tar.offset, list[dict[str, Any]]()
        try:
            known = {name: parent[name] for name in ("key", *INHERITED, "meta")}
            sample = Sample(data, media.opener(data, trait(stage, "sees")), known | parent["read"])
            for child in stage.children(sample):
                lines.append(self._child(stage, row, parent, child))
            keys = [line["key"] for line in lines]
            if len(set(keys)) < len(keys):
                raise ValueError(f"{stage.op}: two children have the same span; give each child a different one")
        except LostError as lost:
            self.tar.truncate(start)
            self._fail(row, ERROR, lost.reason, str(lost))
        except Reject as reject:
            self.tar.truncate(start)
            self._fail(row, UNUSABLE, reject.reason)
        except CurateError:
            raise
        except Exception as error:  # noqa: BLE001 - the sample boundary: one bad sample is one parent's status
            self.tar.truncate(start)
            name = type(error).__name__
            self._fail(row, ERROR, name, redact(f"{name}: {error}", stage.secrets().values()))
        else:
            self.lines += lines
            self.record.parents[row] = Parent(DONE, None, len(lines), self.number)

    def _child(self, stage: Derive, row: int, parent: dict[str, Any], child: Child) -> dict[str, Any]:
        if (child.data is None) != stage.virtual:
            raise ValueError(f"{stage.op}: children have bytes, or their Derive is `virtual`; change one of them")
        key = make_child_key(parent["key"], stage.child_kind, child.span)
        part = ",".join(f"{name}={value}" for name, value in sorted(child.span.items()))
        line = {name: parent[name] for name in INHERITED} | {"key": key, "ext": child.ext, "reject": None}
        line |= {name: f"{parent[name]}#{part}" for name in ("source_id", "name")}
        line |= {"parent": parent["key"], "root": parent["root"] or parent["key"], "parent_row": row}
        line |= {"span": canonical(child.span), "meta": json.dumps(child.meta, sort_keys=True, ensure_ascii=False)}
        if child.data is None:
            return line | _virtual(stage, parent, child)
        line |= {"sha256": hashlib.sha256(child.data).hexdigest(), "size": len(child.data)}
        line |= probed(child.data, media_of(stage))
        return line | {"offset": self.tar.add(f"{key}.{child.ext or 'bin'}", child.data)}

    def _fail(self, row: int, status: str, reason: str, message: str = "") -> None:
        self.record.parents[row] = Parent(status, reason, 0, self.number)
        if message:
            self.record.messages.setdefault(reason, message)


def _virtual(stage: Derive, parent: dict[str, Any], child: Child) -> dict[str, Any]:
    """Columns of a virtual child. Its `sha256` says what its bytes are extracted from, and its offset of 0 that it has
    bytes."""
    medium = media.of(parent["media"] or media.DEFAULT.name)
    extracted = digest([parent["sha256"], medium.name, medium.version, child.span])
    columns = columns_of(child.probe, media.of(media_of(stage)[0]))
    return columns | {"sha256": f"{EXTRACTED}{extracted}", "offset": 0, "size": None}
