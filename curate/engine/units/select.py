"""The steps of a Select: deal the rows to buckets, count them per unit, plan quotas, pick bucket by bucket."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core import tombstones
from curate.core.contracts import Select
from curate.core.hashing import key_words
from curate.core.ledger import Entry
from curate.core.nouns import Shard, read_pool
from curate.core.rows import Rows
from curate.core.storage import Storage
from curate.core.tombstones import Tombstones
from curate.engine import shuffle
from curate.engine.backends import set_up
from curate.engine.units.tasks import fetched

BURIED = -1
"""Unit of rows with a tombstone: they are counted under none, and no stage sees them."""


@dataclass(frozen=True)
class SelectTask:
    storage: Storage
    stage: Select
    rows: Rows
    ports: dict[str, str]
    base: str
    buckets: int
    tombstones: Tombstones
    shards: tuple[Shard, ...] = ()
    """Those to scatter; later steps read what the scatter has left, so that no task carries the whole pool's list."""
    bucket: int = 0

    def ready(self) -> Select:
        return set_up(self.base, self.stage, self.ports, self.storage)  # type: ignore[return-value]


def select_scatter(task: SelectTask) -> list[dict[str, Any]]:
    """Lines of the shards' live rows, by bucket, into files; and how many each unit has."""
    stage = task.ready()
    results = []
    for shard in task.shards:
        names = tuple(dict.fromkeys((*stage.reads(), *tombstones.COLUMNS)))
        fate = task.rows.fate(shard)
        rows = np.flatnonzero(fate.alive)
        table = task.rows.without_items(task.rows.table(shard, names), fate).take(pa.array(rows))
        buried = task.tombstones.mask(table) | _buried_parents(task, task.rows, shard, rows)
        table = table.select(["key", *(n for n in stage.reads() if n != "key")])
        lines, bucket = _dealt(stage, table, rows, buried)
        lines = lines.append_column("shard", pa.array([shard.id] * lines.num_rows, pa.string()))
        bucket = (bucket % np.uint64(task.buckets)).astype(np.int64)
        shuffle.write(task.storage, f"{task.base}/shuffle/{shard.id}.parquet", lines, bucket, task.buckets)
        counted = lines.filter(pc.field("unit") >= 0).column("unit").to_numpy()
        unit, count = np.unique(counted, return_counts=True)
        counts = pa.table({"unit": unit, "count": count})
        task.storage.publish_table(f"{task.base}/counts/{shard.id}.parquet", counts)
        results.append({"shard": shard.id, "rows": table.num_rows})
    return results


def _buried_parents(task: SelectTask, of: Rows, shard: Shard, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
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


def select_plan(task: SelectTask) -> dict[str, Any]:
    """Counts of all shards -> quotas, as a file."""
    stage = task.ready()
    counts = np.zeros(0, dtype=np.int64)
    files = [f"{task.base}/counts/{file}" for file in task.storage.list(f"{task.base}/counts")]
    for table in fetched(task.storage.read_table, files):
        unit, count = table.column("unit").to_numpy(), table.column("count").to_numpy()
        if len(unit) and unit[-1] >= len(counts):
            counts = np.pad(counts, (0, int(unit[-1]) + 1 - len(counts)))
        counts[unit] += count
    quotas = np.asarray(stage.plan(counts), dtype=np.int64)
    counts = np.pad(counts, (0, max(0, len(quotas) - len(counts))))
    quotas = np.pad(quotas, (0, len(counts) - len(quotas)))
    task.storage.publish_table(f"{task.base}/quotas.parquet", pa.table({"count": counts, "quota": quotas}))
    return {"quota": int(quotas.sum()), "units": len(quotas)}


def select_pick(task: SelectTask) -> dict[str, Any]:
    """The lines of one bucket -> copies or a reason for each, sorted by shard, row and item."""
    stage = task.ready()
    plan = task.storage.read_table(f"{task.base}/quotas.parquet")
    counts, quotas = (plan.column(name).to_numpy() for name in ("count", "quota"))
    files = [f"{task.base}/shuffle/{file}" for file in sorted(task.storage.list(f"{task.base}/shuffle"))]
    lines = shuffle.read(task.storage, files, task.bucket).sort_by("key")
    lost = pc.fill_null(pc.equal(lines.column("unit"), BURIED), False)
    buried, lines = lines.filter(lost), lines.filter(pc.invert(lost))
    picked = stage.pick(lines, counts, quotas)
    out = _picked_table(lines, picked)
    entry = _picked_entry(out, "item" in lines.column_names)
    if buried.num_rows:
        none = {name: np.zeros(buried.num_rows) for name in ("copies", "expected") if name in picked}
        entry += Entry(buried.num_rows, Counter(tombstone=buried.num_rows))
        out = pa.concat_tables([out, _picked_table(buried, none | {"reject": ["tombstone"] * buried.num_rows})])
    out = out.sort_by([("shard", "ascending"), ("row", "ascending"), ("place", "ascending")]).drop_columns("place")
    task.storage.publish_table(f"{task.base}/buckets/{task.bucket:06d}.parquet", out)
    return {"entry": entry.check(stage.op).to_json(), "rows": entry.before}


def _picked_table(lines: pa.Table, picked: dict[str, Any]) -> pa.Table:
    """A row per line, picked or rejected; `place` keeps the order in which a row's items came."""
    whole = pa.array(["0"] * lines.num_rows, pa.string())
    columns = {
        "key": lines.column("key"),
        "item": pc.fill_null(lines.column("item"), "0") if "item" in lines.column_names else whole,
        "copies": pa.array(picked["copies"]).cast(pa.int32()),
        "shard": lines.column("shard"),
        "row": lines.column("row"),
        "unit": pc.fill_null(lines.column("unit"), 0),
        "reject": pa.array(picked["reject"], pa.string()),
        "place": pa.array(np.arange(lines.num_rows)),
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
