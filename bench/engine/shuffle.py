"""Rows into buckets, each sorted by key: our shuffle through files against Ray Data's, both on Ray with two workers.

    python -m bench.engine.shuffle [ROWS …] [--buckets 64] [--shard-rows 10000] [--only WAY …]
    python -m bench.engine.shuffle --tasks      our largest tasks in a pool of 230,000 shards of 10,000 rows

The input is a folder of Parquet files, one for each shard: key (16 bytes), unit, row, shard. The output is one Parquet
file for each bucket. Each way runs in a separate process with a separate Ray, after a job of a few rows that starts
its workers; the job is not in the seconds. Memory is the peak of PSS of the driver, Ray's processes and workers
with /dev/shm; `ray alone` is that of a Ray whose two workers do nothing. Ray Data needs pandas, which this project does
not depend on: without it, its lines say so.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.kit.measure import PeakMemory, line, machine
from curate.core.contracts import Resources, Select
from curate.core.hashing import ranks
from curate.core.store.storage import Storage, open_storage
from curate.engine.units import shuffle
from curate.engine.units.common import fetched
from curate.engine.units.select import tasks as selecting

WORKERS = 2
ROWS = (200_000, 1_000_000, 4_000_000)
LIMIT_SECONDS = 300


def make_input(folder: Path, rows: int, shard_rows: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for shard, first in enumerate(range(0, rows, shard_rows)):
        count = min(shard_rows, rows - first)
        table = pa.table(
            {
                "key": pa.Array.from_buffers(shuffle.PACKED, count, [None, pa.py_buffer(rng.bytes(16 * count))]),
                "unit": rng.integers(0, 1 << 20, count),
                "row": np.arange(count, dtype=np.int32),
                "shard": np.full(count, shard, dtype=np.int32),
            }
        )
        pq.write_table(table, folder / f"{shard:06d}.parquet")


# --- ours -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scatter:
    storage: Storage
    number: int
    shards: tuple[str, ...]
    buckets: int


def scatter(task: Scatter) -> shuffle.ShuffleFile:
    def parts() -> Any:
        for table in fetched(task.storage.read_table, task.shards):
            yield table, table.column("unit").to_numpy() % task.buckets

    return shuffle.write(task.storage, f"work/{task.number:06d}", parts(), task.buckets)


@dataclass(frozen=True)
class Gather:
    storage: Storage
    bucket: int
    pieces: tuple[shuffle.Piece, ...]


def gather(task: Gather) -> int:
    table = shuffle.read(task.storage, task.pieces).sort_by("key")
    task.storage.publish_table(f"out/{task.bucket:06d}.parquet", table)
    return table.num_rows


@cache
def scheduler() -> Any:
    from curate.engine.backends.ray import RayBackend
    from curate.engine.workers.scheduler import Scheduler

    return Scheduler(RayBackend())


def ours(folder: str, buckets: int) -> dict[str, int]:
    backend, storage = scheduler(), open_storage(folder)

    def values(function: Callable[[Any], Any], payloads: list[Any]) -> list[Any]:
        found = {outcome.index: outcome for outcome in backend.map(function, payloads, Resources())}
        failed = next((outcome.error for outcome in found.values() if outcome.error), None)
        if failed:
            sys.exit(f"bench.engine.shuffle: {failed}")
        return [found[index].value for index in sorted(found)]

    shards = [f"in/{name}" for name in storage.list("in")]
    rows = [pq.read_metadata(storage.path(shard)).num_rows for shard in shards]
    stretches = shuffle.stretches(rows, buckets)
    tasks = [Scatter(storage, i, tuple(shards[first:stop]), buckets) for i, (first, stop) in enumerate(stretches)]
    files = values(scatter, tasks)
    gathers = [Gather(storage, bucket, shuffle.pieces(files, bucket)) for bucket in range(buckets)]
    values(gather, [task for task in gathers if task.pieces])
    ranges = sum(len(task.pieces) for task in gathers)
    return {"files": len(files), "operations": len(shards) + len(files) + ranges + buckets}


# --- Ray Data ---------------------------------------------------------------------------------------------------------


def ray_data(folder: str, buckets: int, way: str) -> dict[str, int]:
    import ray
    from ray.data.context import DataContext, ShuffleStrategy

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.shuffle_strategy = (
        ShuffleStrategy.SORT_SHUFFLE_PULL_BASED if way == "sort" else ShuffleStrategy.HASH_SHUFFLE
    )
    context.max_hash_shuffle_aggregators = WORKERS

    def bucketed(table: pa.Table) -> pa.Table:
        return table.append_column("bucket", pa.array(table.column("unit").to_numpy() % buckets))

    dataset = ray.data.read_parquet(f"{folder}/in").map_batches(bucketed, batch_format="pyarrow", batch_size=None)
    if way == "sort":
        dataset = dataset.sort(["bucket", "key"])
    elif way == "groupby":
        dataset = dataset.groupby("bucket", num_partitions=buckets).map_groups(
            lambda table: table.sort_by("key"), batch_format="pyarrow"
        )
    else:
        dataset = dataset.repartition(buckets, keys=["bucket"]).map_batches(
            lambda table: table.sort_by([("bucket", "ascending"), ("key", "ascending")]),
            batch_format="pyarrow",
            batch_size=None,
        )
    dataset.write_parquet(f"{folder}/out")
    return {"files": 0, "operations": len(os.listdir(f"{folder}/in")) + len(os.listdir(f"{folder}/out"))}


def idle(folder: str, buckets: int) -> dict[str, int]:
    time.sleep(2)
    return {"files": 0, "operations": 0}


# --- tasks of a selection, as large as they ever get ------------------------------------------------------------------

SHARDS, SHARD_ROWS = 230_000, 10_000


class Half(Select):
    """Half of the rows, by key."""

    op = "bench.half"

    def pick(self, lines: Any, counts: Any, quotas: Any) -> dict[str, Any]:
        copies = ranks(0, lines.column("key").to_pylist()) >> np.uint64(63)
        return {"copies": copies.astype(np.int32), "reject": np.where(copies > 0, None, "not_sampled")}


def largest(folder: str, which: str) -> dict[str, float]:
    """One scatter, pick or gather of a pool of SHARDS shards: seconds and peak memory of this very process."""
    storage, rng = open_storage(folder), np.random.default_rng(0)
    buckets = shuffle.buckets_for(SHARDS * SHARD_ROWS)
    stretches = shuffle.stretches([SHARD_ROWS] * SHARDS, buckets)
    shards = stretches[0][1]
    common = (storage, Half(), "bench", {}, "selections/bench", False)

    def lines(rows: int, shard: Any, picked: bool) -> pa.Table:
        table = {
            "unit": rng.integers(0, 1 << 20, rows),
            "centroid_distance": rng.random(rows, dtype=np.float32),
            "key": pa.Array.from_buffers(shuffle.PACKED, rows, [None, pa.py_buffer(rng.bytes(16 * rows))]),
            "shard": pa.array(shard, pa.int32()),
            "row": pa.array(rng.permutation(rows) % SHARD_ROWS, pa.int32()),
        }
        if picked:
            del table["centroid_distance"]
            table |= {"item": pa.array(["0"] * rows), "copies": pa.array(rng.integers(0, 2, rows), pa.int32())}
            table["reject"] = pa.array(["not_sampled"] * rows)
        return pa.table(table)

    if which == "scatter":
        parts = (
            (lines(SHARD_ROWS, np.full(SHARD_ROWS, number), False), rng.integers(0, buckets, SHARD_ROWS))
            for number in range(shards)
        )
        work: Callable[[], Any] = lambda: shuffle.write(storage, "lines", parts, buckets)  # noqa: E731
        rows = shards * SHARD_ROWS
    elif which == "pick":
        rows, each = shuffle.MOST_ROWS, shuffle.MOST_ROWS // len(stretches)
        files = []
        for i, (first, stop) in enumerate(stretches):
            part = lines(each, rng.integers(first, stop, each), False)
            files.append(shuffle.write(storage, f"lines-{i}", [(part, np.zeros(each, np.int64))], 1))
        np.save(f"{folder}/quotas.npy", np.zeros((2, 1 << 20), np.int64))
        storage.publish_bytes("selections/bench/work/quotas.npy", Path(folder, "quotas.npy").read_bytes())
        starts = tuple(first for first, _ in stretches)
        task = selecting.PickTask(*common, "0", shuffle.pieces(files, 0), starts)
        work = partial(selecting.select_pick, task)
    else:
        rows, each = shards * SHARD_ROWS, -(-shards * SHARD_ROWS // buckets)
        files = [
            shuffle.write(
                storage, f"picked-{b}", [(lines(each, rng.integers(0, shards, each), True), np.zeros(each))], 1
            )
            for b in range(buckets)
        ]
        ids = tuple(f"{shard:032x}" for shard in range(shards))
        gathering = selecting.GatherTask(*common, "0", shuffle.pieces(files, 0), 0, 0, ids)
        work = partial(selecting.select_gather, gathering)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    work()
    seconds, peak = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"rows": rows, "seconds": seconds, "before": before * 1024, "peak": peak * 1024}


def tasks() -> None:
    for which in ("scatter", "pick", "gather"):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "bench.engine.shuffle", "--task", which, folder]
            found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        note = f"peak {found['peak'] / 2**20:,.0f} MiB ({found['before'] / 2**20:,.0f} before)"
        line(f"{which} of {found['rows']:,.0f} rows", f"{found['seconds']:.1f} s", note)


WAYS: dict[str, Callable[[str, int], dict[str, int]]] = {
    "ours": ours,
    "ray hash": lambda folder, buckets: ray_data(folder, buckets, "repartition"),
    "ray groupby": lambda folder, buckets: ray_data(folder, buckets, "groupby"),
    "ray sort": lambda folder, buckets: ray_data(folder, buckets, "sort"),
    "ray alone": idle,
}


def run(way: str, folder: str, buckets: int, said: str) -> None:
    """One way in this very process; what it took goes into the file `said`."""
    import ray

    os.environ |= {"RAY_DATA_USE_DATASOURCE_V2": "0"}
    ray.init(
        num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
        _system_config={"num_workers_soft_limit": 8, "idle_worker_killing_time_threshold_ms": 600_000},
    )  # fmt: skip
    small = Path(tempfile.mkdtemp(dir=folder))
    make_input(small / "in", 4 * buckets, buckets)
    WAYS[way](str(small), buckets)
    began = time.perf_counter()
    found = WAYS[way](folder, buckets)
    Path(said).write_text(json.dumps(found | {"seconds": time.perf_counter() - began}))
    if way == "ours":
        scheduler().close()
    ray.shutdown()


def measured(way: str, folder: Path, buckets: int) -> str:
    said = folder / "said.json"
    command = [sys.executable, "-m", "bench.engine.shuffle", "--run", way, str(folder), str(said), "--buckets"]
    process = subprocess.Popen([*command, str(buckets)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    memory = PeakMemory(process)
    try:
        _, error = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        return f"over {LIMIT_SECONDS} s"
    if process.returncode:
        return f"failed: {error.decode().strip().splitlines()[-1][:90]}"
    found = json.loads(said.read_text())
    out = folder / "out"
    rows = sum(pq.read_metadata(path).num_rows for path in out.glob("*.parquet")) if out.exists() else 0
    work = sum(path.stat().st_size for path in (folder / "work").glob("*")) if (folder / "work").exists() else 0
    return (
        f"{found['seconds']:6.1f} s  {memory.peak_bytes / 2**20:6,.0f} MiB  {found['operations']:6,} operations  "
        f"{found['files']:4} files between, {work / 2**20:,.0f} MiB; {rows:,} rows out"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--buckets", type=int, default=64)
    parser.add_argument("--shard-rows", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--tasks", action="store_true", help="instead: our largest tasks at 230,000 shards")
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print(json.dumps(largest(arguments.task[1], arguments.task[0])))
        return
    if arguments.run:
        way, folder, said = arguments.run
        run(way, folder, arguments.buckets, said)
        return
    line("machine", machine())
    if arguments.tasks:
        tasks()
        return
    for rows in arguments.rows:
        for way in arguments.only:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                make_input(folder / "in", rows, arguments.shard_rows)
                line(f"{rows:,} rows, {way}", "", measured(way, folder, arguments.buckets))
                shutil.rmtree(folder / "in")


if __name__ == "__main__":
    main()
