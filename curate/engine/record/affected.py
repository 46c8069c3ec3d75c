"""Datasets that hold buried samples: found through the selections' keys and the pools' URLs and digests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.core.nouns import read_index, read_pool, read_shards
from curate.core.storage import Storage
from curate.core.tombstones import COLUMNS, Tombstones


def affected_datasets(storage: Storage, buried: Tombstones) -> dict[str, int]:
    """Base of each committed dataset -> how many buried samples it holds."""
    keys = _keys(storage, buried)
    if not keys:
        return {}
    wanted = pa.array(sorted(keys), pa.string())
    found: dict[str, int] = {}
    for file in storage.list("datasets"):
        if file.endswith("/manifest.json"):
            base = f"datasets/{file.removesuffix('/manifest.json')}"
            table = read_index(storage, base, ["key"])
            hits = pc.unique(table.filter(pc.is_in(table["key"], value_set=wanted))["key"])
            if len(hits):
                found[base] = len(hits)
    return found


def _keys(storage: Storage, buried: Tombstones) -> set[str]:
    """Buried keys, with those of pool rows buried by URL or digest, and of samples made out of a buried one."""
    keys = set(buried.values.get("key", ()))
    every = bool(buried.values.get("url") or buried.values.get("sha256"))
    shards = {
        shard.table: shard
        for file in storage.list("pools")
        if file.endswith("/manifest.json")
        for shard in read_shards(storage, f"pools/{file.removesuffix('/manifest.json')}")
    }
    if every:
        keys |= _hits(storage, shards, buried)
    derived = [table for table, shard in shards.items() if shard.parent]
    found = keys
    while found and derived:  # samples made out of these, and those made out of them
        found = _hits(storage, derived, Tombstones({"key": tuple(sorted(found))})) - keys
        keys |= found
    return keys


def _hits(storage: Storage, tables: Iterable[str], buried: Tombstones) -> set[str]:
    """Keys of the buried rows of some tables of pools."""
    found: set[str] = set()
    for path in sorted(tables):
        table = read_pool(storage, path, list(COLUMNS))
        found.update(table["key"].take(pa.array(np.flatnonzero(buried.mask(table)))).to_pylist())
    return found
