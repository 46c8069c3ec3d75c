"""Contract between the scheduler and a backend: its nodes, and workers that run payloads and report their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from curate.core.contracts import Resources
from curate.core.errors import CurateError
from curate.engine.tasks.job import Job, Outcome


@dataclass(frozen=True)
class ClusterNode:
    """A machine of the cluster, with its total resources."""

    id: str
    cpus: float
    gpus: float = 0
    memory_bytes: float = 0


@dataclass(frozen=True)
class CallOptions:
    """How a call's payloads are distributed over workers."""

    isolated: bool = False
    """Run each payload in a child process, so that a crash takes nothing else down."""
    sticky: bool = False
    """Give the same index to the same worker in every call, as long as that worker lives."""
    window: int | None = None
    """Per worker, at most this many payloads may be running or settled beyond the first unsettled one."""
    shared: Any = None
    """Second argument of the function, the same for all payloads; sent once to each node."""


CALL_DEFAULTS = CallOptions()


# --- events from workers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerUp:
    """A worker is running on a node."""

    worker: Worker
    node: str = ""
    name: str = ""


@dataclass(frozen=True)
class WorkerDown:
    """A worker died or could not start; `fatal` if no other worker could start either."""

    worker: Worker
    why: str
    fatal: CurateError | None = None


@dataclass(frozen=True)
class TaskEnded:
    worker: Worker
    ticket: int
    outcome: Outcome
    snapshot: Mapping[str, Any]
    """Last snapshot of the task's beat."""


@dataclass(frozen=True)
class Snapshots:
    worker: Worker
    snapshots: Mapping[int, Mapping[str, Any]]
    """Ticket -> snapshot of the beat, for every running task."""


Event = WorkerUp | WorkerDown | TaskEnded | Snapshots
Notify = Callable[[Event], None]


class Worker(Protocol):
    """A process, or several threads of this one, that runs jobs. No method blocks; all may be called after it ended."""

    node: str
    """Id of its node, once it is up."""

    def run(self, ticket: int, job: Job, shared: Any) -> None:
        """Start a job, or queue it after those running. Leads to `TaskEnded`, or to `WorkerDown`."""
        ...

    def request_snapshots(self) -> None:
        """Ask for the beats of its tasks; leads to `Snapshots`."""
        ...

    def call(self, function: Callable[[Any], Any], payload: Any) -> None:
        """Run a short function beside its tasks; its result is dropped."""
        ...

    def wind_down(self, tickets: Sequence[int] | None) -> None:
        """Tell these tasks to stop at the next border between batches; None: all tasks, later ones included."""
        ...

    def flush(self) -> None:
        """Publish what its process has logged; leads to `Snapshots`."""
        ...

    def end(self, ticket: int) -> bool:
        """End a task that hangs. Returns False if that ended the whole worker."""
        ...

    def kill(self) -> None: ...


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def separate(self) -> bool:
        """Whether workers run in processes other than this one."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other runs may compete for the same nodes."""
        ...

    def trouble(self) -> str:
        """Why no work can be given to workers now; "" if it can. Raises UnreachableError if the cluster is lost."""
        ...

    def nodes(self) -> Sequence[ClusterNode]:
        """Current nodes. Raises CurateError if the cluster cannot be reached."""
        ...

    def host(self) -> str:
        """Address of this machine that its workers reach."""
        ...

    def has_gpu(self) -> bool:
        """Whether any node has a GPU."""
        ...

    def worker_limits(self) -> Mapping[str, int]:
        """Lane -> maximum number of workers, for lanes that the nodes' resources do not limit."""
        ...

    def size(self, resources: Resources) -> Resources:
        """Resources of the worker that runs tasks with these resources."""
        ...

    def start(self, lane: str, resources: Resources, units: int, notify: Notify, run: str = "") -> Worker:
        """Start a worker of a run that works on `units` jobs at a time. Leads to `WorkerUp` or `WorkerDown`."""
        ...

    def other_runs(self, run: str) -> Sequence[str]:
        """The other runs that have workers on the same nodes."""
        ...

    def share(self, value: Any) -> Any:
        """Handle of a value that many jobs read: the `shared` of `Worker.run`."""
        ...

    def close(self) -> None: ...
