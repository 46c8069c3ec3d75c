"""Toy stages over rows: a source of images drawn from a seed, Maps and Filters."""

from __future__ import annotations

import hashlib
import io
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from curate.core.contracts import (
    Artifact,
    Batch,
    Filter,
    Incoming,
    Map,
    Portion,
    Resources,
    Runtime,
    Sample,
    Source,
    Table,
)
from curate.core.errors import Reject


def image(number: int, side: int = 8) -> bytes:
    """A BMP of hashed noise: the same bytes with any version of any library."""
    noise = np.frombuffer(hashlib.shake_128(str(number).encode()).digest(side * side * 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise.reshape(side, side, 3)).save(out, "BMP")
    return out.getvalue()


class Numbers(Source):
    """`rows` images drawn from their numbers; multiples of `broken` are corrupt; `gaps` are empty portions."""

    op: ClassVar[str] = "toy.numbers"
    rows: Annotated[int, Runtime()] = 40
    shard_rows: int = 10
    broken: int = 0
    repeat: int = 0
    same: bool = False
    refused: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()
    gaps: tuple[int, ...] = ()
    side: int = 8

    def plan(self) -> list[Portion]:
        starts = range(0, self.rows, self.shard_rows)
        stops = {a: a if a // self.shard_rows in self.gaps else min(a + self.shard_rows, self.rows) for a in starts}
        return [Portion({"start": start, "stop": stop}, stop - start) for start, stop in stops.items()]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        if portion.content["start"] // self.shard_rows in self.unreadable:
            raise OSError("the source cannot be read")
        for number in range(portion.content["start"], portion.content["stop"]):
            number = number % self.shard_rows if self.same else number
            data = b"no picture" if self.broken and number % self.broken == 0 else image(number, self.side)
            name = number % self.repeat if self.repeat else number
            reject = "unwanted" if number in self.refused else None
            facts = {"caption": f"picture {number}", "meta": {"number": number}, "reject": reject}
            yield Incoming(f"{name:06d}", ext="bmp", data=data, **facts)


class Brightness(Map):
    """Mean of all pixels."""

    op: ClassVar[str] = "toy.brightness"
    pixels: ClassVar[bool] = True
    batch_rows: ClassVar[int] = 4
    column: str = "brightness"
    threads: Annotated[int, Runtime()] = 2

    def resources(self) -> Resources:
        """One CPU for all stages, so that they share Ray workers."""
        return Resources(cpus=1)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(self.column, pa.float64())])

    def prepare(self, sample: Sample) -> NDArray[np.uint8]:
        return np.asarray(sample.image())

    def process(self, batch: Batch) -> dict[str, Any]:
        values = [float(image.mean()) for image in batch.prepared]
        batch.counters["seen"] += len(batch)
        return {self.column: values}


class Light(Filter):
    """Rejects images darker than a number."""

    op: ClassVar[str] = "toy.light"
    darkest: float = 0.0
    column: str = "brightness"

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def keep(self, table: Table) -> Any:
        return ["too_dark" if value < self.darkest else None for value in table.column(self.column).to_pylist()]


class Costly(Brightness):
    """Brightness, but costly. With a `gate` it waits there for a test; with a `log` it logs its keys."""

    op: ClassVar[str] = "toy.costly"
    costly: ClassVar[bool] = True
    column: str = "dear"
    gate: Annotated[str, Runtime()] = ""
    log: Annotated[str, Runtime()] = ""

    def process(self, batch: Batch) -> dict[str, Any]:
        if self.gate:
            Path(self.gate, "arrived").write_text("here")
            Path(self.gate, "go").read_text()
        if self.log:
            with open(self.log, "a") as file:
                file.writelines(f"{key}\n" for key in batch.column("key"))
        return super().process(batch)


class Shifted(Brightness):
    """Brightness plus a number: another stage that writes the same column."""

    op: ClassVar[str] = "toy.shifted"
    shift: float = 0.0

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"brightness": [float(image.mean()) + self.shift for image in batch.prepared]}


class Divided(Brightness):
    """Raises in `identity`: a bug, not an input."""

    op: ClassVar[str] = "toy.divided"

    def identity(self) -> dict[str, Any]:
        return {"share": 1 / 0}


class Parity(Map):
    """The unit of a key, one of `units`. Reads the column of Brightness."""

    op: ClassVar[str] = "toy.parity"
    batch_rows: ClassVar[int] = 4
    units: int = 3
    reads_column: str = "brightness"

    def reads(self) -> tuple[str, ...]:
        return (self.reads_column, "caption")

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("unit_of", pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        assert all(value is not None for value in batch.column(self.reads_column))
        return {"unit_of": [int(key[:4], 16) % self.units for key in batch.column("key")]}


class Bad(Map):
    """Fails on the samples of given numbers: `raise`, `kill` or `reject`."""

    op: ClassVar[str] = "toy.bad"
    pixels: ClassVar[bool] = True
    batch_rows: ClassVar[int] = 8
    how: str = "raise"
    numbers: tuple[int, ...] = ()
    threads: Annotated[int, Runtime()] = 1

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("fine", pa.bool_())])

    def prepare(self, sample: Sample) -> str:
        return hashlib.sha256(sample.data).hexdigest()

    def process(self, batch: Batch) -> dict[str, Any]:
        numbers = {int(caption.split()[-1]) for caption in batch.column("caption")}
        if numbers & set(self.numbers):
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "reject":
                raise Reject("disliked")
            raise ValueError(f"cannot digest {sorted(numbers & set(self.numbers))}")
        return {"fine": [True] * len(batch)}


class Brighter(Map):
    """Brightness as a share of the pool's mean (an artifact)."""

    op: ClassVar[str] = "toy.brighter"
    ports: ClassVar[dict[str, str]] = {"total": "toy_total"}
    _mean: float = 0.0

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        self._mean = float(artifacts["total"]["mean"][0])

    def reads(self) -> tuple[str, ...]:
        return ("brightness",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("contrast", pa.float64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        values = [value / self._mean for value in batch.column("brightness")]
        return {"contrast": values}


class Contrasty(Filter):
    """Rejects images with less contrast than a share of the pool's mean."""

    op: ClassVar[str] = "toy.contrasty"
    share: float = 0.5

    def reads(self) -> tuple[str, ...]:
        return ("contrast",)

    def keep(self, table: Table) -> Any:
        return ["dim" if value < self.share else None for value in table.column("contrast").to_pylist()]
