"""Clusters for tests: jobs in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from curate.core.errors import CurateError
from curate.service.database.models import TargetRow
from curate.service.reconcile.targets import Cluster, Targets


@dataclass
class Job:
    status: str = "running"
    message: str = ""
    entrypoint: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Amounts:
    nodes: int = 1
    cpus: float = 8.0
    gpus: float = 0.0
    free_cpus: float = 6.0
    free_gpus: float = 0.0


class FakeCluster:
    """`error`: what every call raises. `hang`: calls wait until it is set."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.submitted: list[str] = []
        self.stopped: list[str] = []
        self.amounts = Amounts()
        self.error: Exception | None = None
        self.hang: threading.Event | None = None
        self.calls = 0
        self.closed = False
        self.on_submit: Callable[[str], None] = lambda name: None

    def _call(self) -> None:
        self.calls += 1
        if self.hang is not None:
            self.hang.wait()
        if self.error is not None:
            raise self.error

    def version(self) -> str:
        self._call()
        return "2.60.0"

    def resources(self) -> Amounts:
        return self.amounts

    def info(self, name: str) -> Job | None:
        self._call()
        return self.jobs.get(name)

    def submit(self, name: str, entrypoint: str, environment: Mapping[str, str], metadata: Mapping[str, str]) -> None:
        self._call()
        if name not in self.jobs:
            self.jobs[name] = Job(entrypoint=entrypoint, environment=dict(environment))
            self.submitted.append(name)
            self.on_submit(name)

    def stop(self, name: str) -> bool:
        self._call()
        self.stopped.append(name)
        return name in self.jobs

    def close(self) -> None:
        self.closed = True


class Connect:
    """Address -> its cluster; remembers the tokens that were used."""

    def __init__(self) -> None:
        self.clusters: dict[str, FakeCluster] = {}
        self.tokens: list[str] = []

    def __call__(self, address: str, token: str) -> Cluster:
        self.tokens.append(token)
        return self.clusters.setdefault(address, FakeCluster())


def target(name: str = "local", token: str = "", **about: object) -> TargetRow:
    values = {"address": f"http://{name}:8265", "created": 0.0, **about}
    return TargetRow(name=name, token=token, **values)  # type: ignore[arg-type]


def targets(seconds: float = 60.0) -> tuple[Targets, Connect]:
    connect = Connect()
    return Targets(connect, seconds), connect


def refused(address: str = "http://local:8265") -> CurateError:
    return CurateError(f"{address}: no answer (connection refused)")
