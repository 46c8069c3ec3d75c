"""`Workspace.table` beside pyarrow that reads the same columns by hand, in pairs, and its peak memory.

python -m bench.api.table [ROWS [FOLDER]]    FOLDER keeps the workspace, which takes minutes to make
"""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.kit.measure import load
from curate.api import Pipeline, Workspace
from curate.core.contracts import Batch, Incoming, Map, Portion, Source
from curate.core.nouns.pools import read_shards
from curate.core.vectors import to_binary, vector_type
from curate.engine.run import run

ROWS, SHARDS, WIDTH = 1_000_000, 100, 256
PAIRS = 7
AIM_RATIO, AIM_MEMORY = 1.5, 1.3
COLUMNS = ["score", "length", "vector"]


class Numbers(Source):
    op: ClassVar[str] = "bench.table_rows"
    unique_keys: ClassVar[bool] = True
    shard_rows: int

    def plan(self) -> list[Portion]:
        return [Portion({"shard": shard}, self.shard_rows) for shard in range(SHARDS)]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        first = portion.content["shard"] * self.shard_rows
        for number in range(first, first + self.shard_rows):
            yield Incoming(f"{number:09d}", ext="bin", data=b"-", caption=str(number))


class Scalars(Map):
    op: ClassVar[str] = "bench.table_scalars"

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("score", pa.float32()), pa.field("length", pa.int32())])

    def process(self, batch: Batch) -> dict[str, Any]:
        numbers = [int(value) for value in batch.column("caption")]
        return {"score": np.sin(numbers).astype(np.float32), "length": np.array(numbers, np.int32)}


class Vectors(Scalars):
    op: ClassVar[str] = "bench.table_vectors"

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("vector", vector_type(WIDTH))])

    def process(self, batch: Batch) -> dict[str, Any]:
        first = int(batch.column("caption")[0])
        vectors = np.random.default_rng(first).standard_normal((len(batch), WIDTH), dtype=np.float32)
        return {"vector": to_binary(vectors)[0]}


def by_hand(files: dict[str, list[Path]]) -> pa.Table:
    """Whole files, with all threads of pyarrow; no row is judged."""
    scalars = pa.concat_tables(pq.read_table(file, columns=COLUMNS[:2]) for file in files["scalars"])
    vectors = pa.concat_tables(pq.read_table(file, columns=COLUMNS[2:]) for file in files["vectors"])
    return scalars.append_column("vector", vectors.column(0))


def peak(place: str) -> None:
    """In a separate process: the growth of its peak while it reads, beside the bytes of the result."""
    workspace = Workspace(place)
    assert len(workspace.table("one", "vectors", COLUMNS, limit=1).table) == 1
    before = _most_memory()
    table = workspace.table("one", "vectors", COLUMNS).table
    grown = _most_memory() - before
    print(f"peak memory {grown / 2**20:,.0f} MiB: {grown / table.nbytes:.2f} of the result (at most {AIM_MEMORY})")


def _most_memory() -> int:
    """Bytes. Unlike `ru_maxrss`, it does not begin with the memory of the parent."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main(rows: int = ROWS, folder: str = "") -> None:
    with contextlib.nullcontext(folder) if folder else tempfile.TemporaryDirectory() as place:
        measure(rows, place)


def measure(rows: int, folder: str) -> None:
    made = Pipeline().add("pool", Numbers(namespace="bench", shard_rows=rows // SHARDS))
    made.add("scalars", Scalars(), "pool").add("vectors", Vectors(), "scalars")
    began = time.perf_counter()
    if not Path(folder, "runs/one").exists():
        run(made.check(), folder, run_id="one")
    print(f"{rows:,} rows in {SHARDS} shards, made in {time.perf_counter() - began:.0f} s; {load()}", flush=True)
    workspace = Workspace(folder)
    record = workspace.run("one").record
    shards = read_shards(record.storage, record.outputs["pool"]["base"])
    files = {
        name: [Path(folder, record.outputs[name]["path"], shard.id, "000001.parquet") for shard in shards]
        for name in ("scalars", "vectors")
    }
    table, hand = workspace.table("one", "vectors", COLUMNS).table, by_hand(files)
    assert len(table) == rows and table.select(COLUMNS[:2]).equals(hand.select(COLUMNS[:2]))
    del table, hand
    ours, theirs = list[float](), list[float]()
    for _ in range(PAIRS):
        ours.append(_seconds(lambda: workspace.table("one", "vectors", COLUMNS)))
        theirs.append(_seconds(lambda: by_hand(files)))
    ratio = statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
    both = f"table {statistics.median(ours):.2f} s, by hand {statistics.median(theirs):.2f} s"
    print(f"{both}: {ratio:.2f} (at most {AIM_RATIO})", flush=True)
    subprocess.run([sys.executable, "-m", "bench.api.table", "--peak", folder], check=True)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        peak(sys.argv[2])
    else:
        main(*map(int, sys.argv[1:2]), *sys.argv[2:])
