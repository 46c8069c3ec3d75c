"""`curate plan`: predicts what a run would do, from existing outputs and the rates of earlier runs. Computes nothing.

The rows done, needed and to compute are exact if every upstream mask exists or can be folded from existing facts. They
are estimated from shards chosen by hash if folding all would take long, and unknown downstream of missing facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from curate.core.contracts import Collect, Derive, Filter, Map, Select, Source
from curate.core.hashing import digest
from curate.core.ledger import Entry, total
from curate.core.nouns import facts, tombstones
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import Shard, pool_base
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.rows import KnownShards
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.passes import build as build_pass
from curate.engine.passes.plan import make_plan
from curate.engine.passes.run import run_pass
from curate.engine.plan.earlier import Earlier, earlier_runs
from curate.engine.plan.lines import ESTIMATED, EXACT, UNKNOWN, PlanLine
from curate.engine.preflight import Planned, cautions, plan_source, record_paths
from curate.engine.progress import Progress
from curate.engine.record import pins
from curate.engine.record.events import Events
from curate.engine.state import Built, Options, Pool
from curate.engine.steps import Step, above, steps
from curate.engine.units.common import prepare
from curate.engine.units.derive.build import DeriveBuild
from curate.engine.units.source.build import with_artifacts
from curate.engine.units.source.records import read_records
from curate.engine.units.source.repeats import amended, known_repeats
from curate.engine.workers.scheduler import Scheduler

SAMPLE = 64
"""Shards that an estimate is based on."""


def plan(
    pipeline: Pipeline,
    storage: Storage,
    options: Options,
    backend: Scheduler,
    portions: Planned,
    exact: bool = False,
) -> list[PlanLine]:
    """A line per stage, in the order of the DAG. `exact` folds the masks of all shards instead of a sample."""
    buried = tombstones.load(storage)
    ctx = Context(pipeline, storage, backend, options, buried, Events(storage, "plan"), Progress(None))
    ctx.portions, ctx.known = portions, KnownShards(plan=True)
    ctx.built |= pins.resolve(pipeline, storage)
    rates = earlier_runs(ctx)
    lines = Planner(ctx, rates, exact).walk()
    for node in pipeline.nodes.values():
        line = lines[node.name]
        line.note = "; ".join(text for text in (line.note, *cautions(node.name, pipeline, portions)) if text)
        line.gpus = node.stage.resources().gpus
        if line.compute == 0:
            line.seconds, line.bytes = 0.0, 0
            line.requests = line.tokens = 0 if node.name in rates.spend else None
            line.dollars = 0.0 if node.name in rates.spend else None
        elif line.op in rates.seconds and line.compute is not None:
            line.seconds = line.compute * rates.seconds[line.op]
            line.bytes = int(line.compute * rates.bytes[line.op])
        if line.compute and node.name in rates.spend:
            factor, spend = line.compute / rates.spend[node.name][0], rates.spend[node.name][1]
            line.requests, line.tokens = round(factor * spend.requests), round(factor * spend.most_tokens)
            line.dollars = None if spend.dollars is None else factor * spend.most_dollars
    return [lines[name] for name in pipeline.nodes]


class Planner:
    def __init__(self, ctx: Context, earlier: Earlier, exact: bool = False) -> None:
        self.ctx, self.earlier, self.exact = ctx, earlier, exact
        self.lines: dict[str, PlanLine] = {}
        self.growth: dict[str, float] = {}
        """Pool that lacks shards -> its rows, over those of the shards that exist. Its passes are planned for these."""
        self.changing: set[str] = set()
        """Stages whose output will differ."""
        self.known = ctx.known
        self.folded: set[str] = set()
        """Stages whose mask is known, together with the masks of all stages upstream."""

    def walk(self) -> dict[str, PlanLine]:
        ctx = self.ctx
        for node in ctx.pipeline.nodes.values():
            if isinstance(node.stage, Collect):
                self._put(node, self._global(node))
            elif isinstance(node.stage, Source):
                self._put(node, self._source(node))
        run_steps = steps(ctx.pipeline, ctx.built)
        for number, step in enumerate(run_steps):
            if step.is_pass:
                self._pass_of(run_steps, number)
            elif step.nodes[0].name not in self.lines:
                node = step.nodes[0]
                if isinstance(node.stage, Derive):
                    self._put(node, self._derive(node), stored=True)
                else:
                    self._put(node, self._global(node))
        return self.lines

    def _put(self, node: Node, line: PlanLine, stored: bool = False) -> None:
        """Add a line. `stored`: it counts rows of the shards that exist; it is scaled to all rows of the pool."""
        self.lines[node.name] = line
        growth = self.growth.get(self.ctx.pipeline.pool_upstream(node.name)) if stored else None
        if growth is not None and line.needed is not None:
            new, line.certainty = round(line.needed * (growth - 1.0)), ESTIMATED
            line.needed += new
            line.compute = (line.compute or 0) + (0 if isinstance(node.stage, Filter) else new)
            if getattr(node.stage, "costly", False) and (ran := self._finished(node)):
                line.compute = min(line.compute, max(0, line.needed - ran))  # images of rewritten shards are found
            line.after = None if line.after is None else line.after + round(line.after * (growth - 1.0))
            line.note = "; ".join([*([line.note] if line.note else []), f"about {new:,} rows are new"])
            if isinstance(node.stage, Derive):
                self.growth[node.name] = growth
        if growth is None and node.name in self.folded and node.name not in self.growth:
            return
        if line.compute or line.gains or line.losses or self.changing.intersection(node.upstream):
            self.changing.add(node.name)

    def _pass_of(self, run_steps: Sequence[Step], number: int) -> None:
        """Plan the stages of a pass whose input rows are known, and the rest as unknown."""
        names: set[str] = set()
        for node in run_steps[number].nodes:
            if all(up in self.folded or (up in names and up in node.inputs) for up in node.upstream):
                names.add(node.name)
        group = [node for node in run_steps[number].nodes if node.name in names]
        if group:
            over = frozenset(node.name for other in above(run_steps, number) for node in run_steps[other].nodes)
            self._pass(group, over)
        for node in run_steps[number].nodes:
            if node.name not in names:
                self._put(node, self._global(node))

    def _source(self, node: Node) -> PlanLine:
        ctx, stage = self.ctx, node.stage
        assert isinstance(stage, Source)
        if node.ports:
            blocked = next((name for name in node.ports.values() if name not in ctx.built), None)
            if blocked is not None:
                return PlanLine(node.name, stage.op, "acquire", note=f"depends on {blocked}")
            ctx.portions[node.name] = plan_source(node, ctx.storage, with_artifacts(ctx, node), ctx.options)
        portions, inside = ctx.portions[node.name]
        first = record_paths(stage, portions, inside)
        paths, records = read_records(ctx.storage, stage.namespace, first)
        done = [of_portion for of_portion in paths if of_portion[0] in records.found]
        shards = [records.found[path].shard for of_portion in done for path in of_portion]
        known = [portion.rows for portion in portions]
        whole = len(done) == len(paths)
        ready = sum(records.found[of_portion[-1]].ledger.before for of_portion in done)
        rows = ready if whole else None
        if rows is None and None not in known:
            rows = int(inside * sum(row or 0 for row in known))
        line = PlanLine(node.name, stage.op, "acquire", ready, rows)
        line.compute = None if rows is None else rows - (line.done or 0)
        line.certainty = EXACT if whole else ESTIMATED if rows is not None else UNKNOWN
        line.after = rows
        version = _version(ctx, stage, shards) if whole else None
        if version is not None:
            fingerprint, shards = version
            ctx.pools[node.name] = Pool(stage.namespace, fingerprint, shards)
            base = pool_base(stage.namespace, fingerprint)
            ctx.built[node.name] = Built("", base, manifest=Manifest.load(ctx.storage, base))
            self.folded.add(node.name)
            return line
        line.note = f"{len(done):,} of {len(paths):,} shards exist"
        if shards and rows:
            _, shards = _version(ctx, stage, shards) or ("", shards)
            ctx.pools[node.name], ctx.built[node.name] = Pool(stage.namespace, "", shards), Built("", "")
            self.growth[node.name] = max(1.0, rows / max(1, sum(shard.rows for shard in shards)))
            self.folded.add(node.name)
            self.changing.add(node.name)
        return line

    # --- passes ---

    def _pass(self, group: list[Node], over: frozenset[str]) -> None:
        ctx = self.ctx
        work = build_pass.PassBuild(ctx, group, make_plan(ctx, group, over))
        if work.reuse():
            for node in group:
                entry = _entry(ctx, node)
                counts = (entry.before, entry.before, 0, entry.after)
                self.folded.add(node.name)
                self._put(node, PlanLine(node.name, node.stage.op, "pass", *counts, EXACT), stored=True)
                self._number(node, ctx.built[node.name].numbers)
            self.known.files[work.mask.chain] = work.mask.files
            self._compare(work, group)
            return
        shards, scale = self._chosen(ctx.pool(group[0]))
        folded = [one for shard in shards for one in self._fold(work, group, shard)]
        lines = [self._estimated(node, [one["steps"][node.name] for one in folded], scale) for node in group]
        self._fix(work, group, folded, scale == 1.0)
        for node, line in zip(group, lines, strict=True):
            self._put(node, line, stored=True)

    def _compare(self, work: build_pass.PassBuild, group: list[Node]) -> None:
        """Compare changed filters with their earlier version, for a pass whose masks exist."""
        changed = [node.name for node in group if self._earlier(node.name) is not None]
        if changed:
            shards, scale = self._chosen(work.pool)
            folded = [one["steps"] for shard in shards for one in self._fold(work, group, shard)]
            for name in changed:
                self._changed(self.lines[name], [one[name] for one in folded], scale)

    def _changed(self, line: PlanLine, found: list[dict[str, Any]], scale: float) -> None:
        if any("gains" in one for one in found):
            line.gains, line.losses = (round(scale * sum(one[n] for one in found)) for n in ("gains", "losses"))

    def _chosen(self, pool: Pool) -> tuple[list[Shard], float]:
        """(shards to fold, factor from their rows to the rows of the pool)."""
        if self.exact or len(pool.shards) <= SAMPLE:
            return pool.shards, 1.0
        chosen = sorted(pool.shards, key=lambda shard: digest([pool.namespace, shard.id]))[:SAMPLE]
        return chosen, pool.rows / max(1, sum(shard.rows for shard in chosen))

    def _fold(self, work: build_pass.PassBuild, group: list[Node], shard: Shard) -> list[dict[str, Any]]:
        task = work.runner.task((shard,))
        steps = tuple(replace(step, earlier=self._earlier(step.name)) for step in task.stages)
        results = run_pass(replace(task, stages=steps, dry=True, mark=False))
        assert results is not None  # only a drained task stops early
        return results

    def _earlier(self, name: str) -> Filter | None:
        """The filter of the recipe's last run, if its parameters differ and it judges rows by columns of this one."""
        now, before = self.ctx.pipeline.nodes[name].stage, self.earlier.stages.get(name)
        if not isinstance(now, Filter) or before is None or before["parameters"] == now.parameters():
            return None
        try:
            earlier = type(now)(**before["parameters"])
        except ValueError:  # parameters of another version
            return None
        of_rows = now.places() is None and earlier.places() is None
        return earlier if of_rows and set(earlier.reads()) <= set(now.reads()) else None

    def _estimated(self, node: Node, found: list[dict[str, Any]], scale: float) -> PlanLine:
        entry = total(Entry.from_json(one["entry"]) for one in found)
        unsure = sum(one["unsure"] for one in found)
        lacking, known = (sum(one.get(name, 0) for one in found) for name in ("lacking", "known"))
        certainty = ESTIMATED if scale > 1 or unsure else EXACT
        line = PlanLine(node.name, node.stage.op, "pass", certainty=certainty)
        line.needed, line.compute, line.done = (round(scale * rows) for rows in (entry.before, lacking, known))
        line.after = round(scale * entry.after)
        if isinstance(node.stage, Filter):
            line.done, line.compute = round(scale * (entry.before - unsure)), 0
            self._changed(line, found, scale)
        about = "" if scale == 1.0 else "about "
        notes = [f"from {SAMPLE} shards"] if scale > 1 else []
        if unsure:
            notes.append(f"{about}{round(scale * unsure):,} rows depend on facts that are not computed yet")
        copied = line.needed - line.compute - line.done
        if copied and isinstance(node.stage, Map):
            notes.append(f"{about}{copied:,} rows copy existing answers")
        line.note = "; ".join(notes)
        return line

    def _fix(self, work: build_pass.PassBuild, group: list[Node], folded: list[dict[str, Any]], whole: bool) -> None:
        """Record the masks of complete stages if every shard was folded (`whole`), though no mask is stored. Other
        stages stay unknown."""
        ctx = self.ctx
        for node in group:
            found = {one["shard"]: one["steps"][node.name] for one in folded}
            vague = any(one.get("lacking") or one["unsure"] for one in found.values())
            if not whole or vague or not self.folded.issuperset(node.upstream):
                del ctx.built[node.name]
                continue
            self.folded.add(node.name)
            entry = total(Entry.from_json(one["entry"]) for one in found.values())
            ctx.built[node.name].manifest = build_pass.mask_manifest(node, ctx.built[node.name], entry, 0.0)
            self._number(node, {shard: one["number"] for shard, one in found.items() if "number" in one})
            self._keep(node, group, folded)
        points = tuple(p.name for p in work.plan.points if self.folded.issuperset(p.name.split("+")))
        mask = work.mask
        mask.names = frozenset(node.name for node in group if node.name in self.folded)
        mask.points = points
        totals = build_pass.PassTotal(group, points)
        for shard, one in zip(ctx.pool(group[0]).shards, folded, strict=False):
            totals.add(shard, one, build_pass.entries_of(one))
            for name in points:
                mask.by_shard.setdefault(name, {})[shard.id] = one["contents"][name]
                self.known.fates[mask.chain, name, shard.id] = one["fates"][name]
        mask.contents, mask.reasons = totals.contents(), totals.reasons()

    def _number(self, node: Node, numbers: Mapping[str, int]) -> None:
        """Set the tables of a Map's facts, which a run would list in a manifest."""
        built = self.ctx.built[node.name]
        if isinstance(node.stage, Map):
            built.numbers = dict(numbers)
            built.base = build_pass.facts_base(built, numbers)
            self.known.numbers[built.path] = built.numbers

    def _keep(self, node: Node, group: list[Node], folded: list[dict[str, Any]]) -> None:
        """Keep the answers that a run would copy into a Map's tables, as far as later passes read their values."""
        pipeline, inside = self.ctx.pipeline, {other.name for other in group}
        read = {
            column
            for later in pipeline.nodes.values()
            if later.name not in inside and (isinstance(later.stage, Filter) or getattr(later.stage, "costly", False))
            for column in later.stage.reads()  # type: ignore[attr-defined]
        }
        for one in folded:
            table = one["tables"].get(node.name)
            if table is not None:
                names = [*facts.FIXED.names, *(name for name in pipeline.columns_of(node.name) if name in read)]
                self.known.tables[self.ctx.built[node.name].path, one["shard"]] = table.select(names)

    # --- derived pools ---

    def _derive(self, node: Node) -> PlanLine:
        ctx, line = self.ctx, PlanLine(node.name, node.stage.op, "derive")
        blocked = self._blocked(node)
        if blocked:
            line.note = f"depends on {blocked}"
            return self._expected(line, node)
        build = DeriveBuild(ctx, node)
        build.survey()
        if build.reuse():
            entry = _entry(ctx, node)
            line.done, line.needed, line.compute, line.after = entry.before, entry.before, 0, entry.children
            line.certainty = EXACT
            self.folded.add(node.name)
            return line
        del ctx.built[node.name]
        line.needed, line.certainty = self._reaching(node), ESTIMATED
        self._missing_children(line, build)
        return line

    def _missing_children(self, line: PlanLine, build: DeriveBuild) -> None:
        """Count the parents without children. If there are none, the live children are known."""
        shards, scale = self._chosen(self.ctx.pool_upstream(build.node))
        found = [build.look(shard) for shard in shards]
        line.needed, line.compute = (round(scale * sum(counts[n] for counts in found)) for n in (0, 1))
        line.done = line.needed - line.compute
        line.certainty = EXACT if scale == 1.0 else ESTIMATED
        if scale == 1.0 and not line.compute:
            pool, entry, built = build.pool(), build.entry(), build.built
            built.manifest = replace(build_pass.mask_manifest(build.node, built, entry, 0.0), rows=pool.rows)
            built.base, built.content = build.version(), pool.fingerprint
            self.ctx.built[line.stage], self.ctx.pools[line.stage] = built, pool
            line.after = entry.children
            self.folded.add(line.stage)

    # --- global steps ---

    def _global(self, node: Node) -> PlanLine:
        ctx, stage = self.ctx, node.stage
        line = PlanLine(node.name, stage.op, "pass" if isinstance(stage, (Map, Filter)) else "global")
        targets = [up.stage.target_rows() for up in ctx.pipeline.along(node.name) if isinstance(up.stage, Select)]
        pool = ctx.pipeline.pool_of(node.name)
        blocked = self._blocked(node) or (pool if pool in self.growth else "")
        if blocked or isinstance(stage, (Map, Filter)):
            line.note = f"depends on {blocked or node.inputs[0]}"
            line.needed = next((target for target in targets if target), None)
            return self._expected(line, node)
        built = ctx.built[node.name] = prepare(ctx, node)
        built.manifest = Manifest.load(ctx.storage, built.base)
        if built.manifest is None:
            rows = next((target for target in targets if target), None)
            line.needed = rows if rows is not None else self._reaching(node)
            line.done, line.compute, line.certainty = 0, line.needed, ESTIMATED
            line.after = self._passing(node, line.needed)
            del ctx.built[node.name]
        else:
            built.content = built.manifest.content or built.fingerprint
            rows = built.manifest.rows
            line.done, line.needed, line.compute, line.certainty = rows, rows, 0, EXACT
            line.after = built.manifest.entry.after
            self.folded.add(node.name)
        return line

    def _expected(self, line: PlanLine, node: Node) -> PlanLine:
        """Estimate a stage that depends on what does not exist yet, by the rows that will reach it. It stays unknown if
        nothing upstream is known to change: its output may exist."""
        if not self.changing.intersection(node.upstream):
            return line
        reaching = self._reaching(node)
        line.needed = line.needed if reaching is None else reaching
        if line.needed is not None:
            line.compute, line.certainty = self._lacking(node, line.needed), ESTIMATED
            line.done, line.after = line.needed - line.compute, self._passing(node, line.needed)
        return line

    def _lacking(self, node: Node, rows: int) -> int:
        """How many of the rows that will reach a stage it has to compute, by what the recipe's last run computed."""
        stage, ran = node.stage, self._finished(node)
        if isinstance(stage, Filter):
            return 0
        if not isinstance(stage, Map) or not ran or self.changing.intersection(node.ports.values()):
            return rows
        new = max(self.lines[up.name].compute or 0 for up in self.ctx.pipeline.along(node.name))
        return max(0, rows - ran) if stage.costly else min(rows, new)

    def _finished(self, node: Node) -> int:
        """Rows that a stage had in the recipe's last run; 0 if its parameters were others."""
        before = self.earlier.stages.get(node.name)
        same = before is not None and before["parameters"] == node.stage.parameters()
        return self.earlier.entries[node.name].before if same and node.name in self.earlier.entries else 0

    def _passing(self, node: Node, rows: int | None) -> int | None:
        """Rows that will pass a stage: as many as its target, or the share that passed in the recipe's last run."""
        target = node.stage.target_rows() if isinstance(node.stage, Select) else None
        if target is not None and rows is not None:
            return min(target, rows)
        entry = self.earlier.entries.get(node.name)
        if rows is None or entry is None:
            return rows
        return round(rows * (entry.after if entry.children is None else entry.children) / entry.before)

    def _blocked(self, node: Node) -> str:
        """What must be built before the output of a global step can be looked up; "" if nothing."""
        for name in node.upstream:
            if name not in self.folded:
                judges = isinstance(self.ctx.pipeline.nodes[name].stage, (Map, Filter))
                return f"which rows pass {name}" if judges else name
        return ""

    def _reaching(self, node: Node) -> int | None:
        found = [self.lines[name].after for name in node.inputs]
        return min((rows for rows in found if rows is not None), default=None)


def _entry(ctx: Context, node: Node) -> Entry:
    manifest = ctx.built[node.name].manifest
    assert manifest is not None
    return manifest.entry


def _version(ctx: Context, stage: Source, shards: list[Shard]) -> tuple[str, list[Shard]] | None:
    """Version and shards of a pool that is already acquired; None before its keys have been compared."""
    if not stage.unique_keys and len(shards) > 1:
        known = known_repeats(ctx.storage, stage.namespace, shards)
        if known is None:
            return None
        shards = amended(shards, known)
    return digest({"namespace": stage.namespace, "shards": [shard.id for shard in shards]}), shards
