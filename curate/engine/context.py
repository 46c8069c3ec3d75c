"""What one run knows while it goes: the pipeline, where things are, who works, and what is built already."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from curate.core.contracts import Derive, Filter, Map, Pack, Portion, Report, Resources, Select, Source, Stage
from curate.core.errors import BudgetError, CurateError, DrainedError, StageError
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns import FORMAT_OF_POOL, FORMAT_OF_SELECTION, Lines, Manifest, Shard, selection_places
from curate.core.recipe.pipeline import PIN, Node, Pipeline
from curate.core.rows import ColumnsRef, Known, MaskRef, Rows
from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.core.tombstones import Tombstones
from curate.engine.backends import HOW, How, Outcome
from curate.engine.progress import Progress
from curate.engine.record.events import Events
from curate.engine.workers.scheduler import Scheduler

LOOK_SECONDS = 0.5
"""Between two looks of a waiting step at whether the run goes on."""
DECODER_VERSION = 1
"""Rises when the same bytes decode to other pixels: facts of images are then computed anew."""


@dataclass(frozen=True)
class Options:
    """How a run is carried out; never what comes out."""

    failure_budget: float = 0.01
    """Share of the pool's rows, rounded up, that may be lost to errors, killed processes and shards set aside."""
    sample: float = 1.0
    """Share of the pool for a canary run through the whole DAG (this one does change what comes out)."""
    segment_seconds: float = 60.0
    deadline: float | None = None
    """Seconds after which a unit that finishes no batch hangs; by its step's median batch time if None."""
    task_rows: int = 1000
    """Shards are joined into one task up to this many rows."""
    retry: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Stage -> reasons whose rows in error are tried again (none named: all)."""


@dataclass
class Pool:
    namespace: str
    fingerprint: str
    shards: list[Shard]
    parents: Rows | None = None
    """For a derived pool: the rows that its samples were made out of."""
    alive: dict[str, str] = field(default_factory=dict)
    """For a derived pool: shard -> digest of which children have an alive parent; "" where none has."""

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)


@dataclass
class Counts:
    """What a run did at a stage, in rows. `requests` are rows handed to the stage, repeats included."""

    computed: int = 0
    copied: int = 0
    requests: int = 0
    repeated: int = 0
    asked_again: int = 0
    """Requests of an endpoint that were in flight when a worker died."""
    rebuilt: bool = False


@dataclass
class Built:
    """A stage's output. `content` is what stages that read it depend on; `path` is where a Map's facts lie."""

    fingerprint: str
    base: str
    path: str = ""
    manifest: Manifest | None = None
    reused: bool = False
    content: str = ""
    mask: str = ""
    """Manifest of the mask of the pass that a Map or a Filter was part of."""
    counts: Counts = field(default_factory=Counts)
    numbers: dict[str, int] = field(default_factory=dict)
    """Of a Map: shard -> number of the table that counts, as far as the pass has got."""


@dataclass
class Mask:
    """The mask of a pass: its folder, its manifest once it is complete, and by point the digest of what it lets
    through, whole and by shard, as far as the pass has got."""

    chain: str
    names: frozenset[str]
    points: tuple[str, ...]
    base: str = ""
    contents: dict[str, str] = field(default_factory=dict)
    by_shard: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Point -> digest of who left where and why: what a report depends on."""


@dataclass
class Context:
    pipeline: Pipeline
    storage: Storage
    backend: Scheduler
    options: Options
    tombstones: Tombstones
    events: Events
    progress: Progress
    portions: dict[str, tuple[list[Portion], float]] = field(default_factory=dict)
    """What each source plans to read, and the share of rows to take inside, as the preflight found it."""
    pools: dict[str, Pool] = field(default_factory=dict)
    built: dict[str, Built] = field(default_factory=dict)
    """By stage; pinned artifacts by `pin:NAME`."""
    masks: list[Mask] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)
    """Stage or portion -> rows that failed there, whether in this run or in the one that built it."""
    lost_example: str = ""
    checked: bool = False
    """Whether the stages' resources have been held against what the backend has."""
    removed: dict[str, int] = field(default_factory=dict)
    """Costly stage's folder -> how often gc has removed its answers."""
    known: Known = field(default_factory=Known)
    """In a plan: masks and facts that no file has."""
    failed: threading.Event = field(default_factory=threading.Event)
    """A step has failed, or the run was told to stop: the others end as soon as they can."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Of what steps of the DAG, each in a thread, count together."""

    # --- places and columns ---

    @property
    def order(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.pipeline.nodes)}

    def pool(self, node: Node) -> Pool:
        return self.pools[self.pipeline.pool_of(node.name)]

    def pool_upstream(self, node: Node) -> Pool:
        """The pool whose rows reach a stage: for a Derive, its parents'."""
        return self.pools[self.pipeline.pool_upstream(node.name)]

    def whole_pool_rows(self, node: Node) -> int:
        """Rows of the stage's pool as it was imported: what budgets are shares of."""
        manifest = self.built[self.pipeline.pool_of(node.name)].manifest
        return max(manifest.entry.before if manifest else 0, self.pool(node).rows)

    def columns(self, node: Node) -> tuple[ColumnsRef, ...]:
        """Facts of the Maps upstream that are built."""
        maps = [up for up in self.pipeline.along(node.name) if isinstance(up.stage, Map)]
        return tuple(self.column_ref(up) for up in maps if up.name in self.built)

    def column_ref(self, node: Node) -> ColumnsRef:
        built = self.built[node.name]
        return ColumnsRef(node.name, built.path, built.base, tuple(self.pipeline.columns_of(node.name)))

    def rows(self, node: Node, inputs: Sequence[str] | None = None) -> Rows:
        """The rows that reach a stage through its `from` (or some of it), with all columns upstream."""
        ways = self.ways(node.inputs if inputs is None else inputs)
        select = self._select(ways)
        families = tuple(sorted(self.pipeline.families(node.name).items()))
        before = self._masks(self.ways(self.pipeline.nodes[select].inputs)) if select else ()
        return Rows(
            self.storage,
            self.columns(node),
            (*self._masks(ways), *before),
            self.built[select].base if select else None,
            select,
            self._items_of(select),
            self.pipeline.pool_upstream(node.name),
            families,
            self.order,
            self.pool_upstream(node).parents,
            self.known,
        )

    def placed(self, rows: Rows, shards: Iterable[Shard]) -> Rows:
        """The same rows with what a task has to know of its shards, so that it reads no manifest."""
        if self.known.plan:
            return rows
        return rows.knowing(self.known_of([rows], shards))

    def known_of(self, several: Iterable[Rows], shards: Iterable[Shard]) -> Known:
        """Tables and masks of some shards, as far as some rows refer to them."""
        numbers, files = dict[str, dict[str, int]](), dict[str, dict[str, str]]()
        lines = dict[str, dict[str, Lines]]()
        masks = {mask.chain: mask for mask in self.masks}
        shards = list(shards)
        for rows in several:
            for ref in rows.columns:
                held = self.built[ref.stage].numbers
                found = numbers.setdefault(ref.path, {})
                found.update({shard.id: held[shard.id] for shard in shards if shard.id in held})
            for mask in rows.masks:
                held_files = masks[mask.chain].files
                files.setdefault(mask.chain, {}).update({s.id: held_files[s.id] for s in shards if s.id in held_files})
            if rows.selection is not None:
                places = selection_places(self.storage.url, rows.selection)
                lines.setdefault(rows.selection, {}).update({s.id: places[s.id] for s in shards if s.id in places})
            if rows.parents is not None:
                above = self.known_of([rows.parents], {s.parent: s.parent_shard() for s in shards if s.parent}.values())
                for path, more in above.numbers.items():
                    numbers.setdefault(path, {}).update(more)
                for chain, named in above.files.items():
                    files.setdefault(chain, {}).update(named)
                for base, of_shard in above.lines.items():
                    lines.setdefault(base, {}).update(of_shard)
        return Known(numbers, files, lines)

    def ways(self, inputs: Sequence[str]) -> list[str]:
        """Inputs that say who is alive; the pool itself does where there is none."""
        return [name for name in inputs if not isinstance(self.pipeline.nodes[name].stage, (Source, Derive))]

    def _select(self, ways: Sequence[str]) -> str:
        """The selection among inputs, unless a point's mask has it in it."""
        if any(point_name(ways) in mask.points for mask in self.masks):
            return ""
        return next((name for name in ways if isinstance(self.pipeline.nodes[name].stage, Select)), "")

    def _items_of(self, select: str) -> str:
        """Family of the items that a selection chooses among: that of the per-item columns it reads."""
        if not select or (self.built[select].manifest or Manifest("", "", 0, "")).entry.items is None:
            return ""
        families = self.pipeline.families(select)
        found = {families[name] for name in self.pipeline.nodes[select].stage.reads() if name in families}  # type: ignore[attr-defined]
        return found.pop() if len(found) == 1 else ""

    def _masks(self, ways: Sequence[str]) -> tuple[MaskRef, ...]:
        """Points that say who is alive where these inputs meet: one for all if there is one, else one for each pass."""
        whole = point_name(ways)
        for mask in self.masks:
            if ways and whole in mask.points:
                return (MaskRef(mask.chain, whole, mask.base),)
        found = []
        for mask in self.masks:
            mine = [name for name in ways if name in mask.names]
            if mine:
                found.append(MaskRef(mask.chain, point_name(mine), mask.base))
        return tuple(found)

    def content(self, node: Node) -> str:
        """Digest of who reaches a stage."""
        ways = self.ways(node.inputs)
        masks = {mask.chain: mask for mask in self.masks}
        parts = [masks[ref.chain].contents[ref.point] for ref in self._masks(ways)]
        parts += [self.built[select].fingerprint for select in [self._select(ways)] if select]
        return digest(sorted(parts)) if parts else self.pool_upstream(node).fingerprint

    def contents_by_shard(self, node: Node) -> dict[str, str]:
        """Shard -> digest of who reaches a stage there, for stages that keep something by shard."""
        ways, pool = self.ways(node.inputs), self.pool_upstream(node)
        masks = {mask.chain: mask for mask in self.masks}
        refs = self._masks(ways)
        other = [self.built[select].fingerprint for select in [self._select(ways)] if select]
        found = {}
        for shard in pool.shards:
            parts = [masks[ref.chain].by_shard[ref.point].get(shard.id, "") for ref in refs]
            found[shard.id] = digest([*parts, *other, *([] if refs else [pool.alive.get(shard.id, "")])])
        return found

    # --- fingerprints ---

    def column_fingerprint(self, node: Node, column: str) -> str:
        """Of a column that a stage reads: its maker's fingerprint and its name; of the pool, its name and format."""
        maker = self.pipeline.maker(node.name, column)
        return digest(["pool", column, FORMAT_OF_POOL] if maker is None else [self.built[maker].fingerprint, column])

    def stage_digest(self, node: Node) -> str:
        """What decides a stage's output beside the columns it reads and the rows that reach it."""
        stage = node.stage
        value: dict[str, Any] = {
            "op": stage.op,
            "version": stage.version,
            "parameters": stage.parameters(),
            "identity": stage.identity(),
            "ports": {port: self.built[name].content for port, name in node.ports.items()},
        }
        if isinstance(stage, Derive) or (isinstance(stage, Map) and stage.pixels):
            value["decoder"] = DECODER_VERSION
        return digest(value)

    def reads(self, node: Node) -> list[str]:
        """Columns that decide a stage's output."""
        stage = node.stage
        if isinstance(stage, Report):
            return sorted({c for up in self.pipeline.reaches(node.name) for c in self.pipeline.columns_of(up.name)})
        wanted = list(stage.reads())  # type: ignore[attr-defined]
        if isinstance(stage, Pack):
            there = self.pipeline.fields(node.name)
            wanted += [name for name in stage.text_columns() if name in there]
        return wanted

    def fingerprint(self, node: Node) -> str:
        """Of facts: the stage and the columns that it reads. Of a global step, also who is alive there."""
        stage = node.stage
        what = self.stage_digest(node)
        if isinstance(stage, Map):
            what = self.costly_digest(node, what)
            return digest([what, {name: self.column_fingerprint(node, name) for name in stage.reads()}])
        if isinstance(stage, Derive):
            return what
        columns = {name: self._column_or_none(node, name) for name in self.reads(node)}
        if isinstance(stage, Filter):
            return digest([what, columns])
        value: dict[str, Any] = {"stage": what, "columns": columns, "namespace": self.pool(node).namespace}
        value["alive"] = self.content(node)
        if isinstance(stage, (Pack, Report)):
            value["from"] = sorted(
                self.built[up.name].fingerprint
                for up in (
                    self.pipeline.reaches(node.name) if isinstance(stage, Report) else self.pipeline.along(node.name)
                )
                if not isinstance(up.stage, (Source, Derive, Map, Filter))
            )
        if isinstance(stage, Report):
            value["alive"] = self._shown(node)
        if isinstance(stage, Select):
            value["format"] = FORMAT_OF_SELECTION
        if isinstance(stage, (Select, Pack, Report)) and self.tombstones:
            value["tombstones"] = self.tombstones.digest
        return digest(value)

    def costly_digest(self, node: Node, what: str) -> str:
        """Answers that gc has removed may come back as others: the stage counts how often that was."""
        folder = f"facts/{node.stage.op}/{what}"
        times = self.removed.get(folder)
        if times is None:
            costly = isinstance(node.stage, Map) and node.stage.costly
            times = self.removed[folder] = len(self.storage.list(f"{folder}/removed")) if costly else 0
        return f"{what}-{times}" if times else what

    def _column_or_none(self, node: Node, name: str) -> str:
        if isinstance(node.stage, Report):
            makers = [up.name for up in self.pipeline.reaches(node.name) if name in self.pipeline.columns_of(up.name)]
            return digest([[self.built[maker].fingerprint for maker in makers], name])
        return self.column_fingerprint(node, name)

    def _shown(self, node: Node) -> list[Any]:
        """What a report shows beside artifacts: the ledger, and who is alive at each point upstream."""
        upstream = {up.name for up in self.pipeline.reaches(node.name)}
        ledgers = []
        for name in sorted(upstream):
            manifest = self.built[name].manifest
            if manifest is not None:
                entry = manifest.entry
                ledgers.append([name, {**entry.to_json(), "counters": {}}])
        points = {p: reasons for mask in self.masks for p, reasons in mask.reasons.items()}
        return [ledgers, sorted(item for item in points.items() if upstream.issuperset(item[0].split("+")))]

    def pinned(self) -> dict[str, Built]:
        """Artifacts that no stage of this run builds, by `pin:NAME`."""
        return {name: built for name, built in self.built.items() if name.startswith(PIN)}

    def ports(self, node: Node) -> dict[str, str]:
        return {port: self.built[name].base for port, name in node.ports.items()}

    def lease(
        self, node: Node, output: str, done: Callable[[], bool] = lambda: False
    ) -> contextlib.AbstractContextManager[bool]:
        """Hold an output while building it; waits for whoever builds it now, until SIGTERM."""

        def waits(holder: dict[str, Any]) -> None:
            place = f"process {holder['pid']} on {holder['host']}"
            self.progress.say(f"{node.name}: waits for {place}, which is building it")
            self.backend.release()

        def over() -> bool:
            if self.backend.draining.is_set():
                raise DrainedError(f"stopped before {node.name}; the same command resumes from there")
            return done()

        return lease.hold(self.storage, output, over, waits)

    # --- running tasks ---

    def run(
        self, function: Callable[..., Any], payloads: Iterable[Any], stage: Stage, how: How = HOW, label: str = ""
    ) -> Iterator[Outcome]:
        """Outcomes as they come; raises DrainedError when the run was told to stop and something is left undone.
        Payloads may be made on the way: they are asked for as workers can take them."""
        return self.run_with(function, payloads, stage.resources(), how, label)

    def run_with(
        self,
        function: Callable[..., Any],
        payloads: Iterable[Any],
        resources: Resources,
        how: How = HOW,
        label: str = "",
    ) -> Iterator[Outcome]:
        rest = iter(payloads)
        first = next(rest, None)
        if first is None:
            return
        self.check_resources()
        begun = ended = 0

        def counted() -> Iterator[Any]:
            nonlocal begun
            for payload in itertools.chain([first], rest):
                begun += 1
                yield payload

        whole = counted()
        for outcome in self.backend.map(function, whole, resources, how, label):
            ended += 1
            if outcome.error:
                self.events.emit("failure", task=function.__name__, index=outcome.index, error=outcome.error)
            yield outcome
        left = len(payloads) - ended if isinstance(payloads, Sized) else begun - ended
        if left or next(whole, None) is not None:
            raise self.drained(left)

    def wait(self, event: threading.Event) -> None:
        """Return once another step has got somewhere; raises DrainedError if the run ends before."""
        while not event.wait(LOOK_SECONDS):
            if self.failed.is_set():
                raise self.drained()

    def get(self, inbox: queue.Queue[Any]) -> Any:
        """The next message; raises DrainedError if the run ends before there is one."""
        while True:
            try:
                return inbox.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if self.failed.is_set():
                    raise self.drained() from None

    def drained(self, tasks: int = 0) -> DrainedError:
        what = f"stopped with {tasks:,} tasks to do" if tasks else "stopped"
        return DrainedError(f"{what}; the same command resumes from there")

    def check_resources(self) -> None:
        """Once, when the backend is first needed: no stage may ask for more than there is."""
        with self.lock:
            if self.checked:
                return
            self.backend.has_gpu()  # connects: that no cluster answers is no stage's fault
            for node in self.pipeline.nodes.values():
                try:
                    self.backend.slots(node.stage.resources())
                except CurateError as error:
                    raise node.fail(str(error)) from None
            self.checked = True

    def must(self, function: Callable[[Any], Any], payloads: Iterable[Any], stage: Stage, what: str) -> list[Any]:
        """Values in payload order where nothing may fail (global steps)."""
        return [value for _, value in sorted(self.each(function, payloads, stage, what), key=lambda found: found[0])]

    def each(
        self, function: Callable[[Any], Any], payloads: Iterable[Any], stage: Stage, what: str
    ) -> Iterator[tuple[int, Any]]:
        """(place of the payload, value) as they come, where nothing may fail."""
        for outcome in self.run(function, payloads, stage, label=what):
            if outcome.error:
                raise StageError(f"{what}: {outcome.error}; fix the cause and run the same command again")
            yield outcome.index, outcome.value

    def lose(self, what: str, rows: int, why: str, pool_rows: int) -> None:
        """Note the rows that failed in `what`; BudgetError when the run has lost more than it may."""
        with self.lock:
            self.lost[what] = rows
            self.lost_example = self.lost_example or (why if rows else "")
            lost, allowed = sum(self.lost.values()), math.ceil(self.options.failure_budget * pool_rows)
        if lost > allowed:
            raise BudgetError(
                f"{lost:,} rows were lost to failures, the budget is {allowed:,} "
                f"({self.options.failure_budget:.1%} of {pool_rows:,}); first: {self.lost_example}; "
                "fix the cause or raise --failure-budget"
            )

    def finish(
        self,
        node: Node,
        built: Built,
        noun: str,
        entry: Entry,
        shards: Sequence[dict[str, Any]] | pa.Table = (),
        **about: Any,
    ) -> Built:
        """Commit the noun's manifest."""
        stage = node.stage
        manifest = Manifest(
            noun=noun,
            op=stage.op,
            version=stage.version,
            fingerprint=built.fingerprint,
            parameters=stage.parameters(),
            identity=stage.identity(),
            inputs={name: self.built[name].fingerprint for name in (*node.upstream, *node.pinned.values())},
            ledger=entry.check(node.name).to_json(),
            **about,
        )
        manifest.extra.setdefault("committed", time.time())
        built.manifest = manifest.commit(self.storage, built.base, shards)
        built.content = built.manifest.content or built.fingerprint
        return built


def point_name(inputs: Sequence[str]) -> str:
    """Name of the point where the ways through some stages meet."""
    return "+".join(sorted(inputs))
