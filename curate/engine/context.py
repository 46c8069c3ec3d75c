"""What one run knows while it goes: the pipeline, where things are, who works, and what is built already."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from curate.core import lease
from curate.core.contracts import Map, Pack, Portion, Report, Resources, Select, Source, Stage
from curate.core.errors import BudgetError, CurateError, DrainedError, StageError
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.nouns import Manifest, Shard
from curate.core.pipeline import PIN, Node, Pipeline
from curate.core.rows import ColumnsRef, Rows
from curate.core.storage import Storage
from curate.core.tombstones import Tombstones
from curate.engine.backend import HOW, Backend, How, Outcome
from curate.engine.events import Events
from curate.engine.progress import Progress


@dataclass(frozen=True)
class Options:
    """How a run is carried out; never what comes out."""

    failure_budget: float = 0.01
    """Share of the pool's rows, rounded up, that may be lost to errors, killed processes and shards set aside."""
    sample: float = 1.0
    """Share of the pool for a canary run through the whole DAG (this one does change what comes out)."""
    segment_seconds: float = 60.0
    task_rows: int = 1000
    """Shards are joined into one task up to this many rows."""


@dataclass
class Pool:
    namespace: str
    fingerprint: str
    shards: list[Shard]

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def without(self, lost: Sequence[str]) -> Pool:
        """The pool after shards failed for good: another version, so that the next run tries them again."""
        fingerprint = digest({"pool": self.fingerprint, "without": sorted(lost)})
        return Pool(self.namespace, fingerprint, [shard for shard in self.shards if shard.id not in lost])


@dataclass
class Built:
    """A stage's output. `fingerprint` goes into those downstream; `path` is where a Map's columns lie."""

    fingerprint: str
    base: str
    path: str = ""
    manifest: Manifest | None = None
    reused: bool = False


@dataclass
class Context:
    pipeline: Pipeline
    storage: Storage
    backend: Backend
    options: Options
    tombstones: Tombstones
    events: Events
    progress: Progress
    portions: dict[str, tuple[list[Portion], float]] = field(default_factory=dict)
    """What each source plans to read, and the share of rows to take inside, as the preflight found it."""
    pools: dict[str, Pool] = field(default_factory=dict)
    built: dict[str, Built] = field(default_factory=dict)
    """By stage; pinned artifacts by `pin:NAME`."""
    lost: dict[str, int] = field(default_factory=dict)
    """Stage, shard or portion -> rows that failed there, whether in this run or in the one that built it."""
    lost_example: str = ""
    checked: bool = False
    """Whether the stages' resources have been held against what the backend has."""
    set_aside_rows: int = 0

    def pool(self, node: Node) -> Pool:
        return self.pools[self.pipeline.pool_of(node.name)]

    def whole_pool_rows(self, node: Node) -> int:
        """Rows of the stage's pool as it was imported, with what was set aside since: what budgets are shares of."""
        manifest = self.built[self.pipeline.pool_of(node.name)].manifest
        return max(manifest.entry.before if manifest else 0, self.pool(node).rows)

    def rows(self, node: Node) -> Rows:
        """The rows that reach a stage: columns of its upstream Maps, and the selection if there is one."""
        columns = []
        selection = None
        for up in self.pipeline.along(node.name):
            if isinstance(up.stage, Map):
                columns.append(ColumnsRef(up.name, self.built[up.name].path, up.stage.writes()))
            elif isinstance(up.stage, Select):
                selection = self.built[up.name].base
        return Rows(self.storage, tuple(columns), selection)

    def pinned(self) -> dict[str, Built]:
        """Artifacts that no stage of this run builds, by `pin:NAME`."""
        return {name: built for name, built in self.built.items() if name.startswith(PIN)}

    def ports(self, node: Node) -> dict[str, str]:
        return {port: self.built[name].base for port, name in node.ports.items()}

    def fingerprint(self, node: Node) -> str:
        """Stage, parameters, weights and everything upstream; for a global step, the pool's version too."""
        stage = node.stage
        upstream = [
            self.built[up.name].fingerprint for up in self.pipeline.along(node.name) if not isinstance(up.stage, Source)
        ]
        value: dict[str, Any] = {
            "op": stage.op,
            "version": stage.version,
            "parameters": stage.parameters(),
            "identity": stage.identity(),
            "from": sorted(upstream),
            "ports": {port: self.built[name].fingerprint for port, name in node.ports.items()},
        }
        if not isinstance(stage, Map):
            value["pool"] = self.pool(node).fingerprint
        if isinstance(stage, (Select, Pack, Report)) and self.tombstones:
            value["tombstones"] = self.tombstones.digest
        return digest(value)

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
                raise DrainedError(f"stopped before {node.name}; the same command goes on from there")
            return done()

        return lease.hold(self.storage, output, over, waits)

    # --- running tasks ---

    def run(
        self, function: Callable[..., Any], payloads: Sequence[Any], stage: Stage, how: How = HOW
    ) -> Iterator[Outcome]:
        """Outcomes as they come; raises DrainedError when the run was told to stop and something is left undone."""
        return self.run_with(function, payloads, stage.resources(), how)

    def run_with(
        self, function: Callable[..., Any], payloads: Sequence[Any], resources: Resources, how: How = HOW
    ) -> Iterator[Outcome]:
        if payloads:
            self._check_resources()
        count = 0
        for outcome in self.backend.map(function, payloads, resources, how):
            count += 1
            if outcome.error:
                self.events.emit("failure", task=function.__name__, index=outcome.index, error=outcome.error)
            yield outcome
        if count < len(payloads):
            raise DrainedError(f"stopped with {len(payloads) - count} tasks to do; the same command goes on from there")

    def _check_resources(self) -> None:
        """Once, when the backend is first needed: no stage may ask for more than there is."""
        if not self.checked:
            self.checked = True
            for node in self.pipeline.nodes.values():
                try:
                    self.backend.slots(node.stage.resources())
                except CurateError as error:
                    raise node.fail(str(error)) from None

    def must(self, function: Callable[[Any], Any], payloads: Sequence[Any], stage: Stage, what: str) -> list[Any]:
        """Values in payload order where nothing may fail (global steps)."""
        values: list[Any] = [None] * len(payloads)
        for outcome in self.run(function, payloads, stage):
            if outcome.error:
                raise StageError(f"{what}: {outcome.error}; mend the cause and run the same command again")
            values[outcome.index] = outcome.value
        return values

    def lose(self, what: str, rows: int, why: str, pool_rows: int) -> None:
        """Note the rows that failed in `what`; BudgetError when the run has lost more than it may."""
        self.lost[what] = rows
        self.lost_example = self.lost_example or (why if rows else "")
        lost, allowed = sum(self.lost.values()), math.ceil(self.options.failure_budget * pool_rows)
        if lost > allowed:
            raise BudgetError(
                f"{lost:,} rows were lost to failures, the budget is {allowed:,} "
                f"({self.options.failure_budget:.1%} of {pool_rows:,}); first: {self.lost_example}; "
                "mend the cause or raise --failure-budget"
            )

    def finish(
        self, node: Node, built: Built, noun: str, entry: Entry, shards: Sequence[dict[str, Any]] = (), **facts: Any
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
            **facts,
        )
        manifest.extra.setdefault("committed", time.time())
        built.manifest = manifest.commit(self.storage, built.base, shards)
        return built
