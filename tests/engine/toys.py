"""Small real stages for the engine's own tests: pictures out of a seed, brightness, parity, a balance, a plain pack."""

from __future__ import annotations

import hashlib
import io
import os
import signal
from collections.abc import Callable, Iterator, Mapping
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
    Stage,
    Table,
)
from curate.core.errors import Reject, TargetError
from curate.core.group import Group, Part
from curate.core.hashing import rank_below, ranks
from curate.core.recipe.pipeline import Pipeline


def picture(number: int, side: int = 8) -> bytes:
    """A BMP of hashed noise: the same bytes with any version of any library."""
    noise = np.frombuffer(hashlib.shake_128(str(number).encode()).digest(side * side * 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise.reshape(side, side, 3)).save(out, "BMP")
    return out.getvalue()


class Numbers(Source):
    """`rows` pictures out of their numbers; those divisible by `broken` are no pictures, `gaps` are empty portions."""

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
            data = b"no picture" if self.broken and number % self.broken == 0 else picture(number, self.side)
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
        """One CPU for all stages: their workers on Ray are the same, and none has to be started again."""
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
    """Rejects what is darker than a number."""

    op: ClassVar[str] = "toy.light"
    darkest: float = 0.0
    column: str = "brightness"

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def keep(self, table: Table) -> Any:
        return ["too_dark" if value < self.darkest else None for value in table.column(self.column).to_pylist()]


class Costly(Brightness):
    """The same, and dear; with a `gate` it waits there for a test, and with a `log` it notes what it computes."""

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
    """Brightness and a bit: another stage that writes the same column."""

    op: ClassVar[str] = "toy.shifted"
    shift: float = 0.0

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"brightness": [float(image.mean()) + self.shift for image in batch.prepared]}


class Divided(Brightness):
    """Cannot even say what decides its output: a bug, not an input."""

    op: ClassVar[str] = "toy.divided"

    def identity(self) -> dict[str, Any]:
        return {"share": 1 / 0}


class Parity(Map):
    """Which of `units` units a key falls into. Reads what Brightness wrote."""

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
    """Does something wrong to the samples of given numbers: `raise`, `kill` or `reject`."""

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


class Total(Reduce):
    """Live rows and the sum of a column."""

    op: ClassVar[str] = "toy.total"
    kind: ClassVar[str] = "toy_total"
    reads_column: str = "brightness"

    def reads(self) -> tuple[str, ...]:
        return (self.reads_column,)

    def partial(self, table: Table) -> Table:
        return pa.table({"rows": [table.num_rows], "sum": [float(np.sum(table.column(self.reads_column).to_numpy()))]})

    def finish(self, state: Table) -> Artifact:
        rows, total = state.column("rows").to_numpy().sum(), state.column("sum").to_numpy().sum()
        return {"mean": np.array([total / max(1, rows)]), "facts": {"rows": int(rows)}}


class Means(Fit):
    """Means of rows by brightness, moved in `rounds` passes: steps, a checkpoint per pass, a regrouping, a scatter and
    stored arrays. Notes each pass that it does in a `log`; with a `gate` it waits there before its second pass."""

    op: ClassVar[str] = "toy.means"
    kind: ClassVar[str] = "toy_means"
    units: int = 3
    rounds: int = 3
    share: float = 1.0
    reads_column: str = "brightness"
    bad: str = ""
    log: Annotated[str, Runtime()] = ""
    gate: Annotated[str, Runtime()] = ""
    threads: Annotated[int, Runtime()] = 1

    def reads(self) -> tuple[str, ...]:
        return (self.reads_column,)

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        rank = ranks(0, table.column("key").to_pylist())
        values = table.column(self.reads_column).to_numpy()[rank_below(rank, self.share)]
        shard = (table.schema.metadata or {})[b"shard"].decode()
        wide = self.bad == "shape" and int(shard[:4], 16) % 2 == 1
        vectors = np.repeat(values[:, None], 3 if wide else 2, axis=1).astype(np.float16)
        return {"value": values, "vector": vectors}

    def fit(self, group: Group) -> Artifact:
        state = group.restored() or {"round": 0, "means": np.linspace(110, 140, self.units), "sums": []}
        means, sums = state["means"], state["sums"]
        for number in range(state["round"], self.rounds):
            group.tell(number / self.rounds, f"round {number}")
            if self.gate and number == 1:
                Path(self.gate, "arrived").write_text("here")
                Path(self.gate, "go").read_text()
            total, count = np.zeros(self.units), np.zeros(self.units)
            for part_total, part_count in group.each(add_up, means=means, bad=self.bad):
                total, count = total + part_total, count + part_count
            means = np.where(count > 0, total / np.maximum(count, 1), means)
            sums.append(float(total.sum()))
            if self.log:
                with open(self.log, "a") as file:
                    file.write(f"{number}\n")
            group.save({"round": number + 1, "means": means, "sums": sums})
        cells = group.partition("cells", nearest_mean, self.units, means=means)
        spread = [float(value) for value in cells.each(keep_sorted)]
        again = sum(float(value) for value in cells.stored("sorted").each(whole))
        few = group.scatter("few", {"mean": means})
        facts = {"rows": [int(n) for n in cells.rows], "spread": spread, "sums": sums, "again": again}
        return {"means": means, "facts": facts | {"scattered": [float(v) for v in few.each(whole_means)]}}


def add_up(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if shared["bad"] == "step":
        raise ValueError("cannot add this up")
    unit = np.abs(part.arrays["value"][:, None] - shared["means"]).argmin(axis=1)
    size = len(shared["means"])
    return np.bincount(unit, part.arrays["value"], minlength=size), np.bincount(unit, minlength=size).astype(float)


def nearest_mean(part: Part, shared: Mapping[str, Any]) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    return np.abs(part.arrays["value"][:, None] - shared["means"]).argmin(axis=1), dict(part.arrays)


def keep_sorted(part: Part, shared: Mapping[str, Any]) -> float:
    order = np.argsort(part.arrays["value"], kind="stable")
    part.store("sorted", {name: array[order] for name, array in part.arrays.items()})
    return float(np.ptp(part.arrays["value"])) if part.rows else 0.0


def whole(part: Part, shared: Mapping[str, Any]) -> float:
    assert np.all(np.diff(part.arrays["value"]) >= 0)
    return float(part.arrays["vector"].astype(np.float64).sum())


def whole_means(part: Part, shared: Mapping[str, Any]) -> float:
    return float(part.arrays["mean"].sum())


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
    """Rejects what has less contrast than a share of the pool's mean."""

    op: ClassVar[str] = "toy.contrasty"
    share: float = 0.5

    def reads(self) -> tuple[str, ...]:
        return ("contrast",)

    def keep(self, table: Table) -> Any:
        return ["dim" if value < self.share else None for value in table.column("contrast").to_pylist()]


class Even(Select):
    """The same number out of each unit."""

    op: ClassVar[str] = "toy.even"
    each: int = 3
    seed: int = 0

    def reads(self) -> tuple[str, ...]:
        return ("unit_of",)

    def target_rows(self) -> int | None:
        return self.each

    def deal(self, table: Table) -> Table:
        return table.rename_columns({"unit_of": "unit"})

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        if counts.sum() * self.multiplier < self.each:
            raise TargetError(f"each {self.each}: the pool can give {counts.sum() * self.multiplier}")
        return np.minimum(counts * self.multiplier, self.each)

    def pick(self, lines: Table, counts: NDArray[np.int64], quotas: NDArray[np.int64]) -> dict[str, Any]:
        rank, units = ranks(self.seed, lines.column("key").to_pylist()), lines.column("unit").to_numpy()
        copies = np.zeros(lines.num_rows, dtype=np.int32)
        for unit in np.unique(units):
            mine = np.flatnonzero(units == unit)
            mine = mine[np.argsort(rank[mine])]
            copies[mine] = quotas[unit] // len(mine)
            copies[mine[: quotas[unit] % len(mine)]] += 1
        return {"copies": copies, "reject": [None if c else "not_sampled" for c in copies]}


class Nothing(Even):
    """Refuse every row."""

    op: ClassVar[str] = "toy.nothing"

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros_like(counts)


class PlainPack(Pack):
    op: ClassVar[str] = "toy.pack"
    name: str = "toys"
    shard_rows: int = 7

    def reads(self) -> tuple[str, ...]:
        return ("unit_of",)

    def write(self, row: Mapping[str, Any], data: bytes, add: Callable[[str, bytes], int]) -> Packed:
        stem = f"{row['key']}-{row['item']}-{row['copy']}"
        offset = add(f"{stem}.{row['ext']}", data)
        return Packed(
            row["ext"],
            offset,
            len(data),
            add(f"{stem}.txt", row["caption"].encode()),
            len(row["caption"]),
            row["width"],
            row["height"],
            {"unit_of": row["unit_of"]},
        )

    def finish(self, tars: list[tuple[str, int]]) -> dict[str, bytes]:
        return {"sizes.txt": "\n".join(f"{name} {count}" for name, count in tars).encode()}


class Choosy(PlainPack):
    """Leaves out odd numbers."""

    op: ClassVar[str] = "toy.choosy"

    def write(self, row: Mapping[str, Any], data: bytes, add: Callable[[str, bytes], int]) -> Packed:
        if int(row["caption"].split()[-1]) % 2:
            raise Reject("odd")
        return super().write(row, data, add)


class Page(Report):
    op: ClassVar[str] = "toy.page"

    def render(self, view: Any) -> dict[str, bytes]:
        lines = [f"{name} {m.entry.before} {m.entry.after}" for name, m in view.stages.items()]
        rejects = 0
        for table in view.tables(["rejected_by", "reject_reason", "copies", "brightness"]):
            rejects += sum(value is not None for value in table.column("rejected_by").to_pylist())
        lines.append(f"rejects {rejects} dataset {view.dataset()['samples']}")
        return {"index.html": "\n".join(lines).encode()}


STAGES: dict[str, tuple[type[Stage], tuple[str, ...], dict[str, str]]] = {
    "pool": (Numbers, (), {}),
    "bright": (Brightness, ("pool",), {}),
    "light": (Light, ("bright",), {}),
    "dear": (Costly, ("light",), {}),
    "parity": (Parity, ("dear",), {}),
    "total": (Total, ("light",), {}),
    "contrast": (Brighter, ("parity",), {"total": "total"}),
    "brighter": (Contrasty, ("contrast",), {}),
    "even": (Even, ("brighter",), {}),
    "dataset": (PlainPack, ("even",), {}),
    "page": (Page, ("dataset",), {}),
}


def pipeline(**changes: Any) -> Pipeline:
    """source -> brightness, parity -> total, brighter -> even -> pack -> page; `stage__parameter=value` changes one."""
    made = Pipeline()
    for name, (cls, inputs, ports) in STAGES.items():
        values = {key.partition("__")[2]: value for key, value in changes.items() if key.startswith(f"{name}__")}
        if cls is Numbers:
            values.setdefault("namespace", "toys")
        made.add(name, cls(**values), inputs, **ports)
    return made.check()


def fits(**changes: Any) -> Pipeline:
    """Numbers -> brightness -> means -> brighter pictures, by an artifact of several passes."""
    values = {"namespace": "toys", "rows": 64, "shard_rows": 8} | changes.pop("pool", {})
    made = Pipeline().add("pool", Numbers(**values)).add("bright", Brightness(), "pool")
    return made.add("means", Means(**changes), "bright").check()


def chain(*stages: Stage, **source: Any) -> Pipeline:
    """Numbers and some stages, each from the one before; `stage_1` is the first of them."""
    made = Pipeline().add("pool", Numbers(**{"namespace": "toys"} | source))
    for number, stage in enumerate(stages, 1):
        made.add(f"stage_{number}", stage, f"stage_{number - 1}" if number > 1 else "pool")
    return made.check()
