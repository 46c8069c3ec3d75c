"""What workers do besides Map passes: import a portion, the steps of a Reduce; functions of one payload."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.codec.images import probe
from curate.codec.tars import TarWriter, read_spans
from curate.core.contracts import Incoming, Portion, Reduce, Source
from curate.core.errors import Undecodable
from curate.core.hashing import digest, digest_bytes, key_words, make_key, rank_below, ranks
from curate.core.ledger import Entry
from curate.core.nouns import POOL_SCHEMA, Shard, read_pool, save_artifact
from curate.core.rows import Rows
from curate.core.storage import Storage, open_storage
from curate.engine.backends import set_up

T = TypeVar("T")

READERS = 16
"""Small objects that one task reads at a time: an object store answers in tens of milliseconds."""


def dump(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def read_ledger(schema: pa.Schema) -> dict[str, Any]:
    """What a task wrote into a table's footer."""
    return json.loads(schema.metadata[b"ledger"])  # type: ignore[no-any-return]


# --- Source -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImportTask:
    storage: Storage
    stage: Source
    portion: Portion
    record: str
    """Where the portion's shard is written down once it is complete."""
    inside: float = 1.0
    """Share of the portion's rows to take, by rank: below 1 in a canary run."""

    def read(self) -> Iterator[Incoming]:
        for item in self.stage.read(self.portion):
            key = make_key(self.stage.namespace, item.source_id)
            if self.inside >= 1.0 or rank_below(ranks(0, [key]), self.inside)[0]:
                yield item


def import_portion(task: ImportTask) -> dict[str, Any]:
    """Write the shard of one portion: its tar (unless it stays in place), then its table, then the record of it."""
    began = time.perf_counter()
    place = task.stage.tar(task.portion)
    base = f"pools/{task.stage.namespace}/shards"
    if place is None:
        shard, table = _copy_in(task, base)
    else:
        shard, table = _index_in_place(task, base, place)
    rejected = Counter(reason for reason in table.column("reject").to_pylist() if reason)
    entry = Entry(shard.rows, rejected, shard.rows - sum(rejected.values()))
    record = {"shard": shard.to_json(), "entry": entry.to_json()}
    task.storage.publish_bytes(task.record, dump(record))
    return record | {"seconds": time.perf_counter() - began, "rows": shard.rows}


def _copy_in(task: ImportTask, base: str) -> tuple[Shard, pa.Table]:
    rows: list[dict[str, Any]] = []
    with task.storage.scratch(base) as path:
        with open(path, "wb") as file, TarWriter(file) as tar:
            for incoming in task.read():
                row = _row(task.stage, incoming, incoming.data)
                if incoming.data is not None:
                    row["offset"] = tar.add(f"{row['key']}.{row['ext'] or 'bin'}", incoming.data)
                    row["size"] = len(incoming.data)
                rows.append(row)
        table = _table(rows)
        identity = content_id(table)
        size = path.stat().st_size
        shard = Shard(identity, len(rows), f"{base}/{identity}.tar", size, f"{base}/{identity}.parquet")
        task.storage.adopt(path, shard.tar)
    task.storage.publish_table(shard.table, table)
    return shard, table


def _index_in_place(task: ImportTask, base: str, place: str) -> tuple[Shard, pa.Table]:
    source = open_storage(place)
    size = int(source.fs.size(source.root))
    found = list(task.read())
    spans = [(item.offset, item.size) for item in found if item.offset is not None and item.size is not None]
    data = read_spans(source.fs, source.root, spans, size)
    rows = []
    for item in found:
        held = item.offset is not None and item.size is not None
        row = _row(task.stage, item, next(data) if held else None)
        row["offset"], row["size"] = (item.offset, item.size) if held else (None, None)
        rows.append(row)
    table = _table(rows)
    identity = content_id(table)
    shard = Shard(identity, len(rows), source.url, size, f"{base}/{identity}.parquet")
    task.storage.publish_table(shard.table, table)
    return shard, table


def _row(stage: Source, item: Incoming, data: bytes | None) -> dict[str, Any]:
    key = make_key(stage.namespace, item.source_id)
    row: dict[str, Any] = {
        "key": key,
        "source_id": item.source_id.encode("utf-8", "replace").decode(),
        "name": item.name or key,
        "ext": item.ext,
        "caption": item.caption,
        "url": item.url,
        "meta": json.dumps(item.meta, sort_keys=True, ensure_ascii=False),
        "reject": item.reject,
        "sha256": hashlib.sha256(data).hexdigest() if data is not None else None,
    }
    row |= dict.fromkeys(("offset", "size", "parent", "root", "span", "parent_row"))
    return row | probed(data)


def probed(data: bytes | None) -> dict[str, Any]:
    """What an image's headers say, as columns of a pool."""
    try:
        found = probe(data) if data else None
    except Undecodable:
        found = None  # `image.inspect` rejects it, with the reason
    return {name: getattr(found, name, None) for name in ("width", "height", "format")}


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """The pool table; a key that an alive row before has is rejected, as it is across shards."""
    seen: set[str] = set()
    for row in rows:
        if row["reject"] is None and row["key"] in seen:
            row["reject"] = "duplicate_key"
        elif row["reject"] is None:
            seen.add(row["key"])
    return pa.Table.from_pylist(rows, schema=POOL_SCHEMA)


def content_id(table: pa.Table) -> str:
    return digest_bytes(json.dumps(row, sort_keys=True).encode() for row in table.to_pylist())


@dataclass(frozen=True)
class AmendTask:
    storage: Storage
    namespace: str
    shard: Shard
    rows: tuple[int, ...]


def amend_shard(task: AmendTask) -> dict[str, Any]:
    """A shard whose `rows` repeat keys of earlier shards, as a new shard over the same tar that refuses them."""
    table = read_pool(task.storage, task.shard.table)
    reasons = table.column("reject").to_pylist()
    for row in task.rows:
        reasons[row] = reasons[row] or "duplicate_key"
    table = table.set_column(
        table.schema.get_field_index("reject"), POOL_SCHEMA.field("reject"), pa.array(reasons, pa.string())
    )
    identity = content_id(table)
    shard = replace(task.shard, id=identity, table=f"pools/{task.namespace}/shards/{identity}.parquet")
    if not task.storage.exists(shard.table):  # its name is its content
        task.storage.publish_table(shard.table, table)
    rejected = Counter(reason for reason in reasons if reason)
    return {
        "shard": shard.to_json(),
        "entry": Entry(shard.rows, rejected, shard.rows - sum(rejected.values())).to_json(),
    }


@dataclass(frozen=True)
class RepeatsTask:
    storage: Storage
    shards: tuple[Shard, ...]
    bucket: int
    buckets: int


def find_repeats(task: RepeatsTask) -> list[tuple[int, int]]:
    """(shard index, row) of live rows whose key an earlier row of the pool has, among the keys of one bucket."""
    words, places = [], []
    for number, shard in enumerate(task.shards):
        table = read_pool(task.storage, shard.table, ["key", "reject"])
        rows = np.flatnonzero(pc.is_null(table.column("reject")).to_numpy(zero_copy_only=False))
        word = key_words(table.column("key").take(pa.array(rows)).to_pylist())
        mine = word[:, 0] % np.uint64(task.buckets) == task.bucket
        words.append(word[mine])
        places.append(np.stack([np.full(mine.sum(), number), rows[mine]], axis=1))
    word, place = np.concatenate(words), np.concatenate(places)
    order = np.lexsort((place[:, 1], place[:, 0], word[:, 1], word[:, 0]))
    same = np.all(word[order][1:] == word[order][:-1], axis=1)
    return [(int(a), int(b)) for a, b in place[order][1:][same]]


# --- Reduce -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartialTask:
    storage: Storage
    stage: Reduce
    rows: Rows
    ports: dict[str, str]
    shards: tuple[Shard, ...]
    states: tuple[str, ...]
    """Where each shard's state goes."""


def reduce_partial(task: PartialTask) -> list[dict[str, Any]]:
    results = []
    folder = task.states[0].rpartition("/")[0]
    stage: Reduce = set_up(folder, task.stage, task.ports, task.storage)  # type: ignore[assignment]
    for shard, path in zip(task.shards, task.states, strict=True):
        table = task.rows.live_table(shard, stage.reads())
        state = stage.partial(table)
        result = {"shard": shard.id, "rows": table.num_rows}
        metadata = (state.schema.metadata or {}) | {b"ledger": dump(result)}
        task.storage.publish_table(path, state.replace_schema_metadata(metadata))
        results.append(result)
    return results


@dataclass(frozen=True)
class FinishTask:
    storage: Storage
    stage: Reduce
    ports: dict[str, str]
    states: tuple[str, ...]
    base: str


def reduce_finish(task: FinishTask) -> dict[str, Any]:
    """Merge the states in shard order, finish, publish the artifact's parts (its manifest is the driver's)."""
    stage: Reduce = set_up(task.base, task.stage, task.ports, task.storage)  # type: ignore[assignment]
    merged = stage.merge(task.storage.read_table(path) for path in task.states)
    artifact = stage.finish(merged)
    size, digests = save_artifact(task.storage, task.base, artifact)
    return {"bytes": size, "content": digest(digests)}


@dataclass(frozen=True)
class DigestTask:
    storage: Storage
    path: str


def digest_file(task: DigestTask) -> str:
    """Digest of a file's bytes, read a piece at a time."""
    with task.storage.open(task.path) as file:
        return digest_bytes(iter(lambda: file.read(1 << 24), b""))


# --- reading ----------------------------------------------------------------------------------------------------------


def fetched(read: Callable[[str], T], paths: Sequence[str]) -> Iterator[T]:
    """What `read` makes of many small objects, in order, some READERS of them under way at a time."""
    with ThreadPoolExecutor(READERS) as pool:
        waiting: deque[Future[T]] = deque()
        for path in paths:
            waiting.append(pool.submit(read, path))
            if len(waiting) == 2 * READERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
