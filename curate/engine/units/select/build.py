"""A Select: distribute the rows over buckets, count them per unit, plan quotas, pick by bucket, sort lines by shard.

work/lines/<stretch>            lines of a stretch of shards, by bucket (see shuffle.py)
work/counts/<stretch>.parquet   their number per unit
work/quotas.npy                 counts and quotas (2, U), mapped by every pick
work/picked/<bucket>            lines of a bucket with their copies, by stretch
work/places/<stretch>.parquet   places of each shard's lines in rows/
"""

from __future__ import annotations

import time

import pyarrow as pa

from curate.core.contracts import Select
from curate.core.ledger import Entry, total
from curate.core.recipe.pipeline import Node
from curate.engine.context import Context
from curate.engine.state import Built
from curate.engine.units import shuffle
from curate.engine.units.common import tidy
from curate.engine.units.select.tasks import (
    Common,
    GatherTask,
    PickTask,
    PlanTask,
    SelectScatterTask,
    select_gather,
    select_pick,
    select_plan,
    select_scatter,
)
from curate.engine.units.shuffle import ShuffleFile


def build_select(ctx: Context, node: Node, built: Built) -> None:
    stage = node.stage
    assert isinstance(stage, Select)
    began = time.monotonic()
    pool, rows = ctx.pool(node), ctx.rows(node)
    buckets = shuffle.buckets_for(pool.rows, stage.bucket_rows())
    stretches = shuffle.stretches([shard.rows for shard in pool.shards], buckets)
    shards = [tuple(pool.shards[first:stop]) for first, stop in stretches]
    names = [
        shuffle.stretch_name(i, [s.id for s in some], buckets, shuffle.HELD_BYTES) for i, some in enumerate(shards)
    ]
    there = ctx.storage.list(f"{built.base}/work")
    common: Common = (ctx.storage, stage, node.name, ctx.ports(node), built.base)
    with ctx.progress.step(node.name, pool.rows) as step:
        scatters = (
            SelectScatterTask(
                *common, f"lines/{name}" in there, name, some, first, buckets, ctx.placed(rows, some), ctx.tombstones
            )
            for name, some, (first, _) in zip(names, shards, stretches, strict=True)
        )
        dealt: list[ShuffleFile] = ctx.must(select_scatter, scatters, stage, node.name)
        ctx.must(select_plan, [PlanTask(*common, "quotas.npy" in there, tuple(names))], stage, node.name)
        full = [b for b in range(buckets) if any(file.rows[b] for file in dealt)]
        picked_names = {b: shuffle.stretch_name(b, names) for b in full}
        picks = (
            PickTask(
                *common, f"picked/{picked_names[b]}" in there, picked_names[b], shuffle.pieces(dealt, b),
                tuple(first for first, _ in stretches),
            )
            for b in full
        )  # fmt: skip
        picked: dict[int, ShuffleFile] = {}
        entries = []
        for place, found in ctx.each(select_pick, picks, stage, node.name):
            picked[place] = found
            entries.append(Entry.from_json(found.note["entry"]))
            step.advance(entries[-1].before, entries[-1].rejected.total())
        entry = total(entries)
        assert entry.before == sum(file.note["rows"] for file in dealt)
        files = [picked[place] for place in range(len(full))]
        gathers = (
            GatherTask(
                *common, f"places/{name}.parquet" in there, name, shuffle.pieces(files, i), first, i,
                tuple(shard.id for shard in some),
            )
            for i, (name, some, (first, _)) in enumerate(zip(names, shards, stretches, strict=True))
        )  # fmt: skip
        places = ctx.must(select_gather, gathers, stage, node.name)
    ctx.finish(
        node, built, "selection", entry, pa.concat_tables(places), rows=entry.after,
        seconds=round(time.monotonic() - began, 3), built_rows=entry.before,
        bytes=sum(ctx.storage.list(f"{built.base}/rows").values()),
    )  # fmt: skip
    tidy(ctx, built)
