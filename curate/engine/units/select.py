"""Select: deal the rows to buckets, count them per unit, plan quotas, pick bucket by bucket, sort the lines by shard.

work/lines/<stretch>       lines of a stretch of shards, by bucket (see engine/shuffle.py)
work/counts/<stretch>.parquet   its lines per unit
work/quotas.npy            counts and quotas (2, U), which every pick maps
work/picked/<bucket>       lines of a bucket with their copies, by stretch
work/places/<stretch>.parquet   where each shard's lines lie in rows/
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from curate.core import tombstones
from curate.core.contracts import Select
from curate.core.hashing import key_words
from curate.core.ledger import Entry, total
from curate.core.nouns import SELECTION_SCHEMA, Lines, Shard, read_pool
from curate.core.recipe.pipeline import Node
from curate.core.rows import Rows
from curate.core.store.storage import Storage, open_storage
from curate.core.tombstones import Tombstones
from curate.engine import shuffle
from curate.engine.backends import set_up
from curate.engine.context import Built, Context
from curate.engine.shuffle import Piece, Scattered
from curate.engine.units.common import fetched, tidy
from curate.engine.workers import beat

BURIED = -1
"""Unit of rows with a tombstone: they are counted under none, and no stage sees them."""
AT_A_TIME = 4
"""Tables of counts that the plan holds: each may name millions of units."""
GROUP_ROWS, FILE_ROWS = 1 << 13, 1 << 18
"""A row group of a selection's file ends with the shard that fills it, and so does a file: its footer stays small."""
REPEATING = ["item", "copies", "shard", "unit", "reject"]


def build_select(ctx: Context, node: Node, built: Built) -> None:
    stage = node.stage
    assert isinstance(stage, Select)
    began = time.monotonic()
    pool, rows = ctx.pool(node), ctx.rows(node)
    buckets = shuffle.buckets_for(pool.rows)
    stretches = shuffle.stretches([shard.rows for shard in pool.shards], buckets)
    shards = [tuple(pool.shards[first:stop]) for first, stop in stretches]
    names = [
        shuffle.stretch_name(i, [s.id for s in some], buckets, shuffle.HELD_BYTES) for i, some in enumerate(shards)
    ]
    there = ctx.storage.list(f"{built.base}/work")
    common = (ctx.storage, stage, node.name, ctx.ports(node), built.base)
    with ctx.progress.step(node.name, pool.rows) as step:
        scatters = (
            ScatterTask(
                *common, f"lines/{name}" in there, name, some, first, buckets, ctx.placed(rows, some), ctx.tombstones
            )
            for name, some, (first, _) in zip(names, shards, stretches, strict=True)
        )
        dealt: list[Scattered] = ctx.must(select_scatter, scatters, stage, node.name)
        ctx.must(select_plan, [PlanTask(*common, "quotas.npy" in there, tuple(names))], stage, node.name)
        full = [b for b in range(buckets) if any(file.rows[b] for file in dealt)]
        picked_names = {b: shuffle.stretch_name(b, names) for b in full}
        picks = (
            PickTask(
                *common, f"picked/{picked_names[b]}" in there, picked_names[b], shuffle.pieces(dealt, b),
                tuple(first for first, _ in stretches),
            )
            for b in full
        )  # fmt: skip
        picked: dict[int, Scattered] = {}
        entries = []
        for place, found in ctx.each(select_pick, picks, stage, node.name):
            picked[place] = found
            entries.append(Entry.from_json(found.note["entry"]))
            step.advance(entries[-1].before, entries[-1].rejected.total())
        entry = total(entries)
        assert entry.before == sum(file.note["rows"] for file in dealt)
        files = [picked[place] for place in range(len(full))]
        gathers = (
            GatherTask(
                *common, f"places/{name}.parquet" in there, name, shuffle.pieces(files, i), first, i,
                tuple(shard.id for shard in some),
            )
            for i, (name, some, (first, _)) in enumerate(zip(names, shards, stretches, strict=True))
        )  # fmt: skip
        places = ctx.must(select_gather, gathers, stage, node.name)
    ctx.finish(
        node, built, "selection", entry, pa.concat_tables(places), rows=entry.after,
        seconds=round(time.monotonic() - began, 3), built_rows=entry.before,
        bytes=sum(ctx.storage.list(f"{built.base}/rows").values()),
    )  # fmt: skip
    tidy(ctx, built)


@dataclass(frozen=True)
class SelectTask:
    storage: Storage
    stage: Select
    name: str
    """Of the stage in its recipe."""
    ports: dict[str, str]
    base: str
    there: bool
    """An earlier run has published what this task makes."""

    def ready(self) -> Select:
        return set_up(self.base, self.stage, self.ports, self.storage)  # type: ignore[return-value]

    def work(self, path: str) -> str:
        return f"{self.base}/work/{path}"


# --- scatter ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScatterTask(SelectTask):
    stretch: str
    shards: tuple[Shard, ...]
    first: int
    """Place of the first of them in the pool's list."""
    buckets: int
    rows: Rows
    tombstones: Tombstones


def select_scatter(task: ScatterTask) -> Scattered:
    """Lines of the live rows of a stretch of shards, by bucket, into a file; and how many each unit has."""
    path = task.work(f"lines/{task.stretch}")
    if task.there:
        return shuffle.found(task.storage, path)
    stage = task.ready()
    counts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    note = {"rows": 0}

    def parts() -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
        pulse, read = beat.current(), partial(_read, task, stage.reads())
        for number, (table, rows, buried) in enumerate(fetched(read, task.shards), task.first):
            pulse.doing(task.name)
            began = time.monotonic()
            lines, bucket = _dealt(stage, table, rows, buried)
            unit = lines.column("unit").drop_null().to_numpy()
            counts.append(np.unique(unit[unit != BURIED], return_counts=True))
            note["rows"] += table.num_rows
            yield _compact(lines, number), (bucket % np.uint64(task.buckets)).astype(np.int64)
            pulse.done(task.name, 0, time.monotonic() - began)
        _publish_counts(task, counts)

    return shuffle.write(task.storage, path, parts(), task.buckets, note)


def _read(
    task: ScatterTask, reads: tuple[str, ...], shard: Shard
) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.bool_]]:
    """What the stage reads of a shard's live rows (m,), their places in the shard, and which have a tombstone."""
    names = tuple(dict.fromkeys((*reads, *(tombstones.COLUMNS if task.tombstones else ()))))
    fate = task.rows.fate(shard)
    rows = np.flatnonzero(fate.alive)
    table = task.rows.without_items(task.rows.table(shard, names), fate).take(pa.array(rows))
    buried = task.tombstones.mask(table) | _buried_parents(task, task.rows, shard, rows)
    return table.select(["key", *(n for n in reads if n != "key")]), rows, buried


def _buried_parents(task: ScatterTask, of: Rows, shard: Shard, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for the rows (places in the shard) of a derived pool whose parent has a tombstone, or a parent of that: by
    any of its columns, which the child does not share."""
    if of.parents is None or not shard.parent or not task.tombstones:
        return np.zeros(len(rows), dtype=bool)
    parents = read_pool(task.storage, shard.table, ["parent_row"]).column(0).to_numpy()[rows].astype(np.int64)
    above = shard.parent_shard()
    table = read_pool(task.storage, above.table, list(tombstones.COLUMNS)).take(pa.array(parents))
    return task.tombstones.mask(table) | _buried_parents(task, of.parents, above, parents)


def _dealt(
    stage: Select, table: pa.Table, rows: NDArray[np.int64], buried: NDArray[np.bool_]
) -> tuple[pa.Table, NDArray[np.uint64]]:
    """What the stage deals of live rows, then a line per buried row; each with `key`, `unit` and `row`, one of `rows`
    (places in the shard). And what decides each line's bucket: the unit where rows have one, else the key."""
    dealt = stage.deal(table.filter(pa.array(~buried)))
    names = dealt.column_names
    place, lost = np.flatnonzero(~buried), np.flatnonzero(buried)
    place = np.append(place[dealt.column("row").to_numpy()] if "row" in names else place, lost)
    own = dealt.select([name for name in names if name not in ("key", "row")])
    if "unit" not in names:
        own = own.append_column("unit", pa.array(np.zeros(dealt.num_rows, np.int64)))
    none = pa.table({"unit": np.full(len(lost), BURIED)})
    lines = pa.concat_tables([own, none], promote_options="default")
    for name, values in (("key", table.column("key").take(pa.array(place))), ("row", pa.array(rows[place]))):
        lines = lines.append_column(name, values)
    if "unit" in names and "item" not in names:
        return lines, np.maximum(lines.column("unit").to_numpy(), 0).astype(np.uint64)
    return lines, key_words(table.column("key").to_pylist())[:, 0][place]


def _compact(lines: pa.Table, shard: int) -> pa.Table:
    """Keys in 16 bytes, places in 4, and the shard as its number in the pool's list."""
    key, row = shuffle.packed(lines.column("key")), lines.column("row").cast(pa.int32())
    lines = lines.drop_columns(["key", "row"]).replace_schema_metadata(None)
    number = pa.array(np.full(lines.num_rows, shard, dtype=np.int32))
    for name, values in (("key", key), ("shard", number), ("row", row)):
        lines = lines.append_column(name, values)
    return lines


def _publish_counts(task: ScatterTask, counts: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> None:
    units, place = np.unique(np.concatenate([unit for unit, _ in counts]), return_inverse=True)
    found = np.zeros(len(units), np.int64)
    np.add.at(found, place, np.concatenate([count for _, count in counts]))
    table = pa.table({"unit": pa.array(units, pa.int64()), "count": found})
    task.storage.publish_table(task.work(f"counts/{task.stretch}.parquet"), table)


# --- plan -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanTask(SelectTask):
    stretches: tuple[str, ...]


def select_plan(task: PlanTask) -> None:
    """Counts of all stretches -> quotas, as a table for people and an array for picks."""
    if task.there:
        return
    stage = task.ready()
    counts = np.zeros(0, dtype=np.int64)
    files = [task.work(f"counts/{stretch}.parquet") for stretch in task.stretches]
    for first in range(0, len(files), AT_A_TIME):
        for table in fetched(task.storage.read_table, files[first : first + AT_A_TIME]):
            unit, count = table.column("unit").to_numpy(), table.column("count").to_numpy()
            if len(unit) and unit[-1] >= len(counts):
                counts = np.pad(counts, (0, int(unit[-1]) + 1 - len(counts)))
            counts[unit] += count
    quotas = np.asarray(stage.plan(counts), dtype=np.int64)
    counts = np.pad(counts, (0, max(0, len(quotas) - len(counts))))
    quotas = np.pad(quotas, (0, len(counts) - len(quotas)))
    task.storage.publish_table(f"{task.base}/quotas.parquet", pa.table({"count": counts, "quota": quotas}))
    with task.storage.publish(task.work("quotas.npy")) as path, open(path, "wb") as file:
        np.save(file, np.stack([counts, quotas]))


@lru_cache(maxsize=1)
def _quotas(url: str, path: str) -> NDArray[np.int64]:
    """Counts and quotas (2, U): mapped from a local disk, else read once by each process."""
    storage = open_storage(url)
    if storage.local:
        return np.load(storage.path(path), mmap_mode="r")  # type: ignore[no-any-return]
    return np.load(io.BytesIO(storage.read(path)))  # type: ignore[no-any-return]


# --- pick -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PickTask(SelectTask):
    bucket: str
    pieces: tuple[Piece, ...]
    starts: tuple[int, ...]
    """Number of the first shard of each stretch."""


def select_pick(task: PickTask) -> Scattered:
    """The lines of one bucket -> copies or a reason for each, by stretch of shards."""
    path = task.work(f"picked/{task.bucket}")
    if task.there:
        return shuffle.found(task.storage, path)
    stage, pulse = task.ready(), beat.current()
    pulse.doing(task.name)
    began = time.monotonic()
    counts, quotas = _quotas(task.storage.url, task.work("quotas.npy"))
    lines = _by_key(shuffle.read(task.storage, task.pieces))
    lost = pc.fill_null(pc.equal(lines.column("unit"), BURIED), False)
    buried, lines = lines.filter(lost), lines.filter(pc.invert(lost))
    picked = stage.pick(lines, counts, quotas)
    out = _picked_table(lines, picked)
    entry = _picked_entry(out, "item" in lines.column_names)
    if buried.num_rows:
        none = {name: np.zeros(buried.num_rows) for name in ("copies", "expected") if name in picked}
        entry += Entry(buried.num_rows, Counter(tombstone=buried.num_rows))
        out = pa.concat_tables([out, _picked_table(buried, none | {"reject": ["tombstone"] * buried.num_rows})])
    stretch = np.searchsorted(task.starts, out.column("shard").to_numpy(), side="right") - 1
    out = out.set_column(0, "key", shuffle.packed(out.column("key")))
    note = {"entry": entry.check(stage.op).to_json()}
    found = shuffle.write(task.storage, path, [(out, stretch)], len(task.starts), note)
    pulse.done(task.name, entry.before, time.monotonic() - began)
    return found


def _by_key(lines: pa.Table) -> pa.Table:
    """Sorted by key, in words; the lines of a row stay in their order."""
    keys = lines.column("key").combine_chunks()
    keys = keys.chunk(0) if isinstance(keys, pa.ChunkedArray) else keys
    words = shuffle.words_of(keys)
    order = pa.array(np.lexsort((words[:, 1], words[:, 0])))
    lines = lines.drop_columns("key").take(order)
    return lines.add_column(0, "key", shuffle.unpacked(keys.take(order)))


def _picked_table(lines: pa.Table, picked: dict[str, Any]) -> pa.Table:
    """A row per line, picked or rejected."""
    whole = pa.array(["0"] * lines.num_rows, pa.string())
    columns = {
        "key": lines.column("key"),
        "item": pc.fill_null(lines.column("item"), "0") if "item" in lines.column_names else whole,
        "copies": pa.array(picked["copies"]).cast(pa.int32()),
        "shard": lines.column("shard"),
        "row": lines.column("row"),
        "unit": pc.fill_null(lines.column("unit"), 0),
        "reject": pa.array(picked["reject"], pa.string()),
    }
    if "expected" in picked:
        columns["expected"] = pa.array(picked["expected"], pa.float32())
    return pa.table(columns)


def _picked_entry(out: pa.Table, items: bool) -> Entry:
    """A row is alive if one of its lines is; a rejected row has the reason of its first line."""
    copies = out.column("copies").to_numpy()
    reasons = np.asarray(out.column("reject").to_pylist(), dtype=object)
    key = out.column("key").combine_chunks()
    first = np.flatnonzero(np.append(len(key) > 0, pc.not_equal(key[1:], key[:-1])))  # lines are sorted by key
    kept = np.add.reduceat(copies, first, dtype=np.int64) > 0 if len(first) else np.zeros(0, dtype=bool)
    rejected = Counter(reasons[first][~kept].tolist())
    entry = Entry(len(first), rejected, int(kept.sum()), copies=int(copies.sum()))
    if items:
        entry.items = int((copies > 0).sum())
        entry.counters["items"] = len(copies)
        entry.counters.update(f"items_{reason}" for reason in reasons[copies == 0].tolist())
    return entry


# --- gather -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GatherTask(SelectTask):
    stretch: str
    pieces: tuple[Piece, ...]
    first: int
    number: int
    """Place of the stretch: what its files are called."""
    ids: tuple[str, ...]
    """Of its shards."""


def select_gather(task: GatherTask) -> pa.Table:
    """The lines of a stretch of shards, sorted by shard, row and item, into files -> where each shard's are."""
    path = task.work(f"places/{task.stretch}.parquet")
    if task.there:
        return task.storage.read_table(path)
    pulse = beat.current()
    pulse.doing(task.name)
    began = time.monotonic()
    rows, copies = (np.zeros(len(task.ids), np.int64) for _ in range(2))
    places = _layout(rows, copies, task.number)
    if task.pieces:
        lines = shuffle.read(task.storage, task.pieces)
        shard = lines.column("shard").to_numpy().astype(np.int64) - task.first
        order = np.argsort(shard << 32 | lines.column("row").to_numpy(), kind="stable")  # items of a row have an order
        rows = np.bincount(shard, minlength=len(rows))
        np.add.at(copies, shard, lines.column("copies").to_numpy())
        places = _layout(rows, copies, task.number)
        _publish_files(task, places, lines, order)
    table = pa.table({"id": task.ids} | {n: [getattr(p, n) for p in places] for n in Lines._fields})
    task.storage.publish_table(path, table)
    pulse.done(task.name, 0, time.monotonic() - began)
    return table


def _layout(rows: NDArray[np.int64], copies: NDArray[np.int64], number: int) -> list[Lines]:
    """Where the lines of each shard of stretch `number` go, with what they give."""
    found = []
    file = group = in_file = in_group = 0
    for count, given in zip(rows.tolist(), copies.tolist(), strict=True):
        if in_file >= FILE_ROWS:
            file, group, in_file, in_group = file + 1, 0, 0, 0
        elif in_group >= GROUP_ROWS:
            group, in_group = group + 1, 0
        found.append(Lines(f"rows/{number:06d}-{file:04d}.parquet" if count else "", group, in_group, count, given))
        in_file, in_group = in_file + count, in_group + count
    return found


def _publish_files(task: GatherTask, places: list[Lines], lines: pa.Table, order: NDArray[np.int64]) -> None:
    """Row groups of whole shards, in files of whole groups."""
    schema = SELECTION_SCHEMA
    if "expected" in lines.column_names:
        schema = schema.append(pa.field("expected", pa.float32(), metadata={"of": "copies that chance was to give"}))
    ids = pa.array(task.ids)
    ends = np.cumsum([place.rows for place in places])
    ranges: dict[str, dict[int, int]] = {}
    for place, end in zip(places, ends.tolist(), strict=True):
        if place.rows:
            ranges.setdefault(place.file, {})[place.group] = end
    start = 0
    for file, groups in ranges.items():
        with (
            task.storage.publish(f"{task.base}/{file}") as aside,
            pq.ParquetWriter(aside, schema, compression="zstd", use_dictionary=REPEATING) as out,
        ):
            for stop in groups.values():
                some = lines.take(pa.array(order[start:stop])).combine_chunks()
                number = pa.array(some.column("shard").to_numpy() - task.first)
                columns = {name: some.column(name) for name in schema.names} | {"shard": ids.take(number)}
                columns["key"] = shuffle.unpacked(some.column("key").chunk(0))
                columns["row"] = columns["row"].cast(pa.int64())
                out.write_table(pa.table(columns, schema=schema), row_group_size=stop - start)
                start = stop
