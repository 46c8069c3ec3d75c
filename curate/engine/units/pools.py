"""What a Source and a Derive have in common as steps: they make a pool."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from curate.core.contracts import Derive, Source
from curate.core.nouns.facts import listed
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import read_shards
from curate.core.rows import Rows
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.units.fields import check_fields
from curate.engine.units.step import Outside, Step

COVERS = "covers.parquet"
"""File of a derived pool's version: each parents' shard, the number of its highest table, and its result."""


class PoolStep(Step):
    @staticmethod
    def files(storage: Storage, base: str, manifest: Manifest) -> Outside:
        """Tars, tables and keys of a version; for a derived pool, also the records of its parents and the parents'
        shards."""
        found: set[str] = set()
        todo = read_shards(storage, base)
        while todo:
            shard = todo.pop()
            if shard.parent and shard.table not in found:
                todo.append(shard.parent_shard())
            found |= {shard.table, shard.tar} - {""}
        if "keys" in manifest.extra:
            found.add(manifest.extra["keys"]["folder"])
        if manifest.extra.get("derived"):
            found |= listed(storage, manifest.extra["derived"], base, COVERS)
        return Outside(found)

    @abstractmethod
    def build(self, ctx: Context) -> None:
        """Use or build the pool's version, and record it in `ctx.outputs.built` and `ctx.outputs.pools`."""

    def run(self, ctx: Context, begun: Callable[[], None]) -> None:
        name, stage = self.node.name, self.node.stage
        assert isinstance(stage, (Source, Derive))
        self.announce(ctx, f"pools/{stage.namespace}")
        self.build(ctx)
        self.note(ctx)
        pool = ctx.outputs.pools[name]
        readers = [other for other in ctx.pipeline.nodes.values() if ctx.pipeline.pool_of(other.name) == name]
        rows = Rows(ctx.storage, source=name, order=ctx.outputs.order, parents=pool.parents)
        check_fields(ctx, readers, rows, pool.shards, name)
