"""`curate plan --measure N`: asks N rows of each stage that asks endpoints, and keeps the answers.

The rows are chosen by hash. Stages upstream compute what these rows need, and no mask is stored: a run finds the facts
and answers as those of an earlier run that was stopped. A pool that does not exist yet is begun with a few portions.
Global stages upstream must exist, because what they build depends on all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.contracts import AsyncMap, Filter, Map, Portion, Source
from curate.core.errors import CurateError
from curate.core.hashing import digest, ranks
from curate.core.ledger import Entry, total
from curate.core.nouns import tombstones
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.rows import KnownShards, Rows
from curate.core.spend import Spend, combined
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.passes import build as build_pass
from curate.engine.passes.plan import make_plan
from curate.engine.passes.run import run_pass
from curate.engine.passes.task import Sample
from curate.engine.plan.earlier import Earlier
from curate.engine.plan.planner import Planner
from curate.engine.preflight import preflight
from curate.engine.progress import Progress
from curate.engine.record import pins
from curate.engine.record.events import Events
from curate.engine.state import Options
from curate.engine.steps import Step, above, steps
from curate.engine.units.source.build import build_source
from curate.engine.workers.scheduler import Scheduler

SHARDS = 8
"""Shards that the rows are taken from."""
MOST_ROWS = 64
"""Rows of the pool that may be considered for each one to ask: filters may reject most of them."""
GROWTH = 4
"""Factor of rows from round to round, and of portions if these have too few rows."""
MOST_PORTIONS = 64


@dataclass
class Measured:
    """What a stage did with the rows that reached it."""

    reached: int = 0
    """Rows that reached it."""
    kept: int = 0
    """Those of them that it has asked, now or before; stages downstream see no others."""
    asked: int = 0
    """Rows without an answer before; a request may serve several rows, and a row may need none."""
    spend: dict[str, Spend] = field(default_factory=dict)
    """Endpoint -> what was spent."""
    requests: list[Spend] = field(default_factory=list)
    """What each request of the stage cost, its repeated attempts included; without a request: nothing."""
    seconds: list[float] = field(default_factory=list)
    """How long each took."""

    def add(self, of_stage: Mapping[str, Any]) -> None:
        """Add the result of a sampled unit."""
        self.asked += of_stage["asked"]
        self.reached += of_stage["reached"]
        for one in of_stage["measured"]:
            spent = {name: Spend.from_json(spend) for name, spend in one["spend"].items()}
            self.spend = combined(self.spend, spent)
            if spent:
                self.requests.append(sum(spent.values(), Spend()))
                self.seconds.append(one["seconds"])


@dataclass
class Measurement:
    """The stages that ask."""

    rows: int = 0
    """Rows of the pool that were considered."""
    stages: dict[str, Measured] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)
    """Stage that asks -> why it was not measured."""


def asking(nodes: Mapping[str, Node]) -> list[Node]:
    """The stages that ask endpoints by name."""
    return [node for node in nodes.values() if isinstance(node.stage, AsyncMap) and node.stage.asks()]


class _NoEvents(Events):
    """A measurement is not a run: it has no record."""

    def emit(self, event: str, **fields: Any) -> None:
        pass


def context_of(pipeline: Pipeline, storage: Storage, options: Options, workers: Scheduler) -> Context:
    """Context for a measurement: that of a plan, which stores facts but no masks."""
    events, portions = _NoEvents(storage, "measure"), preflight(pipeline, storage, backend=workers)
    ctx = Context(pipeline, storage, workers, options, tombstones.load(storage), events, Progress(None), portions)
    ctx.known = KnownShards(plan=True)
    ctx.built |= pins.resolve(pipeline, storage)
    ctx.checked = True  # stages that are not needed may need more than this machine has
    return ctx


class Measure:
    """ctx: that of a plan. asks: rows to ask of each stage."""

    def __init__(self, ctx: Context, asks: int) -> None:
        self.ctx, self.asks = ctx, asks
        self.found = Measurement()
        self.planner = Planner(ctx, Earlier())
        self.steps: list[Step] = []
        self.needed: set[str] = set()
        """The stages that ask, and all stages upstream of them."""

    def run(self) -> Measurement:
        self.planner.walk()
        self.steps = steps(self.ctx.pipeline, self.ctx.built)
        for node in asking(self.ctx.pipeline.nodes):
            problem = self._problem(node)
            if problem:
                self.found.blocked[node.name] = problem
            else:
                self.needed |= {node.name, *self._upstream(node.name)}
        for pool in dict.fromkeys(self.ctx.pipeline.pool_of(name) for name in self._firsts()):
            self._pool(pool)
        return self.found

    def _upstream(self, name: str) -> set[str]:
        """All stages that a stage depends on."""
        nodes = self.ctx.pipeline.nodes
        return {above for up in nodes[name].upstream for above in (up, *self._upstream(up))}

    def _problem(self, node: Node) -> str:
        """Why a stage cannot be measured; "" if it can."""
        nodes = self.ctx.pipeline.nodes
        for name in (one for one in nodes if one in self._upstream(node.name)):
            stage = nodes[name].stage
            row_wise = isinstance(stage, (Map, Filter)) or (isinstance(stage, Source) and not nodes[name].ports)
            if not row_wise and name not in self.planner.folded:
                return f"{name} must exist first; `curate run --max-tokens N` builds it, and stops after N tokens"
        return ""

    def _firsts(self) -> list[str]:
        """Stages that ask and have none upstream."""
        every = {node.name for node in asking(self.ctx.pipeline.nodes)} & self.needed
        return [name for name in self.ctx.pipeline.nodes if name in every and not every & self._upstream(name)]

    # --- rows ---

    def _pool(self, pool: str) -> None:
        """Measure the stages over one pool."""
        firsts = [name for name in self._firsts() if self.ctx.pipeline.pool_of(name) == pool]
        for _ in self._portions(pool):
            for rows in self._rounds(self.ctx.pools[pool].shards):
                self._round(pool, rows)
                if all(self._left(name) == 0 for name in firsts):
                    return

    def _left(self, name: str) -> int:
        return self.asks - self.found.stages.setdefault(name, Measured()).asked

    def _portions(self, pool: str) -> Iterator[None]:
        """Read more and more portions of a pool that is not complete."""
        node = self.ctx.pipeline.nodes[pool]
        if pool in self.ctx.pools:
            yield
            return
        portions, inside = self.ctx.portions[pool]
        order = sorted(range(len(portions)), key=lambda place: digest(portions[place].content))
        count = 0
        while count < min(len(portions), MOST_PORTIONS):
            count = min(len(portions), max(1, GROWTH * count, self._enough(portions, order)))
            self.ctx.portions[pool] = [portions[place] for place in sorted(order[:count])], inside
            build_source(self.ctx, node)
            yield

    def _enough(self, portions: Sequence[Portion], order: Sequence[int]) -> int:
        """Portions with a few times as many rows as it asks, as far as their rows are known."""
        rows = np.cumsum([portions[place].rows or GROWTH * self.asks for place in order])
        return int(np.searchsorted(rows, GROWTH * self.asks)) + 1

    def _rounds(self, shards: Sequence[Shard]) -> Iterator[dict[Shard, tuple[int, ...]]]:
        """Rows by shard, chosen by hash: more in each round, none twice."""
        shards = sorted((shard for shard in shards if shard.rows), key=lambda shard: digest(shard.id))[:SHARDS]
        order = {shard: self._order(shard) for shard in shards}
        first, each = 0, -(-self.asks // max(1, len(shards)))
        while first < max((len(rows) for rows in order.values()), default=0):
            yield {shard: tuple(sorted(rows[first : first + each].tolist())) for shard, rows in order.items()}
            if first * len(shards) > MOST_ROWS * self.asks:
                return
            first, each = first + each, GROWTH * each

    def _order(self, shard: Shard) -> NDArray[np.int64]:
        """The rows of a shard, ordered by hash."""
        keys = Rows(self.ctx.storage).table(shard, ("key",)).column("key").to_pylist()
        return np.argsort(ranks(0, keys), kind="stable")

    # --- one round ---

    def _round(self, pool: str, rows: Mapping[Shard, tuple[int, ...]]) -> None:
        """Take some rows through the passes that are needed."""
        ctx = self.ctx
        self.found.rows += sum(map(len, rows.values()))
        for number, step in enumerate(self.steps):
            group = [node for node in step.nodes if node.name in self.needed and self._is_open(node)]
            if not step.is_pass or not group or ctx.pipeline.pool_of(group[0].name) != pool:
                continue
            over = frozenset(node.name for other in above(self.steps, number) for node in self.steps[other].nodes)
            self._pass(group, over, rows)

    def _is_open(self, node: Node) -> bool:
        """Whether a plan does not know all its facts and masks already."""
        return node.name not in self.planner.folded or node in asking(self.ctx.pipeline.nodes)

    def _pass(self, group: list[Node], over: frozenset[str], rows: Mapping[Shard, tuple[int, ...]]) -> None:
        ctx = self.ctx
        asks = {node.name: max(0, self._left(node.name)) for node in asking({node.name: node for node in group})}
        plan = make_plan(ctx, group, over)
        mask = ctx.masks.pop()
        ctx.masks = [mask, *(other for other in ctx.masks if other.chain != plan.chain)]
        work = build_pass.PassBuild(ctx, group, plan)
        sample = Sample({shard.id: chosen for shard, chosen in rows.items()}, asks)
        task = work.runner.task(tuple(rows), sample=sample)
        [outcome] = ctx.run_with(run_pass, [replace(task, mark=False)], work.runner.resources(), label=group[0].name)
        if outcome.error is not None or outcome.value is None:
            raise CurateError(f"{group[0].name}: cannot be measured: {outcome.error or 'stopped'}")
        self._record(work, group, outcome.value)

    def _record(self, work: build_pass.PassBuild, group: list[Node], results: list[dict[str, Any]]) -> None:
        """Keep tables and fates for the passes that follow, and what was measured."""
        ctx, points = self.ctx, [point.name for point in work.plan.points]
        totals, shards = build_pass.PassTotal(group, points), {shard.id: shard for shard in work.pool.shards}
        for result in results:
            totals.add(shards[result["shard"]], result, build_pass.entries_of(result))
            for name in points:
                ctx.known.fates[work.mask.chain, name, result["shard"]] = result["fates"][name]
        work.mask.contents = totals.contents()
        for node in group:
            found = [result["steps"][node.name] for result in results]
            entry = total(Entry.from_json(one["entry"]) for one in found)
            built = ctx.built[node.name]
            built.manifest = build_pass.mask_manifest(node, built, entry, 0.0)
            if isinstance(node.stage, Map):
                built.numbers = {result["shard"]: result["steps"][node.name]["number"] for result in results}
                built.base = build_pass.facts_base(built, built.numbers)
                ctx.known.numbers[built.path] = built.numbers
                for shard in shards:
                    ctx.known.tables.pop((built.path, shard), None)
            if node.name in {one.name for one in asking(ctx.pipeline.nodes)}:
                measured = self.found.stages.setdefault(node.name, Measured())
                measured.kept += entry.before
                for one in found:
                    if "asked" in one:
                        measured.add(one)
