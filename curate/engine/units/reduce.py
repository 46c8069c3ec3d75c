"""A Reduce: a state for each shard, kept in files; merged as a tree by workers; finished by one of them.

    artifacts/<op>/partials/<what decides partial>/<shard>-<content>.parquet    states; other artifacts use them too
    artifacts/<op>/<fingerprint>/work … <digest>.parquet                        of the tree, until the commit
    artifacts/<op>/<fingerprint>/states.parquet                                 which states it is made of

A state depends on the stage, its shard and who is alive there, not on the pool's version: a pool that grows adds the
states of its new shards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.core.contracts import Reduce
from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns import FILES, STATES, Shard, reading, save_artifact
from curate.core.recipe.pipeline import Node
from curate.core.rows import Rows
from curate.core.store.storage import Storage
from curate.engine.backends import set_up
from curate.engine.context import Built, Context
from curate.engine.units.common import dump, fetched, read_ledger, stretches, tidy
from curate.engine.workers import beat

FAN_IN = 64
"""States that one task merges."""
AHEAD = 4
"""States that are read while others are merged: some are large."""


def build_reduce(ctx: Context, node: Node, built: Built) -> None:
    stage = node.stage
    assert isinstance(stage, Reduce)
    began = time.monotonic()
    pool, ports = ctx.pool(node), ctx.ports(node)
    folder, names = _states(ctx, node)
    with ctx.progress.step(node.name, pool.rows) as step:
        for _, rows in ctx.each(reduce_partial, _partials(ctx, node, folder, names), stage, node.name):
            step.advance(rows)
        made = f"{built.base}/work"
        there = ctx.storage.list(made)
        level, lowest = [f"{folder}/{name}" for name in names], True
        while len(level) > FAN_IN:
            tasks = [
                MergeTask(
                    ctx.storage, stage, node.name, ports, built.base, tuple(level[first : first + FAN_IN]), lowest
                )
                for first in range(0, len(level), FAN_IN)
            ]
            missing = (task for task in tasks if task.name not in there)
            for _ in ctx.each(reduce_merge, missing, stage, node.name):
                pass
            level, lowest = [f"{made}/{task.name}" for task in tasks], False
        last = MergeTask(ctx.storage, stage, node.name, ports, built.base, tuple(level), lowest)
        [result] = ctx.must(reduce_finish, [last], stage, node.name)
    if ctx.fingerprint(node) != built.fingerprint:  # a file was saved in between, and nobody knows which was read
        raise InputError(
            f"{stage.op}: {', '.join(stage.identity())} changed while it was built; nothing of it is kept, run again"
        )
    ctx.storage.publish_table(f"{built.base}/{STATES}", pa.table({"file": pa.array(names, pa.string())}))
    alive = result["rows"]
    ctx.finish(
        node, built, "artifact", Entry(alive, after=alive),
        rows=alive, bytes=result["bytes"], seconds=round(time.monotonic() - began, 3), built_rows=alive,
        content=result["content"], extra={"states": folder, FILES: result[FILES]},
    )  # fmt: skip
    tidy(ctx, built)


def _states(ctx: Context, node: Node) -> tuple[str, list[str]]:
    """Folder of the states, and the file of each shard."""
    stage = node.stage
    assert isinstance(stage, Reduce)
    columns = {name: ctx.column_fingerprint(node, name) for name in stage.reads()}
    contents = {port: ctx.built[name].content for port, name in node.ports.items()}
    state = digest([stage.op, stage.version, stage.counting(), columns, contents])
    alive_in = ctx.contents_by_shard(node)
    names = [f"{shard.id}-{alive_in[shard.id][:16]}.parquet" for shard in ctx.pool(node).shards]
    return f"artifacts/{stage.op}/partials/{state}", names


def _partials(ctx: Context, node: Node, folder: str, names: Sequence[str]) -> Iterator[PartialTask]:
    """Tasks for the states that nobody has made yet."""
    stage, rows, ports = node.stage, ctx.rows(node), ctx.ports(node)
    assert isinstance(stage, Reduce)
    there = ctx.storage.list(folder)
    missing = [(s, name) for s, name in zip(ctx.pool(node).shards, names, strict=True) if name not in there]
    for first, stop in stretches([shard.rows for shard, _ in missing], ctx.options.task_rows):
        shards = tuple(shard for shard, _ in missing[first:stop])
        files = tuple(name for _, name in missing[first:stop])
        yield PartialTask(ctx.storage, stage, node.name, ctx.placed(rows, shards), ports, shards, folder, files)


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
    """Where each shard's state goes."""


def reduce_partial(task: PartialTask) -> int:
    """Make the states of some shards. Returns their rows, alive or not."""
    stage: Reduce = set_up(task.folder, task.stage, task.ports, task.storage)  # type: ignore[assignment]
    for shard, file in zip(task.shards, task.files, strict=True):
        began = time.monotonic()
        beat.current().doing(task.name)
        table = task.rows.live_table(shard, stage.reads())
        _publish(task.storage, f"{task.folder}/{file}", stage.partial(table), table.num_rows)
        beat.current().done(task.name, table.num_rows, time.monotonic() - began)
    return sum(shard.rows for shard in task.shards)


def _publish(storage: Storage, path: str, state: pa.Table, rows: int) -> None:
    """A state, with how many live rows it is of."""
    metadata = (state.schema.metadata or {}) | {b"ledger": dump({"rows": rows})}
    storage.publish_table(path, state.replace_schema_metadata(metadata))


@dataclass(frozen=True)
class MergeTask:
    storage: Storage
    stage: Reduce
    node: str
    ports: dict[str, str]
    base: str
    states: tuple[str, ...]
    """Of consecutive shards, or of consecutive stretches of them."""
    lowest: bool
    """Whether they are states of shards, which outlive the artifact's `work` folder."""

    @property
    def name(self) -> str:
        """File of the merged state: where to find it again after a kill."""
        return f"{digest(self.states)}.parquet"


def reduce_merge(task: MergeTask) -> None:
    """Merge some states into one, in a file."""
    began = time.monotonic()
    _, state, rows = _merged(task)
    _publish(task.storage, f"{task.base}/work/{task.name}", state, rows)
    beat.current().done(task.node, 0, time.monotonic() - began)


def reduce_finish(task: MergeTask) -> dict[str, Any]:
    """Merge the last states, finish, publish the artifact's parts (its manifest is the driver's)."""
    began = time.monotonic()
    stage, state, rows = _merged(task)
    beat.current().doing(task.node)
    size, digests = save_artifact(task.storage, task.base, stage.finish(state))
    beat.current().done(task.node, 0, time.monotonic() - began)
    return {"bytes": size, "content": digest(digests), "rows": rows, FILES: sorted(digests)}


def _merged(task: MergeTask) -> tuple[Reduce, pa.Table, int]:
    """The stage, its states as one, and of how many live rows that is."""
    stage: Reduce = set_up(task.base, task.stage, task.ports, task.storage)  # type: ignore[assignment]
    folder = task.states[0].rpartition("/")[0] if task.states else task.base
    remedy = f"remove the folder {folder} and run the recipe again"
    beat.current().doing(task.node)
    rows = 0

    def read(path: str) -> pa.Table:
        with reading(task.storage, path, "state", remedy):
            return task.storage.read_table(path)

    def states() -> Iterator[pa.Table]:
        nonlocal rows
        for table in fetched(read, task.states, AHEAD):
            rows += read_ledger(table.schema)["rows"]
            yield table

    return stage, stage.merge(states()), rows
