"""A pass over a pool: which Maps and Filters go in one, what they lack, and what to do when a shard goes wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from curate.core import facts
from curate.core.contracts import Filter, Map, Resources
from curate.core.hashing import digest
from curate.core.ledger import SET_ASIDE, Entry, total
from curate.core.nouns import Manifest, Shard, read_lines
from curate.core.pipeline import Node
from curate.engine.backends import How, Outcome
from curate.engine.context import Built, Context, Counts, Mask, point_name
from curate.engine.passes import answers
from curate.engine.passes.task import ATTEMPTS, PassTask, Point, Step, mask_file, run_pass

SPREAD = 4
"""Tasks per worker at least, where there is work for so many."""
Line = dict[str, Any]
Stretch = tuple[int, int]
"""Rows first .. stop - 1."""


def passes(ctx: Context, nodes: list[Node]) -> list[Node]:
    """Maps and Filters that can go in one pass: of one pool, with everything else upstream built. Empty when none can
    go yet. Two with the same facts go one after the other: the second finds what the first has computed."""
    for pool in ctx.pools:
        chosen: list[Node] = []
        names: set[str] = set()
        facts_of: set[str] = set()
        for node in nodes:
            ready = all(up in ctx.built or (up in names and up in node.inputs) for up in node.upstream)
            if not ready or ctx.pipeline.pool_of(node.name) != pool:
                continue
            same = digest([node.stage.op, node.stage.parameters(), dict(node.ports)])
            if isinstance(node.stage, Map) and same in facts_of:
                continue
            facts_of.add(same)
            chosen.append(node)
            names.add(node.name)
        if chosen:
            return chosen
    return []


@dataclass
class Plan:
    """A pass before it runs: its steps and points, and what lies in the workspace."""

    steps: tuple[Step, ...]
    points: tuple[Point, ...]
    chain: str
    names: tuple[str, ...]
    bases: Mapping[str, tuple[str, ...]]
    known: dict[str, dict[str, int]] = field(default_factory=dict)
    others: dict[str, dict[str, tuple[tuple[str, int], ...]]] = field(default_factory=dict)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Step -> file -> bytes."""
    suspects: set[str] = field(default_factory=set)
    """Shards that were under way when an earlier run died."""

    def file(self, shard: Shard) -> str:
        numbers = {name: known.get(shard.id, 0) for name, known in self.known.items()}
        return mask_file(self.chain, shard.id, numbers, self.bases.get(shard.id, ()))

    def version(self, shards: Sequence[Shard]) -> str:
        """Manifest of the mask that folds the tables that are there now."""
        return f"{self.chain}/versions/{digest([self.file(shard) for shard in shards])}"


def make_plan(ctx: Context, nodes: list[Node]) -> Plan:
    """The pass of some nodes, with what lies in the workspace."""
    plan = lay_out(ctx, nodes)
    survey(ctx, plan)
    return plan


def lay_out(ctx: Context, nodes: list[Node]) -> Plan:
    """The pass of some nodes; sets what is known of each in `ctx.built`. Looks at nothing that gc may remove."""
    names = {node.name for node in nodes}
    steps = tuple(_step(ctx, node, names) for node in nodes)
    points = tuple(_points(ctx, nodes, names))
    bases = {id(rows): rows for rows in [*(s.base for s in steps), *(p.base for p in points)] if rows is not None}
    masks = {mask.base: mask for mask in ctx.masks}
    outside: list[Any] = []
    by_shard: dict[str, tuple[str, ...]] = {}
    for rows in bases.values():
        outside += [ref.base.split("/versions/")[0] for ref in rows.masks] + [rows.selection]
        for ref in rows.masks:
            for shard, file in masks[ref.base].files.items():
                by_shard[shard] = (*by_shard.get(shard, ()), file)
    pool = ctx.pool(nodes[0])
    if pool.parents is not None:
        by_shard = {shard.id: (*by_shard.get(shard.id, ()), pool.alive[shard.id]) for shard in pool.shards}
    described = [[s.name, s.place, ctx.built[s.name].fingerprint, s.inputs, s.keep_null, s.family] for s in steps] + [
        [p.name, p.inputs] for p in points
    ]
    chain = f"masks/{digest([described, outside])}"
    return Plan(steps, points, chain, tuple(ctx.pipeline.nodes), by_shard)


def _step(ctx: Context, node: Node, names: set[str]) -> Step:
    stage = node.stage
    assert isinstance(stage, (Map, Filter))
    fingerprint = ctx.fingerprint(node)
    path = ""
    if isinstance(stage, Map):
        path = f"facts/{stage.op}/{ctx.stage_digest(node)}/{fingerprint}"
    ctx.built[node.name] = Built(fingerprint, "", path, content=fingerprint)
    inside = tuple(name for name in node.inputs if name in names)
    outside = [name for name in node.inputs if name not in names]
    families = ctx.pipeline.families(node.name)
    places = stage.places() if isinstance(stage, Filter) else None
    family = families.get(places, places) if places is not None else ""
    read = [*stage.reads(), *([family] if family else [])]
    makers = {column: ctx.pipeline.maker(node.name, column) for column in read}
    return Step(
        node.name,
        ctx.order[node.name],
        stage,
        inside,
        ctx.rows(node, outside) if not inside or ctx.ways(outside) else None,
        {column: maker for column, maker in makers.items() if maker in names},
        ctx.rows(node, outside),
        path,
        ctx.ports(node),
        node.keep_null,
        any(up.keep_null for up in ctx.pipeline.along(node.name)),
        family,
        {column: family for column, family in families.items() if column in stage.reads()},
        node.place,
    )


def _points(ctx: Context, nodes: list[Node], names: set[str]) -> Iterator[Point]:
    """Where later steps read a mask."""
    seen: set[str] = set()
    for consumer in ctx.pipeline.nodes.values():
        mine = [name for name in consumer.inputs if name in names]
        if consumer.name in names or not mine:
            continue
        ways = ctx.ways(consumer.inputs)
        rest = [name for name in ways if name not in names]
        whole = all(name in ctx.built for name in rest)
        name = point_name(ways if whole else mine)
        if name not in seen:
            seen.add(name)
            yield Point(name, tuple(mine), ctx.rows(consumer, rest) if whole and rest else None)
    read = {up for node in ctx.pipeline.nodes.values() for up in node.inputs}
    for name in sorted(names - read - seen):  # nobody reads on from there, but people ask
        yield Point(name, (name,), None)


def survey(ctx: Context, plan: Plan) -> None:
    """List what is there: one listing for each Map's folder, and one of the mask's."""
    shards = {shard.id for shard in ctx.pool(ctx.pipeline.nodes[plan.steps[0].name]).shards}
    for step in plan.steps:
        if isinstance(step.stage, Map):
            plan.sizes[step.name] = found = ctx.storage.list(step.path)
            plan.known[step.name] = {s: n for s, n in facts.latest(found).items() if s in shards}
            if step.stage.costly:
                plan.others[step.name] = _others(ctx, step, shards)
    plan.suspects = {
        file.removeprefix(f"{ATTEMPTS}/") for file in ctx.storage.list(plan.chain) if file.startswith(ATTEMPTS)
    }


def _others(ctx: Context, step: Step, shards: set[str]) -> dict[str, tuple[tuple[str, int], ...]]:
    """Shard -> highest tables of the stage under a few other fingerprints."""
    folder, own = step.path.rsplit("/", 1)
    by_fingerprint: dict[str, list[str]] = {}
    for file in ctx.storage.list(folder):
        name, _, rest = file.partition("/")
        if name not in (own, answers.FOLDER, "removed"):
            by_fingerprint.setdefault(name, []).append(rest)
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for name in sorted(by_fingerprint)[-answers.OTHERS :]:
        for shard, number in facts.latest(by_fingerprint[name]).items():
            if shard in shards:
                found[shard] = (*found.get(shard, ()), (f"{folder}/{name}", number))
    return found


class PassBuild:
    """One pass of several Maps and Filters over a pool."""

    def __init__(self, ctx: Context, nodes: list[Node], plan: Plan) -> None:
        self.ctx, self.nodes, self.plan = ctx, nodes, plan
        self.pool = ctx.pool(nodes[0])
        self.whole_rows = ctx.whole_pool_rows(nodes[0])
        self.lines: dict[str, Line] = {}
        """Shard -> what its task says of it, as the mask's manifest keeps it."""
        self.counts = {node.name: Counts() for node in nodes}
        self.seconds = dict.fromkeys(self.counts, 0.0)
        self.aside: dict[str, str] = {}
        """Shard -> why it was set aside."""
        self.retry = {name: ctx.options.retry[name] for name in self.counts if name in ctx.options.retry}
        self.dry = ctx.folded is not None
        """In a plan: nothing is written."""

    def reuse(self) -> bool:
        """Whether the mask of these very tables is there: then nothing is lacking, and everything is known."""
        base = self.plan.version(self.pool.shards)
        manifest = None if self.retry else Manifest.load(self.ctx.storage, base)
        if manifest is None:
            return False
        lines = read_lines(self.ctx.storage, base).to_pylist()
        self.lines = {line["id"]: json.loads(line["said"]) | {"file": line["file"]} for line in lines}
        self._note(base, manifest, reused=True)
        return True

    def build(self) -> None:
        began = time.monotonic()
        known = {} if self.retry else self._earlier_lines()
        work = [shard for shard in self.pool.shards if self.plan.file(shard) not in known]
        self.lines = {s.id: known[self.plan.file(s)] for s in self.pool.shards if self.plan.file(s) in known}
        for line in self.lines.values():
            self._lose_again(line)
        with self.ctx.progress.step(" + ".join(self.counts), sum(shard.rows for shard in work)) as step:
            self._bar = step
            self._work_off(self._tasks([shard for shard in work if shard.id not in self.plan.suspects]))
            for shard in (shard for shard in work if shard.id in self.plan.suspects):
                self._suspicious(shard)
        self._commit(time.monotonic() - began)

    def _earlier_lines(self) -> dict[str, Line]:
        """Mask file -> its line, of the latest mask of this chain: a pool that grew folds its new shards only."""
        folder = f"{self.plan.chain}/versions"
        found: dict[str, Line] = {}
        versions = [name for name in self.ctx.storage.list(folder) if name.endswith("/manifest.json")]
        wanted = {self.plan.file(shard) for shard in self.pool.shards}
        for version in versions[-4:]:
            lines = read_lines(self.ctx.storage, f"{folder}/{version.removesuffix('/manifest.json')}").to_pylist()
            for line in lines:
                if line["file"] in wanted:
                    said = json.loads(line["said"])
                    for held in said["steps"].values():
                        held |= {"computed": 0, "copied": 0, "requests": 0, "repeated": 0, "seconds": 0}
                    found[line["file"]] = said | {"file": line["file"]}
        return found

    # --- work and failure ---

    def _tasks(self, work: list[Shard]) -> list[PassTask]:
        slots = self.ctx.backend.slots(self.resources()) if work else 1
        limit = min(self.ctx.options.task_rows, max(1, sum(shard.rows for shard in work) // (SPREAD * slots)))
        units: list[list[Shard]] = []
        rows = 0
        for shard in work:
            if not units or rows + shard.rows > limit:
                units.append([])
                rows = 0
            units[-1].append(shard)
            rows += shard.rows
        return [self._task(tuple(unit)) for unit in units]

    def _task(self, shards: tuple[Shard, ...], **changes: Any) -> PassTask:
        plan, ids = self.plan, [shard.id for shard in shards]

        def of(values: Mapping[str, Any]) -> dict[str, Any]:
            return {shard: values[shard] for shard in ids if shard in values}

        return PassTask(
            storage=self.ctx.storage,
            steps=plan.steps,
            points=plan.points,
            shards=shards,
            known={name: of(known) for name, known in plan.known.items()},
            chain=plan.chain,
            names=plan.names,
            bases=of(plan.bases),
            others={name: of(others) for name, others in plan.others.items()},
            retry=self.retry,
            segment_seconds=self.ctx.options.segment_seconds,
            mark=self.ctx.backend.name == "local",
            **changes,
        )

    def resources(self) -> Resources:
        each = [step.stage.resources() for step in self.plan.steps]
        return Resources(max(r.cpus for r in each), max(r.gpus for r in each), max(r.memory_bytes for r in each))

    def _run(self, tasks: list[PassTask], *, isolated: bool = False) -> Iterator[tuple[PassTask, Outcome]]:
        for outcome in self.ctx.run_with(run_pass, tasks, self.resources(), How(isolated=isolated)):
            yield tasks[outcome.index], outcome

    def _work_off(self, tasks: list[PassTask], *, isolated: bool = False) -> None:
        failed = []
        for task, outcome in self._run(tasks, isolated=isolated):
            if outcome.error is None:
                self._accept(task, outcome.value)
            else:
                failed.append((task, outcome))
        for task, outcome in failed:
            if len(task.shards) > 1:
                self._work_off([self._again(shard) for shard in task.shards], isolated=outcome.crashed)
            elif outcome.crashed:
                self._suspicious(task.shards[0])
            else:
                self._set_aside(task.shards[0], str(outcome.error))

    def _again(self, shard: Shard, **changes: Any) -> PassTask:
        """A task for one shard, by what is there now: a task that failed may have published some tables."""
        for step in self.plan.steps:
            if isinstance(step.stage, Map):
                numbers = facts.latest(
                    f"{shard.id}/{name}" for name in self.ctx.storage.list(f"{step.path}/{shard.id}")
                )
                self.plan.known[step.name] |= numbers
        return self._task((shard,), **changes)

    def _accept(self, task: PassTask, results: list[Line]) -> None:
        for line in results:
            self.lines[line["shard"]] = line
            for name, said in line["steps"].items():
                entry = Entry.from_json(said["entry"])
                self._bar.advance(0, entry.lost.total(), name)
                counts = self.counts[name]
                for what in ("computed", "copied", "requests", "repeated"):
                    setattr(counts, what, getattr(counts, what) + said.get(what, 0))
                self.seconds[name] += said["seconds"]
                self._lose(name, entry, said.get("messages", {}))
        self._bar.advance(sum(shard.rows for shard in task.shards))

    def _lose(self, name: str, entry: Entry, messages: Mapping[str, str]) -> None:
        """Count the rows that failed one by one, computed now or by a run before."""
        if entry.error:
            reason = next(iter(entry.error))
            why = f"{name}: {messages.get(reason, reason)}"
            self.ctx.lose(name, self.ctx.lost.get(name, 0) + entry.error.total(), why, self.whole_rows)

    def _lose_again(self, line: Line) -> None:
        """The same, of a shard that no task of this run goes over."""
        for name, said in line["steps"].items():
            self._lose(name, Entry.from_json(said["entry"]), said.get("messages", {}))

    def _suspicious(self, shard: Shard) -> None:
        """A shard whose task died with its process: find the rows that do it, set them to error, and try once more."""
        outcome = self._alone(self._again(shard))
        if outcome is not None and outcome.crashed:
            known: dict[str, tuple[int, ...]] = {}
            for row in self._killers(shard):
                name = self._guilty(shard, row)
                known[name] = (*known.get(name, ()), row)
            self.ctx.events.emit("poison", shard=shard.id, rows=known)
            outcome = self._alone(self._again(shard, poison={shard.id: known}))
        if outcome is not None:
            self._set_aside(shard, str(outcome.error))

    def _alone(self, task: PassTask) -> Outcome | None:
        """Run one task in a process that may die; None when all went well."""
        [(_, outcome)] = self._run([task], isolated=True)
        if outcome.error is not None:
            return outcome
        self._accept(task, outcome.value)
        return None

    def _killers(self, shard: Shard) -> list[int]:
        """Rows that kill a process on their own, by halving."""

        def crashing(stretches: list[Stretch]) -> list[Stretch]:
            probes = [self._probe(shard, stretch) for stretch in stretches]
            return [p.probe for p, outcome in self._run(probes, isolated=True) if outcome.crashed and p.probe]

        return killers(shard.rows, crashing)

    def _probe(self, shard: Shard, rows: tuple[int, int], steps: tuple[Step, ...] | None = None) -> PassTask:
        task = replace(self._again(shard), probe=rows, mark=False)
        return task if steps is None else replace(task, steps=steps, points=())

    def _guilty(self, shard: Shard, row: int) -> str:
        """The first stage of the pass that dies of the row."""
        maps = [step.name for step in self.plan.steps if isinstance(step.stage, Map)]
        for count in range(1, len(self.plan.steps)):
            probe = self._probe(shard, (row, row + 1), self.plan.steps[:count])
            if any(outcome.crashed for _, outcome in self._run([probe], isolated=True)):
                return self.plan.steps[count - 1].name
        return maps[-1]

    def _set_aside(self, shard: Shard, error: str) -> None:
        """A shard that fails for good: its rows without a status are in error, and `curate retry` tries them again."""
        self.aside[shard.id] = error
        self.ctx.events.emit(SET_ASIDE, shard=shard.id, tar=shard.tar, error=error)
        self.ctx.progress.say(f"  shard {shard.id} ({shard.tar}) is set aside: {error}")
        task = replace(self._again(shard), aside=error, mark=False)
        results = list(self.ctx.must(run_pass, [task], self.nodes[0].stage, f"shard {shard.id}"))
        self._accept(task, results[0])

    # --- committing ---

    def _commit(self, wall: float) -> None:
        ctx, shards = self.ctx, self.pool.shards
        for step in self.plan.steps:
            if isinstance(step.stage, Map):
                self.plan.known[step.name] = {
                    shard: line["steps"][step.name]["number"] for shard, line in self.lines.items()
                }
        base = self.plan.version(shards)
        lines = [{"id": s.id, "file": self.lines[s.id]["file"], "said": _dump(self.lines[s.id])} for s in shards]
        busy = sum(self.seconds.values()) or 1.0
        shares = {name: round(wall * seconds / busy, 3) for name, seconds in self.seconds.items()}
        extra = {
            "points": [point.name for point in self.plan.points],
            "committed": time.time(),
            "set_aside": self.aside,
        }
        extra["bases"] = sorted({ref.base for p in self.plan.points if p.base for ref in p.base.masks})
        manifest = Manifest("mask", "mask", 1, self.plan.chain, extra=extra | {"seconds": shares})
        manifest = manifest.commit(ctx.storage, base, lines)
        for shard in self.plan.suspects:
            ctx.storage.remove(f"{self.plan.chain}/{ATTEMPTS}/{shard}")
        self._note(base, manifest, reused=False, seconds=shares)

    def _note(self, base: str, manifest: Manifest, reused: bool, seconds: Mapping[str, float] | None = None) -> None:
        """What the pass has made, where the rest of the run looks for it."""
        ctx, shards = self.ctx, self.pool.shards
        lines = [self.lines[shard.id] | {"shard": shard.id} for shard in shards]
        names = [point.name for point in self.plan.points]
        ctx.masks.append(mask_of(base, frozenset(self.counts), names, lines))
        for node in self.nodes:
            built = ctx.built[node.name]
            built.counts, built.reused, built.mask = self.counts[node.name], reused, base
            entry = total(Entry.from_json(self.lines[shard.id]["steps"][node.name]["entry"]) for shard in shards)
            share = (seconds or manifest.extra["seconds"])[node.name]
            if isinstance(node.stage, Map):
                self._note_map(node, built, entry, share)
                built.counts.rebuilt = bool(built.counts.computed or built.counts.copied)
            else:
                built.base = base
                built.manifest = mask_manifest(node, built, entry, share)
        for line in self.lines.values() if reused else ():
            self._lose_again(line)

    def _note_map(self, node: Node, built: Built, entry: Entry, seconds: float) -> None:
        """Commit the manifest of the tables that this run reads; what it says of the ledger is this run's alone."""
        ctx, lines = self.ctx, []
        for shard in self.pool.shards:
            said = self.lines[shard.id]["steps"][node.name]
            file = f"{shard.id}/{said['number']:06d}.parquet"
            size = said["bytes"] or self.plan.sizes[node.name].get(file, 0)
            line = {"id": shard.id, "number": said["number"], "rows": shard.rows, "bytes": size}
            lines.append(line | said["summary"])
        built.base = facts_base(built, {line["id"]: line["number"] for line in lines})
        done = sum(line["done"] for line in lines)
        manifest = Manifest(
            "facts",
            node.stage.op,
            node.stage.version,
            built.fingerprint,
            node.stage.parameters(),
            node.stage.identity(),
            rows=done,
            bytes=sum(line["bytes"] for line in lines),
            extra={"committed": time.time()},
        )
        found = manifest if self.dry else manifest.commit(ctx.storage, built.base, lines)
        computed = built.counts.computed
        built.manifest = replace(
            found, ledger=entry.check(node.name).to_json(), seconds=seconds, built_rows=computed, rows=entry.after
        )


def facts_base(built: Built, numbers: Mapping[str, int]) -> str:
    """Manifest of a Map's facts, by the number of each shard's table in the order of the pool."""
    return f"{built.path}/versions/{digest([[shard, number] for shard, number in numbers.items()])}"


def killers(rows: int, crashing: Callable[[list[Stretch]], list[Stretch]]) -> list[int]:
    """Of 0 .. rows - 1, those that kill a process on their own; `crashing` says which stretches do."""
    stretches, found = [(0, rows)], list[int]()
    while stretches:
        halves = [half for a, b in stretches for half in ((a, (a + b) // 2), ((a + b) // 2, b)) if half[0] < half[1]]
        bad = crashing(halves)
        found += [a for a, b in bad if b - a == 1]
        stretches = sorted((a, b) for a, b in bad if b - a > 1)
    return sorted(found)


def mask_of(base: str, stages: frozenset[str], points: Sequence[str], lines: Sequence[Line]) -> Mask:
    """What the lines of a pass's shards, in pool order, say of who is alive at its points and why others are not."""

    def whole(what: str, point: str) -> str:
        return digest([[line["shard"], line[what][point]] for line in lines if line[what][point]])

    by_shard = {point: {line["shard"]: line["contents"][point] for line in lines} for point in points}
    contents, reasons = ({point: whole(what, point) for point in points} for what in ("contents", "reasons"))
    files = {line["shard"]: line["file"] for line in lines if "file" in line}
    return Mask(base, stages, contents, by_shard, files, reasons)


def mask_manifest(node: Node, built: Built, entry: Entry, seconds: float) -> Manifest:
    stage = node.stage
    return Manifest(
        "mask",
        stage.op,
        stage.version,
        built.fingerprint,
        stage.parameters(),
        stage.identity(),
        ledger=entry.check(node.name).to_json(),
        rows=entry.after,
        seconds=seconds,
    )


def _dump(line: Line) -> str:
    return json.dumps({name: value for name, value in line.items() if name != "file"})
