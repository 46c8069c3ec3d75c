"""The ledger read backwards: everything known about one sample."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.errors import InputError, StorageError
from curate.core.nouns import Shard, read_shards
from curate.core.vectors import from_binary
from curate.engine.record import Run

PREFIX = 4


def find(run: Run, wanted: str) -> tuple[str, Shard, int, dict[str, Any]]:
    """(pool stage, shard, row, facts) of the sample with this key, key prefix, source id or name."""
    wanted = os.fsencode(wanted).decode("utf-8", "backslashreplace")  # as importers spell names that are not UTF-8
    hits = []
    for name, output in run.outputs.items():
        if not output["base"].startswith("pools/"):
            continue
        for shard in read_shards(run.storage, output["base"]):
            table = _table(run, shard)
            hit = pc.or_(pc.equal(table["source_id"], wanted), pc.equal(table["name"], wanted))
            if len(wanted) >= PREFIX:
                hit = pc.or_(hit, pc.starts_with(table["key"], wanted))
            for row in np.flatnonzero(hit.to_numpy(zero_copy_only=False)):
                hits.append((name, shard, int(row), table.slice(int(row), 1).to_pylist()[0]))
    exact = [hit for hit in hits if wanted in (hit[3]["key"], hit[3]["source_id"])]
    hits = exact or hits
    if not hits:
        raise InputError(f"{wanted!r}: no sample of run {run.run_id} has this key, key prefix, source id or name")
    if len({hit[3]["key"] for hit in hits}) > 1:
        some = ", ".join(hit[3]["key"] for hit in hits[:3])
        raise InputError(f"{wanted!r}: {len(hits)} samples of run {run.run_id} match ({some} …); give more of the key")
    return hits[0]


def _table(run: Run, shard: Shard) -> pa.Table:
    try:
        return run.storage.read_table(shard.table)
    except FileNotFoundError:
        place = run.storage.url_of(shard.table)
        records = f"{shard.table.split('/shards/')[0]}/portions"
        text = f"the table of a shard is missing; restore it, or remove {records} and run the recipe again"
        raise StorageError(f"{place}: {text}") from None


def explain(run: Run, wanted: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(stage, op, facts) in the order of the DAG. `reject`: why it was refused; `not computed`: one before did."""
    pool, shard, row, facts = find(run, wanted)
    ops = run.ops()
    said: list[tuple[str, str, dict[str, Any]]] = [(pool, ops[pool], facts | {"shard": shard.id, "row": row})]
    refused: dict[str, str | None] = {pool: facts["reject"]}
    for name in ops:
        base = run.outputs.get(name, {}).get("base", "")
        before = next((f"{up}: {refused[up]}" for up in run.upstream(name)[:-1] if refused.get(up)), None)
        if base.startswith("columns/"):
            found = _columns(run, name, shard, row)
            refused[name] = found.get("reject")
            said.append((name, ops[name], {"not computed": before} if before else found))
        elif base.startswith("selections/"):
            found = _selection(run, base, facts["key"])
            refused[name] = found.get("reject")
            said.append((name, ops[name], {"not reached": before} if before else found))
        elif base.startswith("datasets/"):
            said.append((name, ops[name], _dataset(run, base, facts["key"])))
    return said


def _columns(run: Run, name: str, shard: Shard, row: int) -> dict[str, Any]:
    path = f"{run.outputs[name]['path']}/{shard.id}.parquet"
    if not run.storage.exists(path):
        return {"reject": "shard_set_aside"}
    table = run.storage.read_table(path).slice(row, 1)
    return {field.name: _short(table.column(field.name), field.type) for field in table.schema}


def _short(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    value = column[0].as_py()
    if isinstance(value, bytes):
        if pa.types.is_fixed_size_binary(kind) and kind.byte_width > 64:
            vector = from_binary(column.combine_chunks())[0]
            return f"{len(vector)} numbers: {', '.join(f'{x:.3f}' for x in vector[:4])} …"
        return value.hex()
    return value


def _selection(run: Run, base: str, key: str) -> dict[str, Any]:
    for file in sorted(run.storage.list(f"{base}/buckets")):
        table = run.storage.read_table(f"{base}/buckets/{file}", filters=pc.field("key") == key)
        if table.num_rows:
            quota = run.storage.read_table(f"{base}/quotas.parquet")
            unit = table.column("unit")[0].as_py()
            facts = {
                "unit": unit,
                "copies": pc.sum(table.column("copies")).as_py(),
                "reject": None if pc.any(pc.greater(table.column("copies"), 0)).as_py() else table["reject"][0].as_py(),
            }
            if table.num_rows > 1 or table["item"][0].as_py() != "0":
                facts["items"] = [f"{r['item']}: {r['reject'] or r['copies']}" for r in table.to_pylist()]
            if unit >= 0:
                facts |= {f"unit {name}": quota.column(name)[unit].as_py() for name in ("count", "quota")}
            return facts
    return {"reject": None, "copies": 0}


def _dataset(run: Run, base: str, key: str) -> dict[str, Any]:
    path = f"{base}/index.parquet"
    if not run.storage.exists(path):
        return {"members": "dataset not complete"}
    table = run.storage.read_table(path, filters=pc.field("key") == key)
    files = [name for name in sorted(run.storage.list(base)) if name.endswith(".tar")]
    places = [f"{files[r['shard']]}: {r['name']}.{r['ext']} at byte {r['offset']:,}" for r in table.to_pylist()]
    return {"members": places or "none", "dataset": run.storage.url_of(base)}


def copies_of(run: Run, key: str) -> list[str]:
    """Keys of the samples that were refused as copies of this one."""
    tables = {
        shard.id: shard.table
        for output in run.outputs.values()
        if output["base"].startswith("pools/")
        for shard in read_shards(run.storage, output["base"])
    }
    found: list[str] = []
    for output in run.outputs.values():
        path = output.get("path") or ""
        files = run.storage.list(path) if path.startswith("columns/duplicates.drop/") else {}
        for shard, table in tables.items():
            if f"{shard}.parquet" in files:
                columns = run.storage.read_table(f"{path}/{shard}.parquet")
                column = columns[next(name for name in columns.column_names if name.endswith("_of"))]
                rows = np.flatnonzero(pc.equal(column, key).fill_null(False).to_numpy(zero_copy_only=False))
                if len(rows):
                    found += run.storage.read_table(table, columns=["key"])["key"].take(pa.array(rows)).to_pylist()
    return sorted(set(found))
