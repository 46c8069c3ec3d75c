"""A Ray cluster of several nodes on this machine, which join and die; and a stage that takes a while there.

A node is a raylet with the processes that it starts. Nodes have names, which a stage finds in its environment.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple
from unittest import mock

import psutil

from curate.core.contracts import Batch, Resources, Runtime
from curate.core.recipe.pipeline import Pipeline
from tests.engine import toys

NAME = "TEST_NODE"
"""Environment variable: the name of the node that a worker runs on."""
NOTICED = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}
"""Has Ray miss a dead node after seconds; its own settings take some 20."""


class Slow(toys.Brightness):
    """Brightness as a costly stage: each batch takes `seconds`. Logs each row with the node that computed it."""

    op: ClassVar[str] = "toy.slow"
    costly: ClassVar[bool] = True
    column: str = "dear"
    seconds: Annotated[float, Runtime()] = 0.0
    gpus: Annotated[int, Runtime()] = 0
    log: Annotated[str, Runtime()] = ""

    def resources(self) -> Resources:
        return Resources(cpus=1, gpus=self.gpus)

    def process(self, batch: Batch) -> dict[str, Any]:
        if self.log:
            with open(self.log, "a") as file:
                here = f"{os.environ.get(NAME)} {os.getpid()} {self.column}"
                file.writelines(f"{here} {key}\n" for key in batch.column("key"))
        time.sleep(self.seconds)
        return super().process(batch)


class Beside(Slow):
    """The same on the lane of CPUs."""

    op: ClassVar[str] = "toy.beside"
    costly: ClassVar[bool] = False
    column: str = "beside"


def pipeline(**changes: Any) -> Pipeline:
    """The toy pipeline with `Slow` as its costly stage, and a stage `beside` that logs its node."""
    slow = {"beside": (Beside, ("bright",), {}), "light": (toys.Light, ("beside",), {}), "dear": (Slow, ("light",), {})}
    order = ("pool", "bright", "beside", "light", "dear")
    stages = {name: (toys.STAGES | slow)[name] for name in (*order, *(n for n in toys.STAGES if n not in order))}
    with mock.patch.object(toys, "STAGES", stages):
        return toys.pipeline(**changes)


class Line(NamedTuple):
    """A row that was begun."""

    node: str
    process: int
    column: str
    key: str


class Noted:
    """What `Slow` has noted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, *columns: str) -> list[Line]:
        """Rows in the order in which they were started; some columns, or all."""
        text = self.path.read_text() if self.path.exists() else ""
        words = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        lines = [Line(node, int(process), column, key) for node, process, column, key in words]
        return [line for line in lines if not columns or line.column in columns]

    def nodes(self, *columns: str) -> Counter[str]:
        """Node -> rows that were begun there."""
        return Counter(line.node for line in self.lines(*columns))


def until(true: Callable[[], Any], within_seconds: float) -> float:
    """Seconds until something is true. It has to be, in time."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < within_seconds, f"not true within {within_seconds:g} s"
        time.sleep(0.05)
    return time.monotonic() - began


class Nodes:
    """The cluster, from the test's side. Its head has no CPUs: what runs, runs on nodes that were added."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes: dict[str, Any] = {}
        self.address = str(cluster.address)

    def add(self, *names: str, cpus: int = 1, gpus: int = 0, **environment: str) -> None:
        """More nodes. Returns when the cluster knows them."""
        for name in names:
            with mock.patch.dict(os.environ, {NAME: name} | environment):
                self._nodes[name] = self._cluster.add_node(num_cpus=cpus, num_gpus=gpus)

    def kill(self, *names: str) -> None:
        """SIGKILL for a node's raylet and all processes that it has started, as when a machine goes."""
        for name in names:
            node = self._nodes.pop(name)
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            raylet.suspend()  # so that it starts nothing and reports no death
            processes = [*raylet.children(recursive=True), raylet]
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
            self._cluster.worker_nodes.discard(node)

    def kill_all(self) -> None:
        self.kill(*self._nodes)

    def clear(self) -> None:
        """Kill all nodes, and wait until the cluster has missed them."""
        self.kill_all()
        until(lambda: self.known() == 1, 60)

    def known(self) -> int:
        """Nodes that the cluster takes to be alive, its head included."""
        return len(self._cluster.global_state._live_node_ids())


@contextlib.contextmanager
def started() -> Iterator[Nodes]:
    """A cluster with only a head, which is hidden from searches for a Ray on this machine."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": NOTICED}
    with contextlib.ExitStack() as closing:
        # sockets' paths must be short
        place = closing.enter_context(tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True))
        closing.enter_context(mock.patch.dict(os.environ, RAY_TMPDIR=place))
        # agents as in a Ray without its dashboard's packages: others import for longer than a raylet waits
        closing.enter_context(mock.patch("ray._private.utils.get_dashboard_dependency_error", return_value="left out"))
        cluster = Cluster(initialize_head=True, head_node_args=head)
        closing.callback(cluster.head_node.kill_all_processes, check_alive=False, allow_graceful=False, wait=True)
        nodes = Nodes(cluster)
        closing.callback(nodes.kill_all)
        yield nodes
