"""The tasks of a Select: scatter lines to buckets, plan quotas, pick in a bucket, gather lines by shard."""

from __future__ import annotations

import io
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

from curate.core.contracts import Select
from curate.core.hashing import key_words
from curate.core.ledger import Entry
from curate.core.nouns import tombstones
from curate.core.nouns.pools import Shard, read_pool
from curate.core.nouns.selections import SELECTION_SCHEMA, Lines
from curate.core.nouns.tombstones import Tombstones
from curate.core.rows import Rows
from curate.core.store.storage import Storage, open_storage
from curate.engine.tasks import beat
from curate.engine.tasks.stages import set_up
from curate.engine.units import shuffle
from curate.engine.units.common import fetched
from curate.engine.units.select import labels
from curate.engine.units.shuffle import Piece, ShuffleFile

TOMBSTONED = -1
"""Unit of rows with a tombstone: they are not counted, and the stage does not receive them."""
NO_UNIT = -2
"""Unit of rows without a label, in the selection."""
AT_A_TIME = 4
"""Tables of counts in memory at once: each may have millions of units."""
GROUP_ROWS, FILE_ROWS = 1 << 13, 1 << 18
"""Least rows of a row group and of a file, which end at a shard's border. Footers stay small."""
REPEATING = ["item", "copies", "shard", "unit", "reject"]
"""Columns written with a dictionary."""
Common = tuple[Storage, Select, str, dict[str, str], str]
"""First fields of every task."""


@dataclass(frozen=True)
class SelectTask:
    storage: Storage
    stage: Select
    name: str
    """Name of the stage in its recipe."""
    ports: dict[str, str]
    base: str
    done: bool
    """An earlier run has published the output of this task."""

    def ready(self) -> Select:
        return set_up(self.base, self.stage, self.ports, self.storage)

    def work(self, path: str) -> str:
        return f"{self.base}/work/{path}"


# --- scatter ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SelectScatterTask(SelectTask):
    stretch: str
    shards: tuple[Shard, ...]
    first: int
    """Place of the first shard in the pool's list."""
    buckets: int
    rows: Rows
    tombstones: Tombstones


def select_scatter(task: SelectScatterTask) -> ShuffleFile:
    """Write lines of the live rows of a stretch of shards into a file, by bucket, and their number per unit."""
    path = task.work(f"lines/{task.stretch}")
    if task.done:
        return shuffle.load(task.storage, path)
    stage = task.ready()
    counts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    names: dict[int, str] = {}
    note = {"rows": 0}

    def parts() -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
        read = partial(_read, task, stage.reads())
        for number, (table, rows, tombstoned) in enumerate(fetched(read, task.shards), task.first):
            with beat.working(task.name):
                lines, bucket, known = _deal(stage, table, rows, tombstoned)
                names.update(known)
                unit = lines.column("unit").drop_null().to_numpy()
                counts.append(np.unique(unit[unit != TOMBSTONED], return_counts=True))
                note["rows"] += table.num_rows
                yield _compact(lines, number), (bucket % np.uint64(task.buckets)).astype(np.int64)
        _publish_counts(task, counts, names)

    return shuffle.write(task.storage, path, parts(), task.buckets, note)


def _read(
    task: SelectScatterTask, reads: tuple[str, ...], shard: Shard
) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.bool_]]:
    """The columns that the stage reads of a shard's live rows (m,), the rows, and which of them have a tombstone."""
    names = tuple(dict.fromkeys((*reads, *(tombstones.COLUMNS if task.tombstones else ()))))
    fate = task.rows.fate(shard)
    rows = np.flatnonzero(fate.alive)
    table = task.rows.without_items(task.rows.table(shard, names), fate).take(pa.array(rows))
    tombstoned = task.tombstones.mask(table) | _tombstoned_parents(task, task.rows, shard, rows)
    return table.select(["key", *(n for n in reads if n != "key")]), rows, tombstoned


def _tombstoned_parents(task: SelectScatterTask, of: Rows, shard: Shard, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for rows of a derived pool with a tombstone on their parent or a further ancestor, by any of the ancestor's
    columns, which the child does not have."""
    if of.parents is None or not shard.parent or not task.tombstones:
        return np.zeros(len(rows), dtype=bool)
    parents = read_pool(task.storage, shard.table, ["parent_row"]).column(0).to_numpy()[rows].astype(np.int64)
    above = shard.parent_shard()
    table = read_pool(task.storage, above.table, list(tombstones.COLUMNS)).take(pa.array(parents))
    return task.tombstones.mask(table) | _tombstoned_parents(task, of.parents, above, parents)


def _deal(
    stage: Select, table: pa.Table, rows: NDArray[np.int64], tombstoned: NDArray[np.bool_]
) -> tuple[pa.Table, NDArray[np.uint64], dict[int, str]]:
    """The stage's lines of live rows, then a line per tombstoned row, each with `key`, `unit` and `row` (one of
    `rows`); a number that decides each line's bucket: the unit if the line has one, otherwise the key; and the labels
    of units that are texts."""
    dealt, known = labels.hashed(stage.deal(table.filter(pa.array(~tombstoned))))
    names = dealt.column_names
    place, lost = np.flatnonzero(~tombstoned), np.flatnonzero(tombstoned)
    place = np.append(place[dealt.column("row").to_numpy()] if "row" in names else place, lost)
    own = dealt.select([name for name in names if name not in ("key", "row")])
    if "unit" not in names:
        own = own.append_column("unit", pa.array(np.zeros(dealt.num_rows, np.int64)))
    none = pa.table({"unit": np.full(len(lost), TOMBSTONED)})
    lines = pa.concat_tables([own, none], promote_options="default")
    for name, values in (("key", table.column("key").take(pa.array(place))), ("row", pa.array(rows[place]))):
        lines = lines.append_column(name, values)
    unit = lines.column("unit")
    by_unit = "unit" in names and "item" not in names
    if by_unit and not unit.null_count:
        return lines, np.maximum(unit.to_numpy(), 0).astype(np.uint64), known
    bucket = key_words(table.column("key").to_pylist())[:, 0][place]
    if by_unit:
        own_unit = np.maximum(unit.fill_null(0).to_numpy(), 0).astype(np.uint64)
        bucket = np.where(unit.is_null().to_numpy(), bucket, own_unit)
    return lines, bucket, known


def _compact(lines: pa.Table, shard: int) -> pa.Table:
    """Lines with keys of 16 bytes, rows of 4, and the shard as its number in the pool's list."""
    key, row = shuffle.packed(lines.column("key")), lines.column("row").cast(pa.int32())
    lines = lines.drop_columns(["key", "row"]).replace_schema_metadata(None)
    number = pa.array(np.full(lines.num_rows, shard, dtype=np.int32))
    for name, values in (("key", key), ("shard", number), ("row", row)):
        lines = lines.append_column(name, values)
    return lines


def _publish_counts(
    task: SelectScatterTask, counts: list[tuple[NDArray[np.int64], NDArray[np.int64]]], names: dict[int, str]
) -> None:
    units, place = np.unique(np.concatenate([unit for unit, _ in counts]), return_inverse=True)
    found = np.zeros(len(units), np.int64)
    np.add.at(found, place, np.concatenate([count for _, count in counts]))
    table = pa.table({"unit": pa.array(units, pa.int64()), "count": found})
    if names:
        table = table.append_column(labels.LABEL, pa.array([names[unit] for unit in units.tolist()], pa.string()))
    task.storage.publish_table(task.work(f"counts/{task.stretch}.parquet"), table)


# --- plan -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanTask(SelectTask):
    stretches: tuple[str, ...]


def select_plan(task: PlanTask) -> str:
    """Counts of all stretches -> quotas, published as a table for people and an array for picks; returns what the stage
    remarks."""
    if task.done:
        return ""
    stage = task.ready()
    counts, known = _counted(task)
    quotas = np.asarray(stage.plan(counts), dtype=np.int64)
    counts = np.pad(counts, (0, max(0, len(quotas) - len(counts))))
    quotas = np.pad(quotas, (0, len(counts) - len(quotas)))
    names = {} if known is None else {labels.LABEL: known.column(labels.LABEL)}
    task.storage.publish_table(f"{task.base}/quotas.parquet", pa.table(names | {"count": counts, "quota": quotas}))
    with task.storage.publish(task.work("quotas.npy")) as path, open(path, "wb") as file:
        hashes = [] if known is None else [known.column("unit").to_numpy()]
        np.save(file, np.stack([counts, quotas, *hashes]))
    return stage.remark(counts)


def _counted(task: PlanTask) -> tuple[NDArray[np.int64], pa.Table | None]:
    """Lines per unit (U,), of all stretches; and the labels, if units are."""
    counts, found = np.zeros(0, dtype=np.int64), list[pa.Table]()
    files = [task.work(f"counts/{stretch}.parquet") for stretch in task.stretches]
    for first in range(0, len(files), AT_A_TIME):
        for table in fetched(task.storage.read_table, files[first : first + AT_A_TIME]):
            unit, count = table.column("unit").to_numpy(), table.column("count").to_numpy()
            if labels.LABEL in table.column_names:
                found = [labels.added([*found, table])]
                continue
            if len(unit) and unit[-1] >= len(counts):
                counts = np.pad(counts, (0, int(unit[-1]) + 1 - len(counts)))
            counts[unit] += count
    return (found[0].column("count").to_numpy(), found[0]) if found else (counts, None)


@lru_cache(maxsize=1)
def _quotas(url: str, path: str) -> NDArray[np.int64]:
    """Counts, quotas, and hashes of the units that are labels (2 or 3, U): mapped from a local disk, or read once by
    each process."""
    storage = open_storage(url)
    if storage.local:
        return np.load(storage.path(path), mmap_mode="r")
    return np.load(io.BytesIO(storage.read(path)))


# --- pick -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PickTask(SelectTask):
    bucket: str
    pieces: tuple[Piece, ...]
    starts: tuple[int, ...]
    """Number of the first shard of each stretch."""


def select_pick(task: PickTask) -> ShuffleFile:
    """Pick among the lines of one bucket, and write each line's copies or its reason, by stretch of shards."""
    path = task.work(f"picked/{task.bucket}")
    if task.done:
        return shuffle.load(task.storage, path)
    with beat.working(task.name) as work:
        out, entry = _pick(task, task.ready())
        stretch = np.searchsorted(task.starts, out.column("shard").to_numpy(), side="right") - 1
        out = out.set_column(0, "key", shuffle.packed(out.column("key")))
        note = {"entry": entry.check(task.stage.op).to_json()}
        work.rows = entry.before
        return shuffle.write(task.storage, path, [(out, stretch)], len(task.starts), note)


def _pick(task: PickTask, stage: Select) -> tuple[pa.Table, Entry]:
    counts, quotas, *hashes = _quotas(task.storage.url, task.work("quotas.npy"))
    lines = _by_key(shuffle.read(task.storage, task.pieces))
    lost = pc.fill_null(pc.equal(lines.column("unit"), TOMBSTONED), False)
    tombstoned, lines = lines.filter(lost), lines.filter(pc.invert(lost))
    lines = labels.numbered(lines, *hashes) if hashes else lines
    picked = stage.pick(lines, counts, quotas)
    out = _picked_table(lines, picked)
    entry = _picked_entry(out, "item" in lines.column_names)
    if rows := tombstoned.num_rows:
        none = {name: np.zeros(rows) for name in ("copies", "expected") if name in picked}
        entry += Entry(rows, Counter(tombstone=rows))
        out = pa.concat_tables([out, _picked_table(tombstoned, none | {"reject": ["tombstone"] * rows})])
    return out, entry


def _by_key(lines: pa.Table) -> pa.Table:
    """Lines sorted by key; the lines of a row keep their order."""
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
        "unit": pc.fill_null(lines.column("unit"), 0 if "item" in lines.column_names else NO_UNIT),
        "reject": pa.array(picked["reject"], pa.string()),
    }
    if "expected" in picked:
        columns["expected"] = pa.array(picked["expected"], pa.float32())
    return pa.table(columns)


def _picked_entry(out: pa.Table, items: bool) -> Entry:
    """Ledger entry: a row passes if one of its lines does; a rejected row has the reason of its first line."""
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
    """Place of the stretch, for the names of its files."""
    ids: tuple[str, ...]
    """Ids of its shards."""


def select_gather(task: GatherTask) -> pa.Table:
    """Write the lines of a stretch of shards into files, sorted by shard, row and item; returns each shard's place."""
    path = task.work(f"places/{task.stretch}.parquet")
    if task.done:
        return task.storage.read_table(path)
    with beat.working(task.name):
        rows, copies = (np.zeros(len(task.ids), np.int64) for _ in range(2))
        places = _layout(rows, copies, task.number)
        if task.pieces:
            lines = shuffle.read(task.storage, task.pieces)
            shard = lines.column("shard").to_numpy().astype(np.int64) - task.first
            order = np.argsort(shard << 32 | lines.column("row").to_numpy(), kind="stable")  # keeps the order of items
            rows = np.bincount(shard, minlength=len(rows))
            np.add.at(copies, shard, lines.column("copies").to_numpy())
            places = _layout(rows, copies, task.number)
            _publish_files(task, places, lines, order)
        table = pa.table({"id": task.ids} | {n: [getattr(p, n) for p in places] for n in Lines._fields})
        task.storage.publish_table(path, table)
    return table


def _layout(rows: NDArray[np.int64], copies: NDArray[np.int64], number: int) -> list[Lines]:
    """Places of the lines of each shard of stretch `number`, with their rows and copies."""
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
    """Write row groups of whole shards, in files of whole groups."""
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
