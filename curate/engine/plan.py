"""`curate plan`: what a run would do, from what is there and from the rates of earlier runs. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from curate.core import tombstones
from curate.core.contracts import Map, Select, Source
from curate.core.hashing import digest
from curate.core.nouns import Manifest, Shard
from curate.core.pipeline import Node, Pipeline
from curate.core.storage import Storage
from curate.engine import build_global, build_maps, pins
from curate.engine.backend import Backend
from curate.engine.build_source import amended, known_repeats
from curate.engine.context import Built, Context, Options, Pool
from curate.engine.events import Events
from curate.engine.preflight import Planned, record_path
from curate.engine.progress import Progress
from curate.engine.record import Run, list_runs

RUNS = 20
"""Earlier runs that rates are taken from."""


@dataclass
class Step:
    """One line of the plan. Seconds are of one worker; None where no earlier run has measured the op."""

    stage: str
    op: str
    group: str
    shards: int | None
    done: int
    rows: int | None
    seconds: float | None
    bytes: int | None
    gpus: float

    @property
    def state(self) -> str:
        if self.shards is not None and self.done >= self.shards:
            return "done"
        if self.done:
            return f"{self.done:,} of {self.shards:,} shards done"
        return "to do"


@dataclass
class Rates:
    seconds_per_row: dict[str, float]
    bytes_per_row: dict[str, float]


def measured(pipeline_ops: set[str], ctx: Context) -> Rates:
    """Seconds and bytes per row of each op, from the latest run that computed it."""
    rates = Rates({}, {})
    for run_id in reversed(list_runs(ctx.storage)[-RUNS:]):
        run = Run.load(ctx.storage, run_id)
        for name, output in run.outputs.items():
            op = run.ops()[name]
            if op not in pipeline_ops or op in rates.seconds_per_row:
                continue
            manifest = Manifest.load(ctx.storage, output["base"])
            if manifest is not None and manifest.built_rows:
                rates.seconds_per_row[op] = manifest.seconds / manifest.built_rows
                rates.bytes_per_row[op] = manifest.bytes / max(1, manifest.rows)
    return rates


def plan(pipeline: Pipeline, storage: Storage, options: Options, backend: Backend, portions: Planned) -> list[Step]:
    ctx = Context(
        pipeline, storage, backend, options, tombstones.load(storage), Events(storage, "plan"), Progress(None)
    )
    ctx.portions = portions
    ctx.built |= pins.resolve(pipeline, storage)
    rates = measured({node.stage.op for node in pipeline.nodes.values()}, ctx)
    rows: dict[str, int | None] = {}
    steps = []
    for node in pipeline.nodes.values():
        pool = pipeline.pool_of(node.name)
        if isinstance(node.stage, Source):
            step, rows[node.name] = _source(ctx, node)
        elif isinstance(node.stage, Map):
            step = _map(ctx, node, rows[pool])
        else:
            step = _global(ctx, node, rows[pool])
        left = 0 if step.state == "done" else 1 - step.done / max(1, step.shards or 1)
        if step.op in rates.seconds_per_row and step.rows is not None:
            step.seconds = left * step.rows * rates.seconds_per_row[step.op]
            step.bytes = int(left * step.rows * rates.bytes_per_row[step.op])
        elif not left:
            step.seconds, step.bytes = 0.0, 0
        step.gpus = node.stage.resources().gpus
        steps.append(step)
    return steps


def _source(ctx: Context, node: Node) -> tuple[Step, int | None]:
    stage = node.stage
    assert isinstance(stage, Source)
    portions, inside = ctx.portions[node.name]
    folder = f"pools/{stage.namespace}/portions"
    there = ctx.storage.list(folder)
    records = [record_path(stage, portion, inside) for portion in portions]
    done = [record for record in records if record.removeprefix(folder + "/") in there]
    shards = [Shard(**ctx.storage.read_json(record)["shard"]) for record in done]
    known = [portion.rows for portion in portions]
    rows = sum(s.rows for s in shards) if len(done) == len(records) else None
    if rows is None and None not in known:
        rows = int(inside * sum(row or 0 for row in known))
    fingerprint, shards = _version(ctx, stage, shards) if len(done) == len(records) else ("unknown", shards)
    ctx.pools[node.name] = Pool(stage.namespace, fingerprint, shards)
    ctx.built[node.name] = Built("", f"pools/{stage.namespace}/versions/{fingerprint}")
    return Step(node.name, stage.op, "import", len(portions), len(done), rows, None, None, 0), rows


def _version(ctx: Context, stage: Source, shards: list[Shard]) -> tuple[str, list[Shard]]:
    """Version and shards of a pool that is imported already; `unknown` before its keys have been compared."""
    if not stage.unique_keys and len(shards) > 1:
        known = known_repeats(ctx.storage, stage, shards)
        if known is None:
            return "unknown", shards
        shards = amended(shards, known)
    return digest({"namespace": stage.namespace, "shards": [shard.id for shard in shards]}), shards


def _map(ctx: Context, node: Node, rows: int | None) -> Step:
    built = ctx.built[node.name] = build_maps.prepare(ctx, node)
    built.manifest = Manifest.load(ctx.storage, built.base)
    shards = ctx.pool(node).shards
    files = ctx.storage.list(built.path)
    done = sum(f"{shard.id}.parquet" in files for shard in shards)
    total = len(shards) or None
    return Step(node.name, node.stage.op, _group(ctx, node), total, done, rows, None, None, 0)


def _group(ctx: Context, node: Node) -> str:
    """Maps with the same artifacts behind them go in one pass."""
    behind = sorted(
        {port for up in [*ctx.pipeline.along(node.name), node] for port in up.upstream if port not in up.inputs}
    )
    return f"pass after {', '.join(behind)}" if behind else "pass"


def _global(ctx: Context, node: Node, rows: int | None) -> Step:
    built = ctx.built[node.name] = build_global.prepare(ctx, node)
    done = Manifest.load(ctx.storage, built.base)
    targets = [up.stage.target_rows() for up in ctx.pipeline.along(node.name) if isinstance(up.stage, Select)]
    rows = next((target for target in targets if target), rows)
    return Step(node.name, node.stage.op, "global", 1, 1 if done else 0, done.rows if done else rows, None, None, 0)


def table(steps: list[Step]) -> Table:
    shown = Table(title="Plan", title_justify="left", header_style="bold")
    for name in ("stage", "op", "how", "state"):
        shown.add_column(name)
    for name in ("shards", "rows", "seconds", "GPU-hours", "new bytes"):
        shown.add_column(name, justify="right")
    for step in steps:
        hours = step.seconds * step.gpus / 3600 if step.seconds is not None and step.gpus else None
        cells = [step.stage, step.op, step.group, step.state]
        cells += [_number(step.shards), _number(step.rows), _number(step.seconds, ",.1f"), _number(hours, ".2f", "")]
        shown.add_row(*cells, _number(step.bytes))
    seconds = sum(step.seconds or 0 for step in steps)
    unknown = [step.stage for step in steps if step.seconds is None]
    shown.caption = f"{seconds:,.0f} s of work by measured rates" + (
        f"; not measured yet: {', '.join(unknown)}" if unknown else ""
    )
    return shown


def _number(value: float | None, form: str = ",", missing: str = "?") -> str:
    return missing if value is None else format(value, form)
