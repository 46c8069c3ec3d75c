"""The Ray backend, and the only file that imports Ray.

A worker is an actor with the resources of its lane's stages. It runs a unit or a few, each in a thread, and answers
beside them how they do. What it says arrives through callbacks: nothing here waits for it. Only shard references and
small results travel; pixels never enter the object store.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import queue
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# workers inherit it: on busy cores, threads that spin while they wait cost more than they compute
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import ray
from ray._private import state as state_of_ray
from ray._private import worker as driver_of_ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from curate.core.contracts import Resources
from curate.core.errors import CurateError
from curate.core.recipe.secrets import FORWARDED
from curate.engine.backends import Down, Ended, Job, Looked, Outcome, Tell, Up, package
from curate.engine.backends.address import checked
from curate.engine.record import logs
from curate.engine.workers.lanes import Node

PASSED_ON = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE")
"""Environment variables that workers get from the driver, besides CURATE_… . Ray stores their values."""
BOARD = "curate-board"
"""Name, and namespace, of the actor where runs that share a cluster meet."""
SILENT_SECONDS = 120.0
"""How long Ray may take to say why an actor does not answer: it misses a machine that is gone after a minute or so."""
SECRET_NAME = re.compile("KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL", re.IGNORECASE)
log = logging.getLogger("curate.ray")


@lru_cache
def _actor_class(units: int) -> Any:
    """Made inside of a function so that Ray ships its code: a node without this package can say that it lacks it."""

    class Worker:
        """Runs jobs in a process of its own; stages stay set up between them."""

        def __init__(self, environment: dict[str, str]) -> None:
            import os

            os.environ.update(environment)

        def up(self) -> dict[str, Any]:
            """What runs here."""
            import platform

            import ray

            here = {"node": ray.get_runtime_context().get_node_id(), "ip": ray.util.get_node_ip_address()}
            try:
                import curate

                here["version"] = curate.__version__
                from curate.engine.backends import Tasks, package
            except Exception as error:  # noqa: BLE001 - the driver says what is wrong with this node
                if "version" in here:  # another version may lack what this one has
                    return here | {"sources": "", "place": "", "host": platform.node()}
                return here | {"error": f"{type(error).__name__}: {error}"}
            self.tasks = Tasks()
            return here | package.about()

        def run(self, ticket: int, job: Any, shared: Any = None) -> Any:
            return self.tasks.run(ticket, job, shared)

        def looks(self) -> Any:
            return self.tasks.looks()

        def wind_down(self, tickets: Any) -> None:
            self.tasks.wind_down(tickets)

        def call(self, function: Any, payload: Any) -> None:
            function(payload)

    return ray.remote(max_restarts=0, concurrency_groups={"run": units, "ask": 1, "log": 1})(Worker)


@lru_cache
def _board_class() -> Any:
    class Board:
        """Where the runs of a cluster say what they want. Knows no machine's clock but its own."""

        def __init__(self) -> None:
            import threading
            import time

            self.now = time.monotonic
            self.posts: dict[str, Any] = {}
            self.last = self.now()
            threading.Thread(target=self.watch, daemon=True).start()

        def post(self, run: str, said: Any) -> Any:
            self.last = self.now()
            self.posts[run] = self.last, said
            self.posts = {
                name: (when, what) for name, (when, what) in self.posts.items() if what and self.last - when < 15
            }
            return {name: what for name, (_, what) in self.posts.items()}

        def watch(self) -> None:
            import os
            import time

            while self.now() - self.last < 600:
                time.sleep(10)
            os._exit(0)

    return ray.remote(max_restarts=0)(Board)


class RayWorker:
    """An actor, from the driver's side."""

    def __init__(self, options: Mapping[str, Any], units: int, tell: Tell) -> None:
        self.tell = tell
        self.node = ""
        self._dead = threading.Event()
        self._once, self._silent = threading.Lock(), False
        # not as a runtime_env: that would pass by the workers that Ray has started ahead
        self.actor = _actor_class(units).options(**options).remote(passed_on(os.environ))
        self._then(self.actor.up.remote(), self._is_up)

    def adopted(self, tell: Tell) -> bool:
        """Tell another scheduler from now on; False where there is nothing more to tell."""
        self.tell = tell
        return not self._dead.is_set()

    def _then(self, ref: Any, heard: Callable[[Any], None]) -> None:
        """Call `heard` with the result, in one of Ray's threads."""

        def over(future: Future[Any]) -> None:
            try:
                heard(future.result())
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
            self.tell(Down(self, " ".join(str(error).split())[:300], fatal))

    def _find_out(self, error: str) -> None:
        """It does not answer, since its process is gone, or its node; Ray knows later which. `lost` has to know."""
        until, name = time.monotonic() + SILENT_SECONDS, self.actor._actor_id.hex()
        with contextlib.suppress(Exception):  # Ray may be shut down
            while not self._dead.is_set() and time.monotonic() < until:
                if state_of_ray.actors(name).get("State") == "DEAD":
                    break
                time.sleep(0.5)
        self._down(CurateError(error))

    def _is_up(self, about: dict[str, Any]) -> None:
        self.node = about["node"]
        wrong = package.other(about)
        if wrong:
            self._down(CurateError(wrong), CurateError(wrong))
        else:
            self.tell(Up(self, self.node, about["ip"]))

    def run(self, ticket: int, job: Job, shared: Any) -> None:
        ref = self.actor.run.options(concurrency_group="run").remote(ticket, job, shared)

        def over(future: Future[Any]) -> None:
            try:
                outcome, look = future.result()
            except RayActorError as error:
                self._down(error)
            except Exception as error:  # noqa: BLE001 - what cannot be pickled, either way
                cause = getattr(error, "cause", None) or error
                self.tell(Ended(self, ticket, Outcome(job.index, fatal=CurateError(f"{cause!r}")), {}))
            else:
                self.tell(Ended(self, ticket, outcome, look))

        ref.future().add_done_callback(over)

    def _ask(self, method: Any, *arguments: Any, heard: Callable[[Any], None] = lambda _: None) -> None:
        self._then(method.options(concurrency_group="ask").remote(*arguments), heard)

    def look(self) -> None:
        self._ask(self.actor.looks, heard=lambda looks: self.tell(Looked(self, looks)))

    def call(self, function: Callable[[Any], Any], payload: Any) -> None:
        self._ask(self.actor.call, function, payload)

    def wind_down(self, tickets: Sequence[int] | None) -> None:
        self._ask(self.actor.wind_down, tickets)

    def flush(self) -> None:
        # in a thread of its own: publishing may take long, and looks must not wait for it
        flushed = self.actor.call.options(concurrency_group="log").remote(logs.flush, None)
        self._then(flushed, lambda _: self.tell(Looked(self, {})))

    def end(self, ticket: int) -> bool:
        self.kill()
        return False

    def kill(self) -> None:
        self._dead.set()
        with contextlib.suppress(Exception):  # Ray may have been shut down
            ray.kill(self.actor)


class RayBackend:
    name = "ray"
    apart = True
    queued = 1

    def __init__(self, address: str | None = None, cpus: int | None = None) -> None:
        self._address, self._cpus = address, cpus
        self._mine: bool | None = None
        """Whether it was us who connected to Ray; None before that."""
        self._alone = False
        """Whether we started it, too."""
        self._lock = threading.Lock()
        self._parked: list[tuple[str, Resources, RayWorker]] = []
        self._board: Any = None
        self._over = threading.Event()

    def connect(self) -> None:
        """Start Ray, or connect to it. Raises CurateError."""
        with self._lock:
            if self._mine is None:
                mine = not ray.is_initialized()
                if mine:
                    driver_of_ray.print_to_stdstream = _noted
                    self._begin()
                self._mine, self._alone = mine, mine and not (self._address or os.environ.get("RAY_ADDRESS"))

    def _begin(self) -> None:
        """Start Ray, or connect to it, in a thread that lives until `close`: the processes of a Ray of our own end with
        the thread that has started them, and steps are threads that end."""
        said: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def stay() -> None:
            try:
                with _sigterm_kept():
                    _init(self._address, self._cpus)
            except BaseException as error:  # noqa: BLE001 - raised by whoever waits
                said.put(error)
                return
            said.put(None)
            self._over.wait()

        self._over.clear()
        threading.Thread(target=stay, daemon=True, name="ray").start()
        error = said.get()
        if error is not None:
            raise error

    def nodes(self) -> Sequence[Node]:
        self.connect()
        return [
            Node(node["NodeID"], has.get("CPU", 0), has.get("GPU", 0), has.get("memory", 0))
            for node in ray.nodes()
            if node["Alive"]
            for has in [node["Resources"]]
        ]

    @property
    def shared(self) -> bool:
        """A Ray that we started is ours alone."""
        return self._mine is not None and not self._alone

    def has_gpu(self) -> bool:
        return any(node.gpus for node in self.nodes())

    def most(self) -> Mapping[str, int]:
        """A worker of the remote lane waits for many answers at a time; one per node is plenty."""
        return {"remote": max(1, len(self.nodes()))}

    def size(self, resources: Resources) -> Resources:
        return resources

    def start(self, lane: str, resources: Resources, units: int, tell: Tell) -> RayWorker:
        self.connect()
        options: dict[str, Any] = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
        if resources.memory_bytes:
            options["memory"] = resources.memory_bytes
        return RayWorker(options, units, tell)

    def park(self, lane: str, resources: Resources, worker: Any) -> None:
        self._parked.append((lane, resources, worker))

    def parked(self, tell: Tell) -> Sequence[tuple[str, Resources, Any]]:
        taken, self._parked = self._parked, []
        return [kept for kept in taken if kept[2].adopted(tell)]

    def release(self) -> None:
        """End the workers that are kept."""
        for _, _, worker in self._parked:
            worker.kill()
        self._parked = []

    def lost(self, worker: Any) -> bool:
        return bool(worker.node) and all(node.id != worker.node for node in self.nodes())

    def share(self, value: Any) -> Any:
        return ray.put(value)

    # --- runs that share the cluster ---

    def post(self, run: str, said: Mapping[str, float] | None, heard: Callable[[Mapping[str, Any]], None]) -> None:
        def over(future: Future[Any]) -> None:
            if future.exception() is None:
                heard(future.result())
            else:
                self._board = None

        with contextlib.suppress(Exception):  # the board is a courtesy: without it each run takes what it gets
            if self._board is None:
                options: dict[str, Any] = {"name": BOARD, "namespace": BOARD, "lifetime": "detached", "num_cpus": 0}
                self._board = _board_class().options(get_if_exists=True, **options).remote()
            self._board.post.remote(run, said).future().add_done_callback(over)

    def close(self) -> None:
        self.release()
        if self._mine:
            ray.shutdown()
        self._over.set()
        self._mine = None


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What workers get of the driver's environment. Object-store keys and other secrets must be in their own."""
    wanted = {name: value for name, value in environment.items() if name.startswith(FORWARDED) or name in PASSED_ON}
    return {name: value for name, value in wanted.items() if not SECRET_NAME.search(name)}


def _noted(said: Mapping[str, Any], **_: Any) -> None:
    """What Ray would print to our standard output, such as that a node has died, goes to the run's log."""
    for line in said["lines"]:
        log.warning("Ray says: %s", " ".join(str(line).split()))


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """`ray.init` takes SIGTERM for itself, in C and in Python, and would end the run where it stands; ours stops it. A
    step's thread may be the one that starts Ray, where Python's `signal` is not to be used."""
    libc, held = ctypes.CDLL(None), ctypes.create_string_buffer(1024)
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    libc.sigaction(signal.SIGTERM, None, held)
    yield
    if main and callable(before):
        signal.signal(signal.SIGTERM, before)
    libc.sigaction(signal.SIGTERM, held, None)


def _store_bytes() -> int:
    """Room for what a fit shares with its workers (centroids); it takes no memory before it is used."""
    free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    return max(256 << 20, min(2 << 30, free // 4))


def _init(address: str | None, cpus: int | None) -> None:
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        if address:
            ray.init(address=checked(address), log_to_driver=False, logging_level="ERROR")
            return
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        ray.init(
            address="local",  # not a cluster that happens to run here
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=_store_bytes(),
            _system_config={"idle_worker_killing_time_threshold_ms": 600_000},
        )
    except CurateError:
        raise
    except Exception as error:  # a start that takes Ray over 30 s on a busy machine raises no class of its own
        if address:
            what, advice = f"--address {address}: no Ray cluster answers there", "check it with `ray status`"
        else:
            what, advice = "Ray could not be started", "try again when the machine is less busy, or --engine local"
        raise CurateError(f"{what} ({' '.join(str(error).split())[:200]}); {advice}") from error


def job_client(address: str) -> Any:
    """Ray's client for jobs at `auto`, host:port of a GCS or http://… of a dashboard. Ray would let RAY_ADDRESS win
    over the address that it is given."""
    from ray.dashboard.utils import ray_address_to_api_server_url as url_of
    from ray.job_submission import JobSubmissionClient

    url = address if "://" in address else url_of(address)
    hidden = {name: os.environ.pop(name) for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS") if name in os.environ}
    try:
        return JobSubmissionClient(url)
    finally:
        os.environ.update(hidden)
