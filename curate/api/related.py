"""Samples that belong to one: rows by key, its copies, its children."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.api.slices import FIXED, NAMED, Slice, SlicePage, SliceReader, name_of
from curate.core.nouns.manifest import Manifest, read_index, read_lines
from curate.core.nouns.pools import Shard, read_pool, read_shards, shards_of
from curate.engine.record.runs import RunRecord
from curate.engine.units.keys import places_of

MOST_CHILDREN = 60


def rows_of(run: RunRecord, keys: Sequence[str]) -> SlicePage:
    """The rows with these keys, in this order, without those that the run does not have; meant for hundreds. `reason`
    is that of the pool."""
    found: dict[str, dict[str, Any]] = {}
    for base in _pools(run).values():
        manifest = Manifest.load(run.storage, base)
        known = places_of(run.storage, manifest, list(keys)) if manifest is not None else None
        hits = [(place, row) for places in (known or {}).values() for place, row in places]
        lines = read_lines(run.storage, base) if hits else None
        for place in sorted({place for place, _ in hits}):
            assert lines is not None
            [shard] = shards_of(lines.slice(place, 1))
            rows = sorted(row for where, row in hits if where == place)
            found |= {line["key"]: line for line in _lines(run, shard, rows)}  # later generations replace failed rows
    return _page([found[key] for key in keys if key in found])


def children_of(run: RunRecord, shard: str, *keys: str) -> SlicePage:
    """The first samples that were derived from those with these keys in this shard."""
    found: list[dict[str, Any]] = []
    for name, base in _pools(run).items():
        shards = read_shards(run.storage, base) if run.pool_above(name) != name else []
        for own in (one for one in shards if one.parent and one.parent_shard().id == shard):
            table = read_pool(run.storage, own.table, ["parent"])
            hit = pc.indices_nonzero(pc.is_in(table["parent"], pa.array(keys))).to_pylist()
            found += _lines(run, own, hit[: MOST_CHILDREN - len(found)])
    return _page(found)


def packed_of(run: RunRecord, rows: SlicePage) -> dict[str, int]:
    """Dataset's stage -> how many it has of these samples, their children, and so on."""
    keys, lines = set[str](), rows.table.to_pylist()
    while lines:
        keys |= {line["key"] for line in lines}
        shards = {line["shard"]: [one["key"] for one in lines if one["shard"] == line["shard"]] for line in lines}
        lines = [line for shard, own in shards.items() for line in children_of(run, shard, *own).table.to_pylist()]
    packed = dict[str, int]()
    for name, base in run.datasets().items() if keys else ():
        if run.storage.exists(f"{base}/index.parquet"):
            index = read_index(run.storage, base, ["key"], filters=pc.field("key").isin(list(keys)))
            packed[name] = pc.count_distinct(index["key"]).as_py()
    return {name: count for name, count in packed.items() if count}


def copies_of(run: RunRecord, key: str, limit: int, seconds: float) -> Iterator[tuple[Slice, SlicePage]]:
    """For each stage that finds duplicates: the slice of the copies of a sample, and its first page."""
    for stage, output in run.outputs.items():
        if run.ops()[stage] == "duplicates.members" and output["base"].startswith("facts/"):
            column = run.record["stages"][stage]["parameters"].get("column", "duplicate")
            which = Slice(run.pool_of(stage), where=f"\"{stage}.{column}_of\" = '{key}'")
            yield which, SliceReader(run, which).page("", limit, seconds)


def _pools(run: RunRecord) -> dict[str, str]:
    return {name: one["base"] for name, one in run.outputs.items() if one["base"].startswith("pools/")}


def _lines(run: RunRecord, shard: Shard, rows: Sequence[int]) -> list[dict[str, Any]]:
    table = read_pool(run.storage, shard.table, ["key", *NAMED, "media", "url", "reject"]).take(
        pa.array(rows, pa.int64())
    )
    lines = [line | {"shard": shard.id, "row": row} for line, row in zip(table.to_pylist(), rows, strict=True)]
    return [line | {"reason": line.pop("reject"), "name": name_of(*(line[name] for name in NAMED))} for line in lines]


def _page(lines: Sequence[dict[str, Any]]) -> SlicePage:
    return SlicePage(pa.Table.from_pylist(list(lines), FIXED), 1, 1, "")
