"""Maps and Filters that share a pass, as a step of a run and of a plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from curate.core.contracts import Filter, Stage, trait
from curate.core.ledger import Entry, total
from curate.core.nouns import facts
from curate.core.nouns.manifest import Manifest, read_lines
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Node
from curate.core.rows import CHILDREN, numbers
from curate.core.store.storage import Storage
from curate.core.vectors import from_binary
from curate.engine.context import Context
from curate.engine.passes import build as build_pass
from curate.engine.passes import plan as pass_plan
from curate.engine.passes.build import PassBuild
from curate.engine.passes.run import run_pass
from curate.engine.plan.lines import ESTIMATED, EXACT, PlanLine
from curate.engine.units.step import Explained, Outside, Step

if TYPE_CHECKING:
    from curate.engine.plan.planner import Planner
    from curate.engine.record.runs import RunRecord


class PassStep(Step):
    kind: ClassVar[str] = "pass"
    by_shard: ClassVar[bool] = True

    def __init__(self, *nodes: Node) -> None:
        super().__init__(*nodes)
        self.work: PassBuild | None = None
        """The pass once it is laid out, so that later passes can follow it."""

    @property
    def answers_due(self) -> bool:
        return self.work is not None and self.work.asks and self.work.running > 0

    def retried(self) -> tuple[str, ...]:
        return ("error",) if self.node.stage.schema().names else ()

    def missing(self, name: str) -> str:
        return f"which rows pass {name}"

    # --- in a run ---

    def run(self, ctx: Context, begun: Callable[[], None]) -> None:
        """Reuse the pass's facts, or compute them under leases. Leases are taken in the order of the DAG, so that two
        runs never wait for each other."""
        nodes = list(self.nodes)
        with ctx.outputs.lock:
            plan = pass_plan.lay_out(ctx.outputs, nodes, self._names_above())
        others = [step.work for step in self.above if isinstance(step, PassStep) and step.work is not None]
        build = self.work = PassBuild(ctx, nodes, plan, others)
        begun()
        self.announce(ctx, plan.chain)
        pass_plan.survey(ctx.outputs, plan)
        for other in others:
            ctx.tasks.wait(other.settled)
        if not build.reuse():
            paths = {
                ctx.outputs.built[node.name].path: node for node in reversed(nodes) if ctx.outputs.built[node.name].path
            }
            with contextlib.ExitStack() as stack:
                for path in sorted(paths):
                    stack.enter_context(ctx.lease(paths[path], path))
                build.settled.set()
                build.fold_logs()
                pass_plan.survey(ctx.outputs, plan)
                if not build.reuse():
                    build.build()
        for node in nodes:
            if ctx.outputs.built[node.name].reused:
                ctx.progress.reused(node.name, ctx.outputs.pool(node).rows)
        self.note(ctx)
        build.complete.set()
        build.settled.set()

    def _names_above(self) -> frozenset[str]:
        return frozenset(node.name for step in self.above for node in step.nodes)

    @staticmethod
    def files(storage: Storage, base: str, manifest: Manifest) -> Outside:
        """Tables of facts; or the files of a mask, and the masks of other passes that it combines with its own."""
        if base.startswith("facts/"):
            return Outside(facts.listed(storage, base.split("/versions/")[0], base))
        files = read_lines(storage, base, ["file"]).column("file").to_pylist()
        return Outside(files, manifest.extra.get("bases", ()))

    @staticmethod
    def explain(run: RunRecord, name: str, about: Explained) -> dict[str, Any] | None:
        """The facts of a row. Its fate, and that of its items, is in the mask."""
        if run.outputs[name]["base"].startswith("masks/"):
            return {"not judged": about.before} if about.before else {"reject": None}
        if about.before:
            return {"not computed": about.before}
        output = run.outputs[name]
        number = numbers(run.storage.url, output["base"]).get(about.shard.id, 0)
        table = facts.read(run.storage, output["path"], about.shard.id, number)
        at = np.flatnonzero(table.column(facts.ROW).to_numpy() == about.row)
        if not len(at):
            return {"not computed": "no run has needed it"}
        status = facts.STATUS[table.column(facts.STATUS_COLUMN)[int(at[0])].as_py()]
        found: dict[str, Any] = {n: up for n, up in run.record["stages"][name]["ports"].items() if n == CHILDREN}
        if status != "done":
            found |= {"status": status, "reason": table[facts.REASON][int(at[0])].as_py()}
        if status == "error":
            notes = facts.Notes.of(table.schema)
            found |= {"attempts": notes.attempts.get(about.row, 1), "message": notes.messages.get(found["reason"], "")}
        line = table.slice(int(at[0]), 1)
        return found | {f.name: _short(line.column(f.name), f.type) for f in table.schema if not f.name.startswith("_")}

    # --- in a plan ---

    def plan(self, planner: Planner) -> None:
        """Plan the stages whose input rows are known, and the rest as unknown."""
        names: set[str] = set()
        for node in self.nodes:
            if all(up in planner.folded or (up in names and up in node.inputs) for up in node.upstream):
                names.add(node.name)
        group = [node for node in self.nodes if node.name in names]
        if group:
            _PassPlanner(planner, group, self._names_above()).plan()
        for node in self.nodes:
            if node.name not in names:
                line = PlanLine(node.name, node.stage.op, self.kind, needed=planner.target(node))
                line.note = f"depends on {planner.blocked(node) or node.inputs[0]}"
                planner.put(planner.expected(self, line, node))

    def lacking(self, planner: Planner, node: Node, rows: int) -> int:
        """By what the recipe's last run computed."""
        stage, ran = node.stage, planner.finished(node)
        if not computes(stage):
            return 0
        if not ran or planner.changing.intersection(node.ports.values()):
            return rows
        new = max(planner.lines[up.name].compute or 0 for up in planner.ctx.pipeline.along(node.name))
        return max(0, rows - ran) if trait(stage, "costly") else min(rows, new)


def _short(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    value = column[0].as_py()
    if pa.types.is_list(kind) and value is not None:
        values = column.combine_chunks().flatten()
        return [_short(pa.chunked_array([values.slice(place, 1)]), kind.value_type) for place in range(len(values))]
    if isinstance(value, bytes):
        if pa.types.is_fixed_size_binary(kind) and kind.byte_width > 64:
            vector = from_binary(column.combine_chunks())[0]
            return f"{len(vector)} numbers: {', '.join(f'{x:.3f}' for x in vector[:4])} …"
        return value.hex()
    return value


def computes(stage: Stage) -> bool:
    """Whether a stage of a pass writes columns; otherwise it judges rows."""
    return bool(stage.schema().names)


class _PassPlanner:
    """Plans the stages of a pass whose input rows are known."""

    def __init__(self, planner: Planner, group: list[Node], above: frozenset[str]) -> None:
        self.planner, self.ctx, self.known = planner, planner.ctx, planner.known
        self.group = group
        self.work = PassBuild(self.ctx, group, pass_plan.make_plan(self.ctx.outputs, group, above))

    def plan(self) -> None:
        planner = self.planner
        if self.work.reuse():
            for node in self.group:
                entry = planner.entry(node)
                counts = (entry.before, entry.before, 0, entry.after)
                planner.folded.add(node.name)
                self._put(node, PlanLine(node.name, node.stage.op, PassStep.kind, *counts, EXACT))
                self._number(node, self.ctx.outputs.built[node.name].numbers)
            self.known.files[self.work.mask.chain] = self.work.mask.files
            self._compare()
            return
        shards, scale = planner.chosen(self.work.pool)
        folded = [one for shard in shards for one in self._fold(shard)]
        lines = [self._estimated(node, [one["steps"][node.name] for one in folded], scale) for node in self.group]
        self._fix(folded, scale == 1.0)
        for node, line in zip(self.group, lines, strict=True):
            self._put(node, line)

    def _put(self, node: Node, line: PlanLine) -> None:
        self.planner.put(line, stored=True, computes=computes(node.stage))

    def _compare(self) -> None:
        """Compare changed filters with their earlier version, for a pass whose masks exist."""
        changed = [node.name for node in self.group if self._earlier(node.name) is not None]
        if changed:
            shards, scale = self.planner.chosen(self.work.pool)
            folded = [one["steps"] for shard in shards for one in self._fold(shard)]
            for name in changed:
                self._changed(self.planner.lines[name], [one[name] for one in folded], scale)

    def _changed(self, line: PlanLine, found: list[dict[str, Any]], scale: float) -> None:
        if any("gains" in one for one in found):
            line.gains, line.losses = (round(scale * sum(one[n] for one in found)) for n in ("gains", "losses"))

    def _fold(self, shard: Shard) -> list[dict[str, Any]]:
        task = self.work.runner.task((shard,))
        steps = tuple(replace(step, earlier=self._earlier(step.name)) for step in task.stages)
        results = run_pass(replace(task, stages=steps, sink="count", mark=False))
        assert results is not None  # only a drained task stops early
        return results

    def _earlier(self, name: str) -> Filter | None:
        """The filter of the recipe's last run, if its parameters differ and it judges rows by columns of this one."""
        now, before = self.ctx.pipeline.nodes[name].stage, self.planner.earlier.stages.get(name)
        if computes(now) or before is None or before["parameters"] == now.parameters():
            return None
        try:
            earlier = cast("Filter", type(now)(**before["parameters"]))
        except ValueError:  # parameters of another version
            return None
        of_rows = now.places() is None and earlier.places() is None
        return earlier if of_rows and set(earlier.reads()) <= set(now.reads()) else None

    def _estimated(self, node: Node, found: list[dict[str, Any]], scale: float) -> PlanLine:
        entry = total(Entry.from_json(one["entry"]) for one in found)
        unsure = sum(one["unsure"] for one in found)
        lacking, known = (sum(one.get(name, 0) for one in found) for name in ("lacking", "known"))
        certainty = ESTIMATED if scale > 1 or unsure else EXACT
        line = PlanLine(node.name, node.stage.op, PassStep.kind, certainty=certainty)
        line.needed, line.compute, line.done = (round(scale * rows) for rows in (entry.before, lacking, known))
        line.after = round(scale * entry.after)
        if not computes(node.stage):
            line.done, line.compute = round(scale * (entry.before - unsure)), 0
            self._changed(line, found, scale)
        about = "" if scale == 1.0 else "about "
        notes = [f"from {len(found)} shards"] if scale > 1 else []
        if unsure:
            notes.append(f"{about}{round(scale * unsure):,} rows depend on facts that are not computed yet")
        copied = line.needed - line.compute - line.done
        if copied and computes(node.stage):
            notes.append(f"{about}{copied:,} rows copy existing answers")
        line.note = "; ".join(notes)
        return line

    def _fix(self, folded: list[dict[str, Any]], whole: bool) -> None:
        """Record the masks of complete stages if every shard was folded (`whole`), though no mask is stored. Other
        stages stay unknown."""
        ctx, known = self.ctx, self.planner.folded
        for node in self.group:
            found = {one["shard"]: one["steps"][node.name] for one in folded}
            vague = any(one.get("lacking") or one["unsure"] for one in found.values())
            if not whole or vague or not known.issuperset(node.upstream):
                del ctx.outputs.built[node.name]
                continue
            known.add(node.name)
            entry = total(Entry.from_json(one["entry"]) for one in found.values())
            ctx.outputs.built[node.name].manifest = build_pass.mask_manifest(
                node, ctx.outputs.built[node.name], entry, 0.0
            )
            self._number(node, {shard: one["number"] for shard, one in found.items() if "number" in one})
            self._keep(node, folded)
        points = tuple(p.name for p in self.work.plan.points if known.issuperset(p.name.split("+")))
        mask = self.work.mask
        mask.names = frozenset(node.name for node in self.group if node.name in known)
        mask.points = points
        totals = build_pass.PassTotal(self.group, points)
        for shard, one in zip(self.work.pool.shards, folded, strict=False):
            totals.add(shard, one, build_pass.entries_of(one))
            for name in points:
                mask.by_shard.setdefault(name, {})[shard.id] = one["contents"][name]
                self.known.fates[mask.chain, name, shard.id] = one["fates"][name]
        mask.contents, mask.reasons = totals.contents(), totals.reasons()

    def _number(self, node: Node, numbers: Mapping[str, int]) -> None:
        """Set the tables of a Map's facts, which a run would list in a manifest."""
        built = self.ctx.outputs.built[node.name]
        if built.path:
            built.numbers = dict(numbers)
            built.base = build_pass.facts_base(built, numbers)
            self.known.numbers[built.path] = built.numbers

    def _keep(self, node: Node, folded: list[dict[str, Any]]) -> None:
        """Keep the answers that a run would copy into a Map's tables, as far as later passes read their values."""
        passes = {step for step in self.planner.steps.values() if step.by_shard}
        later = [node for step in passes for node in step.nodes if node not in self.group]
        reading = [node.stage for node in later if trait(node.stage, "costly") or not computes(node.stage)]
        read = {name for stage in reading for name in stage.reads()}
        for one in folded:
            table = one["tables"].get(node.name)
            if table is not None:
                names = [
                    *facts.FIXED.names,
                    *(name for name in self.ctx.pipeline.columns_of(node.name) if name in read),
                ]
                self.known.tables[self.ctx.outputs.built[node.name].path, one["shard"]] = table.select(names)
