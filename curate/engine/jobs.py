"""Ray's job server, over its REST API. Needs no Ray, and answers or fails within seconds.

Ray's own client imports all of Ray, waits for minutes, and reports a name that is taken as an internal error.
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from curate.core.errors import CurateError, PreflightError, RunExistsError, UnreachableError

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 6.0
SUBMIT_SECONDS = 60.0
"""Ray answers once the job's supervisor is placed, which takes seconds."""
MOST_BYTES = 32 << 20
"""Limit of an answer; a cluster of thousands of nodes needs some megabytes."""
ADVICE = "check it with `ray status`, or give the dashboard's address, http://HOST:8265"
ENDED = ("stopped", "failed", "succeeded")
USAGE = re.compile(r"^([0-9.]+)/([0-9.]+) (CPU|GPU)(?: \(([0-9.]+) used of ([0-9.]+) reserved in placement groups\))?$")
"""A line of Ray's text about a node: what is used and what there is."""


@dataclass(frozen=True)
class JobInfo:
    name: str
    status: str
    """pending, running, stopped, failed or succeeded."""
    message: str = ""
    entrypoint: str = ""
    driver_exit_code: int | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def last_line(self) -> str:
        """The last line of the message, which may be a whole log."""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        return lines[-1][:200] if lines else ""


@dataclass(frozen=True)
class ClusterResources:
    """Logical resources of a cluster, as Ray last counted them; it counts every few seconds."""

    nodes: int
    cpus: float
    gpus: float
    free_cpus: float
    free_gpus: float


def stop_environment(drain_seconds: float) -> dict[str, str]:
    """Environment of a job that Ray gives this long between stopping and killing it; its default is 3 s."""
    return {"RAY_JOB_STOP_WAIT_TIME_S": str(max(1, round(drain_seconds)))}


class JobServer:
    """Client of the job server at the URL of a cluster's dashboard. Thread-safe.

    Raises UnreachableError if nothing answers, PreflightError if the token is rejected, and CurateError for any other
    failure. No message has the token.
    """

    def __init__(self, url: str, token: str = "", seconds: float = ANSWER_SECONDS) -> None:
        """seconds: limit of an answer."""
        self.url, self._seconds = _checked(url), seconds
        try:
            self._client = httpx2.Client(
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
                verify=ssl.create_default_context(),
                trust_env=False,  # no proxy of this machine sees the token
            )
        except UnicodeEncodeError:  # its message has the token
            raise PreflightError(f"{self.url}: the token is not ASCII text; check the token of this cluster") from None

    def close(self) -> None:
        self._client.close()

    def version(self) -> str:
        """Version of the cluster's Ray."""
        return str(_field(self._ask("GET", "/api/version"), "ray_version"))

    def info(self, name: str) -> JobInfo | None:
        """A job; None if the cluster does not know it."""
        found = self._ask("GET", _path(name))
        if found is None:
            return None
        status, code = str(_field(found, "status")).lower(), found.get("driver_exit_code")
        return JobInfo(name, status, str(found.get("message") or ""), str(found.get("entrypoint") or ""), code)

    def submit(
        self, name: str, entrypoint: str, environment: Mapping[str, str] = {}, metadata: Mapping[str, str] = {}
    ) -> None:
        """Start a job, unless the cluster has this very job. Raises RunExistsError if it has another of this name. No
        files are uploaded: the cluster has the package, the workspace everything else. The environment and the metadata
        are shown to everybody who may ask the cluster."""
        if self._known(name, entrypoint):
            return
        job = {"submission_id": name, "entrypoint": entrypoint, "runtime_env": {"env_vars": dict(environment)}}
        try:
            self._ask("POST", "/api/jobs/", job | {"metadata": dict(metadata)}, max(self._seconds, SUBMIT_SECONDS))
        except CurateError:  # a submission at the same time, or one whose answer was lost
            if not self._known(name, entrypoint):
                raise

    def stop(self, name: str) -> bool:
        """Let Ray stop a job, and kill it after its time is over; False if it has ended, or is unknown. Ray can neither
        stop nor delete a pending job."""
        found = self._ask("POST", f"{_path(name)}/stop")
        return found is not None and bool(found.get("stopped"))

    def log(self, name: str) -> str | None:
        """Output of the job; empty if its node is gone. None if the job is unknown."""
        found = self._ask("GET", f"{_path(name)}/logs")
        return None if found is None else str(found.get("logs") or "")

    def resources(self) -> ClusterResources:
        found = self._ask("GET", "/api/cluster_status")
        usage = _inside(found, "data", "clusterStatus", "loadMetricsReport", "usageByNode")
        if usage:
            return _counted([_amounts(node) for node in usage.values()])
        found = self._ask("GET", "/nodes?view=summary")  # the newer autoscaler reports to the nodes' page only
        return _counted(list(_of_summary(_inside(found, "data"))))

    def _known(self, name: str, entrypoint: str) -> bool:
        known = self.info(name)
        if known is not None and known.entrypoint != entrypoint:
            raise RunExistsError(f"{name}: {self.url} has another job of this name; choose another id")
        return known is not None

    # --- requests ---

    def _ask(self, method: str, path: str, body: Any = None, seconds: float | None = None) -> dict[str, Any] | None:
        """The answer; None for 404."""
        status, text = self._answer(method, path, body, seconds or self._seconds)
        if status == 404:
            return None
        if status in (401, 403):
            raise PreflightError(f"{self.url}: the token is missing or wrong; check the token of this cluster")
        if status != 200:
            last = next((line.strip() for line in reversed(text.splitlines()) if line.strip(" .")), "no text")
            raise CurateError(f"{self.url}: {method} {path} failed with status {status} ({last[:200]}); {ADVICE}")
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise CurateError(f"{self.url}: the answer is not from a Ray job server; {ADVICE}")
        return found

    def _answer(self, method: str, path: str, body: Any, seconds: float) -> tuple[int, str]:
        """(status, text), within `seconds` even if it comes byte by byte."""
        until, parts, size = time.monotonic() + seconds, list[bytes](), 0
        timeout = httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        try:
            with self._client.stream(method, f"{self.url}{path}", json=body, timeout=timeout) as answer:
                for part in answer.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    if time.monotonic() > until:
                        raise self._unreachable(f"no complete answer within {seconds:g} s")
                    if size > MOST_BYTES:
                        raise CurateError(f"{self.url}: an answer of over {MOST_BYTES >> 20} MiB; {ADVICE}")
                return answer.status_code, b"".join(parts).decode("utf-8", "replace")
        except httpx2.TimeoutException:
            raise self._unreachable(f"nothing within {seconds:g} s") from None
        except (httpx2.RequestError, OSError) as error:
            raise self._unreachable(error) from None

    def _unreachable(self, why: object) -> UnreachableError:
        return UnreachableError(
            f"{self.url}: no Ray job server answers there ({' '.join(str(why).split())[:200]}); {ADVICE}"
        )


def _checked(url: str) -> str:
    """Raises CurateError for anything but the URL of a server."""
    with contextlib.suppress(ValueError):  # an invalid port or IPv6 address
        found = urlsplit(url)
        if found.scheme in ("http", "https") and found.hostname and found.port != 0 and not found.username:
            return url.rstrip("/")
    raise CurateError(f"{url}: expected the address of a Ray dashboard, such as http://HOST:8265")


def _path(name: str) -> str:
    return f"/api/jobs/{quote(name, safe='')}"


def _field(found: Mapping[str, Any] | None, name: str) -> Any:
    if not found or name not in found:
        raise CurateError(f"the answer is not from a Ray job server: it has no {name}; {ADVICE}")
    return found[name]


def _inside(found: Any, *names: str) -> Any:
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


# --- resources --------------------------------------------------------------------------------------------------------

Amounts = tuple[float, float, float, float]
"""CPUs and GPUs of a node, used and in all."""


def _amounts(usage: Mapping[str, Any]) -> Amounts:
    cpus, gpus = (usage.get(kind) or (0.0, 0.0) for kind in ("CPU", "GPU"))
    return float(cpus[0]), float(gpus[0]), float(cpus[1]), float(gpus[1])


def _of_summary(data: Any) -> Iterator[Amounts]:
    """From the nodes' page: totals as numbers, usage as text."""
    told = _inside(data, "nodeLogicalResources") or {}
    for node in _inside(data, "summary") or ():
        raylet = _inside(node, "raylet") or {}
        if raylet.get("state") == "ALIVE":
            total = raylet.get("resourcesTotal") or {}
            used = _used(str(told.get(raylet.get("nodeId"), "")))
            yield used["CPU"], used["GPU"], float(total.get("CPU", 0.0)), float(total.get("GPU", 0.0))


def _used(text: str) -> dict[str, float]:
    used = {"CPU": 0.0, "GPU": 0.0}
    for line in text.splitlines():
        if match := USAGE.match(line.strip()):
            inside, reserved = float(match[4] or 0.0), float(match[5] or 0.0)
            used[match[3]] = float(match[1]) + reserved - inside  # what a placement group reserves is not free
    return used


def _counted(nodes: list[Amounts]) -> ClusterResources:
    used_cpus, used_gpus, cpus, gpus = (sum(amounts) for amounts in zip(*nodes, strict=True)) if nodes else [0.0] * 4
    return ClusterResources(len(nodes), cpus, gpus, max(0.0, cpus - used_cpus), max(0.0, gpus - used_gpus))
