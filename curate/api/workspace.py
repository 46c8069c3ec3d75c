"""Workspaces and their runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from typing import Any

from rich.console import Console

from curate.api.clusters import Clusters, clusters_of
from curate.api.copies import copies_of
from curate.api.stages import hashtag_map
from curate.core.contracts import Derive, Map
from curate.core.errors import CurateError, DrainedError, InputError, RecipeError
from curate.core.ledger import Entry
from curate.core.nouns import tombstones as noun_tombstones
from curate.core.recipe import catalog
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage, open_storage, open_workspace
from curate.engine import detach as detached
from curate.engine.backends import local
from curate.engine.handles import EndCheck, LocalRun, result_of
from curate.engine.plan.lines import PlanLine
from curate.engine.plan.planner import plan as plan_of
from curate.engine.preflight import preflight
from curate.engine.record import events, gc, pins, reading_logs, runs, stop
from curate.engine.record.affected import affected_datasets
from curate.engine.record.diff import StageDiff, diff
from curate.engine.record.explain import explain
from curate.engine.record.pins import Pin
from curate.engine.record.runs import RunRecord
from curate.engine.record.status import Status, status_of
from curate.engine.record.usage import DatasetInfo, Usage, datasets, usage
from curate.engine.run import Result, make_backend, new_run_id, scaled
from curate.engine.state import Options
from curate.engine.workers.scheduler import Scheduler

POLL_SECONDS = 0.5


class Workspace:
    """A folder or URL (s3://…) with all outputs. The first run creates it."""

    def __init__(self, url: str) -> None:
        self.url = str(url)

    @cached_property
    def _storage(self) -> Storage:
        return open_workspace(self.url, create=False)

    @property
    def local(self) -> bool:
        """Whether it is a folder, which other machines may not see."""
        return open_storage(self.url).local

    @property
    def root(self) -> str:
        """Its URL; for a folder, the absolute path."""
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
        """Start a run and return at once. It runs in a thread of this process, which must live until `wait` has
        returned; with `detach`, in a job of the Ray cluster at `address`. Errors of the recipe are raised by `wait`;
        for a detached run, `status` has them. `console` shows progress."""
        options, run_id = options or Options(), new_run_id() if run_id is None else run_id
        for stage in options.retry:
            self._check_retry(pipeline, stage)
        if detach:
            if engine != "ray":
                raise RecipeError(f"--detach: expected --engine ray, not {engine}; a detached run is a Ray job")
            detached.submit(open_workspace(self.url), pipeline.check(), options, run_id, address)
            return Run(self, run_id)
        task = LocalRun(make_backend(engine, address, cpus))
        task.start(pipeline, self.url, options, run_id, console)
        return Run(self, run_id, task)

    def submitted(
        self, run_id: str, *, engine: str = "ray", address: str | None = None, console: Console | None = None
    ) -> Run:
        """Start a run that was submitted with `detach`; the cluster's job calls this. An error that prevents the start
        is recorded beside the submission."""
        storage = self._storage
        with detached.recording_refusal(storage, run_id):
            pipeline, options = detached.read(storage, run_id)
            task = LocalRun(make_backend(engine, address), lambda: detached.recording_refusal(storage, run_id))
        task.start(pipeline, self.url, options, run_id, console)
        return Run(self, run_id, task)

    def run(self, run_id: str | None = None) -> Run:
        """A run by its id; the latest if None. Raises InputError if it does not exist."""
        if run_id is not None and detached.is_submitted(self._storage, run_id):
            return Run(self, run_id)
        return Run(self, runs.latest(self._storage, run_id).run_id)

    def has(self, run_id: str) -> bool:
        """Whether the workspace has a run with this id."""
        return open_storage(self.url).exists(f"runs/{run_id}/run.json")

    def runs(self) -> list[Status]:
        """Status of every run, oldest first. Heartbeats are watched in parallel."""
        storage = self._storage
        names = [*runs.list_runs(storage), *detached.submissions(storage)]
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda name: Run(self, name)._status(brief=True), names))

    def diff(self, first: str, second: str) -> list[StageDiff]:
        """Differences between two runs, a line for each stage of either."""
        return diff(RunRecord.load(self._storage, first), RunRecord.load(self._storage, second))

    def plan(self, pipeline: Pipeline, sample: float = 1.0, exact: bool = False) -> list[PlanLine]:
        """What a run would do, a line for each stage. Computes nothing and creates no workspace."""
        # rows lost by earlier runs, at every stage, must not end the plan
        options = Options(sample=sample, failure_budget=float(len(pipeline.nodes)))
        pipeline = scaled(pipeline, sample) if sample < 1 else pipeline
        storage = open_storage(self.url)
        if storage.exists("format.json"):
            storage = open_workspace(self.url)
        with closing(Scheduler(local.LocalBackend())) as workers:
            return plan_of(pipeline, storage, options, workers, preflight(pipeline, storage, sample, workers), exact)

    def _check_retry(self, pipeline: Pipeline, stage: str) -> None:
        """Check that rows of the stage can be in error. Raises RecipeError."""
        able = [name for name, node in pipeline.nodes.items() if isinstance(node.stage, (Map, Derive))]
        if stage not in pipeline.nodes:
            raise RecipeError(f"retry {stage}: not a stage of the recipe; expected one of {', '.join(able)}")
        if stage not in able:
            kind = catalog.contract_of(type(pipeline.nodes[stage].stage))
            raise RecipeError(
                f"retry {stage}: a {kind} computes no facts; Maps and Derives do: {', '.join(able) or 'none'}"
            )
        assert self._storage is not None  # raises if the workspace does not exist: nothing was computed there

    # --- outputs ---

    def datasets(self) -> list[DatasetInfo]:
        """Complete datasets, oldest first."""
        return datasets(self._storage)

    def usage(self) -> list[Usage]:
        """Files and bytes by noun and op, and what `gc` would free."""
        return usage(self._storage)

    def gc(
        self, keep: int | None = None, drop: Sequence[str] = (), costly: bool = False, delete: bool = False
    ) -> tuple[dict[str, int], list[str]]:
        """(path -> bytes, runs) that no kept run needs; removed only with `delete`. `keep`: number of latest runs to
        keep; `costly`: also remove answers of costly stages."""
        storage = self._storage
        if not delete:
            return gc.unreachable(storage, keep, drop, costly)
        with gc.exclusive(storage):
            garbage, gone = gc.unreachable(storage, keep, drop, costly)
            gc.collect(storage, garbage, gone)
        return garbage, gone

    @property
    def pins(self) -> dict[str, Pin]:
        """Pinned artifacts and datasets by name."""
        return pins.pins(self._storage)

    def pin(self, name: str, run_id: str, stage: str) -> Pin:
        """Keep the output of a stage of a run under a name."""
        return pins.create(self._storage, name, RunRecord.load(self._storage, run_id), stage)

    def unpin(self, name: str) -> Pin:
        """Remove a pin; its output stays until `gc`."""
        return pins.remove(self._storage, name)

    def add_tombstones(self, entries: Sequence[str], why: str) -> int:
        """Exclude samples (keys, sha256 digests, URLs) from all later runs; returns the number of entries."""
        return noun_tombstones.add(self._storage, entries, why)

    def tombstones(self) -> dict[str, tuple[str, ...]]:
        """All tombstones, by kind."""
        return noun_tombstones.load(self._storage).values

    def affected_datasets(self) -> dict[str, int]:
        """URL of each dataset with tombstoned samples -> their number."""
        found = affected_datasets(self._storage, noun_tombstones.load(self._storage))
        return {self._storage.url_of(base): count for base, count in found.items()}


class Run:
    """A run of a workspace: running in this process or in another, or ended."""

    def __init__(self, workspace: Workspace, run_id: str, task: LocalRun | None = None) -> None:
        self.workspace, self.id, self._task = workspace, run_id, task
        self._end_check: EndCheck | None = None

    @property
    def _storage(self) -> Storage:
        return self.workspace._storage

    def _ended(self) -> bool:
        if self._task is not None:
            return self._task.done()
        self._end_check = self._end_check or EndCheck(self._storage, self.id)
        return self._end_check()

    @property
    def record(self) -> RunRecord:
        """The record of the run, read again."""
        return RunRecord.load(self._storage, self.id)

    def status(self) -> Status:
        """State, stages with rows, rates and time left, and any request to stop."""
        return self._status()

    def _status(self, brief: bool = False) -> Status:
        if self._task is not None and not self.workspace.has(self.id):
            return self._task.status(self.id)
        waiting = detached.status(self._storage, self.id, ask=not brief)
        return waiting if waiting is not None else status_of(self.record, brief)

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for the result. Raises the run's error if it failed, DrainedError if it was stopped, CurateError if its
        process died, TimeoutError after `timeout` seconds."""
        if self._task is not None:
            return self._task.wait(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while not self._ended():
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"run {self.id}: still running after {timeout:g} s")
            time.sleep(POLL_SECONDS)
        status = self.status()
        if status.state == "done":
            return result_of(self.record)
        if status.state == "killed":
            raise CurateError(f"run {self.id}: its process died; the same command resumes from there")
        raise (DrainedError if status.state == "stopped" else CurateError)(f"run {self.id}: {status.error}")

    def stop(self) -> None:
        """Request it to stop: finished work is committed, and the same command resumes it. Returns at once; see `wait`.
        Raises InputError if the run has ended or was requested to stop before."""
        if self._task is not None:
            self._task.stop()
            return
        status = self.status()
        if status.ended and status.stop is None:
            raise InputError(f"run {self.id}: already {status.state}; only a running run can be stopped")
        if status.ended or stop.request(self._storage, self.id) is None:
            raise InputError(f"run {self.id}: {self._stop_requested(status)}")

    def _stop_requested(self, status: Status) -> str:
        request = stop.requested(self._storage, self.id) or {}
        then = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(request.get("time", 0)))
        who = f"{request.get('user', '?')} on {request.get('host', '?')}"
        now = status.state if status.ended else "stopping"
        return f"{who} requested to stop it at {then}; it is {now}"

    def events(self, follow: bool = False) -> Iterator[Mapping[str, Any]]:
        """Events in order; with `follow`, as they happen, until the run ends."""
        if not follow:
            return iter(self.record.events)
        return events.follow_events(self._storage, self.id, self._ended)

    def logs(
        self, stage: str | None = None, level: str = "debug", follow: bool = False
    ) -> Iterator[reading_logs.LogRecord]:
        """Log records of its workers and its driver, by time; with `follow`, as they arrive, until the run ends."""
        if stage is not None and not detached.is_submitted(self._storage, self.id):
            known = self.record.ops()
            if stage not in known:
                raise InputError(f"--stage {stage}: not a stage of run {self.id}; expected one of {', '.join(known)}")
        if follow:
            return reading_logs.follow_logs(self._storage, self.id, self._ended, stage, level)
        return reading_logs.read_logs(self._storage, self.id, stage, level)

    def ledger(self) -> dict[str, Entry]:
        """Rows before, rejected, unusable, in error and after, by stage."""
        return self.record.ledger()

    def ops(self) -> dict[str, str]:
        return self.record.ops()

    def counts(self) -> dict[str, dict[str, Any]]:
        """Rows computed, copied and requested, by stage."""
        return self.record.counts()

    def reused(self) -> dict[str, bool]:
        """Stage -> whether its whole output existed before."""
        return self.record.reused()

    @property
    def outputs(self) -> dict[str, str]:
        """Stage -> URL of its output."""
        return {name: self._storage.url_of(output["base"]) for name, output in self.record.outputs.items()}

    def explain(self, key: str, say: Callable[[str], None] = lambda _: None) -> list[tuple[str, str, dict[str, Any]]]:
        """Everything known about one sample: (stage, op, facts), starting with the pool. `key` may be the start of a
        key, a source id or a name; for a name, all tables are read, which `say` announces."""
        return explain(self.record, key, say)

    def copies_of(self, key: str) -> list[str]:
        """Keys of the samples that were dropped as copies of one."""
        return copies_of(self.record, key)

    def clusters(self, stage: str | None = None) -> Clusters:
        """The clusters built by a stage."""
        return clusters_of(self.record, stage)

    def hashtag_map(self, stage: str | None = None) -> list[str]:
        """The hashtag map built by a stage, as tab-separated lines."""
        return hashtag_map(self.record, stage)
