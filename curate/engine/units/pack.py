"""Pack: rank every copy, sort them by rank, cut the order into near-equal shards, fetch each one's members, write it.

    work/ranks/<stretch>   copies of a stretch of pool shards, with all that `write` needs of them, by range of rank
    work/order/<range>     a range of ranks, sorted, by output shard
    parts/<shard>.parquet  lines of the index, of one output shard; work/index/<stretch>.parquet: of many

Each pool shard's tables are read once. Members are read once for each output shard that wants them, by range: this is
all that grows with the samples; writing the pool's bytes in the dataset's order first would double what is written.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.codec.tars import TarWriter, read_spans
from curate.core.contracts import Pack, Select
from curate.core.errors import CurateError, Reject, StorageError, TargetError
from curate.core.hashing import digest_bytes, ranks
from curate.core.items import element, per_item
from curate.core.ledger import Entry
from curate.core.nouns import Lines, Shard, read_selected, selection_places
from curate.core.recipe.pipeline import Node
from curate.core.rows import POOL_COLUMNS, Rows
from curate.core.store.storage import Storage
from curate.engine import shuffle
from curate.engine.backends import set_up
from curate.engine.context import Built, Context
from curate.engine.passes.task import locate
from curate.engine.shuffle import Piece, Scattered
from curate.engine.units.common import dump, fetched, tidy
from curate.engine.workers import beat

RANGE_ROWS = 1 << 18
"""Copies in a range of ranks, at most, about: they carry captions and URLs, a kilobyte each."""
INDEX_ROWS = 1 << 17
"""Rows that a row group of the index has at least, if there are as many."""
OWN = ("_item", "_copy", "_rank", "_row", "_tar", "_tar_bytes")
"""Columns of the order beside those that `write` sees."""


def build_pack(ctx: Context, node: Node, built: Built) -> None:
    stage = node.stage
    assert isinstance(stage, Pack)
    began = time.monotonic()
    chosen = next(up for up in ctx.pipeline.along(node.name) if isinstance(up.stage, Select))
    selection = ctx.built[chosen.name]
    assert selection.manifest is not None
    copies = selection.manifest.entry.copies or 0
    if not copies:
        raise TargetError(f"the selection {chosen.name!r} keeps no row; loosen the filters upstream")
    there = ctx.storage.list(built.base)
    common = (ctx.storage, stage, node.name, built.base)
    with ctx.progress.step(node.name, copies) as step:
        ranked = _scatter(ctx, node, selection.base, copies, common, there)
        sizes = np.sum([file.rows for file in ranked], axis=0)
        copies, rows = int(sizes.sum()), sum(file.note["rows"] for file in ranked)
        if not copies:
            raise TargetError(f"no row that {chosen.name!r} keeps reaches it; loosen the filters between them")
        count = -(-copies // stage.shard_rows)
        edges = np.arange(count + 1) * copies // max(1, count)
        order = _order(ctx, node, ranked, sizes, edges, common, there)
        missing = [i for i in range(count) if f"parts/{i:06d}.parquet" not in there]
        shards = (ShardTask(*common, i, _pieces_of(order, i)) for i in missing)
        for _, result in ctx.each(pack_shard, shards, stage, node.name):
            step.advance(result)
        each = max(1, -(-INDEX_ROWS // stage.shard_rows))
        stretches = [(first, min(count, first + each)) for first in range(0, count, each)]
        parts = ctx.must(pack_index, (IndexTask(*common, *stretch) for stretch in stretches), stage, node.name)
        counts = tuple(number for part in parts for number in part)
        [done] = ctx.must(pack_finish, [FinishTask(*common, tuple(stretches), counts)], stage, node.name)
    rejected = Counter(done["rejected"])
    ctx.finish(
        node, built, "dataset", Entry(rows, rejected, rows - rejected.total(), copies=done["rows"]),
        [{"file": name, "bytes": size} for name, size in done["tars"].items()],
        rows=done["rows"], bytes=sum(done["tars"].values()), seconds=round(time.monotonic() - began, 3),
        built_rows=int(np.diff(edges)[missing].sum()), extra={"tars": count},
    )  # fmt: skip
    tidy(ctx, built)


def _scatter(
    ctx: Context, node: Node, selection: str, copies: int, common: tuple[Any, ...], there: dict[str, int]
) -> list[Scattered]:
    """Copies of the pool's shards by range of rank, a file for each stretch of those that give any."""
    rows, places = ctx.rows(node), selection_places(ctx.storage.url, selection)
    shards = [shard for shard in ctx.pool(node).shards if shard.id in places and places[shard.id].copies]
    ranges = shuffle.buckets_for(copies, RANGE_ROWS)
    tasks = []
    for i, (first, stop) in enumerate(shuffle.stretches([places[s.id].copies for s in shards], ranges)):
        some = tuple(shards[first:stop])
        name = shuffle.stretch_name(i, [s.id for s in some], ranges, shuffle.HELD_BYTES)
        tasks.append((f"work/ranks/{name}" in there, name, some))

    payloads = (
        ScatterTask(
            *common, found, name, some, ctx.placed(rows, some), selection, {s.id: places[s.id] for s in some}, ranges
        )
        for found, name, some in tasks
    )
    return ctx.must(pack_scatter, payloads, node.stage, node.name)


def _order(
    ctx: Context,
    node: Node,
    ranked: list[Scattered],
    sizes: NDArray[np.int64],
    edges: NDArray[np.int64],
    common: tuple[Any, ...],
    there: dict[str, int],
) -> list[tuple[int, Scattered]]:
    """(first output shard that it has rows of, file) of each range of ranks that is not empty."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    full = np.flatnonzero(sizes)
    first = np.searchsorted(edges, starts[full], side="right") - 1
    after = np.searchsorted(edges, starts[full + 1], side="left")
    identity = [file.path for file in ranked]
    names = [shuffle.stretch_name(int(number), identity, int(edges[-1]), len(edges)) for number in full]
    payloads = (
        OrderTask(
            *common, f"work/order/{name}" in there, name, shuffle.pieces(ranked, int(number)),
            tuple((edges[low : high + 1] - starts[number]).tolist()),
        )
        for name, number, low, high in zip(names, full, first, after, strict=True)
    )  # fmt: skip
    files = ctx.must(pack_order, payloads, node.stage, node.name)
    return list(zip(first.tolist(), files, strict=True))


def _pieces_of(order: list[tuple[int, Scattered]], shard: int) -> tuple[Piece, ...]:
    """Where the rows of an output shard lie; ranges are in order, and few of them have rows of one shard."""
    found: list[Piece] = []
    place = bisect_right(order, shard, key=lambda pair: pair[0]) - 1
    while place >= 0 and shard - order[place][0] < len(order[place][1].rows):
        first, file = order[place]
        found += shuffle.pieces([file], shard - first)
        place -= 1
    return tuple(reversed(found))


@dataclass(frozen=True)
class PackTask:
    storage: Storage
    stage: Pack
    name: str
    """Of the stage in its recipe."""
    base: str

    def work(self, path: str) -> str:
        return f"{self.base}/work/{path}"

    def tar(self, index: int) -> str:
        return f"{self.stage.name}-{index:06d}.tar"


# --- scatter ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScatterTask(PackTask):
    there: bool
    """An earlier run has published what this task makes."""
    stretch: str
    shards: tuple[Shard, ...]
    rows: Rows
    selection: str
    places: dict[str, Lines]
    """Shard -> its lines of the selection."""
    ranges: int


def pack_scatter(task: ScatterTask) -> Scattered:
    """The copies of a stretch of pool shards, with what `write` needs of them, by range of rank."""
    path = task.work(f"ranks/{task.stretch}")
    if task.there:
        return shuffle.found(task.storage, path)
    note = {"rows": 0}

    def parts() -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
        pulse = beat.current()
        for lines, facts, shard in fetched(partial(_read, task), task.shards):
            pulse.doing(task.name)
            began = time.monotonic()
            table, rank = _copies(task, lines, facts, shard)
            note["rows"] += lines.num_rows
            yield table, (rank >> np.uint64(44)).astype(np.int64) * task.ranges >> 20
            pulse.done(task.name, 0, time.monotonic() - began)

    return shuffle.write(task.storage, path, parts(), task.ranges, note)


def _read(task: ScatterTask, shard: Shard) -> tuple[pa.Table, pa.Table, Shard]:
    """The selection's lines of a shard that give copies, and the facts of a row of the pool for each."""
    made = {name for ref in task.rows.columns for name in ref.names}
    extra = [name for name in task.stage.text_columns() if name in made]
    names = tuple(dict.fromkeys((*POOL_COLUMNS, *task.stage.reads(), *extra)))
    columns = ["item", "copies", "row"]
    lines = read_selected(task.storage, task.selection, task.places.get(shard.id), columns)
    lines = lines.filter(pa.array((lines.column("copies").to_numpy() > 0) & _alive(task.rows, shard, lines)))
    return lines, task.rows.table(shard, names).take(lines.column("row")), shard


def _alive(rows: Rows, shard: Shard, lines: pa.Table) -> NDArray[np.bool_]:
    """False for the rows and items that a stage behind the selection has taken out."""
    if rows.selection is not None:  # nothing stands between
        return np.ones(lines.num_rows, dtype=bool)
    fate, row, item = rows.fate(shard), lines.column("row").to_numpy(), lines.column("item").to_pylist()
    keep = fate.alive[row]
    for lists in fate.items.values():
        for place in np.flatnonzero(keep):
            keep[place] &= element(lists[row[place]], item[place]) is None
    return keep


def _copies(task: ScatterTask, lines: pa.Table, facts: pa.Table, shard: Shard) -> tuple[pa.Table, NDArray[np.uint64]]:
    """A row per copy of each line, and its rank."""
    copies = lines.column("copies").to_numpy()
    which = np.repeat(np.arange(lines.num_rows), copies)
    copy = np.arange(len(which)) - np.repeat(np.cumsum(copies) - copies, copies)
    table = facts.take(pa.array(which)).replace_schema_metadata(None)
    items = lines.column("item").take(pa.array(which))
    salts = np.array([_item_salt(item) for item in items.to_pylist()], dtype=np.uint64)
    rank = ranks(task.stage.seed, table.column("key").to_pylist(), salts, copy)
    tar = pa.array([shard.tar]).take(pa.array(np.zeros(len(which), np.int64)))
    size = np.full(len(which), shard.tar_bytes, np.int64)
    row = lines.column("row").take(pa.array(which)).cast(pa.int32())
    for name, values in zip(OWN, (items, pa.array(copy, pa.int32()), pa.array(rank), row, tar, size), strict=True):
        table = table.append_column(name, values if not isinstance(values, np.ndarray) else pa.array(values))
    return table, rank


def _item_salt(item: str) -> int:
    return int(item) if item.isdigit() and len(item) < 19 else int(digest_bytes([item.encode()])[:16], 16)


# --- order ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OrderTask(PackTask):
    there: bool
    range: str
    pieces: tuple[Piece, ...]
    edges: tuple[int, ...]
    """Where output shards begin, and the last one ends, counted from the range's first row."""


def pack_order(task: OrderTask) -> Scattered:
    """One range of ranks, sorted: a stretch of the global order, cut where output shards begin."""
    path = task.work(f"order/{task.range}")
    if task.there:
        return shuffle.found(task.storage, path)
    pulse = beat.current()
    pulse.doing(task.name)
    began = time.monotonic()
    rows = shuffle.read(task.storage, task.pieces)
    order = [("_rank", "ascending"), ("key", "ascending"), ("_item", "ascending"), ("_copy", "ascending")]
    rows = rows.sort_by(order).drop_columns("_rank")
    shard = np.searchsorted(task.edges, np.arange(rows.num_rows), side="right") - 1
    found = shuffle.write(task.storage, path, [(rows, shard)], len(task.edges) - 1)
    pulse.done(task.name, 0, time.monotonic() - began)
    return found


# --- output shards ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShardTask(PackTask):
    index: int
    pieces: tuple[Piece, ...]


def pack_shard(task: ShardTask) -> int:
    """One output tar, and its part of the index. Returns its rows."""
    stage: Pack = set_up(task.base, task.stage, {}, task.storage)  # type: ignore[assignment]
    pulse = beat.current()
    pulse.doing(task.name)
    began = time.monotonic()
    table = shuffle.read(task.storage, task.pieces)
    itemised = {field.name for field in table.schema if per_item(field)}
    rows = table.to_pylist()
    data = _members(task.storage, rows)
    _check_texts(stage, rows, itemised)
    part: list[dict[str, Any]] = []
    rejected: Counter[str] = Counter()
    tar_path = f"{task.base}/{task.tar(task.index)}"
    with task.storage.publish(tar_path) as path, open(path, "wb") as file, TarWriter(file) as tar:
        for row in rows:
            own = {name: row.pop(name, None) for name in OWN}
            fact = row | {"item": own["_item"], "copy": own["_copy"]}
            fact |= {name: element(fact[name], own["_item"]) for name in itemised}
            try:
                packed = stage.write(fact, data[own["_tar"], own["_row"]], tar.add)
            except Reject as reject:
                rejected[reject.reason] += fact["copy"] == 0
                continue
            name = f"{row['key']}-{fact['item']}-{fact['copy']}"
            line = {"shard": task.index, "row": len(part), "name": name}
            line |= {"key": row["key"], "item": fact["item"], "copy": fact["copy"]} | vars(packed)
            del line["carried"]
            part.append(line | packed.carried)
    index = _index_table(part).replace_schema_metadata({"rejected": dump(rejected)})
    task.storage.publish_table(f"{task.base}/parts/{task.index:06d}.parquet", index)
    pulse.done(task.name, len(part), time.monotonic() - began, tar.offset)
    return len(part)


def _members(storage: Storage, rows: list[dict[str, Any]]) -> dict[tuple[str, int], bytes]:
    """Bytes of each row by (tar, row in the pool's shard): those of a tar by merged ranges, several tars at a time."""
    wanted: dict[str, dict[int, tuple[int, int]]] = {}
    total = {row["_tar"]: row["_tar_bytes"] for row in rows}
    for row in rows:
        wanted.setdefault(row["_tar"], {})[row["_row"]] = (row["offset"], row["size"])

    def read(tar: str) -> list[bytes]:
        fs, path = locate(storage, Shard("", 0, tar, total[tar], ""))
        return list(read_spans(fs, path, [span for _, span in sorted(wanted[tar].items())], total[tar]))

    tars = sorted(wanted)
    return {
        (tar, row): member
        for tar, members in zip(tars, fetched(read, tars), strict=True)
        for row, member in zip(sorted(wanted[tar]), members, strict=True)
    }


def _check_texts(stage: Pack, rows: list[dict[str, Any]], itemised: set[str]) -> None:
    """Raises CurateError where items beyond the first would all be given the same text."""
    text = next((name for name in stage.text_columns() if rows and name in rows[0]), None)
    if text is None or text in itemised:
        return
    for row in rows:
        if row["_item"] != "0":
            raise CurateError(
                f"{stage.op}.text: {text!r} has one text a row, but item {row['_item']} of {row['key']} was selected; "
                "name the list column that the selection's items are of, such as text: sentences"
            )


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


# --- index ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndexTask(PackTask):
    first: int
    stop: int


def pack_index(task: IndexTask) -> list[int]:
    """Join the index's lines of a stretch of output shards. Returns the rows of each."""
    pulse = beat.current()
    pulse.doing(task.name)
    began = time.monotonic()
    paths = [f"{task.base}/parts/{i:06d}.parquet" for i in range(task.first, task.stop)]
    parts = list(fetched(task.storage.read_table, paths))
    whole = pa.concat_tables([part.replace_schema_metadata(None) for part in parts], promote_options="permissive")
    rejected = sum((_rejected(part.schema) for part in parts), Counter[str]())
    whole = whole.replace_schema_metadata({"rejected": dump(rejected)})
    task.storage.publish_table(task.work(f"index/{task.first:06d}.parquet"), whole)
    pulse.done(task.name, 0, time.monotonic() - began)
    return [part.num_rows for part in parts]


def _rejected(schema: pa.Schema) -> Counter[str]:
    return Counter(json.loads(schema.metadata[b"rejected"]))


@dataclass(frozen=True)
class FinishTask(PackTask):
    stretches: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]
    """Rows of each output shard."""


def pack_finish(task: FinishTask) -> dict[str, Any]:
    """Publish the index, a row group for each stretch of output shards, and the stage's further files."""
    paths = [task.work(f"index/{first:06d}.parquet") for first, _ in task.stretches]
    schemas = list(fetched(partial(_schema, task.storage), paths))
    rejected = sum((_rejected(schema) for schema in schemas), Counter[str]())
    schema = pa.unify_schemas([s.remove_metadata() for s in schemas], promote_options="permissive")
    pulse = beat.current()
    with (
        task.storage.publish(f"{task.base}/index.parquet") as aside,
        pq.ParquetWriter(aside, schema, compression="zstd") as out,
    ):
        for path in paths:
            pulse.doing(task.name)
            began = time.monotonic()
            table = pa.concat_tables(
                [schema.empty_table(), task.storage.read_table(path)], promote_options="permissive"
            )
            out.write_table(table.cast(schema))
            pulse.done(task.name, 0, time.monotonic() - began)
    counts = [(task.tar(i), rows) for i, rows in enumerate(task.counts)]
    for name, content in task.stage.finish(counts).items():
        task.storage.publish_bytes(f"{task.base}/{name}", content)
    sizes = task.storage.list(task.base)
    missing = [tar for tar, _ in counts if tar not in sizes]
    if missing:
        raise StorageError(f"{task.storage.url_of(task.base)}: {missing[0]} is gone; remove the folder and run again")
    return {"tars": {tar: sizes[tar] for tar, _ in counts}, "rows": sum(task.counts), "rejected": dict(rejected)}


def _schema(storage: Storage, path: str) -> pa.Schema:
    with storage.open(path) as file:
        return pq.read_schema(file)
