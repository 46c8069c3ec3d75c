"""Datasets that hold buried samples: found through the pools' URLs, digests and indexes of keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.core.nouns import Manifest, Shard, read_pool, read_shards, reading
from curate.core.store.storage import Storage
from curate.core.tombstones import COLUMNS, Tombstones
from curate.engine.units.common import fetched
from curate.engine.units.keys import places_of


def affected_datasets(storage: Storage, buried: Tombstones) -> dict[str, int]:
    """Base of each committed dataset -> how many buried samples it holds."""
    keys = _keys(storage, buried)
    if not keys:
        return {}
    found: dict[str, int] = {}
    for file in storage.list("datasets"):
        if file.endswith("/manifest.json"):
            base = f"datasets/{file.removesuffix('/manifest.json')}"
            hits = _held(storage, base, pa.array(sorted(keys), pa.string()))
            if hits:
                found[base] = hits
    return found


def _held(storage: Storage, base: str, wanted: pa.Array) -> int:
    """How many of these keys a dataset has; reads its index a piece at a time."""
    path = f"{base}/index.parquet"
    remedy = f"remove the folder {base} and run the recipe again"
    found: set[str] = set()
    with reading(storage, path, "index of a dataset", remedy), storage.open(path) as file:
        for batch in pq.ParquetFile(file).iter_batches(columns=["key"]):
            found.update(batch.column(0).filter(pc.is_in(batch.column(0), value_set=wanted)).to_pylist())
    return len(found)


def _keys(storage: Storage, buried: Tombstones) -> set[str]:
    """Buried keys, with those of pool rows buried by URL or digest, and of samples made out of a buried one."""
    keys = set(buried.values.get("key", ()))
    pools: list[tuple[Manifest, list[Shard]]] = []
    for file in storage.list("pools"):
        base = f"pools/{file.removesuffix('/manifest.json')}"
        manifest = Manifest.load(storage, base) if file.endswith("/manifest.json") else None
        if manifest is not None:
            pools.append((manifest, read_shards(storage, base)))
    tables = {shard.table: shard for _, shards in pools for shard in shards}
    if buried.values.get("url") or buried.values.get("sha256"):
        keys |= _hits(storage, tables, buried)
    derived = [shard for shard in tables.values() if shard.parent]
    found = keys
    while found and derived:  # samples made out of these, and those made out of them
        below = Tombstones({"key": tuple(sorted(found))})
        found = _hits(storage, _made_of(storage, found, pools, derived), below) - keys
        keys |= found
    return keys


def _made_of(
    storage: Storage, keys: set[str], pools: Sequence[tuple[Manifest, list[Shard]]], derived: Sequence[Shard]
) -> list[str]:
    """Tables of the derived samples whose parents are in one shard with some of these keys."""
    everything = [shard.table for shard in derived]
    if len(keys) >= len(derived) or not all("keys" in manifest.extra for manifest, _ in pools):
        return everything
    homes: set[str] = set()
    for manifest, shards in pools:
        known = places_of(storage, manifest, sorted(keys)) or {}
        homes |= {shards[place].id for hits in known.values() for place, _ in hits}
    return [shard.table for shard in derived if shard.parent_shard().id in homes]


def _hits(storage: Storage, tables: Collection[str], buried: Tombstones) -> set[str]:
    """Keys of the buried rows of some tables of pools."""

    def hits(path: str) -> list[str]:
        table = read_pool(storage, path, list(COLUMNS))
        return table["key"].take(pa.array(np.flatnonzero(buried.mask(table)))).to_pylist()  # type: ignore[no-any-return]

    return {key for found in fetched(hits, sorted(tables)) for key in found}
