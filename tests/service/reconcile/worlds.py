"""A service, a cluster and a workspace in which drivers do what the test says, and a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sqlalchemy import select

from curate.core.errors import InputError, StorageError
from curate.service.database.models import AuditEntry, Change, IndexedRun, Submission
from curate.service.reconcile.index import indexed
from curate.service.reconcile.loop import Reconciler
from curate.service.reconcile.observe import GONE_SECONDS
from curate.service.service import Service
from curate.service.states import State
from tests.service.people import People
from tests.service.reconcile.clusters import Connect, FakeCluster, Job


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Driver:
    """An attempt in the workspace."""

    state: str = "none"
    error: str = ""
    alive: bool | None = False
    stop: str = ""
    kill: str = ""
    prepared: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def begin(self) -> None:
        self.state, self.alive = "open", True

    def end(self, state: str = "done", error: str = "") -> None:
        self.state, self.alive, self.error = state, False, error

    def die(self) -> None:
        self.alive = False


class FakeWorkspace:
    """`error`: what every call raises. `mounted`: whether its files are seen."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.drivers: dict[str, Driver] = {}
        self.datasets: dict[str, Any] = {}
        self.pins: dict[str, Any] = {}
        self.error: Exception | None = None
        self.mounted = True
        self.calls: list[str] = []
        self.origins: dict[str, list[str]] = {}

    def driver(self, attempt: str) -> Driver:
        return self.drivers.setdefault(attempt, Driver())

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.error is not None:
            raise self.error

    def check(self) -> None:
        self._call("check")
        if not self.mounted:
            raise StorageError(f"{self.url}: not a workspace")

    def attempt(self, name: str) -> Any:
        self._call("attempt")
        found = self.driver(name) if self.mounted else Driver()
        return SimpleNamespace(id=name, state=found.state, error=found.error)

    def heartbeat(self, name: str) -> Any:
        def look() -> bool | None:
            self._call("look")
            return self.driver(name).alive and self.mounted

        return SimpleNamespace(look=look)

    def prepare(self, name: str, recipe: str, options: Mapping[str, Any], about: Mapping[str, str]) -> None:
        self._call("prepare")
        self.driver(name).prepared = {"recipe": recipe, "options": dict(options), "about": dict(about)}

    def entrypoint(self, name: str) -> str:
        return f"curate run --submission {name}"

    def request_stop(self, name: str, user: str = "") -> bool:
        self._call("stop")
        first, self.driver(name).stop = not self.driver(name).stop, user
        return first

    def request_kill(self, name: str, user: str = "") -> bool:
        self._call("kill")
        first, self.driver(name).kill = not self.driver(name).kill, user
        return first

    def run_names(self) -> list[str]:
        self._call("names")
        return [name for name, driver in self.drivers.items() if driver.state != "none" or driver.prepared]

    def summary(self, name: str) -> Any:
        self._call("summary")
        if name not in self.drivers:
            raise InputError(f"run {name}: not found")
        return summary(name, **self.drivers[name].summary)

    def dataset_origins(self) -> dict[str, list[str]]:
        self._call("takedowns")
        return self.origins

    def dataset(self, base: str) -> Any:
        self._call("dataset")
        return self.datasets.get(base)

    def run(self, name: str) -> Any:
        def events_page(after: str = "", limit: int = 500) -> Any:
            self._call("events")
            events = self.driver(name).events
            begin = int(after or 0)
            numbered = [(str(number), event) for number, event in enumerate(events, 1)]
            page = numbered[begin : begin + limit]
            return SimpleNamespace(events=page, next=str(begin + len(page)))

        return SimpleNamespace(events_page=events_page, ops=lambda: {"pool": "acquire.folder", "pack": "pack.shards"})


def summary(name: str, **about: Any) -> Any:
    """A `RunSummary`."""
    values: dict[str, Any] = {
        "id": name, "state": "done", "error": "", "engine": "ray", "started": 100.0, "ended": 160.0, "seconds": 60.0,
        "stages": 3, "stages_done": 3, "datasets": [], "gpu_hours": 0.0, "cpu_hours": 0.0, "tokens": 0, "dollars": 0.0,
        "submission": {},
    }  # fmt: skip
    return SimpleNamespace(**values | about)


class World:
    """`pass_()` is one pass of the reconciler; it starts no threads of the reconciler."""

    def __init__(self, service: Service, people: People) -> None:
        self.service, self.people, self.clock = service, people, Clock()
        self.cluster = FakeCluster()
        connect = Connect()
        connect.clusters[people.target.address] = self.cluster
        service.targets._connect = connect
        self.workspace = FakeWorkspace(people.workspace.url)
        self.workspaces = {people.workspace.url: self.workspace}
        self.reconciler = self.replica()
        self.reconciler.check_targets()

    def replica(self) -> Reconciler:
        """Another process, as far as the database can tell."""
        return Reconciler(self.service, self.clock, lambda url: self.workspaces[url])  # type: ignore[arg-type,return-value]

    def submit(self, run: str = "run", **about: Any) -> str:
        now = self.service.clock()
        values: dict[str, Any] = {
            "id": run, "workspace_id": self.people.workspace.id, "target_id": self.people.target.id,
            "user_id": self.people.operator.principal.user_id, "recipe": "stages: {}", "resolved": "stages: {}",
            "created": now, "state": "queued", "since": now, "queued": now,
        }  # fmt: skip
        row = Submission(**values | about)
        with self.service.database.write() as session:
            session.add(row)
            session.add(IndexedRun(**indexed(row, "operator", "local")))
        return run

    def request(self, request: str, run: str = "run") -> None:
        with self.service.database.write() as session:
            row = session.get_one(Submission, run)
            row.request, row.requested, row.requested_by = request, self.service.clock(), "ann"
            row.version += 1

    def pass_(self, seconds: float = 2.0) -> None:
        self.clock.now += seconds
        assert self.reconciler.once()

    def passes(self, seconds: float, each: float = 2.0) -> None:
        """Passes for some time. `each`: seconds between two of them."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.pass_(each)

    def until(self, state: State, run: str = "run", most: int = 20, each: float = 2.0) -> Submission:
        """Passes until a run is in a state. `most`: number of passes."""
        for _ in range(most):
            if self.row(run).state == state:
                break
            self.pass_(each)
        found = self.row(run)
        assert found.state == state, (found.state, found.reason)
        return found

    def row(self, run: str = "run") -> Submission:
        with self.service.database.read() as session:
            return session.get_one(Submission, run)

    def indexed(self, run: str = "run") -> IndexedRun:
        with self.service.database.read() as session:
            return session.get_one(IndexedRun, (self.people.workspace.id, run))

    def changes(self, run: str = "run") -> list[tuple[str, str, int]]:
        with self.service.database.read() as session:
            rows = session.scalars(select(Change).where(Change.submission_id == run).order_by(Change.id))
            return [(row.before, row.after, row.attempt) for row in rows]

    def audit(self, action: str) -> list[AuditEntry]:
        with self.service.database.read() as session:
            return list(session.scalars(select(AuditEntry).where(AuditEntry.action == action).order_by(AuditEntry.id)))

    # --- what happens in the world ---

    def running(self, run: str = "run", **about: Any) -> Driver:
        """Submit a run and let its driver begin."""
        self.submit(run, **about)
        self.until(State.STARTING, run)
        driver = self.workspace.driver(f"{run}-1")
        driver.begin()
        self.until(State.RUNNING, run)
        return driver

    def job(self, attempt: str = "run-1") -> Job:
        return self.cluster.jobs[attempt]

    def head_restarts(self) -> None:
        """The cluster forgets its jobs, and their drivers die."""
        self.cluster.jobs.clear()
        for driver in self.workspace.drivers.values():
            driver.die()


GONE = GONE_SECONDS + 4
