"""Toy stages of every contract for `bench.engine.scale`: they compute next to nothing, to measure the engine."""

from __future__ import annotations

import struct
import time
from collections.abc import Hashable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.contracts import (
    Artifact,
    AsyncMap,
    Batch,
    Child,
    Client,
    Derive,
    Filter,
    Fit,
    Incoming,
    Map,
    Pack,
    Packed,
    Portion,
    Reduce,
    Report,
    Resources,
    Runtime,
    Sample,
    Select,
    Source,
    Table,
)
from curate.core.group import Group, Part
from curate.core.hashing import key_words, ranks
from curate.core.reader import Reader
from curate.core.recipe.pipeline import Pipeline

SHARE = 0.087
"""Share of rows that a selection takes: OpenLVD's 200 million of 2.3 billion."""
HEADER = struct.pack("<2sIHHI", b"BM", 58, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 1, 1, 1, 24, 0, 4, 0, 0, 0, 0)


def member(number: int) -> bytes:
    """A BMP of one pixel."""
    return HEADER + struct.pack("<I", number & 0xFFFFFF)


class Pool(Source):
    """Images of one pixel."""

    op: ClassVar[str] = "simulated.pool"
    unique_keys: ClassVar[bool] = True
    shards: Annotated[int, Runtime()]
    shard_rows: int = 40

    def plan(self) -> list[Portion]:
        return [Portion({"shard": shard}, self.shard_rows) for shard in range(self.shards)]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        first = portion.content["shard"] * self.shard_rows
        for number in range(first, first + self.shard_rows):
            yield Incoming(self.source_id(number), ext="bmp", data=member(number), caption=f"image {number}")

    def source_id(self, number: int) -> str:
        return str(number)


class Repeating(Pool):
    """The same, of which one in 4,000 keys is that of an earlier row, so that some shards are amended."""

    op: ClassVar[str] = "simulated.repeating"
    unique_keys: ClassVar[bool] = False

    def source_id(self, number: int) -> str:
        return str(number // 2 if number % 4000 == 2001 else number)


class Cheap(Map):
    """A number and a unit for each row."""

    op: ClassVar[str] = "simulated.cheap"
    units: int = 64

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("score", pa.float64()), pa.field("unit_of", pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        words = key_words(batch.column("key"))[:, 0]
        return {"score": words.astype(np.float64) / 2.0**64, "unit_of": (words % self.units).astype(np.int64)}


class Sleeping(Cheap):
    """Holds a GPU and does nothing on it for some seconds a batch; writes down from when to when (`log`)."""

    op: ClassVar[str] = "simulated.sleeping"
    batch_rows: ClassVar[int] = 32
    seconds: float = 0.25
    log: Annotated[str, Runtime()] = ""

    def resources(self) -> Resources:
        return Resources(cpus=1, gpus=1)

    def process(self, batch: Batch) -> dict[str, Any]:
        began = time.time()
        time.sleep(self.seconds)
        with open(self.log, "a") as file:
            file.write(f"{began} {time.time()}\n")
        return super().process(batch)


class Spinning(Cheap):
    """Keeps a core busy."""

    op: ClassVar[str] = "simulated.spinning"
    seconds: float = 0.005
    """Seconds of a core, per row."""

    def process(self, batch: Batch) -> dict[str, Any]:
        until = time.thread_time() + self.seconds * len(batch)
        while time.thread_time() < until:
            sum(range(1000))
        return super().process(batch)


class Costly(Map):
    """Looked up by the values it reads before it is computed."""

    op: ClassVar[str] = "simulated.costly"
    costly: ClassVar[bool] = True

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("letters", pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"letters": [len(caption) for caption in batch.column("caption")]}


class Passing(Filter):
    """Rejects the rows whose score is too low."""

    op: ClassVar[str] = "simulated.passing"
    least: float = 0.05

    def reads(self) -> tuple[str, ...]:
        return ("score",)

    def keep(self, table: Table) -> Any:
        return ["too_low" if value < self.least else None for value in table.column("score").to_pylist()]


class InstantService(AsyncMap):
    """A service that answers at once and without a network."""

    op: ClassVar[str] = "simulated.asked"

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("said", pa.string())])

    def request(self, row: Mapping[str, Any]) -> Hashable | None:
        return str(row["caption"])

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        return {"said": f"this is {request}"}


class Parts(Derive):
    """A child of one in ten images."""

    op: ClassVar[str] = "simulated.parts"
    child_kind: ClassVar[str] = "part"

    def children(self, sample: Sample) -> Iterator[Child]:
        if int(str(sample.row["caption"]).split()[-1]) % 10 == 0:
            yield Child({"part": 0}, sample.data, "bmp")


class Total(Reduce):
    """Rows and the sum of scores."""

    op: ClassVar[str] = "simulated.total"
    kind: ClassVar[str] = "simulated_total"

    def reads(self) -> tuple[str, ...]:
        return ("score",)

    def partial(self, table: Table) -> Table:
        return pa.table({"rows": [table.num_rows], "sum": [float(np.sum(table.column("score").to_numpy()))]})

    def merge(self, states: Iterator[Table]) -> Table:
        whole = pa.concat_tables(list(states))
        return pa.table({name: [whole.column(name).to_numpy().sum()] for name in whole.column_names})

    def finish(self, state: Table) -> Artifact:
        return {"facts": {name: float(state.column(name).to_numpy().sum()) for name in state.column_names}}


class Means(Fit):
    """K-means of 16 centroids over toy vectors (n, 16), three rounds, and a regrouping by cell."""

    op: ClassVar[str] = "simulated.means"
    kind: ClassVar[str] = "simulated_means"
    rounds: int = 3

    def reads(self) -> tuple[str, ...]:
        return ("score",)

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        words = key_words(table.column("key").to_pylist())
        return {"vector": words.view(np.uint8).reshape(-1, 16).astype(np.float16)}

    def fit(self, group: Group) -> Artifact:
        means = np.random.default_rng(0).uniform(0, 255, (16, 16))
        for _ in range(self.rounds):
            found = list(group.each(add_up, means=means))
            total, count = sum(one for one, _ in found), sum(one for _, one in found)
            means = total / np.maximum(count, 1)[:, None]
        cells = group.partition("cells", to_cells, 16, means=means)
        return {"means": means, "facts": {"rows": [int(rows) for rows in cells.rows]}}


def nearest(vectors: NDArray[Any], means: NDArray[Any]) -> NDArray[np.int64]:
    """vectors (n, 16), means (k, 16) -> the nearest of each row (n,)."""
    return np.argmin((means**2).sum(1) - 2 * vectors.astype(np.float64) @ means.T, axis=1)


def add_up(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    vectors = part.arrays["vector"]
    cell, total = nearest(vectors, shared["means"]), np.zeros((16, 16))
    np.add.at(total, cell, vectors.astype(np.float64))
    return total, np.bincount(cell, minlength=16)


def to_cells(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    return nearest(part.arrays["vector"], shared["means"]), dict(part.arrays)


class Share(Select):
    """The same share of each unit, by rank."""

    op: ClassVar[str] = "simulated.share"
    share: float = SHARE

    def reads(self) -> tuple[str, ...]:
        return ("unit_of",)

    def deal(self, table: Table) -> Table:
        return table.rename_columns({"unit_of": "unit"})

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ceil(counts * self.share).astype(np.int64)

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        units = lines.column("unit").to_numpy()
        order = np.lexsort((ranks(0, lines.column("key").to_pylist()), units))
        starts = np.searchsorted(units[order], np.arange(len(quotas)))
        copies = np.zeros(lines.num_rows, dtype=np.int32)
        copies[order] = np.arange(lines.num_rows) - starts[units[order]] < quotas[units[order]]
        return {"copies": copies, "reject": [None if copy else "not_sampled" for copy in copies]}


class Later(Cheap):
    """A Map downstream of the selection."""

    op: ClassVar[str] = "simulated.later"

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("later", pa.float64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"later": super().process(batch)["score"]}


class Strict(Passing):
    """A Filter downstream of the selection."""

    op: ClassVar[str] = "simulated.strict"

    def reads(self) -> tuple[str, ...]:
        return ("later",)

    def keep(self, table: Table) -> Any:
        return ["too_high" if value > 1 - self.least else None for value in table.column("later").to_pylist()]


class Dataset(Pack):
    op: ClassVar[str] = "simulated.dataset"
    name: str = "simulated"
    shard_rows: int = 1000

    def write(self, row: Mapping[str, Any], data: Reader, add: Any) -> Packed:
        return Packed(row["ext"], add(f"{row['key']}-{row['copy']}.{row['ext']}", data), data.size)


class Page(Report):
    """Reads a column of a bounded number of shards."""

    op: ClassVar[str] = "simulated.page"

    def render(self, view: Any) -> dict[str, bytes]:
        rows = sum(table.num_rows for table in view.tables(["score"], shards=64))
        return {"index.txt": f"{rows} rows\n".encode()}


STEPS: dict[str, int] = {
    "pool": 0,
    "repeating": 1,
    "cheap": 1,
    "costly": 2,
    "passing": 3,
    "asked": 2,
    "parts": 3,
    "total": 3,
    "means": 3,
    "share": 3,
    "later": 2,
    "strict": 3,
    "dataset": 3,
    "page": 3,
}
"""Steps in the order in which they are built -> files of each shard that were made before and that they have to read:
the pool's table (and tar), those of the columns, and the mask or the selection. Each adds an operation per shard to
what a step may cost."""
PER_UNIT = {"costly": 2, "asked": 5}
"""Operations of a unit of at least 1,000 rows, however many shards it has: logs and indexes of answers. In pools of
small shards they are few per shard."""


def pipeline(last: str, shards: int, rows: int) -> Pipeline:
    """Everything up to and including a step, so that a run builds this step and reuses the others."""
    source = {"shards": shards, "shard_rows": rows}
    if last == "repeating":
        return Pipeline().add("repeating", Repeating(namespace="repeating", **source)).check()
    made = Pipeline()
    stages: dict[str, tuple[Any, tuple[str, ...]]] = {
        "pool": (Pool(namespace="simulated", **source), ()),
        "cheap": (Cheap(), ("pool",)),
        "costly": (Costly(), ("pool",)),
        "passing": (Passing(), ("cheap", "costly")),
        "asked": (InstantService(), ("passing",)),
        "parts": (Parts(namespace="parts"), ("passing",)),
        "total": (Total(), ("passing",)),
        "means": (Means(), ("passing",)),
        "share": (Share(), ("passing",)),
        "later": (Later(), ("share",)),
        "strict": (Strict(), ("later",)),
        "dataset": (Dataset(), ("strict",)),
        "page": (Page(), ("dataset",)),
    }
    for name, (stage, inputs) in stages.items():
        made.add(name, stage, inputs)
        if name == last:
            break
    return made.check()
