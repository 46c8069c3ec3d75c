"""A pass over a pool: which Maps and Filters go in one, what they lack, and what to do when a shard goes wrong."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from curate.core import facts
from curate.core.contracts import AsyncMap, Filter, Map, Resources
from curate.core.hashing import digest
from curate.core.ledger import SET_ASIDE, Entry
from curate.core.nouns import Manifest, Shard, read_lines
from curate.core.recipe.pipeline import Node
from curate.core.rows import Rows
from curate.engine.backends import How, Outcome
from curate.engine.context import Built, Context, Counts, Mask, point_name
from curate.engine.passes import answer_log, answers
from curate.engine.passes.batches import KILLED
from curate.engine.passes.held import COUNTS
from curate.engine.passes.task import ATTEMPTS, PassTask, Point, Step, mask_file, run_pass

if TYPE_CHECKING:
    from curate.engine.workers.scheduler import Call

SPREAD = 4
"""Tasks per worker at least, where there is work for so many."""
VERSIONS = 2
"""Earlier masks of a chain in which a shard's line is looked for."""
HUNG = "hung"
"""Reason of a row whose batch never ended."""
ATTEMPTS_AT_HANGING = 4
"""How often a unit that hangs is tried again before its shards are set aside."""
Line = dict[str, Any]
Stretch = tuple[int, int]
"""Rows first .. stop - 1."""


@dataclass
class Plan:
    """A pass before it runs: its steps and points, and what lies in the workspace."""

    steps: tuple[Step, ...]
    points: tuple[Point, ...]
    chain: str
    names: tuple[str, ...]
    outside: tuple[Mask, ...]
    """Masks of other passes that its own fold."""
    alive: Mapping[str, str]
    """Of a derived pool: shard -> digest of which children have an alive parent."""
    known: dict[str, dict[str, int]] = field(default_factory=dict)
    others: dict[str, dict[str, tuple[tuple[str, int], ...]]] = field(default_factory=dict)
    indexes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Costly step -> files of its index of answers."""
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Step -> file -> bytes."""
    suspects: set[str] = field(default_factory=set)
    """Shards that were under way when an earlier run died."""

    def bases(self, shard: Shard) -> tuple[str, ...]:
        """What else a shard's mask depends on: files of masks from outside."""
        files = tuple(mask.files[shard.id] for mask in self.outside if shard.id in mask.files)
        return (*files, self.alive[shard.id]) if shard.id in self.alive else files

    def file(self, shard: Shard) -> str:
        numbers = {name: known.get(shard.id, 0) for name, known in self.known.items()}
        return mask_file(self.chain, shard.id, numbers, self.bases(shard))

    def rows(self) -> list[Rows]:
        """All rows from outside that steps and points refer to."""
        found = [*(s.base for s in self.steps), *(s.columns for s in self.steps), *(p.base for p in self.points)]
        return [rows for rows in found if rows is not None]

    def version(self, shards: Sequence[Shard]) -> str:
        """Manifest of the mask that folds the tables that are there now."""
        return f"{self.chain}/versions/{digest([self.file(shard) for shard in shards])}"


def make_plan(ctx: Context, nodes: list[Node], above: frozenset[str]) -> Plan:
    """The pass of some nodes, with what lies in the workspace."""
    plan = lay_out(ctx, nodes, above)
    survey(ctx, plan)
    return plan


def lay_out(ctx: Context, nodes: list[Node], above: frozenset[str]) -> Plan:
    """The pass of some nodes; sets what is known of each in `ctx.built`, and the mask that they will have. Looks at
    nothing that gc may remove. `above`: stages whose passes this one follows, shard by shard."""
    names = {node.name for node in nodes}
    steps = tuple(_step(ctx, node, names) for node in nodes)
    points = tuple(_points(ctx, nodes, names, above))
    bases = {id(rows): rows for rows in [*(s.base for s in steps), *(p.base for p in points)] if rows is not None}
    masks = {mask.chain: mask for mask in ctx.masks}
    outside: list[Any] = []
    for rows in bases.values():
        outside += [ref.chain for ref in rows.masks] + [rows.selection]
    described = [[s.name, s.place, ctx.built[s.name].fingerprint, s.inputs, s.keep_null, s.family] for s in steps] + [
        [p.name, p.inputs] for p in points
    ]
    chain = f"masks/{digest([described, outside])}"
    pool = ctx.pool(nodes[0])
    alive = {} if pool.parents is None else pool.alive
    others = tuple(masks[ref.chain] for rows in bases.values() for ref in rows.masks)
    ctx.masks.append(Mask(chain, frozenset(names), tuple(point.name for point in points)))
    return Plan(steps, points, chain, tuple(ctx.pipeline.nodes), others, alive)


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


def _points(ctx: Context, nodes: list[Node], names: set[str], above: frozenset[str]) -> Iterator[Point]:
    """Where later steps read a mask. Ways from passes that this one does not follow meet in whoever reads them: it
    would wait for them in vain."""
    seen: set[str] = set()
    for consumer in ctx.pipeline.nodes.values():
        mine = [name for name in consumer.inputs if name in names]
        if consumer.name in names or not mine:
            continue
        ways = ctx.ways(consumer.inputs)
        rest = [name for name in ways if name not in names]
        whole = all(name in above for name in rest)
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
                plan.others[step.name], plan.indexes[step.name] = _others(ctx, step, shards)
    for file in ctx.storage.list(f"{plan.chain}/{ATTEMPTS}"):
        with contextlib.suppress(FileNotFoundError):
            plan.suspects.update(ctx.storage.read(f"{plan.chain}/{ATTEMPTS}/{file}").decode().split())


def _others(
    ctx: Context, step: Step, shards: set[str]
) -> tuple[dict[str, tuple[tuple[str, int], ...]], tuple[str, ...]]:
    """Shard -> highest tables of the stage under a few other fingerprints; and the files of its index."""
    folder, own = step.path.rsplit("/", 1)
    by_fingerprint: dict[str, list[str]] = {}
    index: list[str] = []
    for file in ctx.storage.list(folder):
        name, _, rest = file.partition("/")
        if name == answers.FOLDER:
            index.append(rest)
        elif name not in (own, answer_log.FOLDER, "removed"):
            by_fingerprint.setdefault(name, []).append(rest)
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for name in sorted(by_fingerprint)[-answers.OTHERS :]:
        for shard, number in facts.latest(by_fingerprint[name]).items():
            if shard in shards:
                found[shard] = (*found.get(shard, ()), (f"{folder}/{name}", number))
    return found, tuple(sorted(index))


class PassBuild:
    """One pass of several Maps and Filters over a pool. Where it follows other passes, it does so shard by shard: a
    unit begins once its shards' masks and tables are there."""

    def __init__(self, ctx: Context, nodes: list[Node], plan: Plan, above: Sequence[PassBuild] = ()) -> None:
        self.ctx, self.nodes, self.plan, self.above = ctx, nodes, plan, above
        self.pool = ctx.pool(nodes[0])
        self.whole_rows = ctx.whole_pool_rows(nodes[0])
        self.mask = next(mask for mask in ctx.masks if mask.chain == plan.chain)
        self.said: dict[str, str] = {}
        """Shard -> what its task says of it, as the mask's manifest keeps it: JSON, since there are many shards."""
        self.counts = {node.name: Counts() for node in nodes}
        self.seconds = dict.fromkeys(self.counts, 0.0)
        self.aside: dict[str, str] = {}
        """Shard -> why it was set aside."""
        self.retry = {name: ctx.options.retry[name] for name in self.counts if name in ctx.options.retry}
        self.dry = ctx.known.plan
        """In a plan: nothing is written."""
        self.settled, self.complete = threading.Event(), threading.Event()
        """It holds its leases, or needs none; all is there."""
        self._lock = threading.Lock()
        self._listeners: list[queue.Queue[Any]] = []
        self._earlier: dict[str, str] = {}
        """File of a mask -> what the last runs said of its shard."""
        self._asked: dict[str, dict[str, tuple[bytes, ...]]] = {}
        """AsyncMap -> shard -> inputs that were in flight when an earlier run died."""
        self._units_before: dict[str, tuple[str, ...]] = {}
        """Shard -> names in logs of the units with it that failed."""

    def reuse(self) -> bool:
        """Whether the mask of these very tables is there: then nothing is lacking, and everything is known."""
        if not all(up.complete.is_set() for up in self.above):
            return False
        base = self.plan.version(self.pool.shards)
        manifest = None if self.retry else Manifest.load(self.ctx.storage, base)
        if manifest is None:
            return False
        for line in read_lines(self.ctx.storage, base, ["id", "file", "said"]).to_pylist():
            self._tell(line["id"], line["file"], line["said"])
        self._note(base, manifest, reused=True)
        return True

    def build(self) -> None:
        began = time.monotonic()
        self._earlier = {} if self.retry else self._earlier_lines()
        streams = not all(up.complete.is_set() for up in self.above)
        shards = self.pool.shards if streams else [s for s in self.pool.shards if not self._told_before(s)]
        with self.ctx.progress.step(" + ".join(self.counts), sum(shard.rows for shard in shards)) as step:
            self._bar = step
            self._work_off([shard for shard in shards if shard.id not in self.plan.suspects])
            suspects = [shard for shard in shards if shard.id in self.plan.suspects]
            for up in self.above if suspects else ():
                self.ctx.wait(up.complete)
            for shard in suspects:
                if not self._told_before(shard):
                    self._suspicious(shard)
        for up in self.above:
            self.ctx.wait(up.complete)
        self._commit(time.monotonic() - began)

    def _earlier_lines(self) -> dict[str, str]:
        """Mask file -> its line, of the latest masks of this chain: a pool that grew folds its new shards only."""
        folder = f"{self.plan.chain}/versions"
        versions = [name for name in self.ctx.storage.list(folder) if name.endswith("/manifest.json")]
        found: dict[str, str] = {}
        for version in versions[-VERSIONS:]:
            table = read_lines(self.ctx.storage, f"{folder}/{version.removesuffix('/manifest.json')}", ["file", "said"])
            found.update(zip(table.column("file").to_pylist(), table.column("said").to_pylist(), strict=True))
        return found

    def _told_before(self, shard: Shard) -> bool:
        """Whether an earlier run has folded these very tables of a shard: it is told again, and nothing is done."""
        file = self.plan.file(shard)
        said = self._earlier.pop(file, None)
        if said is None:
            return False
        line = json.loads(said)
        for held in line["steps"].values():
            held |= dict.fromkeys((*COUNTS, "seconds"), 0)
        self._tell(shard.id, file, _dump(line), line)
        self._lose_again(line)
        return True

    # --- what other passes are told ---

    def _tell(self, shard: str, file: str, said: str, line: Line | None = None) -> None:
        """What is known of a shard: here, where tasks look for it, and to the passes that follow."""
        line = json.loads(said) if line is None else line
        for node in self.nodes:
            if isinstance(node.stage, Map):
                self.ctx.built[node.name].numbers[shard] = line["steps"][node.name]["number"]
        with self._lock:
            self.said[shard] = said
            for point in self.mask.points:
                self.mask.by_shard.setdefault(point, {})[shard] = line["contents"][point]
            self.mask.files[shard] = file
            for listener in self._listeners:
                listener.put((self, shard))

    def _listen(self, inbox: queue.Queue[Any]) -> set[str]:
        """Hear of every shard from now on; returns those that are there."""
        with self._lock:
            self._listeners.append(inbox)
            return set(self.mask.files)

    # --- work and failure ---

    def _units(self, shards: Sequence[Shard]) -> list[list[Shard]]:
        slots = self.ctx.backend.slots(self.resources()) if shards else 1
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
            places=self.ctx.known if self.dry else self.ctx.known_of(plan.rows(), shards),
            chain=plan.chain,
            names=plan.names,
            bases={shard.id: plan.bases(shard) for shard in shards},
            others={name: of(others) for name, others in plan.others.items()},
            indexes=plan.indexes,
            units=(answer_log.token(ids), *sorted({u for s in ids for u in self._units_before.get(s, ())})),
            asked={name: of(asked) for name, asked in self._asked.items()},
            retry=self.retry,
            segment_seconds=self.ctx.options.segment_seconds,
            mark=self.ctx.backend.name == "local",
            **changes,
        )

    def resources(self) -> Resources:
        each = [step.stage.resources() for step in self.plan.steps]
        cpus, gpus, memory = (max(getattr(r, name) for r in each) for name in ("cpus", "gpus", "memory_bytes"))
        return Resources(cpus, gpus, memory, remote=any(r.remote for r in each))

    def _run(self, tasks: list[PassTask], *, isolated: bool = False) -> Iterator[tuple[PassTask, Outcome]]:
        how, label = How(isolated=isolated), self.nodes[0].name
        for outcome in self.ctx.run_with(run_pass, tasks, self.resources(), how, label):
            if outcome.error is None and outcome.value is None:
                raise self.ctx.drained()
            yield tasks[outcome.index], outcome

    def _work_off(self, shards: list[Shard]) -> None:
        """Every unit as soon as its shards are there; then those that failed, shard by shard."""
        failed: list[tuple[PassTask, Outcome]] = []
        for task, outcome in self._stream(self._units(shards)):
            if outcome.error is None:
                self._accept(task, outcome.value)
            else:
                failed.append((task, outcome))
        for task, outcome in failed:
            self._mend(task, outcome)

    def _stream(self, units: list[list[Shard]]) -> Iterator[tuple[PassTask, Outcome]]:
        """Units and how each ended, as they end; begun as the passes before this one get to their shards."""
        inbox: queue.Queue[Any] = queue.Queue()
        there = {id(up): up._listen(inbox) for up in self.above if not up.complete.is_set()}
        missing = [{(up, s.id) for up, known in there.items() for s in unit if s.id not in known} for unit in units]
        waits = {number: left for number, left in enumerate(missing) if left}
        ready = deque(number for number, left in enumerate(missing) if not left)
        unit_of = {shard.id: number for number, unit in enumerate(units) for shard in unit}
        call: Call | None = None
        tasks: dict[int, PassTask] = {}
        try:
            while ready or waits or tasks:
                while ready and (call is None or call.room()):
                    shards = [shard for shard in units[ready.popleft()] if not self._told_before(shard)]
                    if shards:
                        call = call or self._call(inbox)
                        task = self._task(tuple(shards))
                        tasks[call.put(task)] = task
                if not (tasks or waits):
                    continue
                source, said = self.ctx.get(inbox)
                if source is call:
                    said = self._heard(said, len(tasks) + len(ready) + len(waits))
                    yield tasks.pop(said.index), said
                elif (number := unit_of.get(said, -1)) in waits:
                    waits[number].discard((id(source), said))
                    if not waits[number]:
                        del waits[number]
                        ready.append(number)
        finally:
            if call is not None:
                call.cancel()

    def _call(self, inbox: queue.Queue[Any]) -> Call:
        self.ctx.check_resources()
        return self.ctx.backend.open(run_pass, self.resources(), inbox=inbox, label=self.nodes[0].name)

    def _heard(self, said: Outcome | None, left: int) -> Outcome:
        """An outcome; raises what no other attempt can mend, and DrainedError if the run was told to stop."""
        if said is not None and said.fatal is not None:
            raise said.fatal
        if said is None or (said.error is None and said.value is None):
            raise self.ctx.drained(left)
        return said

    def _mend(self, task: PassTask, outcome: Outcome) -> None:
        """What to do about a unit that failed."""
        for shard in task.shards:
            self._units_before[shard.id] = task.units
        if outcome.hung is not None:
            self._unhang(task, outcome)
        elif len(task.shards) > 1:
            for shard in task.shards:
                for again, ended in self._run([self._again(shard)], isolated=outcome.crashed):
                    if ended.error is None:
                        self._accept(again, ended.value)
                    else:
                        self._mend(again, ended)
        elif outcome.crashed:
            self._suspicious(task.shards[0])
        else:
            self._set_aside(task.shards[0], str(outcome.error))

    def _unhang(self, task: PassTask, outcome: Outcome) -> None:
        """A unit that finished no batch for too long is tried again: the rows that it hung at one by one, and once it
        is known which row it is, without that row."""
        for _ in range(ATTEMPTS_AT_HANGING):
            doing = outcome.hung
            if doing is None or not doing.rows:  # without rows it was tried again already
                break
            rows = _of_shards(task.shards, doing.rows)
            self.ctx.events.emit("hung", stage=doing.stage, rows=rows, error=outcome.error)
            self.ctx.progress.say(f"  {outcome.error}; tried again")
            if len(doing.rows) == 1:
                poison = {shard: dict(steps) for shard, steps in task.poison.items()}
                for shard, found in rows.items():
                    mine = {**poison.setdefault(shard, {}).get(doing.stage, {}), **dict.fromkeys(found, HUNG)}
                    poison[shard][doing.stage] = mine
                task = replace(task, poison=poison)
            careful = {shard: task.careful.get(shard, frozenset()) | frozenset(found) for shard, found in rows.items()}
            task = replace(task, careful={**task.careful, **careful}, again=True)
            [(_, outcome)] = self._run([task], isolated=self.ctx.backend.name == "local")
            if outcome.error is None:
                self._accept(task, outcome.value)
                return
        if outcome.hung is None:
            self._mend(task, outcome)
            return
        for shard in task.shards:
            self._set_aside(shard, str(outcome.error))

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
            file = line.pop("file", "")
            for name, said in line["steps"].items():
                entry = Entry.from_json(said["entry"])
                self._bar.advance(0, entry.lost.total(), name)
                counts = self.counts[name]
                for what in COUNTS:
                    setattr(counts, what, getattr(counts, what) + said.get(what, 0))
                self.seconds[name] += said["seconds"]
                self._lose(name, entry, said.get("messages", {}))
            self._tell(line["shard"], file, _dump(line), line)
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
            known: dict[str, dict[int, str]] = {}
            for row in self._killers(shard):
                known.setdefault(self._guilty(shard, row), {})[row] = KILLED
            rows = {name: list(found) for name, found in known.items()}
            self.ctx.events.emit("poison", shard=shard.id, rows=rows)
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

    def fold_logs(self) -> None:
        """Put answers that dead workers have left in logs into tables. We hold the leases of the facts."""
        for step in self.plan.steps:
            if isinstance(step.stage, AsyncMap):
                asked = answer_log.fold(self.ctx.storage, step.path)
                self._asked[step.name] = {shard: tuple(inputs) for shard, inputs in asked.items()}

    def _tidy_indexes(self) -> None:
        """Join the small files that the units have added to the indexes of answers."""
        for step in self.plan.steps:
            if isinstance(step.stage, Map) and step.stage.costly and self.counts[step.name].computed:
                joins = answers.joins(self.ctx.storage, step.path.rpartition("/")[0])
                list(self.ctx.run_with(answers.join, joins, Resources()))  # one that failed is joined another time

    def _commit(self, wall: float) -> None:
        ctx, shards = self.ctx, self.pool.shards
        self.fold_logs()  # what died in this run: its units have ended elsewhere
        self._tidy_indexes()
        for step in self.plan.steps:
            if isinstance(step.stage, Map):
                self.plan.known[step.name] = ctx.built[step.name].numbers
        base = self.plan.version(shards)
        lines = pa.table(
            {
                "id": [shard.id for shard in shards],
                "file": [self.mask.files[shard.id] for shard in shards],
                "said": [self.said[shard.id] for shard in shards],
            }
        )
        busy = sum(self.seconds.values()) or 1.0
        shares = {name: round(wall * seconds / busy, 3) for name, seconds in self.seconds.items()}
        extra = {
            "points": [point.name for point in self.plan.points],
            "committed": time.time(),
            "set_aside": self.aside,
        }
        bases = {mask.chain: mask.base for mask in ctx.masks}
        extra["bases"] = sorted({bases[ref.chain] for p in self.plan.points if p.base for ref in p.base.masks})
        manifest = Manifest("mask", "mask", 1, self.plan.chain, extra=extra | {"seconds": shares})
        manifest = manifest.commit(ctx.storage, base, lines)
        if self.plan.suspects:
            ctx.storage.remove(f"{self.plan.chain}/{ATTEMPTS}")
        self._note(base, manifest, reused=False, seconds=shares)

    def _note(self, base: str, manifest: Manifest, reused: bool, seconds: Mapping[str, float] | None = None) -> None:
        """What the pass has made, where the rest of the run looks for it."""
        ctx = self.ctx
        whole = Whole(self.nodes, self.mask.points)
        for shard in self.pool.shards:
            line = json.loads(self.said[shard.id])
            whole.add(shard, line)
            if reused:
                self._lose_again(line)
        self.mask.contents, self.mask.reasons = whole.contents(), whole.reasons()
        self.mask.base = base
        for node in self.nodes:
            built = ctx.built[node.name]
            built.counts, built.reused, built.mask = self.counts[node.name], reused, base
            entry, share = whole.entries[node.name], (seconds or manifest.extra["seconds"])[node.name]
            if isinstance(node.stage, Map):
                self._note_map(node, built, entry, share, whole.lines[node.name])
                built.counts.rebuilt = bool(built.counts.computed or built.counts.copied)
            else:
                built.base = base
                built.manifest = mask_manifest(node, built, entry, share)
        self.said = {}

    def _note_map(self, node: Node, built: Built, entry: Entry, seconds: float, lines: list[Line]) -> None:
        """Commit the manifest of the tables that this run reads; what it says of the ledger is this run's alone."""
        ctx, sizes = self.ctx, self.plan.sizes[node.name]
        for line in lines:
            line["bytes"] = line["bytes"] or sizes.get(f"{line['id']}/{line['number']:06d}.parquet", 0)
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


@dataclass
class Whole:
    """What the lines of a pass's shards, in pool order, say together."""

    nodes: Sequence[Node]
    points: Sequence[str]
    entries: dict[str, Entry] = field(default_factory=dict)
    lines: dict[str, list[Line]] = field(default_factory=dict)
    """Map -> what the manifest of its facts says of each shard."""
    _contents: dict[str, list[list[str]]] = field(default_factory=dict)
    _reasons: dict[str, list[list[str]]] = field(default_factory=dict)

    def add(self, shard: Shard, line: Line) -> None:
        for node in self.nodes:
            said = line["steps"][node.name]
            entry = Entry.from_json(said["entry"])
            self.entries[node.name] = self.entries[node.name] + entry if node.name in self.entries else entry
            if isinstance(node.stage, Map):
                about = {"id": shard.id, "number": said["number"], "rows": shard.rows, "bytes": said["bytes"]}
                self.lines.setdefault(node.name, []).append(about | said["summary"])
        for found, of in ((self._contents, line["contents"]), (self._reasons, line["reasons"])):
            for point in self.points:
                if of[point]:
                    found.setdefault(point, []).append([shard.id, of[point]])

    def contents(self) -> dict[str, str]:
        """Point -> digest of who gets through."""
        return {point: digest(self._contents.get(point, [])) for point in self.points}

    def reasons(self) -> dict[str, str]:
        """Point -> digest of who left where and why."""
        return {point: digest(self._reasons.get(point, [])) for point in self.points}


def _of_shards(shards: Sequence[Shard], rows: Sequence[int]) -> dict[str, list[int]]:
    """Shard -> places in it, of rows of a unit."""
    found: dict[str, list[int]] = {}
    first = 0
    for shard in shards:
        mine = [row - first for row in rows if first <= row < first + shard.rows]
        if mine:
            found[shard.id] = mine
        first += shard.rows
    return found


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
