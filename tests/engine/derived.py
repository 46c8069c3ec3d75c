"""A toy Derive and its pipelines: tiles of an image become samples."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa

from curate.codec.tars import read_spans
from curate.core.contracts import Batch, Child, Derive, Map, Resources, Runtime, Sample
from curate.core.errors import Reject
from curate.core.nouns.pools import Shard, read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import Result
from curate.engine.state import Options
from tests.engine import toys

STRICT, LOOSE = 128.0, 126.0
"""Thresholds that 9 and 10 of the twenty parents pass."""
ALL = Options(failure_budget=1.0)


class Tiles(Derive):
    """`each` columns of an image as images; does something else with the images of given numbers."""

    op: ClassVar[str] = "toy.tiles"
    child_kind: ClassVar[str] = "tile"
    namespace: str = "tiles"
    each: int = 2
    refused: tuple[int, ...] = ()
    twice: tuple[int, ...] = ()
    none: tuple[int, ...] = ()
    killing: tuple[int, ...] = ()
    broken: Annotated[tuple[int, ...], Runtime()] = ()
    log: Annotated[str, Runtime()] = ""
    hanging: Annotated[tuple[int, ...], Runtime()] = ()

    def resources(self) -> Resources:
        return Resources(cpus=1)

    def children(self, sample: Sample) -> Iterator[Child]:
        number = int(str(sample.row["caption"]).split()[-1])
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{number}\n")
        if number in self.killing:
            os.kill(os.getpid(), signal.SIGKILL)
        if number in self.hanging:
            time.sleep(3600)
        if number in self.none:
            return
        image = sample.image()
        width = image.width // self.each
        for place in range(self.each):
            out = io.BytesIO()
            image.crop((place * width, 0, (place + 1) * width, image.height)).save(out, "BMP")
            span = {"left": 0 if number in self.twice else place * width}
            yield Child(span, out.getvalue(), "bmp", {"tile": place})
        if number in self.refused:
            raise Reject("unwanted")
        if number in self.broken:
            raise ValueError(f"cannot cut {number}")


class Clips(Derive):
    """A child with the bytes of its parent for each of the parent's frames, at most three."""

    op: ClassVar[str] = "toy.clips"
    child_kind: ClassVar[str] = "clip"
    namespace: str = "clips"

    def reads(self) -> tuple[str, ...]:
        return ("counted",)

    def children(self, sample: Sample) -> Iterator[Child]:
        for place in range(min(3, 1 + sample.row["counted"])):
            yield Child({"place": place}, sample.data, "bin")


class Above(Map):
    """A fact of the parent as one of the child."""

    op: ClassVar[str] = "toy.above"

    def reads(self) -> tuple[str, ...]:
        return ("parent.counted", "parent.sha256", "sha256")

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("above", pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        assert batch.column("parent.sha256") == batch.column("sha256")
        return {"above": batch.column("parent.counted")}


class Every(toys.Even):
    """All rows."""

    op = "toy.every"

    def reads(self) -> tuple[str, ...]:
        return ()

    def target_rows(self) -> int | None:
        return None

    def deal(self, table: pa.Table) -> pa.Table:
        return table

    def plan(self, counts: Any) -> Any:
        return counts

    def pick(self, lines: pa.Table, counts: Any, quotas: Any) -> dict[str, Any]:
        return {"copies": [1] * lines.num_rows, "reject": [None] * lines.num_rows}


class Plain(toys.PlainPack):
    op = "toy.plain"

    def reads(self) -> tuple[str, ...]:
        return ()

    def write(self, row: Any, data: bytes, add: Any) -> Any:
        return super().write({**row, "unit_of": 0}, data, add)


def computed(log: Path) -> list[int]:
    """Numbers of the parents whose children were computed, in order; clears the log."""
    found = [int(line) for line in log.read_text().split()] if log.exists() else []
    log.unlink(missing_ok=True)
    return found


def pipeline(**changes: Any) -> Pipeline:
    """Numbers -> brightness, light -> tiles -> their brightness, parity -> even -> pack -> page;
    `stage__parameter=value` changes one."""
    made = Pipeline()
    for name, (cls, inputs) in STAGES.items():
        values = {key.partition("__")[2]: value for key, value in changes.items() if key.startswith(f"{name}__")}
        if cls is toys.Numbers:
            values = {"namespace": "toys", "rows": 20, "shard_rows": 5} | values
        made.add(name, cls(**values), inputs)
    return made.check()


STAGES: dict[str, Any] = {
    "pool": (toys.Numbers, ()),
    "bright": (toys.Brightness, ("pool",)),
    "light": (toys.Light, ("bright",)),
    "tiles": (Tiles, ("light",)),
    "shade": (toys.Brightness, ("tiles",)),
    "lit": (toys.Light, ("shade",)),
    "parity": (toys.Parity, ("lit",)),
    "total": (toys.Total, ("parity",)),
    "even": (toys.Even, ("parity",)),
    "dataset": (toys.PlainPack, ("even",)),
    "page": (toys.Page, ("dataset",)),
}


def shards(workspace: Path, run_id: str | None = None) -> list[Shard]:
    """Shards of a run's derived pool; without a run, the last run's."""
    storage = open_storage(str(workspace))
    return read_shards(storage, latest(storage, run_id).outputs["tiles"]["base"])


def rows(workspace: Path) -> list[dict[str, Any]]:
    """Rows of all shards of the derived pool, in order, with their `data`."""
    storage, found = open_storage(str(workspace)), list[dict[str, Any]]()
    for shard in shards(workspace):
        lines = storage.read_table(shard.table).to_pylist()
        spans = [(line["offset"], line["size"]) for line in lines]
        data = read_spans(storage.fs, storage.path(shard.tar), spans, shard.tar_bytes)
        found += [line | {"data": part, "shard": shard.id} for line, part in zip(lines, data, strict=True)]
    return found


def number_of(row: dict[str, Any]) -> int:
    return int(row["caption"].split()[-1])


def members(result: Result) -> list[dict[str, Any]]:
    """The index of the run's dataset."""
    return open_storage(result.outputs["dataset"]).read_table("index.parquet").to_pylist()


def alive(workspace: Path) -> list[dict[str, Any]]:
    """Rows of the last run's derived pool whose parent is alive."""
    record = latest(open_storage(str(workspace)), None)
    stories = {row["key"]: explain(record, row["key"])[0][2]["reject"] for row in rows(workspace)}
    return [row for row in rows(workspace) if stories[row["key"]] is None]
