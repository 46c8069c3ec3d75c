"""Workspaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from curate.api import releases
from curate.api.balance import ExpectedBalance, expected_balance
from curate.api.contents import Contents, contents
from curate.api.run import Run
from curate.api.tables import Histogram, Page, Reads, histogram
from curate.core.errors import InputError, RecipeError
from curate.core.nouns import takedowns as noun_takedowns
from curate.core.nouns import tombstones as noun_tombstones
from curate.core.recipe import catalog
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.lease import HeartbeatWatch, lease_path
from curate.core.store.storage import Storage, open_storage, open_workspace
from curate.engine import detach as detached
from curate.engine import killing
from curate.engine.backends import local
from curate.engine.handles import LocalRun
from curate.engine.plan.lines import PlanLine
from curate.engine.plan.planner import plan as plan_of
from curate.engine.preflight import preflight
from curate.engine.record import claims, gc, lineage, pins, runs, stop, summary, usage
from curate.engine.record.affected import affected_datasets, with_keys
from curate.engine.record.diff import StageDiff, diff
from curate.engine.record.lineage import ArtifactInfo, Lineage
from curate.engine.record.pins import Pin
from curate.engine.record.runs import RunRecord
from curate.engine.record.status import Status
from curate.engine.record.summary import Attempt, RunSummary
from curate.engine.record.usage import DatasetInfo, Usage
from curate.engine.run import asked, make_backend, new_run_id
from curate.engine.state import Options
from curate.engine.steps import step_of
from curate.engine.takedown.find import entries_of, find, unknown_of
from curate.engine.takedown.takedown import takedown
from curate.engine.workers.scheduler import Scheduler
from curate.release.read import open_release


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

    def check(self) -> None:
        """Raises StorageError if it is missing, for example because its file system is not mounted: an empty folder
        in its place must not pass for a workspace without runs."""
        open_workspace(self.url, create=False)

    # --- runs ---

    def submit(
        self,
        pipeline: Pipeline,
        *,
        engine: str = "local",
        address: str | None = None,
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
            self._check_retry(pipeline, stage, options)
        if detach:
            if engine != "ray":
                raise RecipeError(f"--detach: expected --engine ray, not {engine}; a detached run is a Ray job")
            detached.submit(open_workspace(self.url), pipeline.check(), options, run_id, address)
            return Run(self, run_id)
        task = LocalRun(make_backend(engine, address, options.cpus))
        task.start(pipeline, self.url, options, run_id, console)
        return Run(self, run_id, task)

    def submitted(
        self, run_id: str, *, engine: str = "ray", address: str | None = None, console: Console | None = None
    ) -> Run:
        """Start a run that was submitted with `detach` or by a service; the cluster's job calls this. An error that
        prevents the start is recorded beside the submission."""
        storage = self._storage
        killing.end_if_requested(storage, run_id)
        with detached.recording_refusal(storage, run_id):
            found = detached.read(storage, run_id)
            place = detached.own_cluster() if engine == "ray" and address is None else address
            task = LocalRun(make_backend(engine, place), lambda: detached.recording_refusal(storage, run_id))
        task.start(found.pipeline, self.url, found.options, run_id, console, found.about)
        return Run(self, run_id, task)

    def prepare(
        self, run_id: str, recipe: str, options: Mapping[str, Any], about: Mapping[str, str] | None = None
    ) -> None:
        """Write the submission of a recipe (YAML, checked by the caller) for a job that is started later with
        `entrypoint`. May be repeated. `about`: who submits it, for its record. A workspace is created if there is none.
        Raises RunExistsError if the run has another submission."""
        detached.prepare(open_workspace(self.url), run_id, recipe, options, about)

    def entrypoint(self, run_id: str) -> str:
        """Shell command of the job of a submission."""
        return detached.entrypoint(open_storage(self.url), run_id)

    def request_stop(self, run_id: str, user: str = "") -> bool:
        """Request a run to stop, also before it begins; False if it was requested before. Unlike `Run.stop`, it does
        not look at the run. `user`: who requests it, if not the user of this process."""
        return stop.request(self._storage, run_id, user) is not None

    def request_kill(self, run_id: str, user: str = "") -> bool:
        """Request the process of a run to end at once, also before it begins; False if it was requested before."""
        return stop.request_kill(self._storage, run_id, user) is not None

    def run(self, run_id: str | None = None) -> Run:
        """A run by its id; the latest if None. Raises InputError if it does not exist."""
        if run_id is not None and (self.has(run_id) or detached.is_submitted(self._storage, run_id)):
            return Run(self, run_id)
        return Run(self, runs.latest(self._storage, run_id).run_id)

    def run_names(self) -> list[str]:
        """Names of all runs, by one listing. A name may have nothing but a request to stop."""
        return summary.run_names(self._storage)

    def summary(self, run_id: str) -> RunSummary:
        """What a list of runs needs; reads no events of a run that has ended. Raises InputError if there is no run."""
        return summary.summary(self._storage, run_id)

    def attempt(self, run_id: str) -> Attempt:
        """Whether a submitted run has started, and how it ended; at most three files are read."""
        return summary.attempt(self._storage, run_id)

    def heartbeat(self, run_id: str) -> HeartbeatWatch:
        """Watches the process of a run that has started, without comparing clocks. Keep it and look repeatedly."""
        return HeartbeatWatch(self._storage, lease_path(f"runs/{run_id}"))

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

    def plan(
        self, pipeline: Pipeline, options: Options | None = None, exact: bool = False, on_workers: bool = True
    ) -> list[PlanLine]:
        """What a run would do and cost, a line for each stage, at the rates of earlier runs. Computes nothing and
        creates no workspace. `on_workers`: also check that this process has what workers need, such as secrets; False
        if the run's workers are elsewhere."""
        options = options or Options()
        pipeline = asked(pipeline, options)
        # rows lost by earlier runs, at every stage, must not end the plan
        options = replace(options, failure_budget=float(len(pipeline.nodes)))
        storage = open_storage(self.url)
        if storage.exists("format.json"):
            storage = open_workspace(self.url)
        with closing(Scheduler(local.LocalBackend())) as workers:
            planned = preflight(pipeline, storage, options, workers, on_workers)
            return plan_of(pipeline, storage, options, workers, planned, exact)

    def expected_balance(self, pipeline: Pipeline, labels: str) -> list[ExpectedBalance]:
        """What the pipeline's selections over clusters would do to the balance of labels, by the clusters of earlier
        runs. `labels`: a column, a field `meta.<name>`, or a file with the columns key and label."""
        storage = open_workspace(self.url)
        return expected_balance(pipeline, [RunRecord.load(storage, name) for name in runs.list_runs(storage)], labels)

    def _check_retry(self, pipeline: Pipeline, stage: str, options: Options) -> None:
        """Check that a retry of these rows of the stage is possible. Raises RecipeError."""
        statuses = {name: step_of(node).retried() for name, node in pipeline.nodes.items()}
        able = [name for name, retried in statuses.items() if retried]
        if stage not in pipeline.nodes:
            raise RecipeError(f"retry {stage}: not a stage of the recipe; expected one of {', '.join(able)}")
        if stage not in able:
            kind = catalog.contract_of(type(pipeline.nodes[stage].stage))
            raise RecipeError(
                f"retry {stage}: a {kind} has no rows in error; these stages may: {', '.join(able) or 'none'}"
            )
        if options.retry_status not in statuses[stage]:
            raise RecipeError(f"retry {stage}: --status unusable applies to downloads only; leave it out")
        if options.retry_status == "unusable" and not options.retry[stage]:
            raise RecipeError(
                f"retry {stage}: --status unusable needs --reason; name the reasons to retry, such as port"
            )
        assert self._storage is not None  # raises if the workspace does not exist: nothing was computed there

    # --- outputs ---

    def table(
        self,
        run_id: str,
        stage: str,
        columns: Sequence[str],
        where: str | None = None,
        *,
        shards: int | Sequence[int] | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Page:
        """Columns of any stages (`column`, or `stage.column`) for the rows that pass a stage of a run, in the order of
        the pool. `where`: only rows for which this expression is true, as in `filter.where`. `shards`: how many at
        most, or the places of those to read; `limit`: how many rows at most. `cursor`: `next` of the page before."""
        return Reads(RunRecord.load(self._storage, run_id), stage, columns, where).page(shards, cursor, limit)

    def batches(
        self, run_id: str, stage: str, columns: Sequence[str], where: str | None = None
    ) -> pa.RecordBatchReader:
        """The same rows, a batch per shard, with one shard in memory at a time."""
        return Reads(RunRecord.load(self._storage, run_id), stage, columns, where).batches()

    def histogram(
        self,
        run_id: str,
        stage: str,
        column: str,
        bins: int = 50,
        range: Sequence[float] | None = None,
        where: str | None = None,
    ) -> Histogram:
        """Counts of the values of a column for the rows of `table`. `range`: the first and last edge; by default, the
        least and the greatest finite value, for which the column is read twice."""
        return histogram(RunRecord.load(self._storage, run_id), stage, column, bins, range, where)

    def datasets(self) -> list[DatasetInfo]:
        """Complete datasets, oldest first."""
        return usage.datasets(self._storage)

    def replaced_datasets(self) -> dict[str, str]:
        """Folder of a dataset that an erasure has removed -> that of the version that replaces it."""
        return noun_takedowns.standing(self._storage)

    def dataset_origins(self) -> dict[str, list[str]]:
        """Version that a takedown has made -> folders of the datasets that it was made of, some of them removed."""
        return noun_takedowns.origins(self._storage)

    def dataset(self, base: str) -> DatasetInfo | None:
        """A complete dataset by its folder, without its runs and pins; None if there is none."""
        return usage.dataset(self._storage, base)

    def contents(self, base: str) -> Contents:
        """What a dataset contains, by its folder. Raises InputError if there is none."""
        return contents(self._storage, base)

    def release(self, dataset: str, to: str, **options: Any) -> dict[str, Any]:
        """Write what may be published of a dataset to a new folder or URL; see `curate.api.releases.release`."""
        return releases.release(self._storage, dataset, to, **options)

    def release_at(self, url: str) -> dict[str, Any]:
        """What the release.json of a release says. Raises InputError for another folder."""
        return open_release(url).about

    def fetch(self, source: str, contact: str, **options: Any) -> releases.Fetched:
        """Make the pool of a release again; see `curate.api.releases.fetch`."""
        return releases.fetch(self, source, contact, **options)

    def write_fetch_recipe(self, source: str, contact: str, file: Path, **settings: Any) -> None:
        """Write the recipe of a fetch, to run or submit it; see `curate.api.releases.fetch_recipe`."""
        recipe, _ = releases.fetch_recipe(open_workspace(self.url), source, contact, **settings)
        try:
            file.write_text(recipe)
        except OSError as error:
            raise InputError(f"{file}: {error.strerror}; give a file that can be written") from None

    def artifacts(self) -> list[ArtifactInfo]:
        """Committed artifacts, by folder. Reads records of runs, from the newest on."""
        return lineage.artifacts(self._storage)

    def lineage(self, output: str, hops: int = 2, runs: Iterable[str] = ()) -> Lineage:
        """What an output (a folder) was made from and what was made from it, `hops` stages away at most. `runs`: those
        that probably have it; otherwise the records of the newest runs are read."""
        return lineage.lineage(self._storage, output, hops, runs)

    def usage(self) -> list[Usage]:
        """Files and bytes by noun and op, and what `gc` would free."""
        return usage.usage(self._storage)

    def gc(
        self, keep: int | None = None, drop: Sequence[str] = (), costly: bool = False, delete: bool = False,
        now: bool | None = False,
    ) -> tuple[dict[str, int], list[str]]:  # fmt: skip
        """(path -> bytes, runs) that no kept run needs; removed only with `delete`. `keep`: number of successful runs
        of each recipe to keep, the latest ones; `costly`: also remove answers of costly stages; `now`: also temporary
        files and uploads of the last day (None: unless a run is alive). Raises InputError if a run is alive."""
        storage = self._storage
        if not delete:
            return gc.unreachable(storage, keep, drop, costly, now)
        with claims.exclusive(storage):
            garbage, gone = gc.unreachable(storage, keep, drop, costly, now)
            gc.collect(storage, garbage, gone)
        return garbage, gone

    def described(self, garbage: Mapping[str, int]) -> list[str]:
        """What a dry run of `gc` found, in lines for people: datasets and their students first, then costly stages."""
        return usage.described(self._storage, garbage)

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
        """Exclude samples (keys, sha256 digests, URLs, source ids) from all later runs; returns the number of
        entries."""
        return noun_tombstones.add(self._storage, with_keys(self._storage, entries), why)

    def remove_tombstones(self, entries: Sequence[str], why: str) -> int:
        """Take tombstones back; returns their number. The list keeps both entries."""
        return noun_tombstones.remove(self._storage, with_keys(self._storage, entries), why)

    def unknown_samples(self, entries: Sequence[str]) -> list[str]:
        """Those of some entries (as of `add_tombstones`) that no pool or dataset has."""
        return unknown_of(self._storage, entries)

    def find_samples(
        self, entries: Sequence[str], releases: Sequence[str] = (), runs: Sequence[str] = (), known: bool = False
    ) -> dict[str, Any]:
        """Where samples (keys, sha256 digests, URLs, source ids, paths of images) are: pools, facts, selections,
        datasets, releases, training runs, and near copies. Unless `known`, InputError if all entries are unknown."""
        return find(self._storage, entries_of(self._storage, entries), releases, runs, known)

    def takedown(
        self,
        entries: Sequence[str],
        why: str,
        *,
        erase: bool = False,
        releases: Sequence[str] = (),
        runs: Sequence[str] = (),
        known: bool = False,
    ) -> dict[str, Any]:
        """Take samples out of every dataset and later run and, with `erase`, remove their bytes; returns the receipt,
        which is also in the workspace. `known` as of `find_samples`. A killed call is resumed by the same call."""
        with claims.exclusive(self._storage):
            return takedown(self._storage, entries, why, erase=erase, releases=releases, runs=runs, known=known)

    def tombstone_history(self) -> list[tuple[str, str, str, bool]]:
        """(kind, value, reason, whether it takes an earlier entry back) of the whole list, oldest first."""
        return noun_tombstones.history(self._storage)

    def tombstones(self) -> dict[str, tuple[str, ...]]:
        """All tombstones, by kind."""
        return noun_tombstones.load(self._storage).values

    def affected_datasets(self) -> dict[str, int]:
        """URL of each dataset with tombstoned samples -> their number."""
        found = affected_datasets(self._storage, noun_tombstones.load(self._storage))
        return {self._storage.url_of(base): count for base, count in found.items()}
