"""The steps of a Pack: rank every copy, cut the order into near-equal shards, fetch each shard's members, write it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.codec.tars import TarWriter, read_spans
from curate.core.contracts import Pack
from curate.core.errors import CurateError, Reject, StorageError
from curate.core.hashing import digest_bytes, ranks
from curate.core.items import element, per_item
from curate.core.nouns import Shard, read_selection, read_shards
from curate.core.rows import POOL_COLUMNS, Rows
from curate.core.storage import Storage, open_storage
from curate.engine import shuffle
from curate.engine.backends import set_up
from curate.engine.passes.task import locate
from curate.engine.units.tasks import dump


@dataclass(frozen=True)
class PackTask:
    storage: Storage
    stage: Pack
    rows: Rows
    selection: str
    base: str
    buckets: int
    pool: str
    """Base of the pool, whose list of shards is read where it is needed: a task is small in a pool of any size."""
    index: int = 0
    start: int = 0
    stop: int = 0
    starts: tuple[int, ...] = ()
    """First position of each bucket of the global order."""
    parts: int = 0
    """How many files of the step before there are to read."""

    @property
    def tar(self) -> str:
        return f"{self.stage.name}-{self.index:06d}.tar"


def pack_scatter(task: PackTask) -> tuple[int, int]:
    """One bucket of the selection -> its copies, by range of rank. Returns rows and copies."""
    table = read_selection(task.storage, task.selection, f"buckets/{task.index:06d}.parquet")
    copies = table.column("copies").to_numpy() * _alive(task, table)
    which = np.repeat(np.arange(table.num_rows), copies)
    first = np.repeat(np.cumsum(copies) - copies, copies)
    copy = np.arange(len(which)) - first
    rows = table.select(["key", "item", "shard", "row"]).take(pa.array(which))
    salts = np.array([_item_salt(item) for item in rows.column("item").to_pylist()], dtype=np.uint64)
    rank = ranks(task.stage.seed, rows.column("key").to_pylist(), salts, copy)
    rows = rows.append_column("copy", pa.array(copy, pa.int32())).append_column("rank", pa.array(rank))
    bucket = (rank >> np.uint64(44)).astype(np.int64) * task.buckets >> 20
    shuffle.write(task.storage, f"{task.base}/order/scatter-{task.index:06d}.parquet", rows, bucket, task.buckets)
    return int(np.count_nonzero(copies)), rows.num_rows


def _alive(task: PackTask, table: pa.Table) -> NDArray[np.bool_]:
    """False for the rows and items that a stage behind the selection has taken out."""
    keep = np.ones(table.num_rows, dtype=bool)
    if task.rows.selection is not None:  # nothing stands between
        return keep
    by_id = _shards_of(task.storage.url, task.pool)
    shards = np.asarray(table.column("shard").to_pylist(), dtype=object)
    row, item = table.column("row").to_numpy(), table.column("item").to_pylist()
    edges = [0, *(np.flatnonzero(shards[1:] != shards[:-1]) + 1).tolist(), table.num_rows]  # rows are sorted by shard
    for start, stop in pairwise(edges) if len(shards) else ():
        fate = task.rows.fate(by_id[shards[start]])
        keep[start:stop] = fate.alive[row[start:stop]]
        for lists in fate.items.values():
            for place in np.flatnonzero(keep[start:stop]) + start:
                keep[place] &= element(lists[row[place]], item[place]) is None
    return keep


def _item_salt(item: str) -> int:
    return int(item) if item.isdigit() and len(item) < 19 else int(digest_bytes([item.encode()])[:16], 16)


def pack_order(task: PackTask) -> int:
    """One range of ranks, sorted: a stretch of the global order."""
    paths = [f"{task.base}/order/scatter-{i:06d}.parquet" for i in range(task.parts)]
    rows = shuffle.read(task.storage, paths, task.index)
    order = [("rank", "ascending"), ("key", "ascending"), ("item", "ascending"), ("copy", "ascending")]
    task.storage.publish_table(f"{task.base}/order/{task.index:06d}.parquet", rows.sort_by(order))
    return rows.num_rows


def pack_shard(task: PackTask) -> dict[str, Any]:
    """One output tar, and its part of the index."""
    began = time.perf_counter()
    stage: Pack = set_up(task.base, task.stage, {}, task.storage)  # type: ignore[assignment]
    rows = _stretch(task)
    facts, data, itemised = _gather(task, rows)
    _check_texts(stage, rows, facts, itemised)
    part: list[dict[str, Any]] = []
    rejected: Counter[str] = Counter()
    with task.storage.publish(f"{task.base}/{task.tar}") as path, open(path, "wb") as file, TarWriter(file) as tar:
        for row in rows.to_pylist():
            place = (row["shard"], row["row"])
            fact = facts[place] | {"item": row["item"], "copy": row["copy"]}
            fact |= {name: element(fact[name], row["item"]) for name in itemised}
            try:
                packed = stage.write(fact, data[place], tar.add)
            except Reject as reject:
                rejected[reject.reason] += row["copy"] == 0
                continue
            line = {"shard": task.index, "row": len(part), "name": f"{row['key']}-{row['item']}-{row['copy']}"}
            line |= {"key": row["key"], "item": row["item"], "copy": row["copy"]} | vars(packed)
            del line["carried"]
            part.append(line | packed.carried)
    index = _index_table(part).replace_schema_metadata({"rejected": dump(rejected)})
    task.storage.publish_table(f"{task.base}/parts/{task.index:06d}.parquet", index)
    return {"rows": len(part), "bytes": tar.offset, "seconds": time.perf_counter() - began, "index": task.index}


def _stretch(task: PackTask) -> pa.Table:
    """Rows [start, stop) of the global order."""
    parts = []
    for bucket, first in enumerate(task.starts):
        last = task.starts[bucket + 1] if bucket + 1 < len(task.starts) else None
        if first < task.stop and (last is None or last > task.start):
            table = task.storage.read_table(f"{task.base}/order/{bucket:06d}.parquet")
            low = max(0, task.start - first)
            parts.append(table.slice(low, task.stop - first - low))
    return pa.concat_tables(parts)


def _gather(
    task: PackTask, rows: pa.Table
) -> tuple[dict[tuple[str, int], dict[str, Any]], dict[tuple[str, int], bytes], set[str]]:
    """Facts and bytes of the rows by (shard id, row), a pool shard at a time; and which facts are one per item."""
    made = {name for ref in task.rows.columns for name in ref.names}
    extra = [name for name in task.stage.text_columns() if name in made]
    names = tuple(dict.fromkeys((*POOL_COLUMNS, *task.stage.reads(), *extra)))
    by_id = _shards_of(task.storage.url, task.pool)
    wanted: dict[str, set[int]] = {}
    for shard_id, row in zip(rows.column("shard").to_pylist(), rows.column("row").to_pylist(), strict=True):
        wanted.setdefault(shard_id, set()).add(row)
    facts: dict[tuple[str, int], dict[str, Any]] = {}
    data: dict[tuple[str, int], bytes] = {}
    itemised: set[str] = set()
    for shard_id, members in sorted(wanted.items()):
        shard = by_id[shard_id]
        index = sorted(members)
        table = task.rows.table(shard, names).take(pa.array(index))
        itemised |= {field.name for field in table.schema if per_item(field)}
        spans = list(zip(table.column("offset").to_pylist(), table.column("size").to_pylist(), strict=True))
        fs, path = locate(task.storage, shard)
        for row, fact, member in zip(
            index, table.to_pylist(), read_spans(fs, path, spans, shard.tar_bytes), strict=True
        ):
            facts[shard_id, row], data[shard_id, row] = fact, member
    return facts, data, itemised


def _check_texts(stage: Pack, rows: pa.Table, facts: dict[tuple[str, int], dict[str, Any]], itemised: set[str]) -> None:
    """Raises CurateError where items beyond the first would all be given the same text."""
    known = next(iter(facts.values()), {})
    text = next((name for name in stage.text_columns() if name in known), None)
    if text is None or text in itemised:
        return
    for key, item in zip(rows.column("key").to_pylist(), rows.column("item").to_pylist(), strict=True):
        if item != "0":
            raise CurateError(
                f"{stage.op}.text: {text!r} has one text a row, but item {item} of {key} was selected; name the list "
                "column that the selection's items are of, such as text: sentences"
            )


@lru_cache(maxsize=2)
def _shards_of(url: str, pool: str) -> dict[str, Shard]:
    return {shard.id: shard for shard in read_shards(open_storage(url), pool)}


def _index_table(part: Sequence[dict[str, Any]]) -> pa.Table:
    """The fixed columns, and what the samples carry; nobody knows the latter where every sample was left out."""
    fixed = [
        ("shard", pa.int32()), ("row", pa.int32()), ("name", pa.string()), ("key", pa.string()), ("item", pa.string()),
        ("copy", pa.int32()), ("ext", pa.string()), ("offset", pa.int64()), ("size", pa.int64()),
        ("text_offset", pa.int64()), ("text_size", pa.int64()), ("width", pa.int32()), ("height", pa.int32()),
    ]  # fmt: skip
    columns = {name: pa.array([line[name] for line in part], kind) for name, kind in fixed}
    carried = [name for name in (part[0] if part else ()) if name not in columns]
    return pa.table(columns | {name: pa.array([line[name] for line in part]) for name in carried})


def pack_finish(task: PackTask) -> dict[str, Any]:
    """Join the parts of the index, a part at a time, and publish the stage's further files."""
    paths = [f"{task.base}/parts/{i:06d}.parquet" for i in range(task.parts)]
    schemas = [_schema(task.storage, path) for path in paths]
    rejected = sum((Counter(json.loads(schema.metadata[b"rejected"])) for schema in schemas), Counter[str]())
    schema = pa.unify_schemas([s.remove_metadata() for s in schemas], promote_options="permissive")
    counts: list[tuple[str, int]] = []
    with (
        task.storage.publish(f"{task.base}/index.parquet") as aside,
        pq.ParquetWriter(aside, schema, compression="zstd") as out,
    ):
        for number, table in enumerate(_parts(task.storage, paths)):
            whole = pa.concat_tables([schema.empty_table(), table], promote_options="permissive")
            out.write_table(whole.cast(schema))
            counts.append((f"{task.stage.name}-{number:06d}.tar", table.num_rows))
    for name, content in task.stage.finish(counts).items():
        task.storage.publish_bytes(f"{task.base}/{name}", content)
    sizes = task.storage.list(task.base)
    missing = [tar for tar, _ in counts if tar not in sizes]
    if missing:
        raise StorageError(f"{task.storage.url_of(task.base)}: {missing[0]} is gone; remove the folder and run again")
    rows = sum(n for _, n in counts)
    return {"tars": {tar: sizes[tar] for tar, _ in counts}, "rows": rows, "rejected": dict(rejected)}


def _schema(storage: Storage, path: str) -> pa.Schema:
    with storage.open(path) as file:
        return pq.read_schema(file)


def _parts(storage: Storage, paths: list[str]) -> Iterator[pa.Table]:
    for path in paths:
        yield storage.read_table(path)
