"""A pass over a pool in the driver: units are started as their shards become ready, and the mask is committed."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from curate.core.contracts import trait
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns.manifest import Manifest, read_results
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Node
from curate.engine.context import Context
from curate.engine.passes.answers import log as answer_log
from curate.engine.passes.answers.merge import merge_in_run
from curate.engine.passes.plan import PassPlan
from curate.engine.passes.recovery import UnitRunner
from curate.engine.passes.run import run_pass
from curate.engine.passes.task import MARKS, PassTask, ShardResult
from curate.engine.passes.unit import COUNTS
from curate.engine.progress import pace
from curate.engine.state import Built, Counts
from curate.engine.task_runner import drained
from curate.engine.tasks.job import Outcome
from curate.engine.workers.calls import Call

SPREAD = 4
"""Least number of tasks per worker, if there are enough shards."""
VERSIONS = 2
"""Earlier masks of a chain that are searched for a shard's result."""


class PassBuild:
    """One pass of several Maps and Filters over a pool. It follows the passes `above` shard by shard: a unit begins
    once its shards' masks and tables exist."""

    def __init__(self, ctx: Context, nodes: list[Node], plan: PassPlan, above: Sequence[PassBuild] = ()) -> None:
        self.ctx, self.nodes, self.plan, self.above = ctx, nodes, plan, above
        self.pool = ctx.outputs.pool(nodes[0])
        self.whole_rows = ctx.outputs.whole_pool_rows(nodes[0])
        self.mask = next(mask for mask in ctx.outputs.masks if mask.chain == plan.chain)
        self.runner = UnitRunner(ctx, nodes, plan, self._accept)
        self.results: dict[str, str] = {}
        """Shard -> its result as JSON, because a pool may have very many shards."""
        self.counts = {node.name: Counts() for node in nodes}
        self.seconds = dict.fromkeys(self.counts, 0.0)
        self.settled, self.complete = threading.Event(), threading.Event()
        """`settled`: it holds its leases, or needs none. `complete`: all of its output exists."""
        self.computes = any(spec.path for spec in plan.stages)
        self.asks = any(node.stage.asks() for node in nodes)
        self.running = 0
        """Units whose outcomes are not known yet."""
        self._lock = threading.Lock()
        self._listeners: list[queue.Queue[Any]] = []
        self._earlier: dict[str, str] = {}
        """Mask file -> its shard's result in an earlier run."""

    def reuse(self) -> bool:
        """Use the mask of these tables if it exists; returns whether it does."""
        if not all(up.complete.is_set() for up in self.above):
            return False
        base = self.plan.version(self.pool.shards)
        manifest = None if self.runner.retry else Manifest.load(self.ctx.storage, base)
        if manifest is None:
            return False
        for line in read_results(self.ctx.storage, base).to_pylist():
            self._record(line["id"], line["file"], line["result"])
        self._finish(base, manifest, reused=True)
        return True

    def build(self) -> None:
        began = time.monotonic()
        self._merge_indexes(self.plan.due)  # a run that was killed has merged nothing
        self._earlier = {} if self.runner.retry else self._earlier_results()
        streams = not all(up.complete.is_set() for up in self.above)
        shards = self.pool.shards if streams else [s for s in self.pool.shards if not self._reuse_shard(s)]
        rows = sum(shard.rows for shard in shards)
        for node in self.nodes:
            if expected := pace(node.stage, rows, self.ctx.tasks.backend):
                self.ctx.progress.say(f"{node.name}: {expected}")
        with self.ctx.progress.step(" + ".join(self.counts), rows) as bar:
            self._bar = bar
            self._run_units([shard for shard in shards if shard.id not in self.plan.suspects])
            suspects = [shard for shard in shards if shard.id in self.plan.suspects]
            for up in self.above if suspects else ():
                self.ctx.tasks.wait(up.complete)
            for shard in suspects:
                if not self._reuse_shard(shard):
                    self.runner.recover_crashed(shard)
        for up in self.above:
            self.ctx.tasks.wait(up.complete)
        self._commit(time.monotonic() - began)

    def _earlier_results(self) -> dict[str, str]:
        """Mask file -> result, from the latest masks of this chain: in a pool that grew, only new shards need work."""
        folder = f"{self.plan.chain}/versions"
        versions = [name for name in self.ctx.storage.list(folder) if name.endswith("/manifest.json")]
        found: dict[str, str] = {}
        for version in versions[-VERSIONS:]:
            table = read_results(self.ctx.storage, f"{folder}/{version.removesuffix('/manifest.json')}")
            found.update(zip(table.column("file").to_pylist(), table.column("result").to_pylist(), strict=True))
        return found

    def _reuse_shard(self, shard: Shard) -> bool:
        """Use an earlier run's result for these tables of a shard, if there is one; returns whether there is."""
        file = self.plan.file(shard)
        earlier = self._earlier.pop(file, None)
        if earlier is None:
            return False
        result = json.loads(earlier)
        for of_stage in result["steps"].values():
            of_stage |= dict.fromkeys((*COUNTS, "seconds"), 0)
        self._record(shard.id, file, _dump(result), result)
        self._count_lost(result, entries_of(result))
        return True

    # --- results that other passes wait for ---

    def _record(self, shard: str, file: str, text: str, result: ShardResult | None = None) -> None:
        """Record a shard's result for this pass and its tasks, and notify the passes that follow."""
        result = json.loads(text) if result is None else result
        for name, of_stage in result["steps"].items():
            if "number" in of_stage:
                self.ctx.outputs.built[name].numbers[shard] = of_stage["number"]
        with self._lock:
            self.results[shard] = text
            for point in self.mask.points:
                self.mask.by_shard.setdefault(point, {})[shard] = result["contents"][point]
            self.mask.files[shard] = file
            for listener in self._listeners:
                listener.put((self, shard))

    def _listen(self, inbox: queue.Queue[Any]) -> set[str]:
        """Subscribe to shards; returns those with a result already."""
        with self._lock:
            self._listeners.append(inbox)
            return set(self.mask.files)

    # --- units ---

    def _run_units(self, shards: list[Shard]) -> None:
        """Run each unit once its shards are ready; then recover the units that failed."""
        failed: list[tuple[PassTask, Outcome]] = []
        for task, outcome in self._stream(self._units(shards)):
            if outcome.error is None:
                self._accept(task, outcome.value)
            else:
                failed.append((task, outcome))
        for task, outcome in failed:
            self.runner.recover(task, outcome)

    def _units(self, shards: Sequence[Shard]) -> list[list[Shard]]:
        slots = self.ctx.backend.slots(self.runner.resources()) if shards else 1
        limit = min(self.ctx.options.task_rows, max(1, sum(shard.rows for shard in shards) // (SPREAD * slots)))
        units: list[list[Shard]] = []
        rows = 0
        for shard in shards:
            if not units or rows + shard.rows > limit:
                units.append([])
                rows = 0
            units[-1].append(shard)
            rows += shard.rows
        return units

    def _stream(self, units: list[list[Shard]]) -> Iterator[tuple[PassTask, Outcome]]:
        """Start units as the passes above finish their shards; yields outcomes in any order."""
        inbox: queue.Queue[Any] = queue.Queue()
        finished = {id(up): up._listen(inbox) for up in self.above if not up.complete.is_set()}
        missing = [{(up, s.id) for up, known in finished.items() for s in unit if s.id not in known} for unit in units]
        waits = {number: left for number, left in enumerate(missing) if left}
        ready = deque(number for number, left in enumerate(missing) if not left)
        unit_of = {shard.id: number for number, unit in enumerate(units) for shard in unit}
        call: Call | None = None
        tasks: dict[int, PassTask] = {}
        unpaid = 0
        try:
            while ready or waits or tasks:
                while ready and (call is None or call.room()):
                    unit = units[ready.popleft()]
                    shards = [shard for shard in unit if not self._reuse_shard(shard)]
                    self._bar.advance(sum(shard.rows for shard in unit if shard not in shards), found=True)
                    if shards:
                        call = call or self._call(inbox)
                        task = self.runner.task(tuple(shards))
                        tasks[call.put(task)] = task
                if not (tasks or waits):
                    continue
                self.running = len(tasks)
                source, message = self.ctx.tasks.get(inbox)
                if source is call and self._ended_unpaid(message):
                    del tasks[message.index]
                    unpaid += 1
                elif source is call:
                    outcome = self._checked(message, len(tasks) + len(ready) + len(waits))
                    yield tasks.pop(outcome.index), outcome
                elif (number := unit_of.get(message, -1)) in waits:
                    waits[number].discard((id(source), message))
                    if not waits[number]:
                        del waits[number]
                        ready.append(number)
            if unpaid:
                raise drained(unpaid)
        finally:
            self.running = 0
            if call is not None:
                call.cancel()

    def _call(self, inbox: queue.Queue[Any]) -> Call:
        self.ctx.tasks.check_resources()
        return self.ctx.backend.open(run_pass, self.runner.resources(), inbox=inbox, label=self.nodes[0].name)

    def _ended_unpaid(self, outcome: Outcome | None) -> bool:
        """Whether a unit ended early because the budget is used up: others may still wait for answers."""
        early = outcome is not None and outcome.value is None and outcome.error is None and outcome.fatal is None
        return early and self.ctx.over_budget

    def _checked(self, outcome: Outcome | None, left: int) -> Outcome:
        """The outcome. Raises its error if no retry can help, and DrainedError if the run is to stop."""
        if outcome is not None and outcome.fatal is not None:
            raise outcome.fatal
        if outcome is None or (outcome.error is None and outcome.value is None):
            raise drained(left)
        return outcome

    def _accept(self, task: PassTask, results: list[ShardResult]) -> None:
        before = sum(counts.computed for counts in self.counts.values())
        for result in results:
            file = result.pop("file", "")
            entries = entries_of(result)
            for name, of_stage in result["steps"].items():
                self._bar.advance(0, entries[name].lost.total(), name)
                counts = self.counts[name]
                for count in COUNTS:
                    setattr(counts, count, getattr(counts, count) + of_stage.get(count, 0))
                self.seconds[name] += of_stage["seconds"]
            self._count_lost(result, entries)
            self._record(result["shard"], file, _dump(result), result)
        computed = sum(counts.computed for counts in self.counts.values()) - before
        self._bar.advance(sum(shard.rows for shard in task.shards), found=self.computes and not computed)

    def _count_lost(self, result: ShardResult, entries: Mapping[str, Entry]) -> None:
        """Count a shard's rows in error, computed now or by an earlier run."""
        for name, entry in entries.items():
            self.ctx.losses.add(name, entry, result["steps"][name].get("messages", {}), self.whole_rows)

    # --- committing ---

    def fold_logs(self) -> None:
        """Put results that dead workers have logged into tables. Requires the leases of the facts."""
        for spec in self.plan.stages:
            if trait(spec.stage, "costly"):
                answer_log.fold_all(self.ctx.storage, spec.path)

    def _merge_indexes(self, names: Collection[str]) -> None:
        """Merge the small files that units have added to some stages' indexes of answers."""
        for node in (node for node in self.nodes if node.name in names):
            folder = self.ctx.outputs.built[node.name].path.rpartition("/")[0]
            self.plan.indexes[node.name] = merge_in_run(self.ctx, node, folder)

    def _commit(self, wall: float) -> None:
        ctx, shards = self.ctx, self.pool.shards
        self._merge_indexes({name for name in self.plan.indexes if self.counts[name].computed})
        for spec in self.plan.stages:
            if spec.path:
                self.plan.numbers[spec.name] = ctx.outputs.built[spec.name].numbers
        base = self.plan.version(shards)
        lines = pa.table(
            {
                "id": [shard.id for shard in shards],
                "file": [self.mask.files[shard.id] for shard in shards],
                "result": [self.results[shard.id] for shard in shards],
            }
        )
        busy = sum(self.seconds.values()) or 1.0
        shares = {name: round(wall * seconds / busy, 3) for name, seconds in self.seconds.items()}
        extra: dict[str, Any] = {
            "points": [point.name for point in self.plan.points],
            "committed": time.time(),
            "set_aside": self.runner.aside,
        }
        bases = {mask.chain: mask.base for mask in ctx.outputs.masks}
        extra["bases"] = sorted({bases[ref.chain] for p in self.plan.points if p.base for ref in p.base.masks})
        manifest = Manifest("mask", "mask", 1, self.plan.chain, extra=extra | {"seconds": shares})
        manifest = manifest.commit(ctx.storage, base, lines)
        if self.plan.suspects:
            ctx.storage.remove(f"{self.plan.chain}/{MARKS}")
        self._finish(base, manifest, reused=False, seconds=shares)

    def _finish(self, base: str, manifest: Manifest, reused: bool, seconds: Mapping[str, float] | None = None) -> None:
        """Record the pass's output for the rest of the run."""
        ctx = self.ctx
        total = PassTotal(self.nodes, self.mask.points)
        for shard in self.pool.shards:
            result = json.loads(self.results[shard.id])
            entries = entries_of(result)
            total.add(shard, result, entries)
            if reused:
                self._count_lost(result, entries)
        self.mask.contents, self.mask.reasons = total.contents(), total.reasons()
        self.mask.base = base
        for node in self.nodes:
            built = ctx.outputs.built[node.name]
            built.counts, built.reused, built.mask = self.counts[node.name], reused, base
            entry, share = total.entries[node.name], (seconds or manifest.extra["seconds"])[node.name]
            if built.path:
                self._finish_map(node, built, entry, share, total.lines[node.name])
                built.counts.rebuilt = bool(built.counts.computed or built.counts.copied)
            else:
                built.base = base
                built.manifest = mask_manifest(node, built, entry, share)
                if entry.before and not entry.after and not ctx.outputs.known.plan:
                    why = trait(node.stage, "emptied")
                    ctx.progress.emit("warning", text=f"{node.name}: rejects all {entry.before:,} rows; {why}")
        self.results = {}

    def _finish_map(self, node: Node, built: Built, entry: Entry, seconds: float, lines: list[dict[str, Any]]) -> None:
        """Commit the manifest of the tables that this run reads. Its ledger is that of this run."""
        ctx, sizes = self.ctx, self.plan.sizes[node.name]
        for line in lines:
            line["bytes"] = line["bytes"] or sizes.get(f"{line['id']}/{line['number']:06d}.parquet", 0)
        built.base = facts_base(built, {line["id"]: line["number"] for line in lines})
        manifest = Manifest(
            "facts",
            node.stage.op,
            node.stage.version,
            built.fingerprint,
            node.stage.parameters(),
            node.stage.identity(),
            rows=sum(line["done"] for line in lines),
            bytes=sum(line["bytes"] for line in lines),
            extra={"committed": time.time()},
        )
        if not ctx.outputs.known.plan:
            manifest = manifest.commit(ctx.storage, built.base, lines)
        ledger, computed = entry.check(node.name).to_json(), built.counts.computed
        built.manifest = replace(manifest, ledger=ledger, seconds=seconds, built_rows=computed, rows=entry.after)


@dataclass
class PassTotal:
    """Sums of a pass's results, added in the order of the pool."""

    nodes: Sequence[Node]
    points: Sequence[str]
    entries: dict[str, Entry] = field(default_factory=dict)
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Map -> lines of its facts' manifest, by shard."""
    _contents: dict[str, list[list[str]]] = field(default_factory=dict)
    _reasons: dict[str, list[list[str]]] = field(default_factory=dict)

    def add(self, shard: Shard, result: ShardResult, entries: Mapping[str, Entry]) -> None:
        for node in self.nodes:
            of_stage, entry = result["steps"][node.name], entries[node.name]
            self.entries[node.name] = self.entries[node.name] + entry if node.name in self.entries else entry
            if "number" in of_stage:
                line = {"id": shard.id, "number": of_stage["number"], "rows": shard.rows, "bytes": of_stage["bytes"]}
                self.lines.setdefault(node.name, []).append(line | of_stage["summary"])
        for digests, of_point in ((self._contents, result["contents"]), (self._reasons, result["reasons"])):
            for point in self.points:
                if of_point[point]:
                    digests.setdefault(point, []).append([shard.id, of_point[point]])

    def contents(self) -> dict[str, str]:
        """Point -> digest of the rows that pass."""
        return {point: digest(self._contents.get(point, [])) for point in self.points}

    def reasons(self) -> dict[str, str]:
        """Point -> digest of the rejected rows, their stages and reasons."""
        return {point: digest(self._reasons.get(point, [])) for point in self.points}


def entries_of(result: ShardResult) -> dict[str, Entry]:
    """Stage -> ledger entry of a shard."""
    return {name: Entry.from_json(of_stage["entry"]) for name, of_stage in result["steps"].items()}


def facts_base(built: Built, numbers: Mapping[str, int]) -> str:
    """Base of a Map's facts manifest, by the number of each shard's table in the order of the pool."""
    return f"{built.path}/versions/{digest([[shard, number] for shard, number in numbers.items()])}"


def mask_manifest(node: Node, built: Built, entry: Entry, seconds: float) -> Manifest:
    stage, ledger = node.stage, entry.check(node.name).to_json()
    identity = (stage.op, stage.version, built.fingerprint, stage.parameters(), stage.identity())
    return Manifest("mask", *identity, ledger=ledger, rows=entry.after, seconds=seconds)


def _dump(result: ShardResult) -> str:
    return json.dumps({name: value for name, value in result.items() if name != "file"})
