"""Datasets that contain tombstoned samples, found through the pools' URLs, digests and key indexes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.core.errors import InputError
from curate.core.hashing import make_key
from curate.core.nouns.manifest import Manifest, reading
from curate.core.nouns.pools import Shard, read_pool, read_shards
from curate.core.nouns.tombstones import COLUMNS, Tombstones, kind_of
from curate.core.store.storage import Storage
from curate.engine.units.common import fetched
from curate.engine.units.keys import as_source_id, look_up, places_of


def affected_datasets(storage: Storage, tombstones: Tombstones) -> dict[str, int]:
    """Base of each committed dataset -> number of tombstoned samples in it."""
    keys = keys_of(storage, tombstones)
    if not keys:
        return {}
    found: dict[str, int] = {}
    for file in storage.list("datasets"):
        if file.endswith("/manifest.json"):
            base = f"datasets/{file.removesuffix('/manifest.json')}"
            hits = _count(storage, base, pa.array(sorted(keys), pa.string()))
            if hits:
                found[base] = hits
    return found


def _count(storage: Storage, base: str, wanted: pa.Array) -> int:
    """Number of these keys in a dataset; reads its index batch by batch."""
    path = f"{base}/index.parquet"
    remedy = f"remove the folder {base} and rerun the recipe"
    found: set[str] = set()
    with reading(storage, path, "index of a dataset", remedy), storage.open(path) as file:
        for batch in pq.ParquetFile(file).iter_batches(columns=["key"]):
            found.update(batch.column(0).filter(pc.is_in(batch.column(0), value_set=wanted)).to_pylist())
    return len(found)


def keys_of(storage: Storage, tombstones: Tombstones) -> set[str]:
    """Tombstoned keys: given as keys, by URL or digest of a pool row, or through a tombstoned ancestor."""
    keys = set(tombstones.values.get("key", ()))
    pools = [(manifest, read_shards(storage, base)) for base, manifest in pools_of(storage).items()]
    tables = {shard.table: shard for _, shards in pools for shard in shards}
    if tombstones.values.get("url") or tombstones.values.get("sha256"):
        keys |= _hits(storage, tables, tombstones)
    derived = [shard for shard in tables.values() if shard.parent]
    found = keys
    while found and derived:  # children of these samples, then their children
        below = Tombstones({"key": tuple(sorted(found))})
        found = _hits(storage, _child_tables(storage, found, pools, derived), below) - keys
        keys |= found
    return keys


def pools_of(storage: Storage) -> dict[str, Manifest]:
    """Base of each committed pool -> manifest."""
    files = [file for file in storage.list("pools") if file.endswith("/manifest.json")]
    bases = [f"pools/{file.removesuffix('/manifest.json')}" for file in files]
    return {base: manifest for base in bases if (manifest := Manifest.load(storage, base)) is not None}


def with_keys(storage: Storage, entries: Iterable[str]) -> list[str]:
    """Entries for a list of tombstones, with keys in place of source ids. Raises InputError for any other text."""
    lines = [line.strip() for line in entries]
    keys = {line: line for line in lines if not line or line.startswith("#") or kind_of(line)}
    pools = pools_of(storage) if len(keys) < len(set(lines)) else {}
    for name in (line for line in lines if line not in keys):
        wanted = [(manifest, make_key(base.split("/")[1], as_source_id(name))) for base, manifest in pools.items()]
        hits = sorted({key for manifest, key in wanted if look_up(storage, manifest, key)})
        if len(hits) != 1:
            found = f"the source id of {len(hits)} samples, and no key (32 hex), sha256 (64 hex)"
            raise InputError(f"tombstones: {name!r} is {found} or URL; fix the line")
        keys[name] = hits[0]
    return [keys[line] for line in lines]


def _child_tables(
    storage: Storage, keys: set[str], pools: Sequence[tuple[Manifest, list[Shard]]], derived: Sequence[Shard]
) -> list[str]:
    """Tables of derived samples whose parents share a shard with one of these keys."""
    everything = [shard.table for shard in derived]
    if len(keys) >= len(derived) or not all("keys" in manifest.extra for manifest, _ in pools):
        return everything
    homes: set[str] = set()
    for manifest, shards in pools:
        known = places_of(storage, manifest, sorted(keys)) or {}
        homes |= {shards[place].id for hits in known.values() for place, _ in hits}
    return [shard.table for shard in derived if shard.parent_shard().id in homes]


def _hits(storage: Storage, tables: Collection[str], tombstones: Tombstones) -> set[str]:
    """Keys of the tombstoned rows in some pool tables."""

    def hits(path: str) -> list[str]:
        table = read_pool(storage, path, list(COLUMNS))
        return table["key"].take(pa.array(np.flatnonzero(tombstones.mask(table)))).to_pylist()

    return {key for found in fetched(hits, sorted(tables)) for key in found}
