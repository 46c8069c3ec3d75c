"""The steps of a Select: deal the rows to buckets, count them per unit, plan quotas, pick bucket by bucket."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.contracts import Select
from curate.core.hashing import key_words
from curate.core.ledger import Entry
from curate.core.nouns import Shard
from curate.core.rows import Rows
from curate.core.storage import Storage
from curate.core.tombstones import Tombstones
from curate.engine import shuffle
from curate.engine.backend import set_up
from curate.engine.tasks import fetched


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
    """Live rows of shards, by bucket of units, into files; and how many each unit has."""
    stage = task.ready()
    results = []
    for shard in task.shards:
        names = tuple(dict.fromkeys((*stage.reads(), "url", "sha256")))
        alive = task.rows.alive(shard)
        table = task.rows.table(shard, names).filter(pa.array(alive))
        buried = task.tombstones.mask(table)
        table = stage.dealt(table.select(["key", *(n for n in stage.reads() if n != "key")]))
        units = np.array(stage.units(table), dtype=np.int64)
        units[buried] = -1
        for name, values in (("unit", units), ("row", np.flatnonzero(alive))):
            table = table.append_column(name, pa.array(values, pa.int64()))
        table = table.append_column("shard", pa.array([shard.id] * table.num_rows, pa.string()))
        deal = key_words(table.column("key").to_pylist())[:, 0] if stage.spread else np.maximum(units, 0)
        bucket = (deal % deal.dtype.type(task.buckets)).astype(np.int64)
        shuffle.write(task.storage, f"{task.base}/shuffle/{shard.id}.parquet", table, bucket, task.buckets)
        live = units >= 0
        counted = stage.counted(table.filter(pa.array(live)), units[live])
        unit, count = np.unique(counted, return_counts=True)
        counts = pa.table({"unit": unit, "count": count})
        task.storage.publish_table(f"{task.base}/counts/{shard.id}.parquet", counts)
        results.append({"shard": shard.id, "rows": table.num_rows})
    return results


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
    """The rows of one bucket of units -> copies or a reason for each, sorted by shard, row and item."""
    stage = task.ready()
    plan = task.storage.read_table(f"{task.base}/quotas.parquet")
    counts, quotas = (plan.column(name).to_numpy() for name in ("count", "quota"))
    stage.planned(counts, quotas)
    files = [f"{task.base}/shuffle/{file}" for file in sorted(task.storage.list(f"{task.base}/shuffle"))]
    rows = shuffle.read(task.storage, files, task.bucket).sort_by("key")
    buried = rows.filter(pc.field("unit") < 0)
    rows = rows.filter(pc.field("unit") >= 0)
    picked = stage.pick(rows, rows.column("unit").to_numpy(), quotas)
    out = _picked_table(rows, picked)
    entry = _picked_entry(rows.num_rows, out, picked.get("row"))
    zeros = {"copies": np.zeros(buried.num_rows, np.int32), "reject": ["tombstone"] * buried.num_rows}
    if "expected" in picked:
        zeros["expected"] = np.zeros(buried.num_rows, np.float32)
    if buried.num_rows:
        entry += Entry(buried.num_rows, Counter(tombstone=buried.num_rows))
        out = pa.concat_tables([out, _picked_table(buried, zeros)])
    out = out.sort_by([("shard", "ascending"), ("row", "ascending"), ("place", "ascending")]).drop_columns("place")
    task.storage.publish_table(f"{task.base}/buckets/{task.bucket:06d}.parquet", out)
    return {"entry": entry.check(stage.op).to_json(), "rows": entry.before}


def _picked_table(rows: pa.Table, picked: dict[str, Any]) -> pa.Table:
    """A row per item picked or refused; `place` keeps the order in which a row's items came."""
    rows = rows.select(["key", "shard", "row", "unit"])  # no list of a row's items once more for each of them
    if "row" in picked:
        rows = rows.take(pa.array(picked["row"], pa.int64()))
    columns = {
        "key": rows.column("key"),
        "item": pa.array(picked.get("item", ["0"] * rows.num_rows), pa.string()),
        "copies": pa.array(picked["copies"]).cast(pa.int32()),
        "shard": rows.column("shard"),
        "row": rows.column("row"),
        "unit": pa.array(picked["unit"], pa.int64()) if "unit" in picked else rows.column("unit"),
        "reject": pa.array(picked["reject"], pa.string()),
        "place": pa.array(np.arange(rows.num_rows)),
    }
    if "expected" in picked:
        columns["expected"] = pa.array(picked["expected"], pa.float32())
    return pa.table(columns)


def _picked_entry(rows: int, out: pa.Table, row: Any) -> Entry:
    """A row is alive if one of its items is; a refused row has the reason of its first item."""
    copies = out.column("copies").to_numpy()
    at = np.arange(rows) if row is None else np.asarray(row, dtype=np.int64)
    reasons = np.asarray(out.column("reject").to_pylist(), dtype=object)
    kept = np.zeros(rows, dtype=bool)
    kept[at[copies > 0]] = True
    present, first = np.unique(at, return_index=True)
    assert len(present) == rows, "pick left rows out"
    rejected = Counter(reasons[first][~kept].tolist())
    entry = Entry(rows, rejected, int(kept.sum()), copies=int(copies.sum()))
    if row is not None:
        entry.items = int((copies > 0).sum())
        entry.counters["items"] = len(at)
        entry.counters.update(f"items_{reason}" for reason in reasons[copies == 0].tolist())
    return entry
