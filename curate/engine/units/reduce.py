"""A Reduce: workers compute a state for each shard, merge the states as a tree of files, and finish the last one.

    artifacts/<op>/partials/<inputs of partial>/<shard>-<content>.parquet    states, shared by artifacts
    artifacts/<op>/<fingerprint>/work/<digest>.parquet                       merged states, until the commit
    artifacts/<op>/<fingerprint>/states.parquet                              states that the artifact was computed from

A state depends on the stage, its shard and the shard's alive rows, not on the pool's version: a pool that grows adds
the states of its new shards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.core.contracts import Reduce
from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns.artifacts import FILES, STATES, save_artifact
from curate.core.nouns.manifest import reading
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Node
from curate.core.rows import Rows
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.fingerprints import column_fingerprints, content_by_shard
from curate.engine.state import Built
from curate.engine.tasks import beat
from curate.engine.tasks.stages import set_up
from curate.engine.units.common import dump, fetched, stretches
from curate.engine.units.step import GlobalStep

FAN_IN = 64
"""States that one task merges."""
AHEAD = 4
"""States read ahead of the merge: some are large."""


class ReduceStep(GlobalStep):
    def build(self, ctx: Context, built: Built) -> None:
        node, stage = self.node, self.node.stage
        assert isinstance(stage, Reduce)
        pool, ports = ctx.outputs.pool(node), ctx.outputs.ports(node)
        folder, names = _states(ctx, node)
        with ctx.progress.step(node.name, pool.rows) as step:
            for _, rows in ctx.tasks.each(reduce_partial, _partials(ctx, node, folder, names), stage, node.name):
                step.advance(rows)
            made = f"{built.base}/work"
            there = ctx.storage.list(made)
            level = [f"{folder}/{name}" for name in names]
            while len(level) > FAN_IN:
                tasks = [
                    MergeStatesTask(
                        ctx.storage, stage, node.name, ports, built.base, tuple(level[first : first + FAN_IN])
                    )
                    for first in range(0, len(level), FAN_IN)
                ]
                missing = (task for task in tasks if task.name not in there)
                for _ in ctx.tasks.each(reduce_merge, missing, stage, node.name):
                    pass
                level = [f"{made}/{task.name}" for task in tasks]
            last = MergeStatesTask(ctx.storage, stage, node.name, ports, built.base, tuple(level))
            [result] = ctx.tasks.must(reduce_finish, [last], stage, node.name)
        if self.fingerprint(ctx) != built.fingerprint:  # a file changed: either version may have been read
            raise InputError(f"{stage.op}: {', '.join(stage.identity())} changed during the build; run again")
        ctx.storage.publish_table(f"{built.base}/{STATES}", pa.table({"file": pa.array(names, pa.string())}))
        alive = result["rows"]
        ctx.outputs.finish(
            node, built, "artifact", Entry(alive, after=alive),
            rows=alive, bytes=result["bytes"], built_rows=alive,
            content=result["content"], extra={"states": folder, FILES: result[FILES]},
        )  # fmt: skip


def _states(ctx: Context, node: Node) -> tuple[str, list[str]]:
    """Folder of the states, and the file of each shard."""
    stage = node.stage
    assert isinstance(stage, Reduce)
    columns = column_fingerprints(ctx.outputs, node, stage.reads())
    contents = {port: ctx.outputs.built[name].content for port, name in node.ports.items()}
    state = digest([stage.op, stage.version, stage.counting(), columns, contents])
    alive_in = content_by_shard(ctx.outputs, node)
    names = [f"{shard.id}-{alive_in[shard.id][:16]}.parquet" for shard in ctx.outputs.pool(node).shards]
    return f"artifacts/{stage.op}/partials/{state}", names


def _partials(ctx: Context, node: Node, folder: str, names: Sequence[str]) -> Iterator[PartialTask]:
    """Tasks for the missing states."""
    stage, rows, ports = node.stage, ctx.outputs.rows(node), ctx.outputs.ports(node)
    assert isinstance(stage, Reduce)
    there = ctx.storage.list(folder)
    missing = [(s, name) for s, name in zip(ctx.outputs.pool(node).shards, names, strict=True) if name not in there]
    for first, stop in stretches([shard.rows for shard, _ in missing], ctx.options.task_rows):
        shards = tuple(shard for shard, _ in missing[first:stop])
        files = tuple(name for _, name in missing[first:stop])
        yield PartialTask(ctx.storage, stage, node.name, ctx.outputs.placed(rows, shards), ports, shards, folder, files)


# --- what workers do --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartialTask:
    storage: Storage
    stage: Reduce
    name: str
    rows: Rows
    ports: dict[str, str]
    shards: tuple[Shard, ...]
    folder: str
    files: tuple[str, ...]
    """File of each shard's state."""


def reduce_partial(task: PartialTask) -> int:
    """Compute the states of some shards; returns the number of their rows, alive or not."""
    stage = set_up(task.folder, task.stage, task.ports, task.storage)
    for shard, file in zip(task.shards, task.files, strict=True):
        with beat.working(task.name) as work:
            table = task.rows.live_table(shard, stage.reads())
            _publish(task.storage, f"{task.folder}/{file}", stage.partial(table), table.num_rows)
            work.rows = shard.rows
    return sum(shard.rows for shard in task.shards)


def _publish(storage: Storage, path: str, state: pa.Table, rows: int) -> None:
    """Publish a state, with the number of its live rows."""
    metadata = (state.schema.metadata or {}) | {b"ledger": dump({"rows": rows})}
    storage.publish_table(path, state.replace_schema_metadata(metadata))


@dataclass(frozen=True)
class MergeStatesTask:
    storage: Storage
    stage: Reduce
    node: str
    ports: dict[str, str]
    base: str
    states: tuple[str, ...]
    """Files of states of consecutive shards, or of merged states."""

    @property
    def name(self) -> str:
        """File of the merged state, the same after a kill."""
        return f"{digest(self.states)}.parquet"


def reduce_merge(task: MergeStatesTask) -> None:
    """Merge some states into one file."""
    with beat.working(task.node):
        _, state, rows = _merged(task)
        _publish(task.storage, f"{task.base}/work/{task.name}", state, rows)


def reduce_finish(task: MergeStatesTask) -> dict[str, Any]:
    """Merge the last states and publish the artifact's parts; the driver publishes its manifest."""
    with beat.working(task.node):
        stage, state, rows = _merged(task)
    with beat.working(task.node):
        size, digests = save_artifact(task.storage, task.base, stage.finish(state))
    return {"bytes": size, "content": digest(digests), "rows": rows, FILES: sorted(digests)}


def _merged(task: MergeStatesTask) -> tuple[Reduce, pa.Table, int]:
    """The stage, the merged state, and the number of its live rows."""
    stage = set_up(task.base, task.stage, task.ports, task.storage)
    folder = task.states[0].rpartition("/")[0] if task.states else task.base
    remedy = f"remove the folder {folder} and rerun the recipe"
    rows = 0

    def read(path: str) -> pa.Table:
        with reading(task.storage, path, "state", remedy):
            return task.storage.read_table(path)

    def states() -> Iterator[pa.Table]:
        nonlocal rows
        for table in fetched(read, task.states, AHEAD):
            rows += json.loads(table.schema.metadata[b"ledger"])["rows"]
            yield table

    return stage, stage.merge(states()), rows
