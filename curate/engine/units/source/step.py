"""A Source as a step of a run and of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from curate.core.contracts import Source
from curate.core.hashing import digest
from curate.core.ledger import joined_skips, told
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import Shard, pool_base
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.plan.lines import ESTIMATED, EXACT, UNKNOWN, PlanLine
from curate.engine.state import Built, Options, Pool
from curate.engine.units.pools import PoolStep
from curate.engine.units.source.build import FETCHES, build_source, with_artifacts
from curate.engine.units.source.portions import plan_source, record_paths
from curate.engine.units.source.records import read_fetch, read_records
from curate.engine.units.source.repeats import amended, known_repeats
from curate.engine.units.step import Planned

if TYPE_CHECKING:
    from curate.engine.plan.planner import Planner
    from curate.engine.record.runs import RunRecord

SHOWN_SKIPS = 4
"""Kinds of skipped things in a plan."""


class SourceStep(PoolStep):
    kind: ClassVar[str] = "acquire"
    at_start: ClassVar[bool] = True

    def portions(self, storage: Storage, options: Options) -> Planned | None:
        stage = self.node.stage
        assert isinstance(stage, Source)
        return None if self.node.ports else plan_source(self.node, storage, stage, options)

    def retried(self) -> tuple[str, ...]:
        stage = self.node.stage
        assert isinstance(stage, Source)
        return () if stage.repeatable else ("error", "unusable")

    def build(self, ctx: Context) -> None:
        build_source(ctx, self.node)

    def plan(self, planner: Planner) -> None:
        line = PlanLine(self.node.name, self.node.stage.op, self.kind)
        self._fill(planner, line)
        planner.put(line)

    def _fill(self, planner: Planner, line: PlanLine) -> None:
        ctx, node, stage = planner.ctx, self.node, self.node.stage
        assert isinstance(stage, Source)
        if node.ports:
            blocked = next((name for name in node.ports.values() if name not in ctx.outputs.built), None)
            if blocked is not None:
                line.note = f"depends on {blocked}"
                return
            ctx.portions[node.name] = plan_source(node, ctx.storage, with_artifacts(ctx, node), ctx.options)
        portions, inside = ctx.portions[node.name]
        first = record_paths(stage, portions, inside)
        paths, records = read_records(ctx.storage, stage.namespace, first)
        done = [of_portion for of_portion in paths if of_portion[0] in records.found]
        shards = [records.found[path].shard for of_portion in done for path in of_portion]
        known = [portion.rows for portion in portions]
        whole = len(done) == len(paths)
        ledgers = [records.found[of_portion[-1]].ledger for of_portion in done]
        ready = sum(ledger.before for ledger in ledgers)
        skips = joined_skips(*(ledger.skipped or {} for ledger in ledgers), *(portion.skipped for portion in portions))
        line.note = f"skipped {told(skips, SHOWN_SKIPS)}" if skips else ""
        rows = ready if whole else None
        if rows is None and None not in known:
            rows = int(inside * sum(row or 0 for row in known))
        line.done, line.needed, line.after = ready, rows, rows
        line.compute = None if rows is None else rows - ready
        line.certainty = EXACT if whole else ESTIMATED if rows is not None else UNKNOWN
        version = _version(ctx, stage, shards) if whole else None
        if version is not None:
            fingerprint, shards = version
            ctx.outputs.pools[node.name] = Pool(stage.namespace, fingerprint, shards)
            base = pool_base(stage.namespace, fingerprint)
            ctx.outputs.built[node.name] = Built("", base, manifest=Manifest.load(ctx.storage, base))
            planner.folded.add(node.name)
            return
        exist = f"{len(done):,} of {len(paths):,} shards exist"
        line.note = f"{exist}; {line.note}" if line.note else exist
        if shards and rows:
            _, shards = _version(ctx, stage, shards) or ("", shards)
            ctx.outputs.pools[node.name], ctx.outputs.built[node.name] = (
                Pool(stage.namespace, "", shards),
                Built("", ""),
            )
            planner.growth[node.name] = max(1.0, rows / max(1, sum(shard.rows for shard in shards)))
            planner.folded.add(node.name)
            planner.changing.add(node.name)


def _version(ctx: Context, stage: Source, shards: list[Shard]) -> tuple[str, list[Shard]] | None:
    """Version and shards of a pool that is already acquired; None before its keys have been compared."""
    if not stage.unique_keys and len(shards) > 1:
        known = known_repeats(ctx.storage, stage.namespace, shards)
        if known is None:
            return None
        shards = amended(shards, known)
    return digest({"namespace": stage.namespace, "shards": [shard.id for shard in shards]}), shards


def fetch_of(run: RunRecord, pool: str, shard: Shard, key: str) -> dict[str, Any]:
    """What it took to get a downloaded sample: host, tries, seconds, bytes and detail of the last fetch."""
    base = run.outputs[pool]["base"]
    manifest = Manifest.load(run.storage, base)
    if manifest is None or FETCHES not in manifest.extra:
        return {}
    fetch = read_fetch(run.storage, base.split("/")[1], shard.id, key) or {}
    fetch = {name: value for name, value in fetch.items() if name not in ("key", "code") and value is not None}
    return {f"fetch {name}": round(value, 3) if name == "seconds" else value for name, value in fetch.items()}
