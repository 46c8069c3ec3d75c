"""The record of one shard's parents: what each became, and their children's shards.

    pools/<namespace>/derived/<fingerprint>/<parents' shard>/000001.parquet     children; its footer is the record
    pools/<namespace>/derived/<fingerprint>/<parents' shard>/000001-<id>.tar    their bytes

A record covers every parent of its table and of the tables before it, and lists their shards, so the highest table has
everything. A table is created only if its number is free. A tar's name has the digest of its content, because
it is published before its table, and two runs may want the same number: the second run reads the first one's record and
adds only what is missing there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns import facts
from curate.core.nouns.manifest import reading
from curate.core.nouns.pools import Shard
from curate.core.store.storage import Storage
from curate.engine.units.common import dump

DONE, UNUSABLE, ERROR = facts.STATUS
ERROR_UPSTREAM = "error_upstream"
"""Reason of a parent for which a column that the stage reads is in error."""
RECORD = b"record"
"""Key of the record in a table's footer."""
ParentsResult = dict[str, Any]
"""The driver's record of a parents' shard: `id`, `number` of its table, `entry`, `shards`, `alive`, `messages`."""


@dataclass(frozen=True)
class Parent:
    """Status of a parent, its number of children, and the number of the table that has them."""

    status: str
    reason: str | None
    children: int
    number: int


@dataclass
class Record:
    """Parents of one shard, by row, and their children's shards, by number of the table."""

    parents: dict[int, Parent] = field(default_factory=dict)
    shards: dict[int, Shard] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    """Reason of an error -> an example of its message."""

    def missing(self, rows: Sequence[int], retry: Sequence[str] | None, marked: NDArray[np.bool_]) -> list[int]:
        """Rows without a status; rows in error because a column that they read was, if it no longer is (`marked`);
        with `retry`, also rows in error for these reasons (empty: any)."""

        def retried(row: int, parent: Parent) -> bool:
            if parent.reason == ERROR_UPSTREAM and not marked[row]:
                return True
            return retry is not None and parent.status == ERROR and (not retry or parent.reason in retry)

        return [row for row in rows if row not in self.parents or retried(row, self.parents[row])]

    def merged(self, other: Record) -> Record:
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
    """The record in a shard's table `number`; empty for number 0. Raises CorruptError."""
    if not number:
        return Record()
    path = facts.table_path(folder, shard, number)
    remedy = f"remove the folder {folder}/{shard} and rerun the recipe"
    with reading(storage, path, "table of derived samples", remedy), storage.open(path) as file:
        return Record.load(pq.read_schema(file).metadata[RECORD])


def result_of(shard: Shard, alive: NDArray[np.bool_], number: int, record: Record) -> ParentsResult:
    """A shard's result for its alive parents: the ledger, and a digest of the alive children in each child shard."""
    entry = Entry(int(alive.sum()), children=0)
    alive_in: dict[int, list[int]] = {number: [] for number in record.shards}
    for row in np.flatnonzero(alive).tolist():
        parent = record.parents[row]
        entry.after += parent.status == DONE
        if parent.status != DONE:
            (entry.unusable if parent.status == UNUSABLE else entry.error)[str(parent.reason)] += 1
        elif parent.children:
            entry.children = (entry.children or 0) + parent.children
            alive_in[parent.number].append(row)
    return {
        "id": shard.id,
        "number": number,
        "entry": entry.check(shard.id).to_json(),
        "shards": [made.to_json() for made in record.shards.values()],
        "alive": {record.shards[n].id: digest(rows) if rows else "" for n, rows in alive_in.items()},
        "messages": record.messages,
    }
