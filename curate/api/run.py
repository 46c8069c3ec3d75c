"""Runs of a workspace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from curate.api import find
from curate.api.clusters import Clusters, clusters_of
from curate.api.maps import MapPoints, columns_of, points
from curate.api.pixels import SampleFile
from curate.api.related import children_of, copies_of, packed_of, rows_of
from curate.api.slices import Region, Slice, SlicePage, SliceReader, has_captions
from curate.api.stages import hashtag_map
from curate.core.errors import RESUMES, CeilingError, CurateError, DrainedError, InputError
from curate.core.ledger import Entry
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.store.storage import Storage
from curate.engine import detach as detached
from curate.engine.handles import EndCheck, LocalRun, result_of
from curate.engine.record import events, reading_logs, stop
from curate.engine.record import limits as run_limits
from curate.engine.record.events import EventsPage
from curate.engine.record.explain import Story, story
from curate.engine.record.runs import RunRecord
from curate.engine.record.status import Status, status_of
from curate.engine.run import Result

if TYPE_CHECKING:
    from curate.api.search import Answer
    from curate.api.workspace import Workspace

POLL_SECONDS = 0.5


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

    def products(self) -> list[tuple[str, str]]:
        """("dataset", its URL) and ("report", the URL of its page) of what the run has made."""
        record, found = self.record, list[tuple[str, str]]()
        reports, datasets = record.reports(), record.datasets()
        for name, output in record.outputs.items():
            if name in datasets:
                found.append(("dataset", self.workspace.url_of(datasets[name])))
            elif name in reports:
                found.append(("report", f"{self.workspace.url_of(output['base'])}/index.html"))
        return found

    def balance(self, of: str | None = None) -> list[dict[str, Any]]:
        """How the selection of each report compares with a random sample: `verdict`, `warnings`, figures. `of`: only
        of reports below this stage."""
        record = self.record
        made = sorted(record.reports() & record.outputs.keys())
        made = [name for name in made if of is None or of in record.upstream(name)]
        reports = (StoredArtifact(self._storage, record.outputs[name]["base"]) for name in made)
        return [report["balance"] for report in reports if "balance" in report]

    def status(self, events: Sequence[Mapping[str, Any]] | None = None, alive: bool | None = None) -> Status:
        """State, stages with rows, rates and time left, and any request to stop. `events`: all of its events, if the
        caller has read them; then they are not read again, and no cluster is asked. `alive`: whether its driver is
        alive, if the caller knows."""
        return self._status(events=events, alive=alive)

    def _status(
        self, brief: bool = False, events: Sequence[Mapping[str, Any]] | None = None, alive: bool | None = None
    ) -> Status:
        if self._task is not None and not self.workspace.has(self.id):
            return self._task.status(self.id)
        waiting = detached.status(self._storage, self.id, ask=not brief and events is None)
        if waiting is not None:
            return waiting
        record = self.record
        if events is not None:
            record.events = [dict(event) for event in events]
        if alive is not None:
            record._alive = alive
        return status_of(record, brief)

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for the result. Raises the run's error if it failed, DrainedError if it was stopped, CeilingError if by
        its tokens or dollars, CurateError if its process died, TimeoutError after `timeout` seconds."""
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
            raise CurateError(f"run {self.id}: its process died; {RESUMES}")
        if status.state != "stopped":
            raise CurateError(f"run {self.id}: {status.error}")
        result = self.record.result if self.workspace.has(self.id) else None  # none if it was stopped before it began
        raise (CeilingError if (result or {}).get("ceiling") else DrainedError)(f"run {self.id}: {status.error}")

    def stop(self) -> None:
        """Request it to stop: finished work is committed, and a new run of its recipe finds it. Returns at once; see
        `wait`. Raises InputError if the run has ended or was requested to stop before."""
        if self._task is not None:
            self._task.stop()
            return
        status = self.status()
        if status.ended and status.stop is None:
            raise InputError(f"run {self.id}: already {status.state}; only a running run can be stopped")
        if status.ended or stop.request(self._storage, self.id) is None:
            raise InputError(f"run {self.id}: {self._stop_requested(status)}")

    def kill(self) -> None:
        """Request the process that runs it to end at once, without committing what is under way. The same command
        resumes from what was committed before. Returns at once; see `wait`. Raises InputError if the run has ended or
        was requested to be killed before."""
        if self._task is not None:
            raise InputError(f"run {self.id}: runs in this process; expected one in another process, or stop it")
        status = self.status()
        if status.ended:
            raise InputError(f"run {self.id}: already {status.state}; only a running run can be killed")
        if not self.workspace.request_kill(self.id):
            raise InputError(f"run {self.id}: was requested to be killed before")

    def limit(self, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Change limits of the whole run while it runs (None: no limit): `requests_per_second` and `bytes_per_second`
        of downloads; its ceilings `max_tokens` and `max_dollars`; and `endpoints`: name -> `requests_per_minute`,
        `tokens_per_minute`. Returns all limits that were changed so far. Raises InputError if the run has ended, or
        cannot have such a limit."""
        status = self.status()
        if status.ended:
            raise InputError(f"run {self.id}: already {status.state}; only the limits of a running run can be changed")
        if {*run_limits.CEILINGS, run_limits.ENDPOINTS} & limits.keys():
            run_limits.check(self.record, limits)
        return run_limits.request(self._storage, self.id, limits)

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

    def events_page(self, after: str = "", limit: int = 500) -> EventsPage:
        """Events after an id, or after `next` of another page; see EventsPage."""
        return events.events_page(self._storage, self.id, after, limit)

    def last_segment(self) -> int:
        """Number of the newest segment of its events, by a listing: pages after `f"{number - 3}:0"` are the last."""
        return events.last_segment(self._storage, self.id)

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

    def log_page(
        self, after: str = "", limit: int = 500, stage: str | None = None, level: str = "info"
    ) -> reading_logs.LogPage:
        """Log records after `next` of another page, in about the order of time; see LogPage."""
        return reading_logs.log_page(self._storage, self.id, after, limit, stage, level)

    def log_tail(self, limit: int = 500, stage: str | None = None, level: str = "info") -> reading_logs.LogPage:
        """The last log records; `log_page` continues after its `next`."""
        return reading_logs.log_tail(self._storage, self.id, limit, stage, level)

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
        key, a source id, a name or a URL; for a name or a URL, all tables are read, which `say` announces."""
        return self.sample(key, say).lines()

    def sample(self, key: str, say: Callable[[str], None] = lambda _: None) -> Story:
        """The same as a dataclass, whose `to_json` has JSON's types only."""
        if not isinstance(key, str) or not key:
            raise InputError(f"key: expected a key, the start of one, a source id, a name or a URL; not {key!r}")
        return story(self.record, key, say)

    def slice(
        self, which: Slice, columns: Sequence[str] = (), *, cursor: str = "", limit: int = 60, seconds: float = 2.0
    ) -> SlicePage:
        """Up to `limit` rows that a stage passes on or rejects, in the pool's order, after `next` of another page.
        It ends early after about `seconds`. Raises InputError."""
        return SliceReader(self.record, which, columns).page(cursor, limit, seconds)

    def preview(self, which: Slice, columns: Sequence[str] = (), *, limit: int = 12, seconds: float = 2.0) -> SlicePage:
        """Up to `limit` such rows from all over the pool, not its first ones. Raises InputError."""
        return SliceReader(self.record, which, columns).spread(limit, seconds)

    def report(self, fingerprint: str) -> bytes:
        """The HTML of the report in this folder. Raises InputError."""
        made = [str(output["base"]) for name, output in self.record.outputs.items() if name in self.record.reports()]
        base = next((base for base in made if base.rpartition("/")[2] == fingerprint), None)
        try:
            return self.record.storage.read(f"{base}/index.html")
        except FileNotFoundError:
            raise InputError(f"run {self.record.run_id} has no report {fingerprint!r}; run its recipe again") from None

    def has_captions(self) -> bool:
        """Whether samples came with captions, by up to 8 shards of each pool, or stages wrote texts."""
        return has_captions(self.record)

    def rows_of(self, keys: Sequence[str]) -> SlicePage:
        """The rows with these keys, in this order, without those that the run does not have; meant for hundreds."""
        return rows_of(self.record, keys)

    def children_of(self, shard: str, key: str) -> SlicePage:
        """The first samples that were derived from one in this shard."""
        return children_of(self.record, shard, key)

    def packed_of(self, rows: SlicePage) -> dict[str, int]:
        """Dataset's stage -> how many it has of these samples, their children, and so on."""
        return packed_of(self.record, rows)

    def copies_of(self, key: str, limit: int = 12, seconds: float = 1.0) -> list[tuple[Slice, SlicePage]]:
        """For each stage that finds duplicates: the slice of the copies of a sample, and its first page, from what
        can be read in about `seconds`."""
        return list(copies_of(self.record, key, limit, seconds))

    def file(self, shard: str, row: int) -> SampleFile:
        """A sample by its place, with its bytes and thumbnails. Raises InputError."""
        return SampleFile.of(self.record, shard, row)

    def named(self, text: str) -> pa.Table:
        """Samples by their key, the start of it, source id or URL, from the pools' indexes; see `curate.api.find`."""
        return find.named(self.record, text)

    def reasons(self, text: str) -> list[tuple[str, str, int]]:
        """(stage, reject reason, rows) of the reasons that contain a text."""
        return find.reasons(self.record, text)

    def containing(self, stage: str, text: str) -> Region:
        """`Slice.within` for the rows with a text in any column of texts. Raises InputError."""
        return find.containing(self.record, stage, text)

    def showing(self, stage: str, text: str, seconds: float = 2.0) -> tuple[SlicePage | None, str]:
        """Rows that show what a text names, by the stages `image.concepts` and `image.appearance`, and what was
        searched; None, and why, if it names nothing. The reason is empty for a run without concepts."""
        from curate.api.words import showing  # imports WordNet's readers

        return showing(self.record, stage, text, seconds=seconds)

    def map_columns(self, stage: str) -> list[str]:
        """Columns that a map may be coloured by."""
        return columns_of(self.record, stage)

    def map(self, stage: str | None = None, colour: str = "", alive: str = "") -> MapPoints:
        """The points of a map, in a random order. colour: a column; alive: a stage whose rows are marked. Raises
        InputError."""
        return points(self.record, stage, colour, alive)

    def clusters(self, stage: str | None = None) -> Clusters:
        """The clusters built by a stage."""
        return clusters_of(self.record, stage)

    def search(self, text: str | None = None, **query: Any) -> Answer:
        """The rows of an index (`search.fit`) that are nearest to a text, an `image` or a `key`; `query` as in
        `curate.api.search.search`. Raises InputError."""
        from curate.api.search import search  # imports the encoders

        return search(self.record, text, **query)

    def hashtag_map(self, stage: str | None = None) -> list[str]:
        """The hashtag map built by a stage, as tab-separated lines."""
        return hashtag_map(self.record, stage)
