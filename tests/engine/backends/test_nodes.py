"""A cluster of several nodes: they die and join, drivers die, runs share them, and some are not as they should be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import curate
from curate.core.store.storage import open_storage
from curate.engine.record.reading_logs import read_logs
from curate.engine.state import Options
from tests.core.store.object_store import CREDENTIALS, new_bucket
from tests.engine import nodes, workspaces
from tests.engine.forks import Drivers
from tests.engine.gates import Gate
from tests.engine.nodes import Nodes, Noted, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(170)]

ROWS, SHARD_ROWS = 160, 10
SAVED = {"segment_seconds": Options().segment_seconds, "task_rows": SHARD_ROWS}
"""A unit is a shard, whose rows are saved when it is done, as they are by default where it takes less than a minute."""
SECONDS = 90
"""What waits for another waits no longer, on a busy machine too."""


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Drivers]]:
    with Drivers() as one, Drivers() as another:
        yield [one, another]


@pytest.fixture
def drivers(machines: list[Drivers]) -> Iterator[Drivers]:
    yield machines[0]
    machines[0].kill()


@pytest.fixture
def second(machines: list[Drivers]) -> Iterator[Drivers]:
    yield machines[1]
    machines[1].kill()


@pytest.fixture(scope="module")
def head() -> Iterator[Nodes]:
    with nodes.started() as made:
        yield made


@pytest.fixture
def cluster(head: Nodes) -> Iterator[Nodes]:
    yield head
    head.clear()


@pytest.fixture(scope="module")
def clean(memory: Path, machines: list[Drivers]) -> Path:
    """The result of the local engine."""
    order = {"slow": {"pool__rows": ROWS, "pool__shard_rows": SHARD_ROWS}, "options": SAVED}
    assert machines[0].run(memory / "clean", **order)["error"] is None
    return memory / "clean"


@pytest.fixture
def noted(tmp_path: Path) -> Noted:
    return Noted(tmp_path / "noted")


def order(cluster: Nodes, noted: Noted | None = None, **changes: Any) -> dict[str, Any]:
    """A driver on the cluster. `noted`: where `dear` notes what it computes."""
    slow = {"pool__rows": ROWS, "pool__shard_rows": SHARD_ROWS} | changes
    if noted is not None:
        slow["dear__log"] = str(noted.path)
    environment = {"RAY_ADDRESS": cluster.address}
    return {"slow": slow, "engine": "ray", "options": SAVED, "environment": environment}


def assert_nothing_durable_twice(workspace: Path) -> None:
    """Every shard of every stage has one table of facts, and the runs computed each row once."""
    found = workspace.glob("facts/*/*/*/*/*.parquet")
    tables = [path.name for path in found if "index" not in path.relative_to(workspace).parts]
    assert tables and set(tables) == {"000001.parquet"}
    results = [json.loads(path.read_text()) for path in workspace.glob("runs/*/result.json")]
    for stage in ("bright", "beside", "dear", "parity", "contrast"):
        assert sum(result["counts"][stage]["computed"] for result in results) <= ROWS


def computed(workspace: Path, run_id: str) -> dict[str, int]:
    result = json.loads((workspace / "runs" / run_id / "result.json").read_text())
    return {stage: counts["computed"] for stage, counts in result["counts"].items()}


# --- nodes that die and join -----------------------------------------------------------------------------------------


def test_a_node_dies_and_another_joins(
    cluster: Nodes, workspace: Path, clean: Path, noted: Noted, drivers: Drivers
) -> None:
    cluster.add("one", "two", "three")
    drivers.start(workspace, **order(cluster, noted, dear__seconds=1.0), run_id="spot")
    until(lambda: len(noted.nodes()) == 3 and noted.nodes()["two"] > SHARD_ROWS, SECONDS)
    cluster.kill("two")
    cluster.add("four")
    assert drivers.end()["error"] is None
    workspaces.assert_same(clean, workspace)
    assert_nothing_durable_twice(workspace)
    assert {computed(workspace, "spot")[stage] for stage in ("bright", "beside", "dear")} == {ROWS}
    assert set(noted.nodes()) == {"one", "two", "three", "four"}
    said = [record["message"] for record in read_logs(open_storage(str(workspace)), "spot", level="warning")]
    assert any("its node has died" in message for message in said)
    again = {key for key, count in Counter(line.key for line in noted.lines()).items() if count > 1}
    assert len(again) <= SHARD_ROWS and again <= {line.key for line in noted.lines() if line.node == "two"}


@pytest.mark.drawn
def test_nodes_with_and_without_a_gpu_in_one_run(
    cluster: Nodes, workspace: Path, memory: Path, noted: Noted, drivers: Drivers
) -> None:
    """The node with the GPU has one CPU too, which the stages beside it may use until a shard is there for the GPU."""
    cluster.add("plain", "other")
    cluster.add("gpu", gpus=1)
    changes = {"dear__gpus": 1, "dear__seconds": 0.1, "beside__log": str(noted.path), "beside__seconds": 0.3}
    assert drivers.run(workspace, **order(cluster, noted, **changes))["error"] is None
    assert noted.nodes("dear") == {"gpu": ROWS}
    assert noted.nodes("beside").total() == ROWS and {"plain", "other"} <= set(noted.nodes("beside"))
    columns = [line.column for line in noted.lines()]
    assert "beside" in columns[columns.index("dear") :]
    local = {"slow": {"pool__rows": ROWS, "pool__shard_rows": SHARD_ROWS, "dear__gpus": 1}, "options": SAVED}
    assert drivers.run(memory / "lanes", **local)["error"] is None
    workspaces.assert_same(memory / "lanes", workspace)


# --- drivers that die ------------------------------------------------------------------------------------------------


@pytest.mark.drawn
def test_another_machine_resumes_after_the_driver_has_died(
    cluster: Nodes, workspace: Path, clean: Path, gate: Gate, noted: Noted, drivers: Drivers, second: Drivers
) -> None:
    """The first machine's clock is an hour slow, so that the lease holder looks dead by the clock. Only the heartbeat
    counts."""
    cluster.add("one", "two")
    lease = {"BEAT_SECONDS": 0.5, "STALE_SECONDS": 5.0}

    def shards() -> int:
        return len(list(workspace.glob("facts/toy.slow/*/*/*/*.parquet")))

    first = order(cluster, noted, dear__seconds=1.0) | {"lease": lease, "host": "first", "clock": -3600.0}
    pid = drivers.start(workspace, **first, run_id="first")
    until(lambda: shards() >= 2, SECONDS)
    other = order(cluster, noted) | {"lease": lease, "host": "second", "console": str(gate.folder / "console")}
    second.start(workspace, **other, run_id="second")
    assert f"waiting for process {pid} on first" in gate.waiting()
    before = shards()
    until(
        lambda: shards() >= before + 4, SECONDS
    )  # two units of 3 s on each node: longer than a lease takes to go stale
    mine = {line.process for line in noted.lines()}
    assert len(mine) == 2 and not list(workspace.glob("runs/*/result.json"))
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert drivers.end()["signal"] == signal.SIGKILL
    done = shards()
    until(lambda: {line.process for line in noted.lines()} - mine, SECONDS)
    assert time.monotonic() - killed > lease["STALE_SECONDS"] - 2 * lease["BEAT_SECONDS"]
    gate.console.read()  # type: ignore[union-attr]
    assert second.end()["error"] is None
    workspaces.assert_same(clean, workspace)
    assert_nothing_durable_twice(workspace)
    assert computed(workspace, "second")["dear"] <= ROWS - done * SHARD_ROWS
    again = [key for key, count in Counter(line.key for line in noted.lines()).items() if count > 1]
    assert len(again) <= 2 * SHARD_ROWS


# --- nodes that are not as they should be ----------------------------------------------------------------------------

HIDES = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "curate":
            raise ModuleNotFoundError("No module named 'curate'", name="curate")

sys.meta_path.insert(0, Finder())
"""
REPLACES = """
import sys
from importlib.util import spec_from_file_location

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "curate":
            return spec_from_file_location(name, "{0}/__init__.py", submodule_search_locations=["{0}"])

sys.meta_path.insert(0, Finder())
"""
"""`sitecustomize` of a node: its Python finds no package curate, or a different one."""


def error_of_run(cluster: Nodes, folder: Path, code: str, workspace: Path, drivers: Drivers) -> str:
    """What a run says on a cluster with a node whose Python begins with some code."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    cluster.add("good")
    cluster.add("bad", PYTHONPATH=str(folder))
    return str(drivers.run(workspace, **order(cluster, dear__seconds=1.0))["error"])


def test_a_node_without_the_package_is_rejected(
    cluster: Nodes, workspace: Path, tmp_path: Path, drivers: Drivers
) -> None:
    said = error_of_run(cluster, tmp_path / "site", HIDES, workspace, drivers)
    there, version = cluster.address.partition(":")[0], curate.__version__
    assert said == f"node {there} has no package curate; install the same version ({version}) there, or use one image"


@pytest.mark.parametrize("version", [pytest.param("0.0.9", marks=pytest.mark.nightly), curate.__version__])
def test_a_node_with_another_build_is_rejected(
    cluster: Nodes, workspace: Path, tmp_path: Path, drivers: Drivers, version: str
) -> None:
    place = tmp_path / "site" / "elsewhere"
    shutil.copytree(Path(curate.__file__).parent, place, ignore=shutil.ignore_patterns("__pycache__"))
    file = place / "core/version.py"
    file.write_text(file.read_text().replace(f'"{curate.__version__}"', f'"{version}"') + "# another build\n")
    said = error_of_run(cluster, tmp_path / "site", REPLACES.format(place), workspace, drivers)
    node = f"node {cluster.address.partition(':')[0]} has curate {version}"
    if version == curate.__version__:
        assert said.startswith(f"{node} like the driver, but from other source files ({place}); ")
    else:
        assert said == f"{node}, the driver {curate.__version__}; use one image"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for one small file."""
    place = tmp_path / "full"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", place], capture_output=True).returncode:
        pytest.skip("it is not permitted to mount a disk here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.drawn
def test_a_full_disk_on_one_worker(
    cluster: Nodes, object_store: Any, full_disk: Path, tmp_path: Path, drivers: Drivers
) -> None:
    """What cannot be written aside there is made by another worker, and the log names the disk and the node."""
    workspace = f"s3://{new_bucket(object_store)}/workspace"
    cluster.add("good")
    cluster.add("full", TMPDIR=str(full_disk))
    there = order(cluster, dear__seconds=0.1, pool__side=64)
    there["environment"] |= CREDENTIALS | {"AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"]}
    assert drivers.run(workspace, **there, run_id="full")["error"] is None
    storage = open_storage(workspace)
    said = [record["message"] for record in read_logs(storage, "full", level="warning")]
    moved = [message for message in said if "goes to another worker" in message]
    assert moved and all("no space left" in message for message in moved)
    assert all(f"(on {os.uname().nodename})" in message for message in moved)
    result = storage.read_json("runs/full/result.json")
    assert result["ledger"]["pool"]["after"] == ROWS and result["counts"]["dear"]["computed"] == ROWS
