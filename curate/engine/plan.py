"""`curate plan`: what a run would do, from what is there and from the rates of earlier runs. Computes nothing.

Rows that are done, needed and to compute are exact where every mask on the way is there, or could be folded from facts
that are; estimated from shards chosen by hash where folding all would take long; unknown behind what is not computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.table import Table

from curate.core import facts, tombstones
from curate.core.contracts import Derive, Filter, Map, Select, Source
from curate.core.hashing import digest
from curate.core.ledger import Entry, total
from curate.core.nouns import Manifest, Shard, pool_base
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.rows import Known
from curate.core.store.storage import Storage
from curate.engine.context import Built, Context, Options, Pool
from curate.engine.passes import build as build_pass
from curate.engine.passes.task import run_pass
from curate.engine.preflight import Planned, record_path
from curate.engine.progress import Progress
from curate.engine.record import pins
from curate.engine.record.events import Events, read_events
from curate.engine.record.runs import Run, list_runs
from curate.engine.steps import Step as StepOfRun
from curate.engine.steps import above, steps
from curate.engine.units.common import prepare
from curate.engine.units.derive import DeriveBuild
from curate.engine.units.source import amended, known_repeats, read_records
from curate.engine.workers.scheduler import Scheduler

RUNS = 20
"""Earlier runs that rates are taken from."""
SAMPLE = 64
"""Shards that an estimate is made from."""
EXACT, ESTIMATED, UNKNOWN = "exact", "estimated", "unknown"


@dataclass
class Step:
    """One line of the plan. Numbers are rows; None where nobody can know yet. Seconds are of one worker."""

    stage: str
    op: str
    how: str
    done: int | None = None
    needed: int | None = None
    compute: int | None = None
    after: int | None = None
    """Rows that go on."""
    certainty: str = UNKNOWN
    note: str = ""
    gains: int | None = None
    losses: int | None = None
    """Of a changed filter: rows that it lets in, and rows that it now rejects, against the last run."""
    seconds: float | None = None
    bytes: int | None = None
    gpus: float = 0


@dataclass
class Rates:
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)


def measured(ctx: Context) -> tuple[Rates, dict[str, dict[str, Any]]]:
    """Seconds and bytes per computed row of each op, from the latest run that computed it; and the stages of the latest
    run, by name."""
    rates, latest = Rates(), dict[str, dict[str, Any]]()
    for run_id in reversed(list_runs(ctx.storage)[-RUNS:]):
        record = Run.load(ctx.storage, run_id).record
        latest = latest or record["stages"]
        for event in read_events(ctx.storage, run_id):
            if event["event"] != "stage" or event["op"] in rates.seconds:
                continue
            rows = event["counts"]["computed"] or (event["rows"] if event["counts"]["rebuilt"] else 0)
            manifest = Manifest.load(ctx.storage, event["base"]) if rows else None
            if manifest is not None:
                rates.seconds[event["op"]] = event["seconds"] / rows
                rates.bytes[event["op"]] = manifest.bytes / max(1, manifest.rows)
    return rates, latest


def plan(
    pipeline: Pipeline, storage: Storage, options: Options, backend: Scheduler, portions: Planned, exact: bool = False
) -> list[Step]:
    """A line per stage, in the order of the DAG. `exact` folds the masks of all shards instead of a sample."""
    buried = tombstones.load(storage)
    ctx = Context(pipeline, storage, backend, options, buried, Events(storage, "plan"), Progress(None))
    ctx.portions, ctx.known = portions, Known(plan=True)
    ctx.built |= pins.resolve(pipeline, storage)
    rates, latest = measured(ctx)
    steps = Planner(ctx, latest, exact).walk()
    for node in pipeline.nodes.values():
        step = steps[node.name]
        step.gpus = node.stage.resources().gpus
        if step.compute == 0:
            step.seconds, step.bytes = 0.0, 0
        elif step.op in rates.seconds and step.compute is not None:
            step.seconds = step.compute * rates.seconds[step.op]
            step.bytes = int(step.compute * rates.bytes[step.op])
    return [steps[name] for name in pipeline.nodes]


class Planner:
    def __init__(self, ctx: Context, latest: Mapping[str, dict[str, Any]], exact: bool) -> None:
        self.ctx, self.latest, self.exact = ctx, latest, exact
        self.steps: dict[str, Step] = {}
        self.known = ctx.known
        self.folded: set[str] = set()
        """Stages of which is known who gets through, and what they say of these: their own, and all upstream."""

    def walk(self) -> dict[str, Step]:
        ctx = self.ctx
        for node in ctx.pipeline.nodes.values():
            if isinstance(node.stage, Source):
                self.steps[node.name] = self._source(node)
        made = steps(ctx.pipeline, ctx.built)
        for number, step in enumerate(made):
            if step.is_pass:
                self._part(made, number)
            elif step.nodes[0].name not in self.steps:
                node = step.nodes[0]
                self.steps[node.name] = self._derive(node) if isinstance(node.stage, Derive) else self._global(node)
        return self.steps

    def _part(self, made: Sequence[StepOfRun], number: int) -> None:
        """A pass, as far as it is known who reaches its stages."""
        names: set[str] = set()
        for node in made[number].nodes:
            if all(up in self.folded or (up in names and up in node.inputs) for up in node.upstream):
                names.add(node.name)
        group = [node for node in made[number].nodes if node.name in names]
        if group:
            over = frozenset(node.name for other in above(made, number) for node in made[other].nodes)
            self._pass(group, over)
        for node in made[number].nodes:
            if node.name not in names:
                self.steps[node.name] = self._global(node)

    def _source(self, node: Node) -> Step:
        ctx, stage = self.ctx, node.stage
        assert isinstance(stage, Source)
        portions, inside = ctx.portions[node.name]
        records = [record_path(stage, portion, inside) for portion in portions]
        found, _ = read_records(ctx.storage, stage.namespace, records)
        done = [found[record] for record in records if record in found]
        shards = [record.shard for record in done]
        known = [portion.rows for portion in portions]
        whole = len(done) == len(records)
        rows = sum(shard.rows for shard in shards) if whole else None
        if rows is None and None not in known:
            rows = int(inside * sum(row or 0 for row in known))
        step = Step(node.name, stage.op, "import", sum(shard.rows for shard in shards), rows)
        step.compute = None if rows is None else rows - (step.done or 0)
        step.certainty = EXACT if whole else ESTIMATED if rows is not None else UNKNOWN
        step.after = rows
        version = _version(ctx, stage, shards) if whole else None
        if version is not None:
            fingerprint, shards = version
            ctx.pools[node.name] = Pool(stage.namespace, fingerprint, shards)
            base = pool_base(stage.namespace, fingerprint)
            ctx.built[node.name] = Built("", base, manifest=Manifest.load(ctx.storage, base))
            self.folded.add(node.name)
        else:
            step.note = f"{len(done):,} of {len(records):,} shards are there"
        return step

    # --- passes ---

    def _pass(self, group: list[Node], over: frozenset[str]) -> None:
        ctx = self.ctx
        work = build_pass.PassBuild(ctx, group, build_pass.make_plan(ctx, group, over))
        if work.reuse():
            for node in group:
                entry = _entry(ctx, node)
                counts = (entry.before, entry.before, 0, entry.after)
                self.steps[node.name] = Step(node.name, node.stage.op, "pass", *counts, EXACT)
                self.folded.add(node.name)
                self._number(node, ctx.built[node.name].numbers)
            self.known.files[work.mask.chain] = work.mask.files
            self._compare(work, group)
            return
        shards, scale = self._chosen(ctx.pool(group[0]))
        lines = [line for shard in shards for line in self._fold(work, group, shard)]
        for node in group:
            self.steps[node.name] = self._estimated(node, [line["steps"][node.name] for line in lines], scale)
        self._fix(work, group, lines, scale == 1.0)

    def _compare(self, work: build_pass.PassBuild, group: list[Node]) -> None:
        """What changed filters let in and reject, where the masks are there already."""
        changed = [node.name for node in group if self._earlier(node.name) is not None]
        if changed:
            shards, scale = self._chosen(work.pool)
            lines = [line["steps"] for shard in shards for line in self._fold(work, group, shard)]
            for name in changed:
                self._changed(self.steps[name], [line[name] for line in lines], scale)

    def _changed(self, step: Step, said: list[dict[str, Any]], scale: float) -> None:
        if any("gains" in line for line in said):
            step.gains, step.losses = (round(scale * sum(line[n] for line in said)) for n in ("gains", "losses"))

    def _chosen(self, pool: Pool) -> tuple[list[Shard], float]:
        """Shards to fold, and how many times as many rows there are in all."""
        if self.exact or len(pool.shards) <= SAMPLE:
            return pool.shards, 1.0
        chosen = sorted(pool.shards, key=lambda shard: digest([pool.namespace, shard.id]))[:SAMPLE]
        return chosen, pool.rows / max(1, sum(shard.rows for shard in chosen))

    def _fold(self, work: build_pass.PassBuild, group: list[Node], shard: Shard) -> list[dict[str, Any]]:
        task = work._task((shard,))
        steps = tuple(replace(step, earlier=self._earlier(step.name)) for step in task.steps)
        return run_pass(replace(task, steps=steps, dry=True, mark=False))

    def _earlier(self, name: str) -> Filter | None:
        """The filter as the last run had it, if it was another."""
        now, before = self.ctx.pipeline.nodes[name].stage, self.latest.get(name)
        if not isinstance(now, Filter) or before is None or before["op"] != now.op:
            return None
        if before["parameters"] == now.parameters():
            return None
        try:
            return type(now)(**before["parameters"])
        except ValueError:  # parameters of another version
            return None

    def _estimated(self, node: Node, said: list[dict[str, Any]], scale: float) -> Step:
        entry = total(Entry.from_json(line["entry"]) for line in said)
        unsure = sum(line["unsure"] for line in said)
        lacking, known = (sum(line.get(name, 0) for line in said) for name in ("lacking", "known"))
        certainty = ESTIMATED if scale > 1 or unsure else EXACT
        step = Step(node.name, node.stage.op, "pass", certainty=certainty)
        step.needed, step.compute, step.done = (round(scale * rows) for rows in (entry.before, lacking, known))
        step.after = round(scale * entry.after)
        if isinstance(node.stage, Filter):
            step.done, step.compute = round(scale * (entry.before - unsure)), 0
            self._changed(step, said, scale)
        about = "" if scale == 1.0 else "about "
        notes = [f"from {SAMPLE} shards"] if scale > 1 else []
        if unsure:
            notes.append(f"{about}{round(scale * unsure):,} rows depend on facts that are not computed yet")
        copied = step.needed - step.compute - step.done
        if copied and isinstance(node.stage, Map):
            notes.append(f"{about}{copied:,} rows have the answers of others")
        step.note = "; ".join(notes)
        return step

    def _fix(self, work: build_pass.PassBuild, group: list[Node], lines: list[dict[str, Any]], whole: bool) -> None:
        """Who gets through stages that lack nothing is known where every shard was folded (`whole`), though no mask is
        stored. Of the others nothing is."""
        ctx = self.ctx
        for node in group:
            said = {line["shard"]: line["steps"][node.name] for line in lines}
            vague = any(one.get("lacking") or one["unsure"] for one in said.values())
            if not whole or vague or not self.folded.issuperset(node.upstream):
                del ctx.built[node.name]
                continue
            self.folded.add(node.name)
            entry = total(Entry.from_json(one["entry"]) for one in said.values())
            ctx.built[node.name].manifest = build_pass.mask_manifest(node, ctx.built[node.name], entry, 0.0)
            self._number(node, {shard: one["number"] for shard, one in said.items() if "number" in one})
            self._keep(node, group, lines)
        points = tuple(p.name for p in work.plan.points if self.folded.issuperset(p.name.split("+")))
        mask = work.mask
        mask.names = frozenset(node.name for node in group if node.name in self.folded)
        mask.points = points
        whole = build_pass.Whole(group, points)
        for shard, line in zip(ctx.pool(group[0]).shards, lines, strict=False):
            whole.add(shard, line)
            for name in points:
                mask.by_shard.setdefault(name, {})[shard.id] = line["contents"][name]
                self.known.fates[mask.chain, name, shard.id] = line["fates"][name]
        mask.contents, mask.reasons = whole.contents(), whole.reasons()

    def _number(self, node: Node, numbers: Mapping[str, int]) -> None:
        """Which tables hold a Map's facts: a run would list them in a manifest."""
        built = self.ctx.built[node.name]
        if isinstance(node.stage, Map):
            built.numbers = dict(numbers)
            built.base = build_pass.facts_base(built, numbers)
            self.known.numbers[built.path] = built.numbers

    def _keep(self, node: Node, group: list[Node], lines: list[dict[str, Any]]) -> None:
        """Answers that a run would copy into a Map's tables, as far as later passes look at their values."""
        pipeline, inside = self.ctx.pipeline, {other.name for other in group}
        read = {
            column
            for later in pipeline.nodes.values()
            if later.name not in inside and (isinstance(later.stage, Filter) or getattr(later.stage, "costly", False))
            for column in later.stage.reads()  # type: ignore[attr-defined]
        }
        for line in lines:
            table = line["tables"].get(node.name)
            if table is not None:
                names = [*facts.FIXED.names, *(name for name in pipeline.columns_of(node.name) if name in read)]
                self.known.tables[self.ctx.built[node.name].path, line["shard"]] = table.select(names)

    # --- derived pools ---

    def _derive(self, node: Node) -> Step:
        ctx, step = self.ctx, Step(node.name, node.stage.op, "derive")
        blocked = self._blocked(node)
        if blocked:
            step.note = f"depends on {blocked}"
            return step
        build = DeriveBuild(ctx, node)
        build.survey()
        if build.reuse():
            entry = _entry(ctx, node)
            step.done, step.needed, step.compute, step.after = entry.before, entry.before, 0, entry.children
            step.certainty = EXACT
            self.folded.add(node.name)
            return step
        del ctx.built[node.name]
        step.needed, step.certainty = self._reaching(node), ESTIMATED
        self._lacking(step, build)
        return step

    def _lacking(self, step: Step, build: DeriveBuild) -> None:
        """How many parents lack their children. Where none does, it is known which children are alive."""
        shards, scale = self._chosen(self.ctx.pool_upstream(build.node))
        found = [build.look(shard) for shard in shards]
        step.needed, step.compute = (round(scale * sum(counts[n] for counts in found)) for n in (0, 1))
        step.done = step.needed - step.compute
        step.certainty = EXACT if scale == 1.0 else ESTIMATED
        if scale == 1.0 and not step.compute:
            pool, entry, built = build.pool(), build.entry(), build.built
            built.manifest = replace(build_pass.mask_manifest(build.node, built, entry, 0.0), rows=pool.rows)
            built.base, built.content = build.version(), pool.fingerprint
            self.ctx.built[step.stage], self.ctx.pools[step.stage] = built, pool
            step.after = entry.children
            self.folded.add(step.stage)

    # --- global steps ---

    def _global(self, node: Node) -> Step:
        ctx, stage = self.ctx, node.stage
        step = Step(node.name, stage.op, "pass" if isinstance(stage, (Map, Filter)) else "global")
        targets = [up.stage.target_rows() for up in ctx.pipeline.along(node.name) if isinstance(up.stage, Select)]
        blocked = self._blocked(node)
        if blocked or isinstance(stage, (Map, Filter)):
            step.note = f"depends on {blocked or node.inputs[0]}"
            step.needed = next((target for target in targets if target), None)
            return step
        built = ctx.built[node.name] = prepare(ctx, node)
        built.manifest = Manifest.load(ctx.storage, built.base)
        if built.manifest is None:
            rows = next((target for target in targets if target), None)
            step.needed = rows if rows is not None else self._reaching(node)
            step.done, step.compute, step.certainty = 0, step.needed, ESTIMATED
            del ctx.built[node.name]
        else:
            built.content = built.manifest.content or built.fingerprint
            rows = built.manifest.rows
            step.done, step.needed, step.compute, step.certainty = rows, rows, 0, EXACT
            step.after = built.manifest.entry.after
            self.folded.add(node.name)
        return step

    def _blocked(self, node: Node) -> str:
        """What has to be built before anybody knows whether a global step is there: "" if nothing."""
        for name in node.upstream:
            if name not in self.folded:
                return f"the mask of {name}" if isinstance(self.ctx.pipeline.nodes[name].stage, (Map, Filter)) else name
        return ""

    def _reaching(self, node: Node) -> int | None:
        found = [self.steps[name].after for name in node.inputs]
        return min((rows for rows in found if rows is not None), default=None)


def _entry(ctx: Context, node: Node) -> Entry:
    manifest = ctx.built[node.name].manifest
    assert manifest is not None
    return manifest.entry


def _version(ctx: Context, stage: Source, shards: list[Shard]) -> tuple[str, list[Shard]] | None:
    """Version and shards of a pool that is imported already; None before its keys have been compared."""
    if not stage.unique_keys and len(shards) > 1:
        known = known_repeats(ctx.storage, stage.namespace, shards)
        if known is None:
            return None
        shards = amended(shards, known)
    return digest({"namespace": stage.namespace, "shards": [shard.id for shard in shards]}), shards


def table(steps: list[Step]) -> Table:
    shown = Table(title="Plan", title_justify="left", header_style="bold")
    for name in ("stage", "op", "how"):
        shown.add_column(name)
    for name in ("done", "needed", "to compute"):
        shown.add_column(name, justify="right")
    shown.add_column("rows are")
    for name in ("seconds", "GPU-hours", "new bytes"):
        shown.add_column(name, justify="right")
    shown.add_column("notes")
    for step in steps:
        hours = step.seconds * step.gpus / 3600 if step.seconds is not None and step.gpus else None
        cells = [step.stage, step.op, step.how, _number(step.done), _number(step.needed), _compute(step)]
        cells += [step.certainty, _number(step.seconds, ",.1f"), _number(hours, ".2f", ""), _number(step.bytes)]
        shown.add_row(*cells, _notes(step))
    seconds = sum(step.seconds or 0 for step in steps)
    unknown = [step.stage for step in steps if step.seconds is None]
    shown.caption = f"{seconds:,.0f} s of work by measured rates" + (
        f"; not known yet: {', '.join(unknown)}" if unknown else ""
    )
    return shown


def _notes(step: Step) -> str:
    changed = []
    if step.gains is not None and step.losses is not None:
        about = "" if step.certainty == EXACT else "about "
        changed = [f"changed: lets {about}{step.gains:,} rows in, rejects {about}{step.losses:,} more"]
    return "; ".join([*changed, *([step.note] if step.note else [])])


def _compute(step: Step) -> str:
    """An estimate of nothing is no promise."""
    return "about 0" if step.compute == 0 and step.certainty != EXACT else _number(step.compute)


def _number(value: float | None, form: str = ",", missing: str = "?") -> str:
    return missing if value is None else format(value, form)
