"""Ray clusters that runs are submitted to: one client each, and their health as last seen.

Only here is the token of a target read, from the reference that an admin gave. It goes into the client and nowhere
else: not into the database, the environment of a job, a log or a message.
"""

from __future__ import annotations

import hmac
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from curate.api import JobServer
from curate.core.errors import CurateError
from curate.core.secrets import Secret, redact
from curate.service.database.models import TargetRow
from curate.service.shapes import Shape, Time

CHECK_SECONDS = 8.0
"""A target that has not answered by then counts as silent."""

log = logging.getLogger(__name__)


class Health(Shape):
    """A target, as it answered `checked`."""

    healthy: bool
    checked: Time
    error: str = ""
    version: str = ""
    """Of Ray."""
    nodes: int = 0
    cpus: float = 0
    gpus: float = 0
    free_cpus: float = 0
    free_gpus: float = 0


class Job(Protocol):
    @property
    def status(self) -> str:
        """pending, running, stopped, failed or succeeded."""

    @property
    def message(self) -> str: ...


class Resources(Protocol):
    @property
    def nodes(self) -> int: ...
    @property
    def cpus(self) -> float: ...
    @property
    def gpus(self) -> float: ...
    @property
    def free_cpus(self) -> float: ...
    @property
    def free_gpus(self) -> float: ...


class Cluster(Protocol):
    """A client of a cluster's job server (`curate.api.JobServer`). Its methods raise CurateError within seconds."""

    def version(self) -> str: ...

    def resources(self) -> Resources: ...

    def info(self, name: str) -> Job | None: ...

    def submit(
        self, name: str, entrypoint: str, environment: Mapping[str, str], metadata: Mapping[str, str]
    ) -> None: ...

    def stop(self, name: str) -> object: ...

    def close(self) -> None: ...


@dataclass
class _Client:
    address: str
    token: str
    cluster: Cluster


class Targets:
    """Thread-safe. Knows the rows that `refresh` and `check` were given last."""

    def __init__(self, connect: Callable[[str, str], Cluster] | None = None, seconds: float = CHECK_SECONDS) -> None:
        self._connect: Callable[[str, str], Cluster] = connect or JobServer
        self._seconds = seconds
        self._lock = threading.Lock()
        self._clients: dict[str, _Client] = {}
        self._health: dict[str, Health] = {}
        self._asking: dict[str, threading.Thread] = {}

    def cluster(self, row: TargetRow) -> Cluster:
        """The client of a target. Raises CurateError if its token cannot be read."""
        token = _token(row)
        with self._lock:
            known = self._clients.get(row.name)
            if known and known.address == row.address and hmac.compare_digest(known.token.encode(), token.encode()):
                return known.cluster
            made = self._connect(row.address, token)  # its address or token has changed
            self._clients[row.name] = _Client(row.address, token, made)
        if known:
            known.cluster.close()
        return made

    def health(self, name: str) -> Health | None:
        """As of the last check; None before the first."""
        with self._lock:
            return self._health.get(name)

    def refresh(self, rows: Iterable[TargetRow]) -> None:
        """Check all targets in parallel, and forget all others. A target that does not answer delays no other, and is
        not asked again while it is being asked."""
        rows = list(rows)
        self._forget({row.name for row in rows})
        threads = [self._ask(row) for row in rows]
        until = time.monotonic() + self._seconds
        for row, thread in zip(rows, threads, strict=True):
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                self._seen(row.name, _unhealthy(f"no answer within {self._seconds:g} s"))

    def check(self, row: TargetRow) -> Health:
        """Ask a target now."""
        thread = self._ask(row)
        thread.join(self._seconds)
        if thread.is_alive():
            self._seen(row.name, _unhealthy(f"no answer within {self._seconds:g} s"))
        found = self.health(row.name)
        return found or _unhealthy("it was removed meanwhile")

    def close(self) -> None:
        self._forget(set())

    def _forget(self, kept: set[str]) -> None:
        with self._lock:
            gone = [self._clients.pop(name) for name in set(self._clients) - kept]
            for name in set(self._health) - kept:
                self._health.pop(name)
        for client in gone:
            client.cluster.close()

    def _ask(self, row: TargetRow) -> threading.Thread:
        with self._lock:
            known = self._asking.get(row.name)
            if known is None or not known.is_alive():
                name = f"curate-target-{row.name}"
                known = self._asking[row.name] = threading.Thread(
                    target=self._look, args=(row,), name=name, daemon=True
                )
                known.start()
            return known

    def _look(self, row: TargetRow) -> None:
        try:
            self._seen(row.name, _asked(self.cluster(row)))
        except CurateError as error:
            self._seen(row.name, _unhealthy(str(error)))
        except Exception as error:  # noqa: BLE001 - a cluster of another version may answer anything
            log.warning("target %s: %s", row.name, redact(f"{type(error).__name__}: {error}"))
            self._seen(row.name, _unhealthy(f"its answer is not understood ({type(error).__name__})"))

    def _seen(self, name: str, health: Health) -> None:
        with self._lock:
            self._health[name] = health


def discreet(row: TargetRow, text: str) -> str:
    """An error as everybody who sees a run may read it: without where the cluster is, and where its token is kept. Only
    admins of the service see those."""
    address = row.address.rstrip("/")
    host = re.sub(r":\d+$", "", address.partition("://")[2]).strip("[]")
    for hidden in (address, address.partition("://")[2], host, row.token, row.token.partition(":")[2]):
        if hidden and hidden != row.name:  # which everybody sees
            alone = rf"(?<![\w.-]){re.escape(hidden)}(?![\w-])"
            text = re.sub(alone, "…", re.sub(f"{alone}/?: ", "", text))
    return text


def _asked(cluster: Cluster) -> Health:
    version, found = cluster.version(), cluster.resources()
    amounts: dict[str, Any] = {
        field: getattr(found, field) for field in ("nodes", "cpus", "gpus", "free_cpus", "free_gpus")
    }
    return Health(healthy=True, checked=_now(), version=version, **amounts)


def _unhealthy(error: str) -> Health:
    return Health(healthy=False, checked=_now(), error=redact(error)[:300])


def _now() -> Any:
    return time.time()


def _token(row: TargetRow) -> str:
    if not row.token:
        return ""
    try:
        return Secret(row.token).value()
    except ValueError as error:
        raise CurateError(f"target {row.name}: token: {error}") from None
