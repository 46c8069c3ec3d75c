"""Context of one run: its pipeline, storage, workers and state, and how steps run tasks and commit outputs."""

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

from curate.core.contracts import Portion, Resources, Stage
from curate.core.errors import RESUMES, BudgetError, CurateError, DrainedError, StageError
from curate.core.ledger import Entry
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import Shard
from curate.core.nouns.selections import Lines, selection_places
from curate.core.nouns.tombstones import Tombstones
from curate.core.recipe.pipeline import PIN, Node, Pipeline
from curate.core.rows import ColumnsRef, KnownShards, MaskRef, Rows
from curate.core.store import lease
from curate.core.store.storage import Storage
from curate.engine.backends import CALL_DEFAULTS, CallOptions
from curate.engine.progress import Progress
from curate.engine.record.events import Events
from curate.engine.spending import Spending
from curate.engine.state import Built, Mask, Options, Pool
from curate.engine.tasks.job import Outcome
from curate.engine.workers.scheduler import Scheduler

POLL_SECONDS = 0.5
"""Between two checks of a waiting step whether the run has failed."""


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
    """Source -> its portions and the share of rows to take inside each, from the preflight."""
    pools: dict[str, Pool] = field(default_factory=dict)
    built: dict[str, Built] = field(default_factory=dict)
    """Stage -> output; pinned artifacts under `pin:NAME`."""
    masks: list[Mask] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)
    """Stage or portion -> rows that failed there, in this run or in the run that built it."""
    lost_example: str = ""
    checked: bool = False
    """Whether the stages' resources were compared with the backend's."""
    removed: dict[str, int] = field(default_factory=dict)
    """Folder of a costly stage -> number of times that gc removed its answers."""
    known: KnownShards = field(default_factory=KnownShards)
    """For a plan: masks and facts that are not stored."""
    failed: threading.Event = field(default_factory=threading.Event)
    """A step failed or the run must stop: the other steps end as soon as they can."""
    spending: Spending | None = None
    """What the run spends at endpoints; None in a plan."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Guards the counts that all steps, each in a thread, add to."""

    # --- places and columns ---

    @property
    def order(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.pipeline.nodes)}

    def pool(self, node: Node) -> Pool:
        return self.pools[self.pipeline.pool_of(node.name)]

    def pool_upstream(self, node: Node) -> Pool:
        """The pool whose rows reach a stage; for a Derive, the pool of its parents."""
        return self.pools[self.pipeline.pool_upstream(node.name)]

    def whole_pool_rows(self, node: Node) -> int:
        """Rows of the stage's pool as acquired; failure budgets are shares of this number."""
        manifest = self.built[self.pipeline.pool_of(node.name)].manifest
        return max(manifest.entry.before if manifest else 0, self.pool(node).rows)

    def columns(self, node: Node) -> tuple[ColumnsRef, ...]:
        """Facts of the upstream Maps that are built."""
        built = [up for up in self.pipeline.along(node.name) if up.name in self.built]
        return tuple(self.column_ref(up) for up in built if self.built[up.name].path)

    def column_ref(self, node: Node) -> ColumnsRef:
        built = self.built[node.name]
        return ColumnsRef(node.name, built.path, built.base, tuple(self.pipeline.columns_of(node.name)))

    def rows(self, node: Node, inputs: Sequence[str] | None = None) -> Rows:
        """The rows that reach a stage through its `from` (or through `inputs`), with all upstream columns."""
        ways = self.ways(node.inputs if inputs is None else inputs)
        select = self.selection_among(ways)
        families = tuple(sorted(self.pipeline.families(node.name).items()))
        before = self.mask_refs(self.ways(self.pipeline.nodes[select].inputs)) if select else ()
        return Rows(
            self.storage,
            self.columns(node),
            (*self.mask_refs(ways), *before),
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
        """The same rows with the state of some shards, so that a task reads no manifest."""
        if self.known.plan:
            return rows
        return rows.with_known(self.known_of([rows], shards))

    def known_of(self, several: Iterable[Rows], shards: Iterable[Shard]) -> KnownShards:
        """Tables and masks of some shards that the given rows refer to."""
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
        return KnownShards(numbers, files, lines)

    def ways(self, inputs: Sequence[str]) -> list[str]:
        """Inputs that decide which rows are alive; without any, all rows of the pool are."""
        return [name for name in inputs if not self.pipeline.makes_pool(name)]

    def selection_among(self, ways: Sequence[str]) -> str:
        """The selection among inputs; "" if the mask of their point includes it."""
        if any(point_name(ways) in mask.points for mask in self.masks):
            return ""
        return next((name for name in ways if self.pipeline.selection(name) == name), "")

    def _items_of(self, select: str) -> str:
        """Family of the items that a selection chooses from: the family of the per-item columns it reads."""
        if not select or (self.built[select].manifest or Manifest("", "", 0, "")).entry.items is None:
            return ""
        families = self.pipeline.families(select)
        found = {families[name] for name in self.pipeline.nodes[select].stage.reads() if name in families}
        return found.pop() if len(found) == 1 else ""

    def mask_refs(self, ways: Sequence[str]) -> tuple[MaskRef, ...]:
        """Points that decide which rows are alive where these inputs meet: one in common, or one per pass."""
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

    def pinned(self) -> dict[str, Built]:
        """Artifacts that no stage of this run builds, by `pin:NAME`."""
        return {name: built for name, built in self.built.items() if name.startswith(PIN)}

    def ports(self, node: Node) -> dict[str, str]:
        return {port: self.built[name].base for port, name in node.ports.items()}

    def lease(
        self, node: Node, output: str, done: Callable[[], bool] = lambda: False
    ) -> contextlib.AbstractContextManager[bool]:
        """Hold an output while building it. Waits, until SIGTERM, for the process that builds it now."""

        def on_wait(holder: dict[str, Any]) -> None:
            place = f"process {holder['pid']} on {holder['host']}"
            self.progress.say(f"{node.name}: waiting for {place}, which is building it")
            self.backend.release()

        def over() -> bool:
            if self.backend.draining.is_set():
                raise DrainedError(f"stopped before {node.name}; {RESUMES}")
            return done()

        return lease.hold(self.storage, output, over, on_wait)

    # --- running tasks ---

    def run(
        self,
        function: Callable[..., Any],
        payloads: Iterable[Any],
        stage: Stage,
        options: CallOptions = CALL_DEFAULTS,
        label: str = "",
    ) -> Iterator[Outcome]:
        """Outcomes in any order. Raises DrainedError if the run must stop before all payloads are done. Payloads may be
        an iterator, which is read as workers become free."""
        return self.run_with(function, payloads, stage.resources(), options, label)

    def run_with(
        self,
        function: Callable[..., Any],
        payloads: Iterable[Any],
        resources: Resources,
        options: CallOptions = CALL_DEFAULTS,
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
        for outcome in self.backend.map(function, whole, resources, options, label):
            ended += 1
            if outcome.error:
                self.events.emit("failure", task=function.__name__, index=outcome.index, error=outcome.error)
            yield outcome
        left = len(payloads) - ended if isinstance(payloads, Sized) else begun - ended
        if left or next(whole, None) is not None:
            raise self.drained(left)

    def wait(self, event: threading.Event) -> None:
        """Wait for an event of another step. Raises DrainedError if the run ends first."""
        while not event.wait(POLL_SECONDS):
            if self.failed.is_set():
                raise self.drained()

    def get(self, inbox: queue.Queue[Any]) -> Any:
        """The next message. Raises DrainedError if the run ends first."""
        while True:
            try:
                return inbox.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if self.failed.is_set():
                    raise self.drained() from None

    @property
    def over_budget(self) -> bool:
        """Whether the run's budget is used up. Requests in flight are still answered, because they are paid for."""
        return self.spending is not None and self.spending.over

    def drained(self, tasks: int = 0) -> DrainedError:
        what = f"stopped with {tasks:,} tasks to do" if tasks else "stopped"
        return DrainedError(f"{what}; {RESUMES}")

    def limiter(self, room: str) -> dict[str, Any]:
        """Where the run's limiter answers; stages have a room each."""
        return {**self.backend.limiter.address, "room": room}

    def check_resources(self) -> None:
        """Check once, when the backend is first needed, that no stage needs more resources than exist."""
        with self.lock:
            if self.checked:
                return
            self.backend.has_gpu()  # connect here: an unreachable cluster is not a stage error
            for node in self.pipeline.nodes.values():
                try:
                    self.backend.slots(node.stage.resources())
                except CurateError as error:
                    raise node.fail(str(error)) from None
            self.checked = True

    def must(self, function: Callable[[Any], Any], payloads: Iterable[Any], stage: Stage, what: str) -> list[Any]:
        """Values in payload order, for global steps. Raises StageError if a task fails."""
        return [value for _, value in sorted(self.each(function, payloads, stage, what), key=lambda found: found[0])]

    def each(
        self, function: Callable[[Any], Any], payloads: Iterable[Any], stage: Stage, what: str
    ) -> Iterator[tuple[int, Any]]:
        """(index of the payload, value) in any order. Raises StageError if a task fails."""
        for outcome in self.run(function, payloads, stage, label=what):
            if outcome.error:
                raise StageError(f"{what}: {outcome.error}; fix the cause and rerun the same command")
            yield outcome.index, outcome.value

    def lose(self, what: str, rows: int, why: str, pool_rows: int) -> None:
        """Record the rows that failed in `what`. Raises BudgetError if the run has lost more than its budget."""
        with self.lock:
            self.lost[what] = rows
            self.lost_example = self.lost_example or (why if rows else "")
            lost, allowed = sum(self.lost.values()), math.ceil(self.options.failure_budget * pool_rows)
        if lost and not self.known.plan:
            self.events.emit("lost", rows=lost, allowed=allowed)
        if lost > allowed:
            raise BudgetError(
                f"{lost:,} rows were lost to failures, the budget is {allowed:,} "
                f"({self.options.failure_budget:.1%} of {pool_rows:,}); first: {self.lost_example}; "
                "fix the cause (`curate retry` tries them again) or raise --failure-budget"
            )

    def count_errors(self, stage: str, entry: Entry, messages: Mapping[str, str], pool_rows: int) -> None:
        """Count a shard's rows in error at a stage, computed now or by an earlier run."""
        if entry.error:
            reason = next(iter(entry.error))
            why = f"{stage}: {messages.get(reason, reason)}"
            self.lose(stage, self.lost.get(stage, 0) + entry.error.total(), why, pool_rows)

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
        about.setdefault("seconds", round(time.monotonic() - built.began, 3))
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
    """Name of the point where the paths through these stages meet."""
    return "+".join(sorted(inputs))
