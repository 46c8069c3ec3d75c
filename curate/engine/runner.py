"""Walk the DAG of a run: reuse existing outputs, build missing ones, record each."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from curate.core.contracts import Collect, Derive, Fit, Pack, Reduce, Report, Select, Source
from curate.core.errors import CurateError, DrainedError, InputError, LedgerError, TargetError
from curate.core.ledger import Entry
from curate.core.nouns.manifest import Manifest
from curate.core.recipe.pipeline import Node
from curate.core.rows import Rows
from curate.engine.context import Context
from curate.engine.passes import plan as pass_plan
from curate.engine.passes.build import PassBuild
from curate.engine.preflight import check_fields
from curate.engine.record import gc
from curate.engine.steps import above, steps
from curate.engine.units.collect.build import build_collect
from curate.engine.units.common import prepare, tidy
from curate.engine.units.derive.build import DeriveBuild
from curate.engine.units.fit.build import build_fit
from curate.engine.units.pack.build import build_pack
from curate.engine.units.reduce import build_reduce
from curate.engine.units.report import build_report
from curate.engine.units.select.build import build_select
from curate.engine.units.source.build import build_source

WAIT_SECONDS = 1.0
"""Between two checks of which steps are ready, if none has ended."""
ANSWER_SECONDS = 600.0
"""Longest wait for requests in flight once the budget is used up; each has its own, shorter limit."""


class Runner:
    """Runs the steps of a run, each in a thread: branches overlap, and passes follow each other shard by shard."""

    def __init__(self, context: Context) -> None:
        self.ctx = context
        self.steps = steps(context.pipeline, context.built)
        self.passes: dict[int, PassBuild] = {}
        """Step -> pass that is planned, so that later passes can follow it."""
        self.ended: set[int] = set()
        self.errors: list[BaseException] = []
        self.changed = threading.Condition()

    def walk(self) -> None:
        """Build every stage. The first error ends the other steps, and is raised once they have ended."""
        threads: dict[int, threading.Thread] = {}
        try:
            with self.changed:
                while len(self.ended) < len(self.steps) and not self.errors:
                    for number in range(len(self.steps)):
                        if number not in threads and self._is_ready(number):
                            thread = threading.Thread(target=self._run_step, args=(number,), daemon=True)
                            threads[number] = thread
                            thread.start()
                    self.changed.wait(WAIT_SECONDS)
        finally:
            if len(self.ended) < len(self.steps):
                self._wait_for_answers()
                self.ctx.failed.set()
                self.ctx.backend.stop()
            for thread in threads.values():
                thread.join()
        for error in [*(e for e in self.errors if not isinstance(e, DrainedError)), *self.errors]:
            raise error

    def _wait_for_answers(self) -> None:
        """If the budget is used up: let passes finish the requests in flight, which are paid for."""
        until = time.monotonic() + ANSWER_SECONDS
        with self.changed:
            while self.ctx.over_budget and any(build.running and build.asks for build in self.passes.values()):
                if time.monotonic() > until or not all(isinstance(error, DrainedError) for error in self.errors):
                    return
                self.changed.wait(WAIT_SECONDS)

    def _is_ready(self, number: int) -> bool:
        step = self.steps[number]
        return self.ended.issuperset(step.after) and all(other in self.passes for other in step.follows)

    def _run_step(self, number: int) -> None:
        step = self.steps[number]
        node = step.nodes[0]
        try:
            if step.is_pass:
                self._pass(number, list(step.nodes))
            elif isinstance(node.stage, (Source, Derive)):
                self._announce(f"pools/{node.stage.namespace}", node)
                self._pool(node)
            else:
                self._global(node)
            with self.changed:
                self.ended.add(number)
                self.changed.notify()
        except BaseException as error:  # noqa: BLE001 - raised again by `walk`
            with self.changed:
                self.errors.append(error)
                self.changed.notify()

    def _pool(self, node: Node) -> None:
        ctx = self.ctx
        build_source(ctx, node) if isinstance(node.stage, Source) else DeriveBuild(ctx, node).make()
        self._note(node)
        pool = ctx.pools[node.name]
        readers = [other for other in ctx.pipeline.nodes.values() if ctx.pipeline.pool_of(other.name) == node.name]
        rows = Rows(ctx.storage, source=node.name, order=ctx.order, parents=pool.parents)
        check_fields(ctx, readers, rows, pool.shards, node.name)

    def _pass(self, number: int, group: list[Node]) -> None:
        """Run one pass: reuse its facts, or compute them under leases. Leases are taken in the order of the DAG, so
        that two runs never wait for each other."""
        ctx = self.ctx
        before = above(self.steps, number)
        names = frozenset(node.name for other in before for node in self.steps[other].nodes)
        others = [self.passes[other] for other in sorted(before) if other in self.passes]
        with ctx.lock:
            plan = pass_plan.lay_out(ctx, group, names)
        build = PassBuild(ctx, group, plan, others)
        with self.changed:
            self.passes[number] = build
            self.changed.notify()
        self._announce(plan.chain, *group)
        pass_plan.survey(ctx, plan)
        for other in others:
            ctx.wait(other.settled)
        if not build.reuse():
            paths = {ctx.built[node.name].path: node for node in reversed(group) if ctx.built[node.name].path}
            with contextlib.ExitStack() as stack:
                for path in sorted(paths):
                    stack.enter_context(ctx.lease(paths[path], path))
                build.settled.set()
                build.fold_logs()
                pass_plan.survey(ctx, plan)
                if not build.reuse():
                    build.build()
        for node in group:
            if ctx.built[node.name].reused:
                ctx.progress.reused(node.name, ctx.pool(node).rows)
            self._note(node)
        build.complete.set()
        build.settled.set()

    def _announce(self, place: str, *nodes: Node) -> None:
        """Make gc keep the folders that this run is about to read: `place` and the nodes' facts."""
        mask = place if place.startswith("masks/") else ""
        paths = {node.name: self.ctx.built[node.name].path if node.name in self.ctx.built else "" for node in nodes}
        gc.keep(
            self.ctx,
            [{"stage": name, "base": path or place, "path": path, "mask": mask} for name, path in paths.items()],
        )

    def _global(self, node: Node) -> None:
        ctx = self.ctx
        built = ctx.built[node.name] = prepare(ctx, node)
        self._announce(built.base, node)
        built.manifest = Manifest.load(ctx.storage, built.base)
        if built.manifest is not None:
            built.reused = True
            ctx.progress.reused(node.name, built.manifest.rows)
            tidy(ctx, built)
        else:
            with ctx.lease(node, built.base, lambda: Manifest.load(ctx.storage, built.base) is not None) as mine:
                if mine:
                    self._build(node)
                built.reused = not mine
            built.manifest = Manifest.load(ctx.storage, built.base)
            built.counts.rebuilt = not built.reused
        assert built.manifest is not None
        built.content = built.manifest.content or built.fingerprint
        self._note(node)

    def _build(self, node: Node) -> None:
        built = self.ctx.built[node.name]
        kinds: list[tuple[type, Callable[..., None]]] = [
            (Collect, build_collect),
            (Reduce, build_reduce),
            (Fit, build_fit),
            (Select, build_select),
            (Pack, build_pack),
            (Report, build_report),
        ]
        try:
            next(build for kind, build in kinds if isinstance(node.stage, kind))(self.ctx, node, built)
        except CurateError as error:
            if type(error) in (CurateError, InputError, TargetError):  # raised by the stage: add its name
                raise node.located(error) from None
            raise

    def _note(self, node: Node) -> None:
        built = self.ctx.built[node.name]
        assert built.manifest is not None
        entry = built.manifest.entry
        self._check_chain(node, entry)
        fields: dict[str, Any] = {"stage": node.name, "op": node.stage.op}
        fields |= {"fingerprint": built.fingerprint, "base": built.base}
        fields |= {"path": built.path, "mask": built.mask, "reused": built.reused, "rows": built.manifest.rows}
        fields |= {"seconds": built.manifest.seconds, "ledger": built.manifest.ledger, "counts": asdict(built.counts)}
        self.ctx.events.emit("stage", **fields)

    def _check_chain(self, node: Node, entry: Entry) -> None:
        """Check that a stage's input rows and items are its parent's output. Raises LedgerError."""
        if len(node.inputs) != 1:
            return
        parent = self.ctx.built[node.inputs[0]].manifest
        if parent is None:
            return
        passed: int | None = parent.entry.after if parent.entry.children is None else parent.entry.children
        if isinstance(node.stage, Pack) and self._items(node) is not None:
            if parent.noun != "selection":
                return  # the stage in between counts rows, this one items
            passed = self._items(node)
        if passed != entry.before:
            raise LedgerError(f"{node.name}: {entry.before:,} rows before, but {node.inputs[0]} passed {passed:,}")
        for family in entry.of_items.keys() & parent.entry.of_items.keys():
            left, found = parent.entry.of_items[family].after, entry.of_items[family].before
            if left != found:
                raise LedgerError(
                    f"{node.name}: {found:,} items of {family} before, but {node.inputs[0]} passed {left:,}"
                )

    def _items(self, node: Node) -> int | None:
        """Items that the selection upstream of a pack passes; None if it selects rows."""
        select = next(up.name for up in self.ctx.pipeline.along(node.name) if isinstance(up.stage, Select))
        manifest = self.ctx.built[select].manifest
        return manifest.entry.items if manifest is not None else None
