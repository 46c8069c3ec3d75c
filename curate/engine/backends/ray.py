"""The Ray backend, and the only file that imports Ray.

A worker is an actor with the resources of its lane's stages. It runs one or more units, each in a thread, and answers
requests for snapshots beside them. Replies arrive through callbacks, so nothing here blocks. Only shard references and
small results travel; pixels never enter the object store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray._private import state as state_of_ray
from ray._private import worker as driver_of_ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from curate.core.contracts import Resources
from curate.core.errors import CurateError, UnreachableError
from curate.engine.backends import ClusterNode, Notify, Snapshots, TaskEnded, WorkerDown, WorkerUp, package
from curate.engine.backends.connection import Head, checked, passed_on, sigterm_kept, store_bytes, to_raylet
from curate.engine.record import logs
from curate.engine.tasks.job import Job, Outcome

NAMED = "curate"
"""A worker's name is this, its run and a number: it tells other runs who holds the cluster."""
SILENT_SECONDS = 120.0
"""Time limit for Ray to report why an actor does not answer; it notices a lost machine after about a minute."""
UNTYPED: Any = ray
"""Ray's stubs lack the options of actors and of `init`."""
log = logging.getLogger("curate.ray")


@lru_cache
def _actor_class(units: int) -> Any:
    """Defined inside a function so that Ray ships its code: a node without this package can report that."""

    class Worker:
        """Runs jobs in a separate process; stages stay set up between them."""

        def __init__(self, environment: dict[str, str]) -> None:
            import os

            os.environ.update(environment)
            self.tasks: Any = None
            """Set by `up`; the run may end, and ask for snapshots, before that."""

        def up(self) -> dict[str, Any]:
            """Node, host and build of this process."""
            import platform

            import ray

            here = {"node": ray.get_runtime_context().get_node_id(), "ip": ray.util.get_node_ip_address()}  # type: ignore[no-untyped-call]
            try:
                import importlib

                here["version"] = importlib.import_module("curate").__version__
                from curate.engine.backends import package
                from curate.engine.tasks.running import Tasks
            except Exception as error:  # noqa: BLE001 - the driver reports what is wrong with this node
                if "version" in here:  # another version may not have these modules
                    return here | {"sources": "", "place": "", "host": platform.node()}
                return here | {"error": f"{type(error).__name__}: {error}"}
            self.tasks = Tasks()
            return here | package.about()

        def run(self, ticket: int, job: Any, shared: Any = None) -> Any:
            return self.tasks.run(ticket, job, shared)

        def snapshots(self) -> Any:
            return self.tasks.snapshots() if self.tasks else {}

        def wind_down(self, tickets: Any) -> None:
            if self.tasks:
                self.tasks.wind_down(tickets)

        def call(self, function: Any, payload: Any) -> None:
            function(payload)

    return UNTYPED.remote(max_restarts=0, concurrency_groups={"run": units, "ask": 1, "log": 1})(Worker)


class RayWorker:
    """An actor, from the driver's side."""

    def __init__(self, options: Mapping[str, Any], units: int, notify: Notify, trouble: Callable[[], str]) -> None:
        self.notify, self._trouble = notify, trouble
        self.node = ""
        self._dead = threading.Event()
        self._once, self._silent = threading.Lock(), False
        # not as a runtime_env, which the workers that Ray started in advance would not get
        self.actor = _actor_class(units).options(**options).remote(passed_on(os.environ))
        self._on_result(self.actor.up.remote(), self._is_up)

    def _on_result(self, ref: Any, receive: Callable[[Any], None]) -> None:
        """Call `receive` with the result, in one of Ray's threads."""

        def over(future: Future[Any]) -> None:
            try:
                receive(future.result())
            except RayActorError as error:
                self._down(error)
            except RayTaskError as error:
                self._down(error, CurateError(f"a Ray worker failed: {error.cause!r}"))

        ref.future().add_done_callback(over)

    def _down(self, error: Exception, fatal: CurateError | None = None) -> None:
        if isinstance(error, ActorUnavailableError):
            with self._once:
                if not self._silent:
                    self._silent = True
                    threading.Thread(target=self._find_out, args=(str(error),), daemon=True).start()
        elif not self._dead.is_set():
            self._dead.set()
            self.notify(WorkerDown(self, " ".join(str(error).split())[:300], fatal))

    def _find_out(self, error: str) -> None:
        """The actor does not answer: its process or its node is gone. Wait until Ray knows which."""
        until, name = time.monotonic() + SILENT_SECONDS, self.actor._actor_id.hex()
        with contextlib.suppress(Exception):  # Ray may be shut down
            while not self._dead.is_set() and time.monotonic() < until:
                if not self._trouble() and state_of_ray.actors(name).get("State") == "DEAD":
                    break
                time.sleep(0.5)
        self._down(CurateError(error))

    def _is_up(self, about: dict[str, Any]) -> None:
        self.node = about["node"]
        wrong = package.mismatch(about)
        if wrong:
            self._down(CurateError(wrong), CurateError(wrong))
        else:
            self.notify(WorkerUp(self, self.node, about["ip"]))

    def run(self, ticket: int, job: Job, shared: Any) -> None:
        ref = self.actor.run.options(concurrency_group="run").remote(ticket, job, shared)

        def over(future: Future[Any]) -> None:
            try:
                outcome, snapshot = future.result()
            except RayActorError as error:
                self._down(error)
            except Exception as error:  # noqa: BLE001 - a payload or a result that cannot be pickled
                cause = getattr(error, "cause", None) or error
                outcome = Outcome(job.index, fatal=CurateError(f"{cause!r}"))
                self.notify(TaskEnded(self, ticket, outcome, {}))
            else:
                self.notify(TaskEnded(self, ticket, outcome, snapshot))

        ref.future().add_done_callback(over)

    def _ask(self, method: Any, *arguments: Any, receive: Callable[[Any], None] = lambda _: None) -> None:
        self._on_result(method.options(concurrency_group="ask").remote(*arguments), receive)

    def request_snapshots(self) -> None:
        self._ask(self.actor.snapshots, receive=lambda found: self.notify(Snapshots(self, found)))

    def call(self, function: Callable[[Any], Any], payload: Any) -> None:
        self._ask(self.actor.call, function, payload)

    def wind_down(self, tickets: Sequence[int] | None) -> None:
        self._ask(self.actor.wind_down, tickets)

    def flush(self) -> None:
        # in a separate thread: publishing may take long, and snapshots must not wait for it
        flushed = self.actor.call.options(concurrency_group="log").remote(logs.flush, None)
        self._on_result(flushed, lambda _: self.notify(Snapshots(self, {})))

    def end(self, ticket: int) -> bool:
        self.kill()
        return False

    def kill(self) -> None:
        self._dead.set()
        with contextlib.suppress(Exception):  # Ray may have been shut down
            ray.kill(self.actor)


class RayBackend:
    name = "ray"
    separate = True

    def __init__(self, address: str | None = None, cpus: int | None = None) -> None:
        self._address, self._cpus = address, cpus
        self._mine: bool | None = None
        """Whether this backend connected to Ray; None before that."""
        self._started = False
        """Whether it also started Ray."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._head: Head | None = None

    def connect(self) -> None:
        """Start Ray, or connect to it. Raises CurateError, also while its head does not answer."""
        with self._lock:
            if self._mine is None:
                mine = not ray.is_initialized()
                if mine:
                    driver_of_ray.print_to_stdstream = _log_lines
                    self._begin()
                self._mine, self._started = mine, mine and not (self._address or os.environ.get("RAY_ADDRESS"))
                driver: Any = driver_of_ray
                gcs, raylet = driver.global_worker.gcs_client, driver._global_node.raylet_socket_name
                self._head = Head(gcs.address, to_raylet(raylet), lambda: type(gcs)(gcs.address).cluster_id.hex())
        if trouble := self.trouble():
            raise UnreachableError(trouble)

    def trouble(self) -> str:
        return self._head.trouble() if self._head is not None else ""

    def _begin(self) -> None:
        """Start Ray, or connect to it, in a thread that lives until `close`: a local Ray's processes end with their
        thread, and a step's thread may end early."""
        started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def stay() -> None:
            try:
                with sigterm_kept():
                    _init(self._address, self._cpus)
            except BaseException as error:  # noqa: BLE001 - raised again below
                started.put(error)
                return
            started.put(None)
            self._over.wait()

        self._over.clear()
        threading.Thread(target=stay, daemon=True, name="ray").start()
        error = started.get()
        if error is not None:
            raise error

    def nodes(self) -> Sequence[ClusterNode]:
        self.connect()
        return [
            ClusterNode(node["NodeID"], has.get("CPU", 0), has.get("GPU", 0), has.get("memory", 0))
            for node in UNTYPED.nodes()
            if node["Alive"]
            for has in [node["Resources"]]
        ]

    def host(self) -> str:
        self.connect()
        return str(UNTYPED.util.get_node_ip_address())

    @property
    def shared(self) -> bool:
        """A Ray that this backend started runs nothing else."""
        return self._mine is not None and not self._started

    def has_gpu(self) -> bool:
        return any(node.gpus for node in self.nodes())

    def worker_limits(self) -> Mapping[str, int]:
        """One remote worker per node is enough, because each waits for many answers at a time."""
        return {"remote": max(1, len(self.nodes()))}

    def size(self, resources: Resources) -> Resources:
        return resources

    def start(self, lane: str, resources: Resources, units: int, notify: Notify, run: str = "") -> RayWorker:
        self.connect()
        options: dict[str, Any] = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
        options["name"] = f"{NAMED}/{run}/{uuid.uuid4().hex}"
        if resources.memory_bytes:
            options["memory"] = resources.memory_bytes
        return RayWorker(options, units, notify, self.trouble)

    def share(self, value: Any) -> Any:
        return ray.put(value)

    def other_runs(self, run: str) -> Sequence[str]:
        if not self.shared:
            return ()
        self.connect()
        actors = state_of_ray.actors(actor_state_name="ALIVE").values()
        names = [actor["Name"].split("/") for actor in actors]
        return sorted({name[1] for name in names if name[0] == NAMED and len(name) == 3} - {run})

    def close(self) -> None:
        if self._mine:
            ray.shutdown()
        if self._head is not None:
            self._head.raylet.close()
        self._over.set()
        self._mine = self._head = None


def _log_lines(data: Any, ignore_prefix: bool) -> None:
    """Send to the run's log what Ray would print, such as the death of a node."""
    for line in data["lines"]:
        log.warning("Ray: %s", " ".join(str(line).split()))


def _init(address: str | None, cpus: int | None) -> None:
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        if address:
            UNTYPED.init(address=checked(address), log_to_driver=False, logging_level="ERROR")
            return
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        UNTYPED.init(
            address="local",  # never a cluster that happens to run on this machine
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=store_bytes(),
            _system_config={"idle_worker_killing_time_threshold_ms": 600_000},
        )
    except CurateError:
        raise
    except Exception as error:  # Ray raises a plain exception if a start on a busy machine takes over 30 s
        if address:
            what, advice = f"--address {address}: no Ray cluster answers there", "check it with `ray status`"
        else:
            what, advice = "cannot start Ray", "try again when the machine is less busy, or --engine local"
        raise CurateError(f"{what} ({' '.join(str(error).split())[:200]}); {advice}") from error


def dashboard_url(address: str) -> str:
    """URL of the dashboard of the cluster whose GCS has this address. Ray may wait for minutes."""
    from ray.dashboard.utils import ray_address_to_api_server_url

    return str(ray_address_to_api_server_url(address))
