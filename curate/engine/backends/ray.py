"""The Ray backend, and the only file that imports Ray.

Payloads go to a pool of actors with the stage's resources, two in flight each, so that the driver's answer time is
hidden and its memory does not grow with the pool. An actor that dies is replaced and its payloads are tried again, with
a bound. Only shard references and small results travel; pixels never enter the object store.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# workers inherit it: on busy cores, threads that spin while they wait cost more than they compute
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import ray
from ray.exceptions import RayActorError, RayTaskError

from curate.core.contracts import Resources
from curate.core.errors import CurateError
from curate.core.secrets import FORWARDED
from curate.engine.backends import ATTEMPTS, HOW, How, Outcome, attempt
from curate.engine.backends.isolated import run_isolated
from curate.engine.queue import Queue

IN_FLIGHT = 2
POLL_SECONDS = 5.0
LOOK_SECONDS = 5.0
"""How long what the cluster has is taken to be the same."""
START_SECONDS = 600.0
"""How long to wait for the first worker: an autoscaling cluster takes minutes to add a node."""
ABSENT_SECONDS = 20.0
"""After how long others take over what was meant for a worker that is not up."""
PASSED_ON = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE")
"""Environment variables that workers get from the driver, besides CURATE_… . Ray stores their values."""
SECRET_NAME = re.compile("KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL", re.IGNORECASE)


class _Worker:
    """Runs functions in a process of its own; stages stay set up between calls."""

    def __init__(self, environment: dict[str, str]) -> None:
        os.environ.update(environment)

    def up(self) -> None:
        """Answers once the process runs."""

    def run(
        self, function: Callable[..., Any], payload: Any, index: int, isolated: bool = False, shared: Any = None
    ) -> tuple[Outcome | None, CurateError | None]:
        try:
            if isolated:
                return run_isolated(function, payload, index), None
            value, error = attempt(function, payload, shared)
            return Outcome(index, value, error), None
        except CurateError as fatal:
            return None, fatal


@dataclass
class _Slot:
    """An actor and what it was given: nothing before it has said that it is up, since Ray may never place it."""

    actor: Any
    greeting: Any
    up: bool = False
    since: float = field(default_factory=time.monotonic)
    """When it was asked for."""
    busy: dict[Any, int] = field(default_factory=dict)
    """Object reference -> payload index, oldest first."""

    def absent(self) -> bool:
        return not self.up and time.monotonic() - self.since > ABSENT_SECONDS


class RayBackend:
    name = "ray"

    def __init__(self, address: str | None = None, cpus: int | None = None) -> None:
        self.draining = threading.Event()
        self.mine = not ray.is_initialized()
        if self.mine:
            with _sigterm_kept():
                _init(address, cpus)
        self._pool: list[_Slot] = []
        self._resources: Resources | None = None
        self._failed_starts = 0
        self._total: tuple[float, dict[str, float]] = (-math.inf, {})
        """When the cluster was last looked at, and what it has."""

    def slots(self, resources: Resources) -> int:
        if time.monotonic() - self._total[0] > LOOK_SECONDS:
            self._total = time.monotonic(), ray.cluster_resources()
        total = self._total[1]
        fits = [total.get("CPU", 1) / resources.cpus] if resources.cpus else []
        if resources.gpus:
            fits.append(total.get("GPU", 0) / resources.gpus)
        slots = int(min(fits)) if fits else 1
        if slots < 1:
            have = f"{total.get('CPU', 0):g} CPUs and {total.get('GPU', 0):g} GPUs"
            want = f"{resources.cpus:g} CPUs and {resources.gpus:g} GPUs"
            raise CurateError(f"a stage needs {want}, the cluster has {have}; lower `threads` or add nodes")
        return slots

    def map(
        self,
        function: Callable[[Any], Any],
        payloads: Sequence[Any],
        resources: Resources,
        how: How = HOW,
    ) -> Iterator[Outcome]:
        if not payloads:
            return
        count = min(self.slots(resources), len(payloads))
        self._fit(resources, count)
        pool = self._pool[:count]
        queue = Queue(len(payloads), count, how.sticky, how.window and how.window * count)
        # passed as it is, and not inside of something: so a worker gets the value, its arrays where they lie
        shared = None if how.shared is None else ray.put(how.shared)
        deaths: Counter[int] = Counter()
        alone = time.monotonic()
        while True:
            if self.draining.is_set():
                queue.clear()
            absent = [
                n for n, slot in enumerate(pool) if not slot.up and time.monotonic() - slot.since > ABSENT_SECONDS
            ]
            for number, slot in enumerate(pool):
                while slot.up and len(slot.busy) < IN_FLIGHT and (index := queue.take(number, absent)) is not None:
                    ref = slot.actor.run.remote(function, payloads[index], index, how.isolated, shared)
                    slot.busy[ref] = index
            owners = {ref: number for number, slot in enumerate(pool) for ref in slot.busy}
            if not queue and not owners:
                return
            starting = {slot.greeting: slot for slot in pool if not slot.up} if queue else {}
            ready, _ = ray.wait([*owners, *starting], num_returns=1, timeout=POLL_SECONDS)
            if owners:
                alone = time.monotonic()
            if not ready:
                self._still_alone(time.monotonic() - alone)
            elif ready[0] in starting:
                self._greet(starting[ready[0]])
            else:
                number = owners[ready[0]]
                for outcome in self._settle(pool[number], number, ready[0], queue, deaths):
                    queue.settle(outcome.index)
                    yield outcome

    def broadcast(self, function: Callable[[Any], Any], payload: Any) -> None:
        refs = [slot.actor.run.remote(function, payload, 0) for slot in self._pool if slot.up and not slot.busy]
        ray.wait(refs, num_returns=len(refs), timeout=POLL_SECONDS) if refs else None

    def _greet(self, slot: _Slot) -> None:
        """An actor is up, or could not start: that is never the fault of a payload."""
        try:
            ray.get(slot.greeting)
            slot.up, self._failed_starts = True, 0
        except RayActorError as error:
            self._failed_starts += 1
            if self._failed_starts >= ATTEMPTS:
                text = " ".join(str(error).split())[:300]
                raise CurateError(f"Ray workers cannot start ({text}); is this package on every node?") from error
            fresh = self._start(self._resources)
            slot.actor, slot.greeting = fresh.actor, fresh.greeting

    def _still_alone(self, seconds: float) -> None:
        """No worker is up: the cluster is full, or its nodes are too small for what is asked."""
        if seconds > START_SECONDS:
            free = ray.available_resources()
            raise CurateError(
                f"no Ray worker with {self._resources} could be placed in {START_SECONDS:.0f} s (free: "
                f"{free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs); wait for other jobs, or lower `threads`"
            )

    def _settle(self, slot: _Slot, number: int, ref: Any, queue: Queue, deaths: Counter[int]) -> Iterator[Outcome]:
        try:
            outcome, fatal = ray.get(ref)
        except RayActorError:
            # actors work in order: the oldest payload is the one that was running
            lost = list(slot.busy.values())
            slot.busy.clear()
            fresh = self._start(self._resources)
            slot.actor, slot.greeting, slot.up, slot.since = fresh.actor, fresh.greeting, False, fresh.since
            deaths[lost[0]] += 1
            if deaths[lost[0]] < ATTEMPTS:
                queue.give_back(number, lost)
            else:
                queue.give_back(number, lost[1:])
                yield Outcome(lost[0], error="the worker process died", crashed=True)
            return
        except RayTaskError as error:
            raise CurateError(f"{error.cause!r}") from error
        del slot.busy[ref]
        if fatal is not None:
            self._fit(None, 0)
            raise fatal
        yield outcome

    def _fit(self, resources: Resources | None, count: int) -> None:
        """Make the pool `count` actors of these resources. Those there are kept where they do (each costs seconds);
        else all are let go first, so that none waits for another's CPUs."""
        held = self._resources
        covers = resources is not None and held is not None and held.cpus >= resources.cpus
        enough = covers and held == replace(resources, cpus=held.cpus) and len(self._pool) >= count  # type: ignore
        if not (resources == held or enough) or any(slot.busy for slot in self._pool):
            for slot in self._pool:
                ray.kill(slot.actor)
            self._pool = []
        if not self._pool:
            self._resources = resources
        while len(self._pool) < count:
            self._pool.append(self._start(self._resources))

    def _start(self, resources: Resources | None) -> _Slot:
        assert resources is not None
        options: dict[str, Any] = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_restarts": 0}
        if resources.memory_bytes:
            options["memory"] = resources.memory_bytes
        # not as a runtime_env: that would pass by the workers that Ray has started ahead
        actor = ray.remote(_Worker).options(**options).remote(passed_on(os.environ))
        return _Slot(actor, actor.up.remote())

    def release(self) -> None:
        self._fit(None, 0)

    def close(self) -> None:
        self._fit(None, 0)
        if self.mine:
            ray.shutdown()


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What workers get of the driver's environment. Object-store keys and other secrets must be in their own."""
    wanted = {name: value for name, value in environment.items() if name.startswith(FORWARDED) or name in PASSED_ON}
    return {name: value for name, value in wanted.items() if not SECRET_NAME.search(name)}


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """`ray.init` takes SIGTERM for itself and would end the run where it stands; ours drains it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _store_bytes() -> int:
    """Room for what a fit shares with its workers (centroids); it takes no memory before it is used."""
    free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    return max(256 << 20, min(2 << 30, free // 4))


def _init(address: str | None, cpus: int | None) -> None:
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        if address:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            return
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=_store_bytes(),
            _system_config={"idle_worker_killing_time_threshold_ms": 600_000},
        )
    except Exception as error:  # a start that takes Ray over 30 s on a busy machine raises no class of its own
        if address:
            what, advice = f"--address {address}: no Ray cluster answers there", "check it with `ray status`"
        else:
            what, advice = "Ray could not be started", "try again when the machine is less busy, or --engine local"
        raise CurateError(f"{what} ({' '.join(str(error).split())[:200]}); {advice}") from error
