"""A Derive as a step of a run and of a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from curate.core.nouns import facts
from curate.core.nouns.manifest import Manifest, read_lines
from curate.engine.context import Context
from curate.engine.passes.build import mask_manifest
from curate.engine.plan.lines import ESTIMATED, EXACT, PlanLine
from curate.engine.units.derive.build import DeriveBuild
from curate.engine.units.derive.record import read_record
from curate.engine.units.pools import COVERS, PoolStep
from curate.engine.units.step import Explained

if TYPE_CHECKING:
    from curate.engine.plan.planner import Planner
    from curate.engine.record.runs import RunRecord


class DeriveStep(PoolStep):
    kind: ClassVar[str] = "derive"

    def retried(self) -> tuple[str, ...]:
        return ("error",)

    def record(self) -> dict[str, Any]:
        return super().record() | {"derives": True}

    @staticmethod
    def explain(run: RunRecord, name: str, about: Explained) -> dict[str, Any] | None:
        """The children of a row."""
        if about.before:
            return {"not computed": about.before}
        manifest = Manifest.load(run.storage, run.outputs[name]["base"])
        assert manifest is not None
        covers = read_lines(run.storage, run.outputs[name]["base"], ["id", "number"], COVERS).to_pylist()
        number = next((line["number"] for line in covers if line["id"] == about.shard.id), 0)
        record = read_record(run.storage, manifest.extra["derived"], about.shard.id, number)
        parent = record.parents.get(about.row)
        if parent is None:
            return {"not computed": "no run has needed it"}
        if parent.status == facts.STATUS[facts.DONE]:
            return {"children": parent.children}
        return {
            "status": parent.status,
            "reason": parent.reason,
            "message": record.messages.get(str(parent.reason), ""),
        }

    def build(self, ctx: Context) -> None:
        DeriveBuild(ctx, self.node).make()

    def plan(self, planner: Planner) -> None:
        ctx, node = planner.ctx, self.node
        line = PlanLine(node.name, node.stage.op, self.kind)
        blocked = planner.blocked(node)
        if blocked:
            line.note = f"depends on {blocked}"
            line = planner.expected(self, line, node)
        else:
            build = DeriveBuild(ctx, node)
            build.survey()
            if build.reuse():
                entry = planner.entry(node)
                line.done, line.needed, line.compute, line.after = entry.before, entry.before, 0, entry.children
                line.certainty = EXACT
                planner.folded.add(node.name)
            else:
                del ctx.outputs.built[node.name]
                line.needed, line.certainty = planner.reaching(node), ESTIMATED
                self._missing_children(planner, line, build)
        planner.put(line, stored=True)

    def _missing_children(self, planner: Planner, line: PlanLine, build: DeriveBuild) -> None:
        """Count the parents without children. If there are none, the live children are known."""
        ctx = planner.ctx
        shards, scale = planner.chosen(ctx.outputs.pool_upstream(build.node))
        found = [build.look(shard) for shard in shards]
        line.needed, line.compute = (round(scale * sum(counts[n] for counts in found)) for n in (0, 1))
        line.done = line.needed - line.compute
        line.certainty = EXACT if scale == 1.0 else ESTIMATED
        if scale == 1.0 and not line.compute:
            pool, entry, built = build.pool(), build.entry(), build.built
            built.manifest = replace(mask_manifest(build.node, built, entry, 0.0), rows=pool.rows)
            built.base, built.content = build.version(), pool.fingerprint
            ctx.outputs.built[line.stage], ctx.outputs.pools[line.stage] = built, pool
            line.after = entry.children
            planner.folded.add(line.stage)
