"""`curate plan`: predicts what a run would do, from existing outputs and the rates of earlier runs. Computes nothing.

The rows done, needed and to compute are exact if every upstream mask exists or can be folded from existing facts. They
are estimated from shards chosen by hash if folding all would take long, and unknown downstream of missing facts.
"""

from __future__ import annotations

from curate.core.contracts import trait
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns import tombstones
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.rows import KnownShards
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.losses import Losses
from curate.engine.outputs import Outputs
from curate.engine.passes.step import computes
from curate.engine.plan.earlier import Earlier, earlier_runs
from curate.engine.plan.lines import ESTIMATED, EXACT, PlanLine
from curate.engine.preflight import Inputs, cautions
from curate.engine.progress import Progress, pace
from curate.engine.record import pins
from curate.engine.record.events import Events
from curate.engine.state import Options, Pool
from curate.engine.steps import steps
from curate.engine.task_runner import TaskRunner
from curate.engine.units.step import Step
from curate.engine.workers.scheduler import Scheduler

SAMPLE = 64
"""Shards that an estimate is based on."""


def plan(
    pipeline: Pipeline,
    storage: Storage,
    options: Options,
    backend: Scheduler,
    portions: Inputs,
    exact: bool = False,
) -> list[PlanLine]:
    """A line per stage, in the order of the DAG. `exact` folds the masks of all shards instead of a sample."""
    known, built = KnownShards(plan=True), pins.resolve(pipeline, storage)
    outputs = Outputs(pipeline, storage, tombstones.load(storage), built=dict(built), known=known)
    events, losses = Events(storage, "plan", held=True), Losses(options.failure_budget)
    ctx = Context(outputs, TaskRunner(pipeline, backend, events), losses, options, events, Progress(None), portions)
    rates = earlier_runs(ctx)
    lines = Planner(ctx, rates, exact).walk()
    for node in pipeline.nodes.values():
        line = lines[node.name]
        expected = pace(node.stage, line.compute or 0, backend)
        line.note = "; ".join(text for text in (line.note, expected, *cautions(node.name, pipeline, portions)) if text)
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
    """What the steps of a plan have in common: the lines so far, and what is known and expected of each stage."""

    def __init__(self, ctx: Context, earlier: Earlier, exact: bool = False) -> None:
        self.ctx, self.earlier, self.exact = ctx, earlier, exact
        self.lines: dict[str, PlanLine] = {}
        self.growth: dict[str, float] = {}
        """Pool that lacks shards -> its rows, over those of the shards that exist. Its passes are planned for these."""
        self.changing: set[str] = set()
        """Stages whose output will differ."""
        self.known = ctx.outputs.known
        self.folded: set[str] = set()
        """Stages whose mask is known, together with the masks of all stages upstream."""
        self.steps = {node.name: step for step in steps(ctx.pipeline, ctx.outputs.built) for node in step.nodes}

    def walk(self) -> dict[str, PlanLine]:
        for step in dict.fromkeys(self.steps.values()):
            step.plan(self)
        return self.lines

    def put(self, line: PlanLine, *, stored: bool = False, computes: bool = True) -> None:
        """Add a line. `stored`: it counts rows of the shards that exist; it is scaled to all rows of the pool.
        `computes`: new rows are work."""
        node = self.ctx.pipeline.nodes[line.stage]
        self.lines[node.name] = line
        growth = self.growth.get(self.ctx.pipeline.pool_upstream(node.name)) if stored else None
        if growth is not None and line.needed is not None:
            new, line.certainty = round(line.needed * (growth - 1.0)), ESTIMATED
            line.needed += new
            line.compute = (line.compute or 0) + (new if computes else 0)
            if trait(node.stage, "costly") and (ran := self.finished(node)):
                line.compute = min(line.compute, max(0, line.needed - ran))  # images of rewritten shards are found
            line.after = None if line.after is None else line.after + round(line.after * (growth - 1.0))
            line.note = "; ".join([*([line.note] if line.note else []), f"about {new:,} rows are new"])
            if self.ctx.pipeline.makes_pool(node.name):
                self.growth[node.name] = growth
        if growth is None and node.name in self.folded and node.name not in self.growth:
            return
        if line.compute or line.gains or line.losses or self.changing.intersection(node.upstream):
            self.changing.add(node.name)

    def entry(self, node: Node) -> Entry:
        manifest = self.ctx.outputs.built[node.name].manifest
        assert manifest is not None
        return manifest.entry

    def chosen(self, pool: Pool) -> tuple[list[Shard], float]:
        """(shards to fold, factor from their rows to the rows of the pool)."""
        if self.exact or len(pool.shards) <= SAMPLE:
            return pool.shards, 1.0
        chosen = sorted(pool.shards, key=lambda shard: digest([pool.namespace, shard.id]))[:SAMPLE]
        return chosen, pool.rows / max(1, sum(shard.rows for shard in chosen))

    # --- what does not exist yet ---

    def expected(self, step: Step, line: PlanLine, node: Node) -> PlanLine:
        """Estimate a stage that depends on what does not exist yet, by the rows that will reach it. It stays unknown if
        nothing upstream is known to change: its output may exist."""
        if not self.changing.intersection(node.upstream):
            return line
        reaching = self.reaching(node)
        line.needed = line.needed if reaching is None else reaching
        if line.needed is not None:
            line.compute, line.certainty = step.lacking(self, node, line.needed), ESTIMATED
            line.done, line.after = line.needed - line.compute, self.passing(node, line.needed)
            if step.kind == "pass" and not computes(node.stage):  # a filter may not have judged the rows yet
                line.done = min(line.needed, self.finished(node))
        return line

    def short(self, node: Node) -> str:
        """Whether fewer rows are left than a selection is to keep; "" if not, or if this is unknown."""
        stage, rows = node.stage, self.reaching(node)
        target = stage.target_rows()
        if target is None or rows is None or target <= rows * getattr(stage, "multiplier", 1):
            return ""
        about = "" if all(self.lines[name].certainty == EXACT for name in node.inputs) else "about "
        left = f"{about}{rows:,} rows that are left"
        return f"{trait(stage, 'target_name')} {target:,} is more than the {left}, so the run will fail; lower it"

    def finished(self, node: Node) -> int:
        """Rows that a stage had in the recipe's last run; 0 if its parameters were others."""
        before = self.earlier.stages.get(node.name)
        same = before is not None and before["parameters"] == node.stage.parameters()
        return self.earlier.entries[node.name].before if same and node.name in self.earlier.entries else 0

    def target(self, node: Node) -> int | None:
        """Rows that a selection upstream of the stage is to keep."""
        targets = (up.stage.target_rows() for up in self.ctx.pipeline.along(node.name))
        return next((target for target in targets if target), None)

    def passing(self, node: Node, rows: int | None) -> int | None:
        """Rows that will pass a stage: as many as its target, or the share that passed in the recipe's last run."""
        target = node.stage.target_rows()
        if target is not None and rows is not None:
            return min(target, rows)
        entry = self.earlier.entries.get(node.name)
        if rows is None or entry is None:
            return rows
        return round(rows * (entry.after if entry.children is None else entry.children) / entry.before)

    def blocked(self, node: Node) -> str:
        """What must be built before the output of a global step can be looked up; "" if nothing."""
        missing = (self.steps[name].missing(name) for name in node.upstream if name not in self.folded)
        pool = self.ctx.pipeline.pool_of(node.name)
        return next(missing, pool if pool in self.growth else "")

    def reaching(self, node: Node) -> int | None:
        """Rows that will reach a stage, if this is known."""
        found = [self.lines[name].after for name in node.inputs]
        return min((rows for rows in found if rows is not None), default=None)
