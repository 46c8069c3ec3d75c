"""`run`: prepare a pipeline, run its steps and keep the record.

Cache, resume and lineage are one mechanism: every output is stored under the fingerprint of everything that decides it.
Another run of the recipe resumes one that was killed; after a complete one it finds all outputs and computes nothing.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console

from curate.core.contracts import PLAIN_NAME, Stage
from curate.core.errors import (
    AlreadyExistsError,
    CeilingError,
    CurateError,
    DrainedError,
    RecipeError,
    RunExistsError,
)
from curate.core.ledger import Entry
from curate.core.nouns import tombstones
from curate.core.recipe.pipeline import Pipeline
from curate.core.secrets import redacted
from curate.core.spend import RunSpend
from curate.core.store import lease
from curate.core.store.storage import Storage, open_workspace
from curate.engine.backends import Backend
from curate.engine.context import Context
from curate.engine.killing import killed_on_request
from curate.engine.losses import Losses
from curate.engine.outputs import Outputs
from curate.engine.preflight import cautions, check_endpoints, preflight
from curate.engine.progress import Progress
from curate.engine.record import limits, pins
from curate.engine.record import stop as stopping
from curate.engine.record.events import Events
from curate.engine.runner import Runner
from curate.engine.spending import Spending
from curate.engine.spending import check as check_ceilings
from curate.engine.spending import described as described_endpoints
from curate.engine.state import Counts, Options
from curate.engine.steps import step_of
from curate.engine.task_runner import POLL_SECONDS, TaskRunner
from curate.engine.workers.lanes import Budget
from curate.engine.workers.scheduler import Scheduler

log = logging.getLogger("curate.run")
ASK_SECONDS = 2.0
"""Between two checks for a request to stop."""


@dataclass
class Result:
    """Result of a run: the URL of each stage's output, and the ledger."""

    run_id: str
    outputs: dict[str, str]
    ledger: dict[str, Entry]
    ops: dict[str, str]
    seconds: float
    reused: dict[str, bool] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    spend: RunSpend = field(default_factory=RunSpend)
    """What it spent at endpoints."""

    def stages(self) -> dict[str, dict[str, Any]]:
        """Counts of rows by stage, as `curate run --json` writes them."""
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
            } | ({} if entry.children is None else {"children": entry.children})
            if entry.skipped is not None:
                skipped = {kind: one.count for kind, one in entry.skipped.items()}
                found[name] |= {"found": entry.found, "skipped": skipped}
            if name in self.spend.stages:
                found[name]["spend"] = {of: spend.to_json() for of, spend in self.spend.stages[name].items()}
        return found


def make_backend(engine: str, address: str | None = None, cpus: int | None = None) -> Backend:
    """`local` or `ray`."""
    if engine == "local":
        from curate.engine.backends.local import LocalBackend

        return LocalBackend()
    if engine == "ray":
        from curate.engine.backends.ray import RayBackend

        return RayBackend(address, cpus)
    raise RecipeError(f"--engine {engine}: expected local or ray")


def new_run_id() -> str:
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def run(
    pipeline: Pipeline,
    workspace: str,
    *,
    engine: str | Backend = "local",
    options: Options | None = None,
    run_id: str | None = None,
    console: Console | None = None,
    stop: threading.Event | None = None,
    submission: Mapping[str, str] | None = None,
) -> Result:
    """Run a pipeline in a workspace (any fsspec URL). Raises CurateError (one line). When `stop` is set, and on SIGTERM
    or `curate stop`, the run ends within seconds and raises DrainedError. `curate stop --kill` ends this process.
    submission: who submitted it, if a service did, for its record."""
    options = options or Options()
    run_id = new_run_id() if run_id is None else run_id
    _check(pipeline, run_id, options)
    pipeline = asked(pipeline, options)
    check_ceilings(pipeline, options)
    storage = open_workspace(workspace)
    pinned = pins.resolve(pipeline, storage)
    backend = make_backend(engine, cpus=options.cpus) if isinstance(engine, str) else engine
    events = Events(storage, run_id, held=True)
    budget = Budget(*(math.inf if most is None else most for most in (options.cpus, options.gpus)))
    budget = budget if backend.separate else Budget(gpus=budget.gpus)
    about: dict[str, Any] = {"deadline": options.deadline, "events": events, "budget": budget}
    workers = Scheduler(backend, storage=storage, run_id=run_id, **about)
    with contextlib.ExitStack() as closing:
        closing.enter_context(killed_on_request(storage, run_id, events.flush))
        if isinstance(engine, str):
            closing.callback(backend.close)
        closing.callback(workers.close)
        pipeline = placed(pipeline, workers)
        portions = preflight(pipeline, storage, options, workers)
        warnings = [f"{name}: {text}" for name in pipeline.nodes for text in cautions(name, pipeline, portions)]
        warnings += check_endpoints(pipeline, storage, workers)
        _open_record(storage, run_id, pipeline, backend.name, options, submission)
        events.held = False
        outputs = Outputs(pipeline, storage, tombstones.load(storage), built=dict(pinned))
        tasks, losses = TaskRunner(pipeline, workers, events), Losses(options.failure_budget, events)
        context = Context(outputs, tasks, losses, options, events, Progress(console, events), portions)
        context.spending = Spending(options, workers, events)
        for warning in warnings:
            log.warning(warning)
            events.emit("warning", text=warning)
        return _walk(context, workers, run_id, stop)


def _walk(context: Context, workers: Scheduler, run_id: str, stop: threading.Event | None) -> Result:
    """Run the steps, and close the record with how it went. Raises the run's error."""
    began, spending = time.monotonic(), context.spending
    assert spending is not None
    error: str | None = "killed"
    with _stopped_on_request(context.storage, run_id, workers, spending, stop), _run_lease(context.storage, run_id):
        try:
            with context.progress.live():
                Runner(context).walk()
            error = None
        except DrainedError as problem:
            error = spending.reason() if spending.over else str(redacted(problem))
            raise (CeilingError if spending.over else DrainedError)(error) from None
        except CurateError as problem:
            error = str(redacted(problem))
            raise
        except KeyboardInterrupt:
            error = "interrupted"
            raise
        except Exception as bug:  # the record names any error before it ends the process
            error = f"{type(bug).__name__}: {redacted(bug)}"
            log.exception("the run ends: %s", error)
            raise
        finally:
            workers.close()  # first, because units that wind down may still publish
            result = _close_record(context, run_id, error, time.monotonic() - began)
    return result


def _check(pipeline: Pipeline, run_id: str, options: Options) -> None:
    """Check what a run is given, before anything exists. Raises RecipeError."""
    if not PLAIN_NAME.fullmatch(run_id):
        raise RecipeError(f"--run-id {run_id!r}: expected letters, digits, . - and _, and a letter or digit first")
    pipeline.check()
    if not 0 < options.sample <= 1 or (options.sample_rows or 1) < 1:
        raise RecipeError(f"--sample: expected a share above 0 and up to 1, or rows; not {options.sample:g}")
    if options.sample < 1 and options.sample_rows is not None:
        raise RecipeError(f"sample {options.sample:g} and sample_rows {options.sample_rows}: give one of the two")
    if (options.cpus if options.cpus is not None else 1) < 1 or (options.gpus or 0) < 0:
        raise RecipeError(f"--cpus {options.cpus}, --gpus {options.gpus}: expected at least 1 CPU and no GPUs below 0")


def placed(pipeline: Pipeline, workers: Scheduler) -> Pipeline:
    """The pipeline with a device chosen for every stage: GPUs if the workers have any. Queries the cluster only if a
    stage depends on it."""
    stages = [node.stage for node in pipeline.nodes.values()]
    undecided = any(stage.placed(True) != stage.placed(False) for stage in stages)
    gpus = undecided and workers.has_gpu()
    return _changed(pipeline, lambda stage: stage.placed(gpus))


def asked(pipeline: Pipeline, options: Options) -> Pipeline:
    """The pipeline up to the last stage of the options. In a canary run absolute targets shrink with the pool; they
    cannot if the share is not known. Raises RecipeError."""
    pipeline = pipeline if options.to is None else pipeline.upto(options.to)
    for node in pipeline.nodes.values() if options.sample_rows is not None else ():
        whole, half = node.stage.parameters(), node.stage.scaled(0.5).parameters()
        if fixed := [name for name in whole if half[name] != whole[name]]:
            raise node.fail(
                f"its {' and '.join(fixed)} would shrink with a share of the pool, not with {options.sample_rows:,} "
                "rows; end before it with --to, or give --sample a share such as 1%"
            )
    for stage in options.retry:
        if stage not in pipeline.nodes:
            raise RecipeError(f"retry {stage}: not a stage of the run, which ends at {options.to}")
    if options.sample == 1.0:
        return pipeline
    return _changed(pipeline, lambda stage: stage.scaled(options.sample)).check()


def _changed(pipeline: Pipeline, change: Callable[[Stage], Stage]) -> Pipeline:
    """The same pipeline with changed stages."""
    made = Pipeline()
    made.source = pipeline.source
    for node in pipeline.nodes.values():
        stage = change(node.stage)
        made.add(node.name, stage, node.inputs, place=node.place, keep_null=node.keep_null, **node.ports)
    return made


# --- the run's record -------------------------------------------------------------------------------------------------


def _open_record(
    storage: Storage,
    run_id: str,
    pipeline: Pipeline,
    engine: str,
    options: Options,
    submission: Mapping[str, str] | None,
) -> None:
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
            | ({"keep_null": True} if node.keep_null else {})
            | step_of(node).record()
            for node in pipeline.nodes.values()
        },
        "endpoints": described_endpoints(pipeline),
    } | ({"submission": dict(submission)} if submission else {})
    try:
        storage.create(f"runs/{run_id}/run.json", json.dumps(record, indent=1, default=str).encode())
    except AlreadyExistsError:
        raise RunExistsError(
            f"--run-id {run_id}: this run exists in {storage.url}; choose another id or leave it out, "
            "and the new run resumes from what this one built"
        ) from None


@contextlib.contextmanager
def _run_lease(storage: Storage, run_id: str) -> Iterator[None]:
    """Hold a lease on the run itself, so that `curate status` can tell a running run from a killed one."""
    with lease.hold(storage, f"runs/{run_id}", lambda: False):
        yield


def _close_record(ctx: Context, run_id: str, error: str | None, seconds: float) -> Result:
    done = {name: built for name, built in ctx.outputs.built.items() if name in ctx.pipeline.nodes and built.manifest}
    spend = RunSpend()
    if ctx.spending is not None:
        ctx.spending.emit()
        spend = ctx.spending.spent()
    result = Result(
        run_id,
        {name: ctx.storage.url_of(built.base) for name, built in done.items()},
        {name: built.manifest.entry for name, built in done.items() if built.manifest},
        {name: ctx.pipeline.nodes[name].stage.op for name in done},
        seconds,
        {name: built.reused for name, built in done.items()},
        {name: built.counts for name, built in done.items()},
        spend,
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
        "pins": {name: {"base": b.base, "fingerprint": b.fingerprint} for name, b in ctx.outputs.pinned().items()},
        "reused": result.reused,
        "took": {name: built.manifest.seconds for name, built in done.items() if built.manifest},
        "ledger": {name: entry.to_json() for name, entry in result.ledger.items()},
        "spend": spend.to_json(),
        "allocated": ctx.backend.allocated().to_json(),
        "lost": ctx.losses.total,
        "ceiling": ctx.spending is not None and ctx.spending.over,
    }
    ctx.storage.publish_bytes(f"runs/{run_id}/result.json", json.dumps(record, indent=1).encode())
    return result


@contextlib.contextmanager
def _stopped_on_request(
    storage: Storage, run_id: str, workers: Scheduler, spending: Spending, stop: threading.Event | None
) -> Iterator[None]:
    """Drain the run on SIGTERM, on `curate stop` from any machine, and when `stop` is set. Apply `curate limit`, and
    record what is spent."""
    over = threading.Event()

    def watch() -> None:
        checked = -math.inf  # the request may come before the run begins
        while not over.wait(POLL_SECONDS):
            if stop is not None and stop.is_set():
                workers.stop()
            if time.monotonic() - checked > ASK_SECONDS and not workers.draining.is_set():
                checked = time.monotonic()
                with contextlib.suppress(
                    Exception
                ):  # the file system may fail for a moment; the next check tries again
                    if stopping.requested(storage, run_id) is not None:
                        workers.stop()
                    limits.apply(limits.requested(storage, run_id), workers, spending)
                    spending.emit()

    if stop is not None and stop.is_set():
        workers.stop()
    thread = threading.Thread(target=watch, daemon=True, name="stop")
    thread.start()
    before: Any = None
    main = threading.current_thread() is threading.main_thread()  # otherwise the main thread handles signals
    if main:
        before = signal.signal(signal.SIGTERM, lambda *_: workers.stop())
    try:
        yield
    finally:
        over.set()
        thread.join()
        if main:
            signal.signal(signal.SIGTERM, before)
