"""Keys that repeat those of earlier shards: the later row is rejected, in an amended table of its shard.

pools/<namespace>/repeats/<shards>.parquet   amended shards: those with keys of earlier shards
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from curate.core.contracts import Source
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns.manifest import reading
from curate.core.nouns.pools import POOL_SCHEMA, Shard, read_pool
from curate.core.recipe.pipeline import Node
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.tasks import beat
from curate.engine.units import keys, shuffle
from curate.engine.units.common import content_id

REPEATED = "duplicate_key"


def without_repeats(
    ctx: Context, node: Node, stage: Source, folder: str, shards: list[Shard], entry: Entry
) -> tuple[list[Shard], Entry]:
    """The shards, amended so that no live key repeats an earlier one, and the ledger with the repeated keys."""
    if stage.unique_keys or len(shards) < 2:
        return shards, entry
    known = known_repeats(ctx.storage, stage.namespace, shards)
    if known is None:
        keys.build_index(ctx, node, folder, shards, with_repeats=True)
        tasks = (
            AmendTask(ctx.storage, node.name, stage.namespace, first, tuple(shards[first:stop]), pieces)
            for (first, stop), pieces in keys.repeats(ctx, folder, shards)
        )
        known = {
            number: (identity, rows)
            for _, found in ctx.tasks.each(amend_shards, tasks, stage, node.name)
            for number, identity, rows in found
        }
        lines = [{"shard": number, "id": known[number][0], "rows": known[number][1]} for number in sorted(known)]
        table = pa.Table.from_pylist(lines, schema=_REPEATS)
        ctx.storage.publish_table(_repeats_path(stage.namespace, shards), table)
        keys.tidy_index(ctx.storage, folder)
    rows = sum(rows for _, rows in known.values())
    return amended(shards, known), entry + Entry(0, Counter({REPEATED: rows} if rows else {}), -rows)


Repeats = Mapping[int, tuple[str, int]]
"""Place of a shard -> its id once repeated keys are rejected, and their number."""
_REPEATS = pa.schema([("shard", pa.int32()), ("id", pa.string()), ("rows", pa.int64())])


def _repeats_path(namespace: str, shards: Sequence[Shard]) -> str:
    return f"pools/{namespace}/repeats/{digest([shard.id for shard in shards])}.parquet"


def known_repeats(storage: Storage, namespace: str, shards: Sequence[Shard]) -> Repeats | None:
    """The shards that repeat keys of earlier shards; None if no run has checked them."""
    path = _repeats_path(namespace, shards)
    return read_repeats(storage, path) if storage.exists(path) else None


def read_repeats(storage: Storage, path: str) -> Repeats:
    with reading(storage, path, "list of repeated keys", "remove it and rerun the recipe"):
        number, identity, rows = (column.to_pylist() for column in storage.read_table(path).columns)
        return {n: (i, r) for n, i, r in zip(number, identity, rows, strict=True)}


def amended(shards: Sequence[Shard], known: Repeats) -> list[Shard]:
    """The shards with their amended tables."""
    return [
        replace(shard, id=known[i][0], table=f"{shard.table.rpartition('/')[0]}/{known[i][0]}.parquet")
        if i in known
        else shard
        for i, shard in enumerate(shards)
    ]


# --- what workers do --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AmendTask:
    storage: Storage
    name: str
    namespace: str
    first: int
    """Place of the first shard in the pool's list."""
    shards: tuple[Shard, ...]
    repeats: tuple[shuffle.Piece, ...]
    """Pieces with the places of repeated keys."""


def amend_shards(task: AmendTask) -> list[tuple[int, str, int]]:
    """Publish tables in which repeated keys are rejected. Returns each shard's place, new id and number of rejects."""
    found = []
    for number, rows in keys.read_repeats(task.storage, task.repeats).items():
        with beat.working(task.name) as work:
            identity = _amend(task.storage, task.namespace, task.shards[number - task.first], rows)
            found.append((number, identity, len(rows)))
            work.rows = len(rows)
    return found


def _amend(storage: Storage, namespace: str, shard: Shard, rows: Sequence[int]) -> str:
    """Publish a shard's table with some live rows rejected; returns the new id."""
    table = read_pool(storage, shard.table)
    reasons = table.column("reject").to_pylist()
    for row in rows:
        reasons[row] = REPEATED
    place = table.schema.get_field_index("reject")
    table = table.set_column(place, POOL_SCHEMA.field("reject"), pa.array(reasons, pa.string()))
    identity = content_id(table)
    path = f"pools/{namespace}/shards/{identity}.parquet"
    if not storage.exists(path):  # its name is its content
        storage.publish_table(path, table)
    return identity
