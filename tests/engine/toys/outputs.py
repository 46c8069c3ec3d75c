"""Toy global stages: a Reduce, a Fit, Selects, Packs and a Report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.contracts import (
    Artifact,
    Fit,
    Pack,
    Packed,
    Reduce,
    Report,
    Runtime,
    Select,
    Table,
)
from curate.core.errors import Reject, TargetError
from curate.core.group import Group, Part
from curate.core.hashing import rank_below, ranks
from curate.core.reader import Reader


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
    stored arrays. With a `log` it logs each pass; with a `gate` it waits there before its second pass."""

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
            group.progress(number / self.rounds, f"round {number}")
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


class Even(Select):
    """The same number of rows from each unit."""

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
    """Rejects every row."""

    op: ClassVar[str] = "toy.nothing"

    def plan(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros_like(counts)


class PlainPack(Pack):
    op: ClassVar[str] = "toy.pack"
    name: str = "toys"
    shard_rows: int = 7

    def reads(self) -> tuple[str, ...]:
        return ("unit_of",)

    def write(self, row: Mapping[str, Any], data: Reader, add: Callable[..., int]) -> Packed:
        stem = f"{row['key']}-{row['item']}-{row['copy']}"
        offset = add(f"{stem}.{row['ext']}", data)
        return Packed(
            row["ext"],
            offset,
            data.size,
            add(f"{stem}.txt", row["caption"].encode()),
            len(row["caption"]),
            row["width"],
            row["height"],
            carried={"unit_of": row["unit_of"]},
        )

    def finish(self, tars: list[tuple[str, int]], fingerprint: str, index: Any) -> dict[str, Any]:
        return {"sizes.txt": "\n".join(f"{name} {count}" for name, count in tars).encode()}


class Choosy(PlainPack):
    """Leaves out odd numbers."""

    op: ClassVar[str] = "toy.choosy"

    def write(self, row: Mapping[str, Any], data: Reader, add: Callable[..., int]) -> Packed:
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
