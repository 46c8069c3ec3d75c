"""A run: walk the DAG, reuse what is there, build what is missing, keep the record.

Cache, resume and lineage are one mechanism: every output lives under the fingerprint of what decides it. A run that was
killed is continued by the same command; a second run finds everything and computes nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console

from curate.core import tombstones
from curate.core.contracts import PLAIN_NAME, Derive, Fit, Pack, Reduce, Report, Select, Source, Stage
from curate.core.errors import (
    AlreadyExistsError,
    CurateError,
    DrainedError,
    InputError,
    LedgerError,
    RecipeError,
    RunExistsError,
    TargetError,
)
from curate.core.ledger import Entry
from curate.core.nouns import Manifest
from curate.core.recipe.pipeline import Node, Pipeline
from curate.core.recipe.secrets import redacted
from curate.core.store import lease
from curate.core.store.storage import Storage, open_workspace
from curate.engine.backends import Backend
from curate.engine.context import LOOK_SECONDS, Context, Counts, Options
from curate.engine.passes import build as build_pass
from curate.engine.passes.build import PassBuild
from curate.engine.preflight import preflight
from curate.engine.progress import Progress
from curate.engine.record import gc, pins
from curate.engine.record import stop as stopping
from curate.engine.record.events import Events
from curate.engine.steps import above, steps
from curate.engine.units.common import prepare, tidy
from curate.engine.units.derive import DeriveBuild
from curate.engine.units.fit.build import build_fit
from curate.engine.units.pack import build_pack
from curate.engine.units.reduce import build_reduce
from curate.engine.units.report import build_report
from curate.engine.units.select import build_select
from curate.engine.units.source import build_source
from curate.engine.workers.scheduler import Scheduler

log = logging.getLogger("curate.run")
ASK_SECONDS = 2.0
"""Between two looks at whether somebody has asked the run to stop."""
WAIT_SECONDS = 1.0
"""Between two looks at which steps may begin, if none has ended."""


@dataclass
class Result:
    """What a run leaves: where each stage's output is, and the ledger."""

    run_id: str
    outputs: dict[str, str]
    ledger: dict[str, Entry]
    ops: dict[str, str]
    seconds: float
    reused: dict[str, bool] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)

    def stages(self) -> dict[str, dict[str, Any]]:
        """What `curate run --json` says of each stage, in rows."""
        found = {}
        for name, entry in self.ledger.items():
            counts = self.counts.get(name, Counts())
            found[name] = {
                "alive": entry.before,
                "computed": counts.computed,
                "reused": max(0, entry.before - counts.computed),
                "rejected": dict(entry.rejected),
                "unusable": entry.unusable.total(),
                "error": entry.error.total(),
                "requests": counts.requests,
                "after": entry.after,
                "rebuilt": counts.rebuilt,
                "copied": counts.copied,
                "repeated": counts.repeated,
                "asked_again": counts.asked_again,
            } | ({} if entry.children is None else {"children": entry.children})
        return found


def make_backend(engine: str, address: str | None = None, cpus: int | None = None) -> Backend:
    """`local` or `ray`."""
    if engine == "local":
        from curate.engine.backends.local import LocalBackend

        return LocalBackend()
    if engine == "ray":
        from curate.engine.backends.ray import RayBackend

        return RayBackend(address, cpus)
    raise RecipeError(f"--engine {engine}: no such engine; choose local or ray")


def new_run_id() -> str:
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def run(
    pipeline: Pipeline,
    workspace: str,
    *,
    engine: str | Backend = "local",
    options: Options | None = None,
    run_id: str | None = None,
    console: Console | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Carry out a pipeline in a workspace (any fsspec URL). Raises a CurateError of one line where it cannot. Once
    `stop` is set, the run ends within seconds and raises DrainedError; so it does on SIGTERM and `curate stop`."""
    options = options or Options()
    run_id = new_run_id() if run_id is None else run_id
    if not PLAIN_NAME.fullmatch(run_id):
        raise RecipeError(f"--run-id {run_id!r}: expected letters, digits, . - and _, and a letter or digit first")
    pipeline.check()
    if options.sample < 1.0:
        pipeline = scaled(pipeline, options.sample)
    storage = open_workspace(workspace)
    pinned = pins.resolve(pipeline, storage)
    backend = make_backend(engine) if isinstance(engine, str) else engine
    events = Events(storage, run_id)
    workers = Scheduler(backend, storage=storage, run_id=run_id, deadline=options.deadline, events=events)
    with contextlib.ExitStack() as closing:
        if isinstance(engine, str):
            closing.callback(backend.close)
        closing.callback(workers.close)
        pipeline = placed(pipeline, workers)
        portions = preflight(pipeline, storage, options.sample, workers)
        _open_record(storage, run_id, pipeline, backend.name, options)
        buried = tombstones.load(storage)
        context = Context(pipeline, storage, workers, options, buried, events, Progress(console, events), portions)
        context.built |= pinned
        began = time.monotonic()
        error: str | None = "killed"
        with _told_to_stop(storage, run_id, workers, stop), _alive(storage, run_id):
            try:
                with context.progress.live():
                    Runner(context).walk()
                error = None
            except CurateError as problem:
                error = str(redacted(problem))
                raise
            except KeyboardInterrupt:
                error = "interrupted"
                raise
            except Exception as bug:  # of any kind: the record names it before it ends the process
                error = f"{type(bug).__name__}: {redacted(bug)}"
                log.exception("the run ends: %s", error)
                raise
            finally:
                workers.close()  # first: what units that wind down still publish belongs to the run
                result = _close_record(context, run_id, error, time.monotonic() - began)
    return result


def placed(pipeline: Pipeline, workers: Scheduler) -> Pipeline:
    """The pipeline with every stage's device settled: on GPUs if the workers have any. The cluster is only asked where
    it matters."""
    stages = [node.stage for node in pipeline.nodes.values()]
    open_ = any(stage.placed(True) != stage.placed(False) for stage in stages)
    gpus = open_ and workers.has_gpu()
    return _changed(pipeline, lambda stage: stage.placed(gpus))


def scaled(pipeline: Pipeline, fraction: float) -> Pipeline:
    """The pipeline for a canary run: absolute targets shrink with the pool."""
    return _changed(pipeline, lambda stage: stage.scaled(fraction)).check()


def _changed(pipeline: Pipeline, change: Callable[[Stage], Stage]) -> Pipeline:
    """The same pipeline with other stages."""
    made = Pipeline()
    made.source = pipeline.source
    for node in pipeline.nodes.values():
        about = {"place": node.place, "keep_null": node.keep_null}
        made.add(node.name, change(node.stage), node.inputs, **about, **node.ports)  # type: ignore[arg-type]
    return made


class Runner:
    """Carries out the steps of a run, each in a thread: branches overlap, and passes follow each other by shard."""

    def __init__(self, context: Context) -> None:
        self.ctx = context
        self.steps = steps(context.pipeline, context.built)
        self.passes: dict[int, PassBuild] = {}
        """Passes that are laid out, so that others can follow."""
        self.ended: set[int] = set()
        self.errors: list[BaseException] = []
        self.moved = threading.Condition()

    def walk(self) -> None:
        """Build every stage. The first error ends the other steps too, and is raised once they have ended."""
        threads: dict[int, threading.Thread] = {}
        try:
            with self.moved:
                while len(self.ended) < len(self.steps) and not self.errors:
                    for number in range(len(self.steps)):
                        if number not in threads and self._may_begin(number):
                            thread = threading.Thread(target=self._carry_out, args=(number,), daemon=True)
                            threads[number] = thread
                            thread.start()
                    self.moved.wait(WAIT_SECONDS)
        finally:
            if len(self.ended) < len(self.steps):
                self.ctx.failed.set()
                self.ctx.backend.stop()
            for thread in threads.values():
                thread.join()
        for error in [*(e for e in self.errors if not isinstance(e, DrainedError)), *self.errors]:
            raise error

    def _may_begin(self, number: int) -> bool:
        step = self.steps[number]
        return self.ended.issuperset(step.after) and all(other in self.passes for other in step.follows)

    def _carry_out(self, number: int) -> None:
        step = self.steps[number]
        node = step.nodes[0]
        try:
            if step.is_pass:
                self._pass(number, list(step.nodes))
            elif isinstance(node.stage, Source):
                self._learn(f"pools/{node.stage.namespace}", node)
                build_source(self.ctx, node)
                self._note(node)
            elif isinstance(node.stage, Derive):
                self._learn(f"pools/{node.stage.namespace}", node)
                DeriveBuild(self.ctx, node).make()
                self._note(node)
            else:
                self._global(node)
            with self.moved:
                self.ended.add(number)
                self.moved.notify()
        except BaseException as error:  # noqa: BLE001 - raised by `walk`, whatever it is
            with self.moved:
                self.errors.append(error)
                self.moved.notify()

    def _pass(self, number: int, group: list[Node]) -> None:
        """One pass. What it needs is there already, or computed under leases on the stages' facts. Leases are taken in
        the order of the DAG, so that two runs never wait for each other."""
        ctx = self.ctx
        before = above(self.steps, number)
        names = frozenset(node.name for other in before for node in self.steps[other].nodes)
        others = [self.passes[other] for other in sorted(before) if other in self.passes]
        with ctx.lock:
            plan = build_pass.lay_out(ctx, group, names)
        build = PassBuild(ctx, group, plan, others)
        with self.moved:
            self.passes[number] = build
            self.moved.notify()
        self._learn(plan.chain, *group)
        build_pass.survey(ctx, plan)
        for other in others:
            ctx.wait(other.settled)
        if not build.reuse():
            paths = {ctx.built[node.name].path: node for node in reversed(group) if ctx.built[node.name].path}
            with contextlib.ExitStack() as stack:
                for path in sorted(paths):
                    stack.enter_context(ctx.lease(paths[path], path))
                build.settled.set()
                build.fold_logs()
                build_pass.survey(ctx, plan)
                if not build.reuse():
                    build.build()
        for node in group:
            if ctx.built[node.name].reused:
                ctx.progress.reused(node.name, ctx.pool(node).rows)
            self._note(node)
        build.complete.set()
        build.settled.set()

    def _learn(self, place: str, *nodes: Node) -> None:
        """Write down what this run is about to look for (in `place`, and where the nodes' facts lie), so that gc leaves
        it alone, then let a gc under way end. Nothing there is looked at before."""
        ctx = self.ctx
        mask = place if place.startswith("masks/") else ""
        for node in nodes:
            path = ctx.built[node.name].path if node.name in ctx.built else ""
            ctx.events.emit("build", stage=node.name, base=path or place, path=path, mask=mask)
        ctx.events.flush()
        gc.wait(ctx.storage, lambda: ctx.failed.is_set() or ctx.backend.draining.is_set())
        if ctx.failed.is_set() or ctx.backend.draining.is_set():
            raise ctx.drained()

    def _global(self, node: Node) -> None:
        ctx = self.ctx
        built = ctx.built[node.name] = prepare(ctx, node)
        self._learn(built.base, node)
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
            (Reduce, build_reduce),
            (Fit, build_fit),
            (Select, build_select),
            (Pack, build_pack),
            (Report, build_report),
        ]
        try:
            next(build for kind, build in kinds if isinstance(node.stage, kind))(self.ctx, node, built)
        except CurateError as error:
            if type(error) in (CurateError, InputError, TargetError):  # the stage's own, which knows no names
                raise node.placed(error) from None
            raise

    def _note(self, node: Node) -> None:
        built = self.ctx.built[node.name]
        assert built.manifest is not None
        entry = built.manifest.entry
        self._check_chain(node, entry)
        about = {"stage": node.name, "op": node.stage.op, "fingerprint": built.fingerprint, "base": built.base}
        about |= {"path": built.path, "mask": built.mask, "reused": built.reused, "rows": built.manifest.rows}
        about |= {"seconds": built.manifest.seconds, "ledger": built.manifest.ledger, "counts": asdict(built.counts)}
        self.ctx.events.emit("stage", **about)

    def _check_chain(self, node: Node, entry: Entry) -> None:
        """What goes in is what came out before, where one stage feeds another."""
        if len(node.inputs) != 1:
            return
        parent = self.ctx.built[node.inputs[0]].manifest
        if parent is None:
            return
        passed = parent.entry.after if parent.entry.children is None else parent.entry.children
        if isinstance(node.stage, Pack) and self._items(node) is not None:
            if parent.noun != "selection":
                return  # rows in between, items again here
            passed = self._items(node)
        if passed != entry.before:
            raise LedgerError(f"{node.name}: {entry.before:,} rows before, but {node.inputs[0]} let {passed:,} go on")
        for family in entry.of_items.keys() & parent.entry.of_items.keys():
            left, found = parent.entry.of_items[family].after, entry.of_items[family].before
            if left != found:
                raise LedgerError(
                    f"{node.name}: {found:,} items of {family} before, but {node.inputs[0]} left {left:,}"
                )

    def _items(self, node: Node) -> int | None:
        """Items that the selection upstream of a pack lets go on; None where it chooses rows."""
        select = next(up.name for up in self.ctx.pipeline.along(node.name) if isinstance(up.stage, Select))
        manifest = self.ctx.built[select].manifest
        return manifest.entry.items if manifest is not None else None


# --- the run's record -------------------------------------------------------------------------------------------------


def _open_record(storage: Storage, run_id: str, pipeline: Pipeline, engine: str, options: Options) -> None:
    record = {
        "run_id": run_id,
        "started": time.time(),
        "engine": engine,
        "options": asdict(options),
        "owner": lease.owner(),
        "recipe": pipeline.source,
        "stages": {
            node.name: {"op": node.stage.op, "from": list(node.inputs), "ports": dict(node.ports)}
            | {"parameters": node.stage.parameters()}
            | ({"kind": node.stage.kind} if isinstance(node.stage, (Reduce, Fit)) else {})
            | ({"derives": True} if isinstance(node.stage, Derive) else {})
            for node in pipeline.nodes.values()
        },
    }
    try:
        storage.create(f"runs/{run_id}/run.json", json.dumps(record, indent=1, default=str).encode())
    except AlreadyExistsError:
        raise RunExistsError(
            f"--run-id {run_id}: this run exists in {storage.url}; choose another id "
            "(what a killed run has built is found under any id)"
        ) from None


@contextlib.contextmanager
def _alive(storage: Storage, run_id: str) -> Iterator[None]:
    """A lease on the run itself, so that `curate status` can tell a run under way from a killed one."""
    with lease.hold(storage, f"runs/{run_id}", lambda: False):
        yield


def _close_record(ctx: Context, run_id: str, error: str | None, seconds: float) -> Result:
    done = {name: built for name, built in ctx.built.items() if name in ctx.pipeline.nodes and built.manifest}
    result = Result(
        run_id,
        {name: ctx.storage.url_of(built.base) for name, built in done.items()},
        {name: built.manifest.entry for name, built in done.items() if built.manifest},
        {name: ctx.pipeline.nodes[name].stage.op for name in done},
        seconds,
        {name: built.reused for name, built in done.items()},
        {name: built.counts for name, built in done.items()},
    )
    ctx.events.emit("end", error=error, seconds=round(seconds, 3))
    ctx.events.flush()
    record = {
        "run_id": run_id,
        "error": error,
        "seconds": round(seconds, 3),
        "ended": time.time(),
        "outputs": {
            name: {"base": b.base, "path": b.path, "fingerprint": b.fingerprint, "mask": b.mask}
            for name, b in done.items()
        },
        "counts": {name: asdict(built.counts) for name, built in done.items()},
        "pins": {name: {"base": b.base, "fingerprint": b.fingerprint} for name, b in ctx.pinned().items()},
        "reused": result.reused,
        "ledger": {name: entry.to_json() for name, entry in result.ledger.items()},
    }
    ctx.storage.publish_bytes(f"runs/{run_id}/result.json", json.dumps(record, indent=1).encode())
    return result


@contextlib.contextmanager
def _told_to_stop(storage: Storage, run_id: str, workers: Scheduler, told: threading.Event | None) -> Iterator[None]:
    """Drain on SIGTERM, on `curate stop` from wherever it comes, and when `told` is set."""
    over = threading.Event()

    def watch() -> None:
        asked = -math.inf  # a run may be asked to stop before it begins
        while not over.wait(LOOK_SECONDS):
            if told is not None and told.is_set():
                workers.stop()
            if time.monotonic() - asked > ASK_SECONDS and not workers.draining.is_set():
                asked = time.monotonic()
                with contextlib.suppress(Exception):  # a file system may fail now; it is asked again
                    if stopping.asked(storage, run_id) is not None:
                        workers.stop()

    if told is not None and told.is_set():
        workers.stop()
    thread = threading.Thread(target=watch, daemon=True, name="stop")
    thread.start()
    before: Any = None
    here = threading.current_thread() is threading.main_thread()  # elsewhere, whoever runs us handles signals
    if here:
        before = signal.signal(signal.SIGTERM, lambda *_: workers.stop())
    try:
        yield
    finally:
        over.set()
        thread.join()
        if here:
            signal.signal(signal.SIGTERM, before)


__all__ = ["Options", "Result", "Runner", "make_backend", "new_run_id", "run", "scaled"]
