"""A Select: distribute the rows over buckets, count them per unit, plan quotas, pick by bucket, sort lines by shard.

work/lines/<stretch>            lines of a stretch of shards, by bucket (see shuffle.py)
work/counts/<stretch>.parquet   their number per unit
work/quotas.npy                 counts and quotas (2, U), mapped by every pick; with labels also hashes (3, U)
work/picked/<bucket>            lines of a bucket with their copies, by stretch
work/places/<stretch>.parquet   places of each shard's lines in rows/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from curate.core.contracts import Select
from curate.core.ledger import Entry, total
from curate.core.nouns.selections import FORMAT_OF_SELECTION, read_selected, read_selection, selection_places
from curate.core.recipe.pipeline import Pipeline
from curate.engine.context import Context
from curate.engine.fingerprints import buried, column_fingerprints, rows_fingerprint
from curate.engine.state import Built
from curate.engine.units import shuffle
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
from curate.engine.units.step import Explained, GlobalStep, Planned

if TYPE_CHECKING:
    from curate.engine.record.runs import RunRecord


class SelectStep(GlobalStep):
    folder: ClassVar[str] = "selections"

    def check(self, pipeline: Pipeline, planned: Mapping[str, Planned]) -> None:
        """Check that the pool has rows for the target. The number of samples that a Derive makes is unknown."""
        node, stage = self.node, self.node.stage
        assert isinstance(stage, Select)
        portions, inside = planned.get(pipeline.pool_of(node.name), ([], 0.0))
        target = stage.target_rows()
        if target is None or inside < 1.0 or any(portion.rows is None for portion in portions):
            return
        rows = sum(portion.rows or 0 for portion in portions)
        if target > rows and stage.target_name != "target":
            raise node.fail(f"{stage.target_name} {target:,} is more than the {rows:,} rows of its pool; lower it")
        if target > rows * stage.multiplier:
            raise node.fail(
                f"target {target:,} is more than {rows * stage.multiplier:,} ({rows:,} rows x multiplier "
                f"{stage.multiplier}); lower the target or raise the multiplier"
            )

    def fingerprint(self, ctx: Context) -> str:
        columns = column_fingerprints(ctx.outputs, self.node, self.node.stage.reads())
        return rows_fingerprint(ctx.outputs, self.node, columns, format=FORMAT_OF_SELECTION, **buried(ctx.outputs))

    def build(self, ctx: Context, built: Built) -> None:
        node, stage = self.node, self.node.stage
        assert isinstance(stage, Select)
        pool, rows = ctx.outputs.pool(node), ctx.outputs.rows(node)
        buckets = shuffle.buckets_for(pool.rows, stage.bucket_rows())
        stretches = shuffle.stretches([shard.rows for shard in pool.shards], buckets)
        shards = [tuple(pool.shards[first:stop]) for first, stop in stretches]
        names = [
            shuffle.stretch_name(i, [s.id for s in some], buckets, shuffle.HELD_BYTES) for i, some in enumerate(shards)
        ]
        there = ctx.storage.list(f"{built.base}/work")
        common: Common = (ctx.storage, stage, node.name, ctx.outputs.ports(node), built.base)
        with ctx.progress.step(node.name, pool.rows) as step:
            scatters = (
                SelectScatterTask(
                    *common,
                    f"lines/{name}" in there,
                    name,
                    some,
                    first,
                    buckets,
                    ctx.outputs.placed(rows, some),
                    ctx.outputs.tombstones,
                )
                for name, some, (first, _) in zip(names, shards, stretches, strict=True)
            )
            dealt: list[ShuffleFile] = ctx.tasks.must(select_scatter, scatters, stage, node.name)
            plan = PlanTask(*common, "quotas.npy" in there, tuple(names))
            for remark in filter(None, ctx.tasks.must(select_plan, [plan], stage, node.name)):
                ctx.progress.emit("warning", text=f"{node.name}: {remark}")
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
            for place, found in ctx.tasks.each(select_pick, picks, stage, node.name):
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
            places = ctx.tasks.must(select_gather, gathers, stage, node.name)
        ctx.outputs.finish(
            node, built, "selection", entry, pa.concat_tables(places), rows=entry.after,
            built_rows=entry.before, bytes=sum(ctx.storage.list(f"{built.base}/rows").values()),
        )  # fmt: skip

    @staticmethod
    def explain(run: RunRecord, name: str, about: Explained) -> dict[str, Any] | None:
        found = _explained(run, run.outputs[name]["base"], about)
        if found["reject"]:
            about.rejects[name] = found["reject"]
        return {"not reached": about.before} if about.before else found


def _explained(run: RunRecord, base: str, about: Explained) -> dict[str, Any]:
    """The copies of a row, or why it has none."""
    lines = read_selected(run.storage, base, selection_places(run.storage.url, base).get(about.shard.id))
    table = lines.filter(pc.equal(lines.column("row"), about.row))
    if not table.num_rows:
        return {"reject": None, "copies": 0}
    unit = table.column("unit")[0].as_py()
    found = {
        "unit": unit,
        "copies": pc.sum(table.column("copies")).as_py(),
        "reject": None if pc.any(pc.greater(table.column("copies"), 0)).as_py() else table["reject"][0].as_py(),
    }
    if table.num_rows > 1 or table["item"][0].as_py() != "0":
        found["items"] = [f"{r['item']}: {r['reject'] or r['copies']}" for r in table.to_pylist()]
    if unit >= 0:
        quota = read_selection(run.storage, base, "quotas.parquet")
        found |= {f"unit {name}": quota.column(name)[unit].as_py() for name in quota.column_names}
    return found
