"""What the engine costs: per shard and stage, against reading and publishing the same files by hand; peak memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from bench.kit.measure import PeakMemory, line, seconds
from curate.core import group as groups
from curate.core.contracts import Artifact, Batch, Fit, Map, Table
from curate.core.group import Group, Part
from curate.core.nouns.pools import read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.backends import Backend
from curate.engine.run import make_backend, run
from tests.engine.toys import Even, Numbers, Parity, PlainPack

SHARDS, ROWS = 200, 10
SMALL, LARGE = 10_000, 100_000


class Nothing(Map):
    """A column of zeros: all that is left is the engine."""

    op: ClassVar[str] = "bench.nothing"
    column: str
    generation: int

    def writes(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(self.column, pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {self.column: np.zeros(len(batch), dtype=np.int64)}


class Vector(Map):
    """A vector of 64 numbers per image, as an encoder returns."""

    op: ClassVar[str] = "bench.vector"
    pixels: ClassVar[bool] = True

    def writes(self) -> tuple[str, ...]:
        return ("brightness", "vector")

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("brightness", pa.float64()), pa.field("vector", pa.binary(128))])

    def prepare(self, sample: Any) -> Any:
        return np.asarray(sample.image(), dtype=np.float32)

    def process(self, batch: Batch) -> dict[str, Any]:
        vectors = [image.reshape(-1)[:64].astype(np.float16).tobytes() for image in batch.prepared]
        return {"brightness": [float(image.mean()) for image in batch.prepared], "vector": vectors}


class Calls(Fit):
    """Calls of a step that does nothing, timed."""

    op: ClassVar[str] = "bench.calls"
    kind: ClassVar[str] = "bench_calls"
    calls: int = 100
    shared_bytes: int = 0
    generation: int = 0

    def load(self, table: Table) -> dict[str, Any]:
        return {"zero": np.zeros(table.num_rows)}

    def fit(self, group: Group) -> Artifact:
        shared = np.zeros(self.shared_bytes, dtype=np.uint8)
        took = [seconds(lambda: list(group.each(rows_of, shared=shared))) for _ in range(self.calls)]
        return {"facts": {"parts": len(group.rows), "seconds": sorted(took)[self.calls // 2]}}


def rows_of(part: Part, shared: Mapping[str, Any]) -> int:
    return part.rows


def chain(stages: int, generation: int) -> Pipeline:
    pipeline = Pipeline()
    pipeline.add("pool", Numbers(namespace="bench", rows=SHARDS * ROWS, shard_rows=ROWS))
    before = "pool"
    for number in range(stages):
        name = f"nothing_{number}"
        pipeline.add(name, Nothing(column=name, generation=generation), before)
        before = name
    return pipeline


def overhead(folder: Path) -> None:
    for engine in ("local", "ray"):
        backend: Backend = make_backend(engine)
        workspace = str(folder / engine)
        run(chain(0, 0), workspace, engine=backend)
        run(chain(1, -1), workspace, engine=backend)
        one = _timed(1, workspace, backend, 0)
        four = _timed(4, workspace, backend, 100)
        line(f"{engine}: one stage, per shard", f"{one / SHARDS * 1e3:.2f} ms", f"{SHARDS} shards of {ROWS} rows")
        line(f"{engine}: each further stage of the pass, per shard", f"{(four - one) / 3 / SHARDS * 1e3:.2f} ms")
        backend.close()
    by_hand = seconds(lambda: _by_hand(folder / "local"))
    line("by hand: read table, publish one parquet, per shard", f"{by_hand / SHARDS * 1e3:.2f} ms", "fsync and rename")


def calls(folder: Path) -> None:
    """A step sent to 8 parts and its results back, with 2 workers on Ray: the fixed cost of an iteration of a fit."""
    least, groups.LEAST_PART_ROWS = groups.LEAST_PART_ROWS, ROWS
    for engine in ("local", "ray"):
        backend: Backend = make_backend(engine, cpus=2)
        for shared_bytes in (0, 16 << 20):
            pipeline = Pipeline().add("pool", Numbers(namespace="bench", rows=8 * ROWS, shard_rows=ROWS))
            pipeline.add("calls", Calls(shared_bytes=shared_bytes), "pool")
            result = run(pipeline, str(folder / f"{engine}-calls"), engine=backend)
            facts = open_storage(result.outputs["calls"]).read_json("facts.json")
            text = f"{facts['parts']} parts, {shared_bytes >> 20} MiB shared, median of 100"
            line(f"{engine}: a call of a group's step", f"{facts['seconds'] * 1e3:.2f} ms", text)
        backend.close()
    groups.LEAST_PART_ROWS = least


def _timed(stages: int, workspace: str, backend: Backend, first: int) -> float:
    generation = iter(range(first, first + 10))
    return seconds(lambda: run(chain(stages, next(generation)), workspace, engine=backend))


def _by_hand(workspace: Path) -> None:
    storage = open_storage(str(workspace))
    [version] = {name.split("/versions/")[1].split("/")[0] for name in storage.list("pools") if "/versions/" in name}
    for shard in read_shards(storage, f"pools/bench/versions/{version}"):
        table = storage.read_table(shard.table, columns=["key"])
        column = pa.table({"zero": np.zeros(table.num_rows, dtype=np.int64)})
        storage.publish_table(f"by_hand/{shard.id}.parquet", column)


def whole(rows: int) -> Pipeline:
    """A pool of small images through one pass, a selection of a tenth and a dataset."""
    pipeline = Pipeline()
    pipeline.add("pool", Numbers(namespace="bench", rows=rows, shard_rows=1000))
    pipeline.add("vector", Vector(), "pool")
    pipeline.add("parity", Parity(units=100), "vector")
    pipeline.add("even", Even(each=rows // 1000), "parity")
    pipeline.add("dataset", PlainPack(shard_rows=1000), "even")
    return pipeline


def memory(folder: Path) -> None:
    for engine in ("local", "ray"):
        peaks: dict[int, int] = {}
        for rows in (SMALL, LARGE):
            command = [
                sys.executable,
                "-m",
                "bench.engine.execution",
                engine,
                str(rows),
                str(folder / f"{engine}{rows}"),
            ]
            with subprocess.Popen(command, env=_environment()) as process:
                peaks[rows] = PeakMemory(process).wait()
            line(
                f"{engine}: peak memory, {rows:,} images",
                f"{peaks[rows] / 2**20:,.0f} MiB",
                "PSS of all processes + /dev/shm",
            )
            shutil.rmtree(folder / f"{engine}{rows}")
        line(f"{engine}: {LARGE:,} against {SMALL:,} images", f"{peaks[LARGE] / peaks[SMALL]:.3f}", "limit 1.15")


def _environment() -> Mapping[str, str]:
    """That of the `curate` command, which is imported before Arrow (see curate/__init__.py)."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-engine-"))
    try:
        overhead(folder)
        calls(folder)
        memory(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        run(whole(int(sys.argv[2])), sys.argv[3], engine=sys.argv[1])
    else:
        main()
