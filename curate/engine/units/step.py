"""Steps: what the engine does with the stages of a recipe. Each contract has a class of steps, in the table of
`curate.engine.steps`. Run, plan and preflight ask the step, and test the class of no stage."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from curate.core.contracts import Derive, Portion, Source, media_of, trait
from curate.core.errors import CurateError, InputError, LedgerError, TargetError
from curate.core.nouns.artifacts import STATES
from curate.core.nouns.manifest import Manifest, read_lines
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.fingerprints import column_fingerprints, rows_fingerprint
from curate.engine.plan.lines import ESTIMATED, EXACT, PlanLine
from curate.engine.record import claims
from curate.engine.state import Built, Options
from curate.engine.units.common import tidy

if TYPE_CHECKING:
    from curate.engine.plan.planner import Planner
    from curate.engine.record.runs import RunRecord

Planned = tuple[list[Portion], float]
"""Portions of an input, and the share of rows to take inside each."""


class Outside(NamedTuple):
    files: Iterable[str] = ()
    """Files and folders."""
    outputs: Iterable[str] = ()
    """Bases of other outputs."""


@dataclass
class Explained:
    """A row of a pool, for `curate explain`."""

    shard: Shard
    row: int
    key: str
    before: str | None
    """The stage upstream that rejected it, and the reason."""
    rejects: dict[str, str]
    """Stage -> why it rejected the row. A stage that decides without a mask adds its own."""


class Step(ABC):
    """A stage, or the Maps and Filters that share a pass, with the steps that it waits for."""

    kind: ClassVar[str]
    """What a plan calls it: acquire, pass, derive or global."""
    at_start: ClassVar[bool] = False
    """Whether it comes before all other steps, unless it needs one of them."""
    by_shard: ClassVar[bool] = False
    """Whether it can follow other such steps shard by shard."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes
        self.after: frozenset[Step] = frozenset()
        """Steps that must be complete before this one begins."""
        self.follows: frozenset[Step] = frozenset()
        """Steps that this one follows shard by shard."""

    @property
    def node(self) -> Node:
        return self.nodes[0]

    @property
    def above(self) -> set[Step]:
        """All steps that this one waits for or follows, directly or indirectly."""
        found: set[Step] = set()
        todo: list[Step] = [self]
        while todo:
            step = todo.pop()
            fresh = (step.after | step.follows) - found
            found |= fresh
            todo += fresh
        return found

    # --- before a run ---

    def portions(self, storage: Storage, options: Options) -> Planned | None:
        """The input, for a step that reads one; None if it has none, or needs an artifact to know it. Raises InputError
        or PreflightError."""
        return None

    def check(self, pipeline: Pipeline, planned: Mapping[str, Planned]) -> None:
        """Check the stage against the inputs, by stage. Raises RecipeError."""
        return

    def retried(self) -> tuple[str, ...]:
        """Statuses of rows that `curate retry` can try again."""
        return ()

    def record(self) -> dict[str, Any]:
        """What is in a run's record of the stage in addition to its op, inputs and parameters."""
        stage, kind = self.node.stage, trait(self.node.stage, "kind")
        media = media_of(stage) if isinstance(stage, (Source, Derive)) else ()
        return ({"kind": kind} if kind else {}) | ({"media": media} if media not in ((), ("image",)) else {})

    # --- in a run ---

    @abstractmethod
    def run(self, ctx: Context, begun: Callable[[], None]) -> None:
        """Use existing outputs or build them, and record them in `ctx.outputs`. `begun` is called once steps that
        follow by shard may begin."""

    @property
    def answers_due(self) -> bool:
        """Whether requests are in flight, which are paid for."""
        return False

    def arriving(self, ctx: Context, parent: Manifest) -> int | None:
        """Rows or items that reach the stage from its only input, by that one's ledger; None if the two count
        differently."""
        return parent.entry.after if parent.entry.children is None else parent.entry.children

    def announce(self, ctx: Context, place: str) -> None:
        """Make gc keep the folders that this run is about to read: `place` and the folders of facts."""
        mask = place if place.startswith("masks/") else ""
        paths = {
            node.name: ctx.outputs.built[node.name].path if node.name in ctx.outputs.built else ""
            for node in self.nodes
        }
        claims.keep(
            ctx, ({"stage": name, "base": path or place, "path": path, "mask": mask} for name, path in paths.items())
        )

    def note(self, ctx: Context) -> None:
        """Emit the outputs of the stages. Raises LedgerError if a stage's ledger does not fit those of its inputs."""
        for node in self.nodes:
            built = ctx.outputs.built[node.name]
            assert built.manifest is not None
            self._check_chain(ctx, node, built.manifest)
            fields: dict[str, Any] = {"stage": node.name, "op": node.stage.op}
            fields |= {"fingerprint": built.fingerprint, "base": built.base}
            fields |= {"path": built.path, "mask": built.mask, "reused": built.reused, "rows": built.manifest.rows}
            fields |= {"seconds": built.manifest.seconds, "ledger": built.manifest.ledger}
            ctx.events.emit("stage", **fields, counts=asdict(built.counts))

    def _check_chain(self, ctx: Context, node: Node, manifest: Manifest) -> None:
        """Check that a stage's input rows and items are its parent's output."""
        parent = ctx.outputs.built[node.inputs[0]].manifest if len(node.inputs) == 1 else None
        passed = None if parent is None else self.arriving(ctx, parent)
        if parent is None or passed is None:
            return
        entry = manifest.entry
        if passed != entry.before:
            raise LedgerError(f"{node.name}: {entry.before:,} rows before, but {node.inputs[0]} passed {passed:,}")
        for family in entry.of_items.keys() & parent.entry.of_items.keys():
            left, found = parent.entry.of_items[family].after, entry.of_items[family].before
            if left != found:
                raise LedgerError(
                    f"{node.name}: {found:,} items of {family} before, but {node.inputs[0]} passed {left:,}"
                )

    # --- its outputs, in the records of runs: the recipe may be gone ---

    @staticmethod
    def files(storage: Storage, base: str, manifest: Manifest) -> Outside:
        """What a committed output needs outside of its folder."""
        return Outside()

    @staticmethod
    def explain(run: RunRecord, name: str, about: Explained) -> dict[str, Any] | None:
        """What an output says about a row; None if it says nothing about rows."""
        return None

    # --- in a plan ---

    @abstractmethod
    def plan(self, planner: Planner) -> None:
        """Put a line for each stage into the plan. Computes nothing."""

    def missing(self, name: str) -> str:
        """What a stage that reads `name` waits for, if its output is unknown."""
        return name

    def lacking(self, planner: Planner, node: Node, rows: int) -> int:
        """How many of the rows that will reach a stage it has to compute."""
        return rows


class GlobalStep(Step):
    """A stage over all rows, whose output is named by its fingerprint."""

    kind: ClassVar[str] = "global"
    folder: ClassVar[str] = "artifacts"
    """Folder of the noun that it makes."""

    def fingerprint(self, ctx: Context) -> str:
        return rows_fingerprint(
            ctx.outputs, self.node, column_fingerprints(ctx.outputs, self.node, self.node.stage.reads())
        )

    @staticmethod
    def files(storage: Storage, base: str, manifest: Manifest) -> Outside:
        """The states of a Reduce, and earlier artifacts with portions of a Collect."""
        folder = manifest.extra.get("states")
        names = read_lines(storage, base, ["file"], STATES).column("file").to_pylist() if folder else []
        return Outside([f"{folder}/{name}" for name in names], manifest.extra.get("bases", ()))

    @abstractmethod
    def build(self, ctx: Context, built: Built) -> None:
        """Build the output and commit its manifest."""

    def prepare(self, ctx: Context) -> Built:
        """Where the output is, or will be."""
        fingerprint = self.fingerprint(ctx)
        return Built(fingerprint, f"{self.folder}/{self.node.stage.op}/{fingerprint}")

    def run(self, ctx: Context, begun: Callable[[], None]) -> None:
        node = self.node
        built = ctx.outputs.built[node.name] = self.prepare(ctx)
        self.announce(ctx, built.base)
        built.manifest = Manifest.load(ctx.storage, built.base)
        if built.manifest is not None:
            built.reused = True
            ctx.progress.reused(node.name, built.manifest.rows)
            tidy(ctx, built)
        else:
            with ctx.lease(node, built.base, lambda: Manifest.load(ctx.storage, built.base) is not None) as mine:
                if mine:
                    self._build(ctx, built)
                built.reused = not mine
            built.manifest = Manifest.load(ctx.storage, built.base)
            built.counts.rebuilt = not built.reused
        assert built.manifest is not None
        built.content = built.manifest.content or built.fingerprint
        self.note(ctx)

    def _build(self, ctx: Context, built: Built) -> None:
        built.began = time.monotonic()
        try:
            self.build(ctx, built)
            tidy(ctx, built)
        except CurateError as error:
            if type(error) in (CurateError, InputError, TargetError):  # raised by the stage: add its name
                raise self.node.located(error) from None
            raise

    def plan(self, planner: Planner) -> None:
        node, ctx = self.node, planner.ctx
        line = PlanLine(node.name, node.stage.op, self.kind)
        target = planner.target(node)
        blocked = planner.blocked(node)
        if blocked:
            line.note, line.needed = "; ".join(filter(None, [f"depends on {blocked}", planner.short(node)])), target
            planner.put(planner.expected(self, line, node))
            return
        built = ctx.outputs.built[node.name] = self.prepare(ctx)
        built.manifest = Manifest.load(ctx.storage, built.base)
        if built.manifest is None:
            line.needed = target if target is not None else planner.reaching(node)
            line.done, line.compute, line.certainty = 0, line.needed, ESTIMATED
            line.after, line.note = planner.passing(node, line.needed), planner.short(node)
            del ctx.outputs.built[node.name]
        else:
            built.content = built.manifest.content or built.fingerprint
            rows = built.manifest.rows
            line.done, line.needed, line.compute, line.certainty = rows, rows, 0, EXACT
            line.after = built.manifest.entry.after
            planner.folded.add(node.name)
        planner.put(line)
        if built.manifest is None:
            planner.changing.add(node.name)  # even if no row is left
