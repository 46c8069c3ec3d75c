"""What workers do for a derived pool: the children of one shard's parents, and the record of what became of these.

    pools/<namespace>/derived/<fingerprint>/<parents' shard>/000001.parquet     children; its footer is the record
    pools/<namespace>/derived/<fingerprint>/<parents' shard>/000001-<id>.tar    their bytes

The record speaks of every parent so far, by this table and those before it, and lists their shards: the highest table
tells all. A table is created if absent. The digest in a tar's name is of what it holds, because the tar is there before
its table, and two runs may be after the same number: who comes second reads the first one's record and adds only what
is lacking there.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.codec.images import decode
from curate.codec.tars import TarWriter, read_spans
from curate.core import facts
from curate.core.contracts import Child, Derive, Sample
from curate.core.errors import AlreadyExistsError, CorruptError, CurateError, Reject
from curate.core.hashing import canonical, digest, make_child_key
from curate.core.ledger import SET_ASIDE, Entry
from curate.core.nouns import POOL_SCHEMA, Shard, read_pool
from curate.core.rows import Rows
from curate.core.secrets import redact
from curate.core.storage import Storage
from curate.engine.backends import set_up
from curate.engine.passes.batches import KILLED
from curate.engine.passes.task import ATTEMPTS, locate
from curate.engine.units.tasks import content_id, dump, probed

DONE, UNUSABLE, ERROR = facts.STATUS
RECORD = b"record"
COVERS = "covers.parquet"
"""File of a version: what is known of each shard of the parents, and the number of its highest table."""
INHERITED = ("source_id", "name", "caption", "url")
READ = ("key", *INHERITED, "meta", "root", "offset", "size")
"""Columns of a parent."""


@dataclass(frozen=True)
class Parent:
    """What became of a parent, how many children it has, and the number of their shard."""

    status: str
    reason: str | None
    children: int
    number: int


@dataclass
class Record:
    """What is known of one shard's parents, by row, and their children's shards, by number."""

    parents: dict[int, Parent] = field(default_factory=dict)
    shards: dict[int, Shard] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    """Reason -> an example of what was said."""

    def lacking(self, rows: Sequence[int], retry: Sequence[str] | None) -> list[int]:
        """Those without a status; with `retry`, those in error too, for these reasons or (none given) for any."""

        def again(known: Parent) -> bool:
            return retry is not None and known.status == ERROR and (not retry or known.reason in retry)

        return [row for row in rows if row not in self.parents or again(self.parents[row])]

    def and_(self, other: Record) -> Record:
        parents, shards = {**self.parents, **other.parents}, {**self.shards, **other.shards}
        return Record(parents, shards, {**self.messages, **other.messages})

    def dump(self) -> bytes:
        parents = [[row, *asdict(parent).values()] for row, parent in sorted(self.parents.items())]
        shards = [[number, shard.to_json()] for number, shard in sorted(self.shards.items())]
        return dump({"parents": parents, "shards": shards, "messages": self.messages})

    @classmethod
    def load(cls, data: bytes) -> Record:
        value = json.loads(data)
        parents = {row: Parent(*rest) for row, *rest in value["parents"]}
        return cls(parents, {number: Shard(**shard) for number, shard in value["shards"]}, value["messages"])


def read_record(storage: Storage, folder: str, shard: str, number: int) -> Record:
    """What table `number` says of a shard's parents; nothing where there is no table yet."""
    if not number:
        return Record()
    path = facts.table_path(folder, shard, number)
    try:
        with storage.open(path) as file:
            return Record.load(pq.read_schema(file).metadata[RECORD])
    except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise CorruptError(
            f"{storage.url_of(path)}: this table of derived samples is corrupt or missing ({text}); remove the folder "
            f"{folder}/{shard} and run the recipe again"
        ) from error


@dataclass(frozen=True)
class DeriveTask:
    storage: Storage
    stage: Derive
    rows: Rows
    """The parents."""
    ports: Mapping[str, str]
    shard: Shard
    folder: str
    number: int
    """Of the highest table."""
    retry: tuple[str, ...] | None = None
    """Reasons whose parents in error are tried again (none named: all); None: none is."""
    poison: tuple[int, ...] = ()
    """Rows that kill the process."""
    mark: bool = False
    """Leave a mark while the shard is under way, as a pass does."""
    probe: tuple[int, int] | None = None
    """Go over these rows only and publish nothing."""
    aside: str = ""
    """Why the shard was set aside: every parent that is lacking gets an error."""

    @property
    def attempt(self) -> str:
        return f"{self.folder}/{ATTEMPTS}/{self.shard.id}"


def derive_shard(task: DeriveTask) -> dict[str, Any]:
    """Make what is lacking. Returns what the driver needs to know of the shard."""
    began, storage = time.perf_counter(), task.storage
    if task.mark:
        storage.mark(task.attempt)
    alive = task.rows.alive(task.shard)
    number = task.number
    record = read_record(storage, task.folder, task.shard.id, number)
    wanted = record.lacking(np.flatnonzero(alive).tolist(), task.retry)
    if task.probe is not None:
        wanted = [row for row in wanted if task.probe[0] <= row < task.probe[1]]
    computed = repeated = 0
    while wanted:
        made = _make(task, number + 1, record, wanted)
        if task.probe is not None:
            return {}
        computed += len(wanted)
        try:
            number, record, wanted = number + made.create(task, record), record.and_(made.record), []
        except AlreadyExistsError:  # another run was first: what it covers is done
            number += 1
            record = read_record(storage, task.folder, task.shard.id, number)
            left = record.lacking(wanted, task.retry)
            repeated, wanted = repeated + len(wanted) - len(left), left
    if task.mark:
        storage.remove(task.attempt)
    counts = {"computed": computed, "repeated": repeated, "seconds": time.perf_counter() - began}
    return told(task.shard, alive, number, record) | counts


def told(shard: Shard, alive: NDArray[np.bool_], number: int, record: Record) -> dict[str, Any]:
    """What a record says of the alive parents: the ledger, and which children are alive, by shard."""
    entry = Entry(int(alive.sum()), children=0)
    held: dict[int, list[int]] = {number: [] for number in record.shards}
    for row in np.flatnonzero(alive).tolist():
        parent = record.parents[row]
        entry.after += parent.status == DONE
        if parent.status != DONE:
            (entry.unusable if parent.status == UNUSABLE else entry.error)[str(parent.reason)] += 1
        elif parent.children:
            entry.children = (entry.children or 0) + parent.children
            held[parent.number].append(row)
    return {
        "id": shard.id,
        "number": number,
        "entry": entry.check(shard.id).to_json(),
        "shards": [replace(s, parent=dump(shard.to_json()).decode()).to_json() for s in record.shards.values()],
        "alive": {record.shards[n].id: digest(rows) if rows else "" for n, rows in held.items()},
        "messages": record.messages,
    }


# --- making children --------------------------------------------------------------------------------------------------


@dataclass
class _Made:
    record: Record
    table: pa.Table
    path: str

    def create(self, task: DeriveTask, before: Record) -> int:
        """Create the table: 1; 0 if it would say nothing new, because what was tried again failed as it did before."""
        if all(before.parents.get(row) == parent for row, parent in self.record.parents.items()):
            return 0
        table = self.table.replace_schema_metadata({RECORD: before.and_(self.record).dump()})
        task.storage.create_table(self.path, table)
        return 1


def _make(task: DeriveTask, number: int, before: Record, rows: list[int]) -> _Made:
    """The children of some parents: their tar published, their table not yet."""
    folder = f"{task.folder}/{task.shard.id}"
    path = facts.table_path(task.folder, task.shard.id, number)
    with task.storage.scratch(folder) as aside:
        with open(aside, "w+b") as file:
            children = _Children(task, number, file)
            children.add(rows)
            children.tar.close()
        record, table = children.record, pa.Table.from_pylist(children.lines, schema=POOL_SCHEMA)
        if children.lines and task.probe is None:
            name = content_id(table)
            tar = f"{folder}/{number:06d}-{name[:16]}.tar"
            record.shards[number] = Shard(name, table.num_rows, tar, aside.stat().st_size, path)
            task.storage.adopt(aside, tar)
    for row, parent in record.parents.items():  # an error stays the error that it was
        known = before.parents.get(row)
        if known is not None and (known.status, known.reason) == (parent.status, parent.reason):
            record.parents[row] = known
    return _Made(record, table, path)


class _Children:
    """Children on their way into a tar."""

    def __init__(self, task: DeriveTask, number: int, file: BinaryIO) -> None:
        self.task, self.number, self.file, self.tar = task, number, file, TarWriter(file)
        self.record = Record()
        self.lines: list[dict[str, Any]] = []

    def add(self, rows: list[int]) -> None:
        if self.task.aside:
            for row in rows:
                self._lost(row, ERROR, SET_ASIDE)
            return
        stage: Derive = set_up(self.task.folder, self.task.stage, dict(self.task.ports), self.task.storage)  # type: ignore[assignment]
        for row, parent, data in self._parents(rows):
            if row in self.task.poison:
                self._lost(row, ERROR, KILLED)
            elif data is None:
                self._lost(row, UNUSABLE, "no_data")
            else:
                self._family(stage, row, parent, data)

    def _parents(self, rows: list[int]) -> Iterator[tuple[int, dict[str, Any], bytes | None]]:
        task = self.task
        table = read_pool(task.storage, task.shard.table, list(READ)).take(pa.array(rows, pa.int64()))
        parents = table.to_pylist()
        fs, path = locate(task.storage, task.shard)
        spans = [(parent["offset"], parent["size"]) for parent in parents if parent["offset"] is not None]
        data = read_spans(fs, path, spans, task.shard.tar_bytes)
        for row, parent in zip(rows, parents, strict=True):
            yield row, parent, None if parent["offset"] is None else next(data)

    def _family(self, stage: Derive, row: int, parent: dict[str, Any], data: bytes) -> None:
        """All children of a parent, or none."""
        start, lines = self.tar.offset, list[dict[str, Any]]()
        try:
            sample = Sample(data, decode, {name: parent[name] for name in ("key", *INHERITED, "meta")})
            for child in stage.children(sample):
                lines.append(self._line(stage, row, parent, child))
            keys = [line["key"] for line in lines]
            if len(set(keys)) < len(keys):
                raise ValueError(f"{stage.op}: a span comes twice; every child needs one of its own")
        except Reject as reject:
            self._take_back(start)
            self._lost(row, UNUSABLE, reject.reason)
        except CurateError:
            raise
        except Exception as error:  # noqa: BLE001 - the sample boundary: one bad sample is one parent's status
            self._take_back(start)
            name = type(error).__name__
            self._lost(row, ERROR, name)
            self.record.messages.setdefault(name, redact(f"{name}: {error}", stage.secrets().values()))
        else:
            self.lines += lines
            self.record.parents[row] = Parent(DONE, None, len(lines), self.number)

    def _line(self, stage: Derive, row: int, parent: dict[str, Any], child: Child) -> dict[str, Any]:
        key = make_child_key(parent["key"], stage.child_kind, child.span)
        part = ",".join(f"{name}={value}" for name, value in sorted(child.span.items()))
        line = {name: parent[name] for name in INHERITED} | {"key": key, "ext": child.ext, "reject": None}
        line |= {name: f"{parent[name]}#{part}" for name in ("source_id", "name")}
        line |= {"parent": parent["key"], "root": parent["root"] or parent["key"], "parent_row": row}
        line |= {"span": canonical(child.span), "meta": json.dumps(child.meta, sort_keys=True, ensure_ascii=False)}
        line |= {"sha256": hashlib.sha256(child.data).hexdigest(), "size": len(child.data), **probed(child.data)}
        return line | {"offset": self.tar.add(f"{key}.{child.ext or 'bin'}", child.data)}

    def _take_back(self, start: int) -> None:
        self.file.seek(start)
        self.file.truncate()
        self.tar.offset = start

    def _lost(self, row: int, status: str, reason: str) -> None:
        self.record.parents[row] = Parent(status, reason, 0, self.number)
