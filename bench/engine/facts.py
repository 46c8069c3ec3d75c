"""The cost of seeing that no fact is missing, and of writing a table that mostly copies the one before.

python -m bench.engine.facts [SHARDS]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from curate.core.contracts import Batch, Filter, Incoming, Map, Portion, Source, Table
from curate.core.nouns import facts
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage
from curate.engine import run as running
from curate.engine.passes import plan as pass_plan
from curate.engine.passes.build import PassBuild
from tests.engine.toys import Total

SHARDS, SHARD_ROWS = 1000, 50
AIM_MS, AIM_RATIO = 1.0, 0.5
TABLE_ROWS, WIDTH, NEW = 20_000, 768, 0.01
REPEATS = 7
MEMORY = Path("/dev/shm")


class Numbers(Source):
    op: ClassVar[str] = "bench.numbers"
    unique_keys: ClassVar[bool] = True
    shards: int = SHARDS

    def plan(self) -> list[Portion]:
        return [Portion({"shard": shard}, SHARD_ROWS) for shard in range(self.shards)]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        first = portion.content["shard"] * SHARD_ROWS
        for number in range(first, first + SHARD_ROWS):
            yield Incoming(f"{number:09d}", ext="bin", data=b"-", caption=str(number))


class Score(Map):
    """A number out of another column's."""

    op: ClassVar[str] = "bench.score"
    reads_column: str = "caption"
    column: str = "brightness"

    def reads(self) -> tuple[str, ...]:
        return (self.reads_column,)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(self.column, pa.float64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {self.column: [float(value) % 1000 for value in batch.column(self.reads_column)]}


class CostlyScore(Score):
    op: ClassVar[str] = "bench.dear_score"
    costly: ClassVar[bool] = True


class Least(Filter):
    op: ClassVar[str] = "bench.least"
    least: float = 0.0

    def reads(self) -> tuple[str, ...]:
        return ("brightness",)

    def keep(self, table: Table) -> Any:
        return ["low" if value < self.least else None for value in table.column("brightness").to_pylist()]


def pipeline(shards: int, least: float = 0.0) -> Pipeline:
    made = Pipeline().add("pool", Numbers(namespace="bench", shards=shards)).add("score", Score(), "pool")
    made.add("least", Least(least=least), "score")
    made.add("second", Score(column="second"), "least")
    made.add("dear", CostlyScore(reads_column="second", column="dear"), "second")
    return made.add("total", Total(), "dear").check()


class Clock:
    """Seconds spent in methods, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*given, **named)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        setattr(owner, name, timed)


def deciding(folder: Path, shards: int) -> None:
    """A run that finds everything, and one with another threshold that lacks nothing."""
    place, clock = str(folder / "workspace"), Clock()
    clock.watch(pass_plan, "survey")
    clock.watch(PassBuild, "reuse")
    clock.watch(PassBuild, "build")
    stages = 4
    print(
        f"\n{shards:,} shards of {SHARD_ROWS} rows, a pass of {stages} stages; aim: {AIM_MS:.0f} ms a shard and stage"
    )
    print(f"{'':<44}{'survey':>12}{'reuse':>10}{'build':>10}{'whole run':>12}   ms a shard and stage")
    cases = {"first run, everything computed": 0.0, "the same again": 0.0, "another threshold, nothing lacking": 100.0}
    for name, least in cases.items():
        clock.seconds.clear()
        began = time.perf_counter()
        result = running.run(pipeline(shards, least), place)
        whole = time.perf_counter() - began
        computed = sum(said["computed"] for said in result.stages().values())
        assert (computed > 0) == name.startswith("first"), result.stages()
        figures = [clock.seconds.get(part, 0.0) for part in ("survey", "reuse", "build")]
        each = [f"{seconds * 1e3 / shards / stages:.3f}" for seconds in (*figures, whole)]
        print(f"{name:<44}{each[0]:>12}{each[1]:>10}{each[2]:>10}{each[3]:>12}")


# --- copying ---


def rows_of(rows: np.ndarray, rng: np.random.Generator, costly: bool = True) -> pa.Table:
    """A table of facts with an embedding of `WIDTH` halves."""
    vectors = rng.standard_normal((len(rows), WIDTH)).astype(np.float16)
    kind = pa.binary(WIDTH * 2)
    column = pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(vectors.tobytes())])
    columns = pa.table([column], names=["embedding"])
    inputs = np.array([rng.bytes(16) for _ in rows], object) if costly else None
    status, marked = np.zeros(len(rows), np.int8), np.zeros(len(rows), bool)
    return facts.build(rows, status, [None] * len(rows), marked, columns, inputs)


def copying(folder: Path) -> None:
    """Table 2 holds the rows of table 1 and 1 % more, at the end (a growing shard) or all over it (a looser filter)."""
    storage, rng = Storage(str(folder / "facts")), np.random.default_rng(0)
    rows = np.arange(TABLE_ROWS, dtype=np.int64)
    print(f"\nA table of {TABLE_ROWS:,} rows of {WIDTH} halves, 99 % copied; aim: {AIM_RATIO} of a file copy's rate")
    print(f"{'new rows':<18}{'MB':>8}{'read':>10}{'publish':>10}{'both':>10}{'copyfile':>10}   s{'ratio':>10}")
    spread = np.zeros(TABLE_ROWS, bool)
    spread[rng.choice(TABLE_ROWS, int(TABLE_ROWS * NEW), replace=False)] = True
    for name, new in (("at the end", rows >= TABLE_ROWS * (1 - NEW)), ("all over", spread)):
        base, fresh = rows_of(rows[~new], rng), rows_of(rows[new], rng)
        times: dict[str, float] = {}
        for _ in range(REPEATS):
            shutil.rmtree(folder / "facts", ignore_errors=True)
            facts.publish(storage, "f", "shard", 0, None, base, facts.Notes())
            held = best(times, "read", lambda: facts.read(storage, "f", "shard", 1))
            again = partial(facts.publish, storage, "f", "shard", 1, held, fresh, facts.Notes())
            best(times, "publish", again)
            path = Path(storage.path(facts.table_path("f", "shard", 2)))
            best(times, "copy", partial(copy, path, folder / "copy"))
        both = times["read"] + times["publish"]
        size = path.stat().st_size / 1e6
        figures = [f"{seconds:.3f}" for seconds in (times["read"], times["publish"], both, times["copy"])]
        print(f"{name:<18}{size:>8.1f}" + "".join(f"{f:>10}" for f in figures) + f"{times['copy'] / both:>14.2f}")


def copy(path: Path, to: Path) -> None:
    """What the ratio is against: the file copied, and safe on the disk."""
    shutil.copyfile(path, to)
    with to.open("rb") as file:
        os.fsync(file.fileno())


def best(times: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    """Best of several runs: what else the machine does only ever adds."""
    began = time.perf_counter()
    made = work()
    times[name] = min(times.get(name, float("inf")), time.perf_counter() - began)
    return made


def main(shards: int = SHARDS) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        deciding(Path(folder), shards)
    with tempfile.TemporaryDirectory() as folder:
        copying(Path(folder))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
