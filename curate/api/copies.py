"""Copies of a sample, from the facts of `duplicates.members`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from curate.core.nouns import facts
from curate.core.nouns.pools import read_pool, read_shards
from curate.core.rows import numbers
from curate.engine.record.runs import RunRecord
from curate.engine.units.common import fetched


def copies_of(run: RunRecord, key: str) -> list[str]:
    """Keys of the samples that `duplicates.members` found to be copies of this one."""
    tables = {
        shard.id: shard.table
        for output in run.outputs.values()
        if output["base"].startswith("pools/")
        for shard in read_shards(run.storage, output["base"])
    }
    found: list[str] = []
    for output in run.outputs.values():
        path = output.get("path") or ""
        known = numbers(run.storage.url, output["base"]) if path.startswith("facts/duplicates.members/") else {}

        def copies(line: tuple[str, int], path: str = path) -> pa.ChunkedArray:
            columns = facts.read(run.storage, path, *line)
            column = columns[next(name for name in columns.column_names if name.endswith("_of"))]
            return columns.filter(pc.equal(column, key).fill_null(False)).column(facts.ROW)

        for shard, rows in zip(known, fetched(copies, known.items()), strict=True):
            if len(rows) and shard in tables:
                found += read_pool(run.storage, tables[shard], ["key"])["key"].take(rows).to_pylist()
    return sorted(set(found))
