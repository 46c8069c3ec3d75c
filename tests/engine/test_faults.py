"""kill -9 anywhere, then the same command: the same bytes, facts and ledger as if nothing had happened.

The places are enumerated on an undisturbed run: every point at which a file is written or has just appeared, and twelve
seeded moments between them (the n-th Python call of the driver); each commit visits a third of them (tests/draw.py).
Local drivers are forked from a process that has imported everything, on two cores at a time.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from curate.core.store.storage import open_storage
from curate.engine.record.runs import RunRecord, list_runs
from curate.engine.run import run
from curate.engine.state import Options
from tests.draw import drawn
from tests.engine import toys, workspaces
from tests.engine.deaths import deaths
from tests.engine.forks import COUNT_ONLY, Drivers
from tests.engine.gates import Family, Gate

SMALL = {"pool__rows": 16, "pool__shard_rows": 8, "pool__repeat": 15, "dataset__shard_rows": 5}
SIDE_BY_SIDE = 2
CHAINS = 20
"""Number of runs killed in a row, few enough that none is killed twice in one shard of a pass: such a shard is computed
apart and the driver survives. Whole chains are drawn: points that are drawn one by one may be neighbours."""
MOMENTS = 12
PASSING = ("publish:leases/", "publish:runs/")
"""Points that depend on the moment (heartbeats, events); a kill there is one of the seeded moments."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def drivers() -> Iterator[SimpleQueue[Drivers]]:
    """Processes that fork drivers, each for one user at a time."""
    free: SimpleQueue[Drivers] = SimpleQueue()
    made = [Drivers().__enter__() for _ in range(SIDE_BY_SIDE)]
    for one in made:
        free.put(one)
    yield free
    for one in made:
        one.__exit__(None, None, None)


@pytest.fixture(scope="module")
def clean(memory: Path, drivers: SimpleQueue[Drivers]) -> tuple[Path, list[str], int]:
    """An undisturbed run: its workspace, its fault points, its number of calls."""
    one, folder, log = drivers.get(), memory / "faults", memory / "faults.log"
    said = one.run(folder, changes=SMALL, environment={"CURATE_FAULT_LOG": str(log)})
    assert said["error"] is None
    counted = one.run(memory / "counted", changes=SMALL, call=COUNT_ONLY)["calls"]
    drivers.put(one)
    passed = re.sub(r"(/log/\w+/)[0-9a-f]{12}-", r"\1*-", log.read_text())  # attempts have random names
    points = [line for line in passed.splitlines() if not line.startswith(PASSING)]
    assert len(points) == len(set(points))
    return folder, points, counted


def ledger(workspace: Path) -> Any:
    storage = open_storage(str(workspace))
    return RunRecord.load(storage, list_runs(storage)[-1]).result["ledger"]  # type: ignore[index]


def disturb(memory: Path, clean: Path, drivers: SimpleQueue[Drivers], name: str, **kill: Any) -> None:
    """Kill a run somewhere, run it again and compare."""
    folder, one = memory / name, drivers.get()
    try:
        killed = one.run(folder, changes=SMALL, **kill)
        assert killed["signal"] == signal.SIGKILL, f"{name}: not killed at {kill}: {killed}"
        again = one.run(folder, changes=SMALL)
        assert (again["signal"], again["error"]) == (0, None), f"{name}: killed at {kill}: {again}"
    finally:
        drivers.put(one)
    workspaces.assert_same(clean, folder)
    assert ledger(folder) == ledger(clean)
    shutil.rmtree(folder)


def test_every_kind_of_file_is_among_the_points(clean: tuple[Path, list[str], int]) -> None:
    pools = ("format", "pools/*/shards", "portions", "repeats", "pools/*/versions")
    facts = ("/attempts/", "/000001.parquet", "/log/", "/index/", "masks/*-*.parquet", "masks/*/versions")
    rest = ("facts/*/versions", "partials", "artifacts")
    select = ("/counts/", "quotas.parquet", "quotas.npy", "/lines/", "/picked/", "/places/", "/rows/")
    pack = ("/ranks/", "/order/", "/parts/", "work/index/")
    kinds = (*pools, *facts, *rest, *select, *pack, ".tar", "index.parquet", "datasets/*/manifest")
    assert [kind for kind in kinds if not any(fnmatch(point, f"*{kind}*") for point in clean[1])] == []
    assert sum(point.endswith(":written") for point in clean[1]) == sum(p.endswith(":published") for p in clean[1])


def test_a_kill_falls_between_facts_and_mask(clean: tuple[Path, list[str], int]) -> None:
    """Each shard of the first pass publishes tables in stage order, then the mask; manifests come last."""
    points = [p.removeprefix("publish:") for p in clean[1] if p.endswith(":published")]
    first = [point for point in points if point.startswith(("facts/toy.parity", "masks"))]
    shards = list(dict.fromkeys(point.split("/")[4] for point in first if "/000001.parquet" in point))
    assert len(shards) == 2
    place = [next(i for i, p in enumerate(first) if p.startswith("masks") and f"/{shard}-" in p) for shard in shards]
    tables = [max(i for i, p in enumerate(first) if f"/{shard}/0000" in p) for shard in shards]
    commits = [i for i, p in enumerate(first) if "/versions/" in p]
    assert tables[0] < place[0] < tables[1] < place[1] < min(commits)


def wherever(point: str) -> str:
    """The same place in a run after a kill: names of masks and versions say which tables they are of."""
    point = re.sub(r"(masks/\w+/\w+-)\w+", r"\1*", point)
    return re.sub(r"((?:facts|masks)/.*/versions/)\w+", r"\1*", point)


def chain(memory: Path, clean: Path, drivers: SimpleQueue[Drivers], name: str, points: list[str]) -> None:
    """Kill a run at the first point; each later run resumes and is killed at the next point."""
    folder, one = memory / name, drivers.get()
    try:
        for point in points:
            killed = one.run(folder, changes=SMALL, environment={"CURATE_FAULT_KILL": wherever(point)})
            assert killed["signal"] == signal.SIGKILL, f"{name}: not killed at {point}: {killed}"
        ended = one.run(folder, changes=SMALL)
        assert (ended["signal"], ended["error"]) == (0, None), f"{name}: {ended}"
    finally:
        drivers.put(one)
    workspaces.assert_same(clean, folder)
    assert ledger(folder) == ledger(clean)
    shutil.rmtree(folder)


@pytest.mark.long
def test_killed_at_every_point(memory: Path, clean: tuple[Path, list[str], int], drivers: SimpleQueue[Drivers]) -> None:
    folder, points, _ = clean
    chains = drawn([points[first::CHAINS] for first in range(CHAINS)])
    assert chains and all(len(some) > 1 for some in chains)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        jobs = [threads.submit(chain, memory, folder, drivers, f"chain-{i}", some) for i, some in enumerate(chains)]
        for job in jobs:
            job.result()


@pytest.mark.long
def test_killed_at_seeded_moments(
    memory: Path, clean: tuple[Path, list[str], int], drivers: SimpleQueue[Drivers]
) -> None:
    folder, _, calls = clean
    moments = drawn(random.Random(2).sample(range(1, int(0.98 * calls)), MOMENTS))
    assert moments
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        jobs = [threads.submit(disturb, memory, folder, drivers, f"call-{call}", call=call) for call in moments]
        for job in jobs:
            job.result()


def test_killed_twice(memory: Path, clean: tuple[Path, list[str], int], drivers: SimpleQueue[Drivers]) -> None:
    """A run that resumes after a kill is killed again: at its first point, and at one in the middle."""
    folder, points, _ = clean
    one, target = drivers.get(), memory / "twice"
    for point in (points[len(points) // 3], points[len(points) // 2], points[-3]):
        assert one.run(target, changes=SMALL, environment={"CURATE_FAULT_KILL": point})["signal"] == signal.SIGKILL
    assert one.run(target, changes=SMALL)["error"] is None
    drivers.put(one)
    workspaces.assert_same(folder, target)


# --- Ray --------------------------------------------------------------------------------------------------------------

WORKERS_POINTS = (
    "publish:pools/*.tar:written",
    "publish:pools/*/portions/*:published",
    "publish:facts/toy.brightness/*/000001.parquet:written",
    "publish:facts/toy.costly/*/index/*.arrow:written",
    "publish:facts/toy.parity/*/000001.parquet:published",
    "publish:masks/*.parquet:written",
    "publish:selections/*/quotas.parquet:written",
    "publish:datasets/*.tar:written",
    "publish:datasets/*/index.parquet:published",
)
"""Four of them in a pass: more deaths of one shard, and it is set aside."""


def test_workers_killed_under_ray(
    workspace: Path, tmp_path: Path, clean: tuple[Path, list[str], int], on_ray: Any
) -> None:
    """The run continues: a dead worker is replaced and its unfinished work repeated."""
    with deaths(on_ray, drawn(WORKERS_POINTS), tmp_path):
        run(toys.pipeline(**SMALL), str(workspace), engine=on_ray, options=Options(segment_seconds=0.0))
    workspaces.assert_same(clean[0], workspace)
    assert ledger(workspace) == ledger(clean[0])


@pytest.mark.drawn
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.long
def test_driver_ended_under_ray(
    workspace: Path,
    clean: tuple[Path, list[str], int],
    drivers: SimpleQueue[Drivers],
    on_ray: Any,
    gate: Gate,
    how: signal.Signals,
) -> None:
    """SIGTERM drains, SIGKILL does not; neither leaves a process that the driver started."""
    one = drivers.get()
    driver = one.start(workspace, changes={**SMALL, "dear__gate": str(gate.folder)}, engine="ray")
    gate.wait()
    family = Family(driver)
    assert "raylet" in family.members.values()
    os.kill(driver, how)
    if how == signal.SIGTERM:
        gate.open()
        assert "the same command resumes from there" in one.end()["error"]
        assert list(workspace.glob("facts/toy.costly/*/*/*/*.parquet")) and not list(workspace.glob("artifacts/*"))
    else:
        assert one.end()["signal"] == how
    drivers.put(one)
    assert family.left(within_seconds=60) == []
    run(toys.pipeline(**SMALL), str(workspace), engine=on_ray)
    workspaces.assert_same(clean[0], workspace)


@pytest.mark.long
def test_driver_killed_between_facts_and_manifests_under_ray(
    workspace: Path,
    clean: tuple[Path, list[str], int],
    drivers: SimpleQueue[Drivers],
    on_ray: Any,
    on_this_ray: str,
) -> None:
    """Workers have published tables and masks; the driver dies before the mask's manifest, and before the facts'."""
    one = drivers.get()
    for point in (
        "publish:masks/*/versions/*/manifest.json:written", "publish:facts/*/versions/*/shards.parquet:written",
    ):  # fmt: skip
        kill = {"CURATE_FAULT_KILL": point, "RAY_ADDRESS": on_this_ray}
        assert one.run(workspace, changes=SMALL, engine="ray", environment=kill)["signal"] == signal.SIGKILL, point
        assert list(workspace.glob("facts/toy.parity/*/*/*/*.parquet")) and not list(workspace.glob("artifacts/*"))
    drivers.put(one)
    result = run(toys.pipeline(**SMALL), str(workspace), engine=on_ray)
    assert not result.counts["bright"].computed and not result.counts["parity"].computed
    workspaces.assert_same(clean[0], workspace)
    assert ledger(workspace) == ledger(clean[0])


def test_no_process_is_left(drivers: SimpleQueue[Drivers]) -> None:
    """Every driver that was forked has ended, and so has what it had started."""
    for _ in range(SIDE_BY_SIDE):
        one = drivers.get()
        assert psutil.Process(one.process.pid).children(recursive=True) == []
        drivers.put(one)
