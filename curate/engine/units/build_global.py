"""Building artifacts, selections, datasets and reports: the steps of each, and what is committed at the end."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pyarrow.parquet as pq

from curate.core.contracts import Pack, Reduce, Report, Select
from curate.core.errors import InputError, TargetError
from curate.core.hashing import digest
from curate.core.ledger import Entry, total
from curate.core.nouns import save_artifact
from curate.core.pipeline import Node
from curate.engine import shuffle
from curate.engine.context import Built, Context
from curate.engine.record.view import StoredView
from curate.engine.units import pack as packing
from curate.engine.units import select as selecting
from curate.engine.units import tasks
from curate.engine.units.tasks import read_ledger

WORK = {"artifacts": ("work",), "selections": ("shuffle", "counts"), "datasets": ("order", "parts")}
"""Folders of a noun that hold what one step of its build leaves for the next."""


def prepare(ctx: Context, node: Node) -> Built:
    """Fingerprint and place of a global step's output."""
    stage = node.stage
    fingerprint = ctx.fingerprint(node)
    if isinstance(stage, Select):
        return Built(fingerprint, f"selections/{stage.op}/{fingerprint}")
    if isinstance(stage, Pack):
        return Built(fingerprint, f"datasets/{stage.name}/{fingerprint}")
    return Built(fingerprint, f"artifacts/{stage.op}/{fingerprint}")


def tidy(ctx: Context, built: Built) -> None:
    """Remove what lies between the steps of a committed global stage; a kill after the commit leaves it behind."""
    for folder in WORK.get(built.base.split("/")[0], ()):
        ctx.storage.remove(f"{built.base}/{folder}")


def build_reduce(ctx: Context, node: Node, built: Built) -> None:
    stage = node.stage
    assert isinstance(stage, Reduce)
    began = time.monotonic()
    pool, rows, ports = ctx.pool(node), ctx.rows(node), ctx.ports(node)
    # a state depends on the stage, its shard and who is alive there, not on the pool's version
    columns = {name: ctx.column_fingerprint(node, name) for name in stage.reads()}
    contents = {port: ctx.built[name].content for port, name in node.ports.items()}
    state = digest([stage.op, stage.version, stage.counting(), columns, contents])
    path = f"artifacts/{stage.op}/partials/{state}"
    alive_in = ctx.contents_by_shard(node)
    states = tuple(f"{path}/{shard.id}-{alive_in[shard.id][:16]}.parquet" for shard in pool.shards)
    there = ctx.storage.list(path)
    missing = [(s, p) for s, p in zip(pool.shards, states, strict=True) if p.removeprefix(f"{path}/") not in there]
    payloads = [tasks.PartialTask(ctx.storage, stage, rows, ports, (shard,), (file,)) for shard, file in missing]
    with ctx.progress.step(node.name, pool.rows) as step:
        for results in ctx.must(tasks.reduce_partial, payloads, stage, node.name):
            step.advance(sum(result["rows"] for result in results))
        finish = tasks.FinishTask(ctx.storage, stage, ports, states, built.base)
        [result] = ctx.must(tasks.reduce_finish, [finish], stage, node.name)
    if ctx.fingerprint(node) != built.fingerprint:  # a file was saved in between, and nobody knows which was read
        raise InputError(
            f"{stage.op}: {', '.join(stage.identity())} changed while it was built; nothing of it is kept, run again"
        )
    alive = sum(int(_footer(ctx, state)["rows"]) for state in states)
    ctx.finish(
        node, built, "artifact", Entry(alive, after=alive),
        rows=alive, bytes=result["bytes"], seconds=round(time.monotonic() - began, 3), built_rows=alive,
        content=result["content"], extra={"states": list(states)},
    )  # fmt: skip


def _footer(ctx: Context, path: str) -> dict[str, Any]:
    with ctx.storage.open(path) as file:
        return read_ledger(pq.read_schema(file))


def build_select(ctx: Context, node: Node, built: Built) -> None:
    stage = node.stage
    assert isinstance(stage, Select)
    began = time.monotonic()
    pool = ctx.pool(node)
    buckets = shuffle.buckets_for(pool.rows)

    def task(**changes: Any) -> selecting.SelectTask:
        return selecting.SelectTask(
            ctx.storage, stage, ctx.rows(node), ctx.ports(node), built.base, buckets, ctx.tombstones, **changes
        )

    with ctx.progress.step(node.name, pool.rows) as step:
        scattered = ctx.must(selecting.select_scatter, [task(shards=(s,)) for s in pool.shards], stage, node.name)
        ctx.must(selecting.select_plan, [task()], stage, node.name)
        picks = [task(bucket=b) for b in range(buckets)]
        entries = []
        for result in ctx.must(selecting.select_pick, picks, stage, node.name):
            entry = Entry.from_json(result["entry"])
            entries.append(entry)
            step.advance(result["rows"], sum(entry.rejected.values()))
    entry = total(entries)
    assert entry.before == sum(r["rows"] for part in scattered for r in part)
    ctx.finish(
        node, built, "selection", entry, rows=entry.after, seconds=round(time.monotonic() - began, 3),
        built_rows=entry.before, bytes=sum(ctx.storage.list(f"{built.base}/buckets").values()),
        extra={"buckets": buckets},
    )  # fmt: skip
    tidy(ctx, built)


def build_pack(ctx: Context, node: Node, built: Built) -> None:
    stage = node.stage
    assert isinstance(stage, Pack)
    began = time.monotonic()
    chosen = next(up for up in ctx.pipeline.along(node.name) if isinstance(up.stage, Select))
    selection = ctx.built[chosen.name]
    assert selection.manifest is not None
    selected = selection.manifest.extra["buckets"]
    copies = selection.manifest.entry.copies or 0
    buckets = shuffle.buckets_for(copies)
    if not copies:
        raise TargetError(f"the selection {chosen.name!r} keeps no row; loosen the filters upstream")

    def task(**changes: Any) -> packing.PackTask:
        pool = ctx.built[ctx.pipeline.pool_of(node.name)].base
        return packing.PackTask(
            ctx.storage, stage, ctx.rows(node), selection.base, built.base, buckets, pool, **changes
        )

    with ctx.progress.step(node.name, copies) as step:
        scatters = [task(index=i) for i in range(selected)]
        scattered = ctx.must(packing.pack_scatter, scatters, stage, node.name)
        rows, copies = sum(r for r, _ in scattered), sum(c for _, c in scattered)
        orders = [task(index=i, parts=selected) for i in range(buckets)]
        sizes = ctx.must(packing.pack_order, orders, stage, node.name)
        starts = tuple(sum(sizes[:i]) for i in range(buckets))
        assert sum(sizes) == copies
        payloads = _shards(ctx, built, task, copies, stage.shard_rows, starts)
        for result in ctx.must(packing.pack_shard, payloads, stage, node.name):
            step.advance(result["rows"])
        count = -(-copies // stage.shard_rows)
        [done] = ctx.must(packing.pack_finish, [task(parts=count)], stage, node.name)
    rejected = Counter(done["rejected"])
    ctx.finish(
        node, built, "dataset", Entry(rows, rejected, rows - rejected.total(), copies=done["rows"]),
        [{"file": name, "bytes": size} for name, size in done["tars"].items()],
        rows=done["rows"], bytes=sum(done["tars"].values()), seconds=round(time.monotonic() - began, 3),
        built_rows=sum(p.stop - p.start for p in payloads), extra={"tars": count},
    )  # fmt: skip
    tidy(ctx, built)


def _shards(
    ctx: Context, built: Built, task: Any, copies: int, shard_rows: int, starts: tuple[int, ...]
) -> list[packing.PackTask]:
    """Tasks of the output shards that are not there yet: near-equal stretches of the global order."""
    count = -(-copies // shard_rows)
    edges = [i * copies // count for i in range(count + 1)] if count else [0]
    there = ctx.storage.list(f"{built.base}/parts")
    missing = [i for i in range(count) if f"{i:06d}.parquet" not in there]
    return [task(index=i, start=edges[i], stop=edges[i + 1], starts=starts) for i in missing]


def build_report(ctx: Context, node: Node, built: Built) -> None:
    stage = node.stage
    assert isinstance(stage, Report)
    began = time.monotonic()
    with ctx.progress.step(node.name, ctx.pool(node).rows) as step:
        view = StoredView.of(ctx, node)
        size, _ = save_artifact(ctx.storage, built.base, stage.render(view))
        step.advance(ctx.pool(node).rows)
    alive = view.alive
    ctx.finish(
        node, built, "artifact", Entry(alive, after=alive),
        rows=alive, bytes=size, seconds=round(time.monotonic() - began, 3), built_rows=ctx.pool(node).rows,
    )  # fmt: skip
