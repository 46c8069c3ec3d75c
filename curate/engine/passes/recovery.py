"""Units that fail: split into shards, retried, searched for the rows that crash or hang, or set aside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from curate.core.contracts import Resources, trait
from curate.core.ledger import SET_ASIDE
from curate.core.nouns import facts
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Node
from curate.engine.backends import CallOptions
from curate.engine.context import Context
from curate.engine.passes.answers import index as answer_index
from curate.engine.passes.answers import log as answer_log
from curate.engine.passes.batches import KILLED
from curate.engine.passes.plan import PassPlan
from curate.engine.passes.run import run_pass
from curate.engine.passes.task import PassTask, ShardResult, UnitTask
from curate.engine.task_runner import drained
from curate.engine.tasks.job import Outcome

HUNG = "hung"
"""Reason of a row whose batch never ended."""
HANG_RETRIES = 4
"""How often a unit that hangs is retried before its shards are set aside."""
Task = TypeVar("Task", bound=UnitTask)
RowRange = tuple[int, int]
"""Rows first .. stop - 1."""


class Recovery(ABC, Generic[Task]):
    """Runs the units of a step over shards, and gets a result for every shard of a unit that failed: its shards are
    retried one by one, searched for the rows that crash or hang, or set aside."""

    function: Callable[[Task], list[ShardResult] | None]
    """What workers do; None if the unit stopped early."""
    rows_alone: ClassVar[bool] = True
    """Whether rows are computed one by one. The shards of a unit that hangs are then tried separately, also if it hung
    between two rows; otherwise the unit is tried as a whole, because its batches span shards."""

    def __init__(self, ctx: Context, nodes: Sequence[Node], accept: Callable[[Task, list[ShardResult]], None]) -> None:
        """`accept` is called with the results of each unit."""
        self.ctx, self.nodes, self.accept = ctx, nodes, accept
        self.aside: dict[str, str] = {}
        """Shard -> why it was set aside."""

    @abstractmethod
    def task(self, shards: tuple[Shard, ...], **changes: Any) -> Task:
        """A unit of these shards and their present tables."""

    @abstractmethod
    def refresh(self, shard: Shard) -> None:
        """List a shard's tables: a failed task may have published some."""

    def failed(self, task: Task) -> None:
        """Take note of a unit that failed, before it is recovered."""
        return

    def crashing_stage(self, shard: Shard, row: int) -> str:
        """The first stage that crashes on a row."""
        return self.nodes[0].name

    def resources(self) -> Resources:
        each = [node.stage.resources() for node in self.nodes]
        cpus, gpus, memory = (max(getattr(r, name) for r in each) for name in ("cpus", "gpus", "memory_bytes"))
        return Resources(cpus, gpus, memory, remote=any(r.remote for r in each))

    def run(self, tasks: Iterable[Task], *, isolated: bool = False) -> Iterator[tuple[Task, Outcome]]:
        """Outcomes in any order. Tasks are made as workers become free."""
        options, label = CallOptions(isolated=isolated), self.nodes[0].name
        sent: dict[int, Task] = {}

        def sending() -> Iterator[Task]:
            for number, task in enumerate(tasks):
                sent[number] = task
                yield task

        for outcome in self.ctx.tasks.run(self.function, sending(), self.resources(), options, label):
            if outcome.error is None and outcome.value is None:
                raise drained()
            yield sent.pop(outcome.index), outcome

    def recover(self, task: Task, outcome: Outcome) -> None:
        """Get results for a unit that failed."""
        self.failed(task)
        if outcome.hung is not None and (len(task.shards) == 1 or not self.rows_alone):
            self._recover_hung(task, outcome)
        elif len(task.shards) > 1:
            for shard in task.shards:
                for single, ended in self.run([self._updated_task(shard)], isolated=outcome.crashed):
                    if ended.error is None:
                        self.accept(single, ended.value)
                    else:
                        self.recover(single, ended)
        elif outcome.crashed:
            self.recover_crashed(task.shards[0])
        else:
            self._set_aside(task.shards[0], str(outcome.error))

    def _recover_hung(self, task: Task, outcome: Outcome) -> None:
        """Retry a unit in which no batch finished within the deadline: with the batch's rows one by one, and once a
        single row is known to hang, without it."""
        for _ in range(HANG_RETRIES):
            batch = outcome.hung
            if batch is None or not (batch.rows or self.rows_alone):  # without rows there is nothing to leave out
                break
            rows = _by_shard(task.shards, batch.rows)
            self.ctx.events.emit("hung", stage=batch.stage, rows=rows, error=outcome.error)
            self.ctx.progress.say(f"  {outcome.error}; retrying")
            poison = {shard: dict(stages) for shard, stages in task.poison.items()}
            for shard, found in rows.items() if len(batch.rows) == 1 else ():
                of_stage = {**poison.setdefault(shard, {}).get(batch.stage, {}), **dict.fromkeys(found, HUNG)}
                poison[shard][batch.stage] = of_stage
            alone = {shard: task.alone.get(shard, frozenset()) | frozenset(found) for shard, found in rows.items()}
            task = self.again(task, poison=poison, alone={**task.alone, **alone})
            [(_, outcome)] = self.run([task], isolated=not self.ctx.backend.separate)
            if outcome.error is None:
                self.accept(task, outcome.value)
                return
        if outcome.hung is None:
            self.recover(task, outcome)
            return
        for shard_aside in task.shards:
            self._set_aside(shard_aside, str(outcome.error))

    def again(self, task: Task, **changes: Any) -> Task:
        """The same unit once more; workers list the tables that it has published meanwhile."""
        return replace(task, **changes, retried=True)

    def _updated_task(self, shard: Shard, **changes: Any) -> Task:
        self.refresh(shard)
        return self.task((shard,), **changes)

    def recover_crashed(self, shard: Shard) -> None:
        """Retry a shard whose task crashed its process: find the rows that crash it, give them an error, and retry."""
        outcome = self._run_isolated(self._updated_task(shard))
        if outcome is not None and outcome.crashed:
            known: dict[str, dict[int, str]] = {}
            for row in self._crashing_rows(shard):
                known.setdefault(self.crashing_stage(shard, row), {})[row] = KILLED
            rows = {name: list(found) for name, found in known.items()}
            self.ctx.events.emit("poison", shard=shard.id, rows=rows)
            outcome = self._run_isolated(self._updated_task(shard, poison={shard.id: known}))
        if outcome is not None:
            self._set_aside(shard, str(outcome.error))

    def _run_isolated(self, task: Task) -> Outcome | None:
        """Run one task in a separate process; returns its outcome if it failed."""
        [(_, outcome)] = self.run([task], isolated=True)
        if outcome.error is not None:
            return outcome
        self.accept(task, outcome.value)
        return None

    def _crashing_rows(self, shard: Shard) -> list[int]:
        def crashing(ranges: list[RowRange]) -> list[RowRange]:
            return [probe.only for probe in self.crashes([self.probe(shard, rows) for rows in ranges]) if probe.only]

        return bisect_crashes(shard.rows, crashing)

    def probe(self, shard: Shard, rows: RowRange) -> Task:
        """A unit that computes only these rows and publishes nothing."""
        return replace(self._updated_task(shard), sink="discard", only=rows, mark=False)

    def crashes(self, probes: list[Task]) -> list[Task]:
        """The probes that crash their process."""
        return [probe for probe, outcome in self.run(probes, isolated=True) if outcome.crashed]

    def _set_aside(self, shard: Shard, error: str) -> None:
        """Give up on a shard: its rows without a status get an error, and `curate retry` retries them."""
        self.aside[shard.id] = error
        self.ctx.events.emit(SET_ASIDE, shard=shard.id, tar=shard.tar, error=error)
        self.ctx.progress.say(f"  shard {shard.id} ({shard.tar}) is set aside: {error}")
        task = replace(self._updated_task(shard), aside=error, mark=False)
        results = list(self.ctx.tasks.must(self.function, [task], self.nodes[0].stage, f"shard {shard.id}"))
        self.accept(task, results[0])


class UnitRunner(Recovery[PassTask]):
    """The units of a pass."""

    function = staticmethod(run_pass)
    rows_alone = False

    def __init__(
        self,
        ctx: Context,
        nodes: Sequence[Node],
        plan: PassPlan,
        accept: Callable[[PassTask, list[ShardResult]], None],
    ) -> None:
        super().__init__(ctx, nodes, accept)
        self.plan = plan
        self.retry = {node.name: ctx.options.retry[node.name] for node in nodes if node.name in ctx.options.retry}
        self._failed: dict[str, str] = {}
        """Shard -> name in logs of its unit that failed."""

    def task(self, shards: tuple[Shard, ...], **changes: Any) -> PassTask:
        ctx, plan, ids = self.ctx, self.plan, [shard.id for shard in shards]

        def of(values: Mapping[str, Any]) -> dict[str, Any]:
            return {shard: values[shard] for shard in ids if shard in values}

        return PassTask(
            storage=ctx.storage,
            stages=plan.stages,
            points=plan.points,
            shards=shards,
            numbers={name: of(numbers) for name, numbers in plan.numbers.items()},
            known=ctx.outputs.known if ctx.outputs.known.plan else ctx.outputs.known_of(plan.rows(), shards),
            chain=plan.chain,
            names=plan.names,
            bases={shard.id: plan.bases(shard) for shard in shards},
            others={name: of(others) for name, others in plan.others.items()},
            indexes=plan.indexes,
            retry=self.retry,
            limiter=self._limiter(),
            segment_seconds=ctx.options.segment_seconds,
            mark=not ctx.backend.separate,
            **changes,
        )

    def _limiter(self) -> dict[str, Any] | None:
        """Where the run's limiter answers, if a stage asks named endpoints."""
        asks = any(spec.stage.asks() for spec in self.plan.stages)
        return self.ctx.backend.limiter.address if asks else None

    def failed(self, task: PassTask) -> None:
        self._failed |= dict.fromkeys((s.id for s in task.shards), answer_log.token(s.id for s in task.shards))

    def refresh(self, shard: Shard) -> None:
        units = {answer_log.token([shard.id]), self._failed.get(shard.id, "")}
        for spec in self.plan.stages:
            if trait(spec.stage, "costly"):
                answer_log.fold(self.ctx.storage, spec.path, units)
                index = f"{spec.path.rpartition('/')[0]}/{answer_index.FOLDER}"
                self.plan.indexes[spec.name] = answer_index.files_of(self.ctx.storage.list(index))
            if spec.path:
                files = self.ctx.storage.list(f"{spec.path}/{shard.id}")
                self.plan.numbers[spec.name] |= facts.latest(f"{shard.id}/{name}" for name in files)

    def crashing_stage(self, shard: Shard, row: int) -> str:
        stages = self.plan.stages
        for count in range(1, len(stages)):
            if self.crashes([replace(self.probe(shard, (row, row + 1)), stages=stages[:count], points=())]):
                return stages[count - 1].name
        return [spec.name for spec in stages if spec.path][-1]


def bisect_crashes(rows: int, crashing: Callable[[list[RowRange]], list[RowRange]]) -> list[int]:
    """Rows of 0 .. rows - 1 that crash a process on their own; `crashing` returns the ranges that do."""
    ranges, found = [(0, rows)], list[int]()
    while ranges:
        halves = [half for a, b in ranges for half in ((a, (a + b) // 2), ((a + b) // 2, b)) if half[0] < half[1]]
        bad = crashing(halves)
        found += [a for a, b in bad if b - a == 1]
        ranges = sorted((a, b) for a, b in bad if b - a > 1)
    return sorted(found)


def _by_shard(shards: Sequence[Shard], rows: Sequence[int]) -> dict[str, list[int]]:
    """Rows of a unit -> shard -> rows of the shard."""
    found: dict[str, list[int]] = {}
    first = 0
    for shard in shards:
        mine = [row - first for row in rows if first <= row < first + shard.rows]
        if mine:
            found[shard.id] = mine
        first += shard.rows
    return found
