"""Clusters of several nodes on this machine: `python tests/engine/backends/cluster.py SCENARIO FOLDER`.

Not run as a module and not in this project's folder: Ray puts the driver's folder ahead of what a node has itself.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from curate.core.contracts import Resources
from curate.core.errors import CurateError
from curate.engine.backends.ray import RayBackend
from curate.engine.workers import worker_set
from curate.engine.workers.lanes import Budget
from curate.engine.workers.scheduler import Scheduler

CPU = Resources()


def task(value: int) -> tuple[int, str, int]:
    time.sleep(0.5)
    return value, ray.get_runtime_context().get_node_id(), os.getpid()


def killed(node: Any) -> None:
    """As a machine that goes away: its raylet and what runs under it, all at once."""
    raylet = next(info[0].process for kind, info in node.all_processes.items() if kind == "raylet")
    for process in [*psutil.Process(raylet.pid).children(recursive=True), psutil.Process(raylet.pid)]:
        process.kill()


def spot(cluster: Cluster) -> None:
    """A node dies while all its workers are busy and another joins: every payload succeeds."""
    first, second = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    backend = RayBackend(cluster.address)
    scheduler = Scheduler(backend)
    nodes: dict[int, str] = {}
    third: Any = None
    for outcome in scheduler.map(task, range(60), CPU):
        assert outcome.error is None, outcome
        nodes[outcome.index] = outcome.value[1]
        if len(nodes) == 8:
            assert set(nodes.values()) == {first.node_id, second.node_id}, nodes
            killed(second)
            third = cluster.add_node(num_cpus=1)
    scheduler.close()
    backend.close()
    assert len(nodes) == 60 and third.node_id in nodes.values()


def shared(cluster: Cluster) -> None:
    """Two runs on two CPUs, each of which needs what the other builds: one that waits gives its workers up. A third may
    take one CPU only."""
    cluster.add_node(num_cpus=2)
    worker_set.IDLE_SECONDS = 1e9  # nothing else gives them up
    backends = [RayBackend(cluster.address) for _ in range(3)]
    built = threading.Event(), threading.Event()
    problems: list[BaseException] = []

    def run(mine: int) -> None:
        scheduler = Scheduler(backends[mine], run_id=f"run-{mine}")
        try:
            assert len(list(scheduler.map(task, range(6), CPU))) == 6
            built[mine].set()
            scheduler.release()
            assert built[1 - mine].wait(60), "the other run got no worker"
            assert len(list(scheduler.map(task, range(6), CPU))) == 6
        except BaseException as problem:  # noqa: BLE001 - raised below
            problems.append(problem)
        finally:
            scheduler.close()

    backends[0].connect()
    holder = Scheduler(backends[2], run_id="holder", budget=Budget(cpus=1))
    assert len({outcome.value[2] for outcome in holder.map(task, range(4), CPU)}) == 1
    assert backends[0].other_runs("run-0") == ["holder"]
    with pytest.raises(CurateError, match="needs 2 CPUs and 0 GPUs on one node, the run may take 1 CPUs; raise --cpus"):
        holder.slots(Resources(cpus=2))
    holder.close()
    threads = [threading.Thread(target=run, args=(mine,)) for mine in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def without(cluster: Cluster) -> None:
    """A node whose Python has no package curate, then one with another version."""
    folder = Path(sys.argv[2])
    for words, init in [
        ("has no package curate; install the same version", "raise ModuleNotFoundError(\"No module named 'curate'\")"),
        ("has curate 9.9.9, the driver ", "__version__ = '9.9.9'"),
    ]:
        (folder / "curate").mkdir(exist_ok=True)
        (folder / "curate/__init__.py").write_text(init)
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        node = cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": path})
        backend = RayBackend(cluster.address)
        scheduler = Scheduler(backend)
        began = time.monotonic()
        try:
            outcomes = list(scheduler.map(task, range(2), CPU))
        except CurateError as error:
            said = str(error)
        else:
            raise AssertionError(outcomes)
        assert words in said and said.startswith("node "), said
        assert time.monotonic() - began < 100
        scheduler.close()
        backend.close()
        cluster.remove_node(node)


def main() -> None:
    os.chdir(sys.argv[2])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        {"spot": spot, "shared": shared, "without": without}[sys.argv[1]](cluster)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
