"""The reconciler: `reindex` of all runs, and passes over many running runs on a cluster in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent import futures
from contextlib import closing
from dataclasses import replace

from sqlalchemy import update

from bench.kit.measure import line, load
from bench.service.server import cluster, hold
from bench.service.world import World, record_running
from curate.service.database.models import TargetRow
from curate.service.reconcile.index import reindex
from curate.service.reconcile.loop import Reconciler
from curate.service.reconcile.targets import Targets
from curate.service.service import Service

PASSES = 6


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of this process's cores."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - cpu


def rebuilt(world: World) -> None:
    with closing(Service.of(world.settings())) as service:
        seconds, cpu = timed(lambda: reindex(service))
    line(f"reindex of {len(world.ended)} runs", f"{seconds:.1f} s", f"{cpu:.1f} s of CPU")


def passes(world: World, running: int) -> None:
    """Several in a row: each run is observed every `poll_seconds`."""
    service = Service.of(world.settings())
    more = replace(world, running=record_running(service, world, running))
    hold(more)
    service.targets = Targets(lambda address, token: cluster(more))
    with service.database.write() as session:
        session.execute(update(TargetRow).values(max_runs=10 * running))
    loop = Reconciler(service)
    loop.check_targets()
    times = []
    for _ in range(PASSES):
        times.append(timed(lambda: (loop.once(), futures.wait(list(loop._busy.values())))))
        time.sleep(service.settings.poll_seconds)
    walls, cpus = (sorted(one)[PASSES // 2] for one in zip(*times, strict=True))
    kind = "SQLite" if service.database.sqlite else "PostgreSQL"
    line(f"a pass over {running} running runs, {kind}", f"{walls:.2f} s", f"median; {cpus:.2f} s of CPU, {load()}")
    loop.stop()
    service.close()
