"""`Workspace(url).submit(pipeline) -> Run`: all that the command line does, for programs.

    workspace = Workspace("s3://bucket/workspace")
    run = workspace.submit(load_recipe("recipe.yaml"))
    result = run.wait()

A run is known by its workspace and id alone: any process, on any machine that sees the workspace, can watch it, read
its logs and stop it. Every method raises a CurateError of one line where it cannot do what it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from typing import Any

import pyarrow as pa
from pydantic import ValidationError
from rich.console import Console

from curate.core import tombstones
from curate.core.contracts import Batch, Derive, Map
from curate.core.errors import CurateError, DrainedError, InputError, RecipeError
from curate.core.ledger import Entry
from curate.core.nouns import StoredArtifact
from curate.core.recipe import catalog
from curate.core.recipe.catalog import Op, describe, ops
from curate.core.recipe.load import json_schema
from curate.core.recipe.load import load as load_recipe
from curate.core.recipe.pipeline import Pipeline
from curate.core.recipe.registry import resolve
from curate.core.store.storage import Storage, open_storage, open_workspace
from curate.engine import detach as detached
from curate.engine.backends import local
from curate.engine.context import Options
from curate.engine.handles import Ended, Task, result_of
from curate.engine.plan import Step as PlanStep
from curate.engine.plan import plan as plan_of
from curate.engine.plan import table as plan_table
from curate.engine.preflight import preflight
from curate.engine.progress import duration, speed
from curate.engine.record import events, gc, pins, reading_logs, runs, stop
from curate.engine.record.affected import affected_datasets
from curate.engine.record.clusters import Clusters, clusters_of
from curate.engine.record.diff import StageDiff, diff
from curate.engine.record.explain import copies_of, explain
from curate.engine.record.pins import Pin
from curate.engine.record.runs import Run as Record
from curate.engine.record.status import StageStatus, Status, status_of
from curate.engine.record.usage import Dataset, Usage, datasets, usage
from curate.engine.run import Result, make_backend, new_run_id, scaled
from curate.engine.workers.scheduler import Scheduler

POLL_SECONDS = 0.5
HASHTAG_MAP = "hashtag_map"


class Workspace:
    """A folder or URL (s3://…) with all outputs. It is made when a run begins there."""

    def __init__(self, url: str) -> None:
        self.url = str(url)

    @cached_property
    def _storage(self) -> Storage:
        return open_workspace(self.url, create=False)

    @property
    def local(self) -> bool:
        """Whether it is a folder, which other machines may not have."""
        return open_storage(self.url).local

    @property
    def root(self) -> str:
        """Its URL; of a folder, the whole path."""
        return open_storage(self.url).url

    def url_of(self, path: str) -> str:
        return self._storage.url_of(path)

    # --- runs ---

    def submit(
        self,
        pipeline: Pipeline,
        *,
        engine: str = "local",
        address: str | None = None,
        cpus: int | None = None,
        options: Options | None = None,
        run_id: str | None = None,
        detach: bool = False,
        console: Console | None = None,
    ) -> Run:
        """Begin a run and return at once. It goes on in a thread of this process, which must live until `wait` has
        returned; with `detach`, in a job of the Ray cluster at `address`. What is wrong with the recipe is raised by
        `wait`; of a detached run it is its `status`. `console` shows progress."""
        options, run_id = options or Options(), new_run_id() if run_id is None else run_id
        for stage in options.retry:
            self._check_retry(pipeline, stage)
        if detach:
            if engine != "ray":
                raise RecipeError(f"--detach: expected --engine ray, not {engine}; a detached run is a job of Ray")
            detached.submit(open_workspace(self.url), pipeline.check(), options, run_id, address)
            return Run(self, run_id)
        task = Task(make_backend(engine, address, cpus))
        task.start(pipeline, self.url, options, run_id, console)
        return Run(self, run_id, task)

    def submitted(
        self, run_id: str, *, engine: str = "ray", address: str | None = None, console: Console | None = None
    ) -> Run:
        """Begin a run that was submitted with `detach`: what the cluster's job does. Where it cannot begin, that is
        written down beside the submission, for whoever asks."""
        storage = self._storage
        with detached.refusals(storage, run_id):
            pipeline, options = detached.read(storage, run_id)
            task = Task(make_backend(engine, address), lambda: detached.refusals(storage, run_id))
        task.start(pipeline, self.url, options, run_id, console)
        return Run(self, run_id, task)

    def run(self, run_id: str | None = None) -> Run:
        """A run by its id; the latest if None. Raises InputError where there is none."""
        if run_id is not None and detached.is_submitted(self._storage, run_id):
            return Run(self, run_id)
        return Run(self, runs.latest(self._storage, run_id).run_id)

    def has(self, run_id: str) -> bool:
        """Whether the workspace has a run with this id."""
        return open_storage(self.url).exists(f"runs/{run_id}/run.json")

    def runs(self) -> list[Status]:
        """Every run, the oldest first. Those whose heartbeat must be watched are watched together."""
        storage = self._storage
        names = [*runs.list_runs(storage), *detached.submissions(storage)]
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda name: Run(self, name)._status(brief=True), names))

    def diff(self, first: str, second: str) -> list[StageDiff]:
        """What differs between two runs, a line for each stage of either."""
        return diff(Record.load(self._storage, first), Record.load(self._storage, second))

    def plan(self, pipeline: Pipeline, sample: float = 1.0, exact: bool = False) -> list[PlanStep]:
        """What a run would do, a line for each stage. Computes nothing, and makes no workspace."""
        # a plan loses nothing: what earlier runs have lost, at every stage, does not end it
        options = Options(sample=sample, failure_budget=float(len(pipeline.nodes)))
        pipeline = scaled(pipeline, sample) if sample < 1 else pipeline
        storage = open_storage(self.url)
        if storage.exists("format.json"):
            storage = open_workspace(self.url)
        with closing(Scheduler(local.LocalBackend())) as workers:
            return plan_of(pipeline, storage, options, workers, preflight(pipeline, storage, sample, workers), exact)

    def _check_retry(self, pipeline: Pipeline, stage: str) -> None:
        """Whether the stage has rows that may be in error."""
        able = [name for name, node in pipeline.nodes.items() if isinstance(node.stage, (Map, Derive))]
        if stage not in pipeline.nodes:
            raise RecipeError(
                f"retry {stage}: no such stage in the recipe; its rows in error can be retried at {', '.join(able)}"
            )
        if stage not in able:
            kind = catalog.contract_of(type(pipeline.nodes[stage].stage))
            raise RecipeError(
                f"retry {stage}: a {kind} computes no facts; Maps and Derives do: {', '.join(able) or 'none'}"
            )
        assert self._storage is not None  # where nothing has been computed, nothing is in error

    # --- what lies there ---

    def datasets(self) -> list[Dataset]:
        """Complete datasets, the oldest first."""
        return datasets(self._storage)

    def usage(self) -> list[Usage]:
        """Files and bytes by noun and op, and what `gc` would free."""
        return usage(self._storage)

    def gc(
        self, keep: int | None = None, drop: Sequence[str] = (), costly: bool = False, delete: bool = False
    ) -> tuple[dict[str, int], list[str]]:
        """(path -> bytes, runs) that no kept run reaches; removed only with `delete`. `keep` is a number of runs, the
        last ones; `costly` gives up answers of costly stages too."""
        storage = self._storage
        if not delete:
            return gc.unreachable(storage, keep, drop, costly)
        with gc.alone(storage):
            garbage, gone = gc.unreachable(storage, keep, drop, costly)
            gc.collect(storage, garbage, gone)
        return garbage, gone

    @property
    def pins(self) -> dict[str, Pin]:
        """Pinned artifacts and datasets by name."""
        return pins.pins(self._storage)

    def pin(self, name: str, run_id: str, stage: str) -> Pin:
        """Keep what a stage of a run has made under a name."""
        return pins.create(self._storage, name, Record.load(self._storage, run_id), stage)

    def unpin(self, name: str) -> Pin:
        """Forget a pin; what it held stays until `gc`."""
        return pins.remove(self._storage, name)

    def bury(self, entries: Sequence[str], why: str) -> int:
        """Tombstones for samples (keys, sha256 digests, URLs); returns how many."""
        return tombstones.bury(self._storage, entries, why)

    def buried(self) -> dict[str, tuple[str, ...]]:
        """Everything buried, by kind."""
        return tombstones.load(self._storage).values

    def affected(self) -> dict[str, int]:
        """URL of each dataset that holds buried samples -> how many."""
        found = affected_datasets(self._storage, tombstones.load(self._storage))
        return {self._storage.url_of(base): count for base, count in found.items()}


class Run:
    """A run of a workspace: under way in this process, in another, or over."""

    def __init__(self, workspace: Workspace, run_id: str, task: Task | None = None) -> None:
        self.workspace, self.id, self._task = workspace, run_id, task
        self._watched: Ended | None = None

    @property
    def _storage(self) -> Storage:
        return self.workspace._storage

    def _ended(self) -> bool:
        if self._task is not None:
            return self._task.done()
        self._watched = self._watched or Ended(self._storage, self.id)
        return self._watched()

    @property
    def record(self) -> Record:
        """The record of the run, read again."""
        return Record.load(self._storage, self.id)

    def status(self) -> Status:
        """State, stages with rows, rates and time left, and who has asked it to stop."""
        return self._status()

    def _status(self, brief: bool = False) -> Status:
        if self._task is not None and not self.workspace.has(self.id):
            return self._task.status(self.id)
        waiting = detached.status(self._storage, self.id, ask=not brief)
        return waiting if waiting is not None else status_of(self.record, brief)

    def wait(self, timeout: float | None = None) -> Result:
        """What the run leaves, once it has ended. Raises the run's error where it failed, DrainedError where it was
        stopped, CurateError where its process is gone, TimeoutError after `timeout` seconds."""
        if self._task is not None:
            return self._task.wait(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while not self._ended():
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"run {self.id}: still going after {timeout:g} s")
            time.sleep(POLL_SECONDS)
        status = self.status()
        if status.state == "done":
            return result_of(self.record)
        if status.state == "killed":
            raise CurateError(f"run {self.id}: its process is gone; the same command resumes from there")
        raise (DrainedError if status.state == "stopped" else CurateError)(f"run {self.id}: {status.error}")

    def stop(self) -> None:
        """Ask it to stop: what is under way is committed, and the same command resumes from there. Returns at once; see
        `wait`. Raises InputError where it has ended, or somebody has asked already."""
        if self._task is not None:
            self._task.stop()
            return
        status = self.status()
        if status.ended and status.stop is None:
            raise InputError(f"run {self.id}: is {status.state}; only a run under way can be stopped")
        if status.ended or stop.ask(self._storage, self.id) is None:
            raise InputError(f"run {self.id}: {self._asked(status)}")

    def _asked(self, status: Status) -> str:
        request = stop.asked(self._storage, self.id) or {}
        then = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(request.get("time", 0)))
        who = f"{request.get('user', '?')} on {request.get('host', '?')}"
        now = status.state if status.ended else "stopping"
        return f"was asked to stop at {then} by {who}; it is {now}"

    def events(self, follow: bool = False) -> Iterator[Mapping[str, Any]]:
        """What it has done, in order; with `follow`, as it happens, until it has ended."""
        if not follow:
            return iter(self.record.events)
        return events.follow_events(self._storage, self.id, self._ended)

    def logs(
        self, stage: str | None = None, level: str = "debug", follow: bool = False
    ) -> Iterator[reading_logs.Record]:
        """Records of its workers and its driver, by time; with `follow`, as they come, until it has ended."""
        if stage is not None and not detached.is_submitted(self._storage, self.id):
            known = self.record.ops()
            if stage not in known:
                raise InputError(f"--stage {stage}: no such stage in run {self.id}; it has {', '.join(known)}")
        if follow:
            return reading_logs.follow_logs(self._storage, self.id, self._ended, stage, level)
        return reading_logs.read_logs(self._storage, self.id, stage, level)

    def ledger(self) -> dict[str, Entry]:
        """Rows before, rejected, unusable, in error and after, by stage."""
        return self.record.ledger()

    def ops(self) -> dict[str, str]:
        return self.record.ops()

    def counts(self) -> dict[str, dict[str, Any]]:
        """Rows computed, copied and asked for, by stage."""
        return self.record.counts()

    def reused(self) -> dict[str, bool]:
        """Stage -> whether everything was there already."""
        return self.record.reused()

    @property
    def outputs(self) -> dict[str, str]:
        """Stage -> URL of what it has made."""
        return {name: self._storage.url_of(output["base"]) for name, output in self.record.outputs.items()}

    def explain(self, key: str, say: Callable[[str], None] = lambda _: None) -> list[tuple[str, str, dict[str, Any]]]:
        """Everything known about one sample: (stage, op, facts), from the pool on. `key` may be the start of a key, a
        source id or a name; of a name, all tables are read: `say` tells."""
        return explain(self.record, key, say)

    def copies_of(self, key: str) -> list[str]:
        """Keys of the samples that were dropped as copies of one."""
        return copies_of(self.record, key)

    def clusters(self, stage: str | None = None) -> Clusters:
        """The clusters that a stage has made."""
        return clusters_of(self.record, stage)

    def hashtag_map(self, stage: str | None = None) -> list[str]:
        """The map of hashtags that a stage has made, as lines with tabs."""
        record = self.record
        made = [name for name, kind in record.kinds().items() if kind == HASHTAG_MAP and name in record.outputs]
        if stage is not None and stage not in made:
            known = ", ".join(made) or "none"
            raise InputError(f"--stage {stage}: made no map in run {self.id}; stages that did are {known}")
        if stage is None and len(made) != 1:
            hint = "name one with --stage" if made else "name a run whose recipe has `text.hashtag_map`"
            raise InputError(f"run {self.id}: has maps of {', '.join(made) or 'none'}; {hint}")
        held = StoredArtifact(record.storage, str(record.outputs[stage or made[0]]["base"]))
        return list(resolve("text.hashtag_map").lines(held))  # type: ignore[attr-defined]


# --- stages -----------------------------------------------------------------------------------------------------------


def abandoned() -> int:
    """Tasks of this process that hang and were given up: their threads cannot be ended, only the process can."""
    return local.abandoned()


def make_stage(op: str, **parameters: Any) -> Any:
    """A stage by its op. Raises RecipeError in one line for a parameter that it does not take."""
    try:
        return resolve(op)(**parameters)
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(f"--{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}") from None


def try_row(stage: Map, column: str, value: str, output: str) -> tuple[Any, Batch]:
    """What a Map writes into `output` for a row with one text column; and the batch, which has reasons and counters."""
    batch = Batch(pa.table({"key": ["0" * 32], column: pa.array([value], pa.string())}))
    return stage.process(batch)[output][0].as_py(), batch


__all__ = [
    "Clusters", "Dataset", "Entry", "Op", "Options", "Pipeline", "PlanStep", "Record", "Result", "Run", "StageDiff",
    "StageStatus", "Status", "Usage", "Workspace", "abandoned", "describe", "duration", "json_schema", "load_recipe",
    "make_stage", "new_run_id", "ops", "plan_table", "speed", "try_row",
]  # fmt: skip
