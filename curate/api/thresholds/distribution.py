"""The rows that reach a rule, by the thresholds at which they pass: at first of some shards, then of all."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.api.slices import Slice
from curate.api.stages import make_stage
from curate.api.tables import READERS
from curate.api.thresholds.rules import EXACT, NUMBER, Rule, ends, is_number, plain
from curate.core.errors import CorruptError, InputError
from curate.engine.record.live import LiveRows
from curate.engine.record.runs import RunRecord
from curate.engine.units.common import fetched
from curate.filter.expressions import parse
from curate.kernels.totals import totals

SAMPLE, LEAST, AT_ONCE = 64, 16, 8
"""Shards of a sample at most, at least, and between two looks at the clock."""
BINS = 100
TAIL = 0.005
"""Share of the rows below the first and above the last bin: a few outliers would make all others one bin."""
NEAR, FEW = 0.003, 24
"""Share and number of the rows on one side of a threshold that count as near it."""


@dataclass(frozen=True)
class Read:
    """A shard that was read."""

    values: NDArray[Any]
    """(n,), of the rows that reach the rule and that it decides."""
    always: int
    """Rows that pass at every threshold."""
    never: int
    rows: int


class Values:
    """What decides whether the rows of a shard pass a rule. Raises InputError for an unknown stage or column, and for
    an expression with an error."""

    def __init__(self, run: RunRecord, rule: Rule) -> None:
        self.rows, self.rule = LiveRows(run, rule.stage), rule
        self.expression = None
        if rule.column in self.rows.places:
            self.columns = [rule.column]
            kind = self.rows.one_field(rule.column).type
            if not is_number(kind):
                raise InputError(f"column: {rule.column}: holds {kind}; expected a column of numbers")
        else:
            try:
                self.expression = parse(rule.column)
                self.columns = list(self.expression.columns)
                empty = pa.schema([self.rows.one_field(name) for name in self.columns]).empty_table()
                self.expression.measure(pl.from_arrow(empty))  # type: ignore[arg-type]
            except (ValueError, InputError) as error:
                raise InputError(f"column: {error}") from None
        self.judges: list[Any] = []
        """The filter at the thresholds that reject fewest and most rows, and as it is; empty for a new rule."""
        self.lost: set[int] = set()
        """Places of shards that cannot be read."""
        if rule.parameter:
            about = run.record["stages"][rule.stage]
            given = about["parameters"]
            each = [given | {rule.parameter: end} for end in ends(about["op"], rule)]
            self.judges = [make_stage(about["op"], **one) for one in (*each, given)]
        judged = [name for judge in self.judges for name in judge.reads()]
        self.read = list(dict.fromkeys([*self.columns, *judged, *(["key"] if "key" in "".join(rule.words) else [])]))

    def shard(self, place: int) -> Read:
        table, reached, why = self.rows.judged(self.rows.shards[place], self.read)
        if self.judges:
            reached = reached | np.not_equal(why, np.array(None))
        column = table.column(0)
        if self.expression is not None:
            found = self.expression.measure(pl.from_arrow(table.select(self.columns)))  # type: ignore[arg-type]
            column = pa.chunked_array([found.to_arrow()])
        decides, always = reached & column.is_valid().to_numpy(), np.zeros(len(reached), bool)
        values = column.fill_null(0).to_numpy()
        if self.judges:
            fewest, most, now = (pc.is_null(judge.keep(table)).to_numpy(zero_copy_only=False) for judge in self.judges)
            decides, always = decides & fewest & ~most, reached & fewest & most
            self._check(values[decides], now[decides])
        values = values[decides]
        if values.dtype.kind in "iu" and len(values) and max(-int(values.min()), int(values.max())) > EXACT:
            raise InputError(f"column: {self.rule.column}: has whole numbers beyond 2^53, which are not all told apart")
        never = int(reached.sum() - always.sum() - decides.sum())
        return Read(values, int(always.sum()), never, self.rows.shards[place].rows)

    def _check(self, values: NDArray[Any], kept: NDArray[np.bool_]) -> None:
        """Whether the rows (n,) that the rule decides are those that pass at its present threshold."""
        rule = self.rule
        if rule.at is None:
            return
        at = values.dtype.type(rule.at) if values.dtype.kind == "f" else rule.at
        if (rule.passes(values, at) != kept).any():
            told = f"{rule.column} {rule.sign} {plain(rule.at)}"
            raise InputError(f"column: {told} does not alone decide what {rule.stage} rejects; choose another column")

    def shards(self, places: Sequence[int]) -> Iterator[Read]:
        """Each that can be read; `lost` has the others."""

        def read(place: int) -> Read | None:
            try:
                return self.shard(place)
            except CorruptError:
                self.lost.add(place)
                return None

        return (one for one in fetched(read, places, READERS) if one is not None)


@dataclass(frozen=True)
class Band:
    """A number of rows: estimated, and the least and greatest that are likely; the same if it is exact."""

    rows: float
    low: float
    high: float


@dataclass(frozen=True)
class Distribution:
    """The rows that reach a rule, by the thresholds at which they pass."""

    rule: Rule
    columns: tuple[str, ...]
    """Those that the rule compares."""
    edges: NDArray[np.float64]
    """(k,), rising: the thresholds that are counted."""
    bars: NDArray[np.int64]
    """Places in `edges` of the bounds of the histogram's bins; the others are single thresholds."""
    counts: NDArray[np.int64]
    """(m, k + 1): rows of each shard read before the first edge, between each two, and after the last."""
    always: NDArray[np.int64]
    """(m,): rows that pass at every threshold: by another condition, or because the value is NaN."""
    never: NDArray[np.int64]
    """(m,)"""
    rows: NDArray[np.int64]
    """(m,): all rows of the shards read."""
    shards: int
    all_rows: int
    lost: int
    """Shards that cannot be read; their rows are not counted."""

    @property
    def exact(self) -> bool:
        return len(self.rows) >= self.shards

    @cached_property
    def passing(self) -> NDArray[np.int64]:
        """(m, k): rows of each shard that pass at each edge."""
        before = np.cumsum(self.counts, axis=1)[:, :-1]
        kept = before if self.rule.sign in ("<=", "<") else self.counts.sum(axis=1, keepdims=True) - before
        return np.asarray(kept + self.always[:, None])

    @cached_property
    def _bands(self) -> dict[str, tuple[NDArray[np.float64], ...]]:
        reached = self.counts.sum(axis=1) + self.always + self.never
        now = reached if self.rule.at is None else self.passing[:, self.place(self.rule.at)]
        change = self.passing - now[:, None]
        found = {"alive": self.passing, "gained": np.maximum(change, 0), "lost": np.maximum(-change, 0)}
        found |= {"reached": reached[:, None], "now": now[:, None]}
        return {name: totals(one, self.rows, self.shards, self.all_rows) for name, one in found.items()}

    @property
    def name(self) -> str:
        """The column in an expression: stage.column is quoted."""
        dotted = re.fullmatch(r"[\w-]+\.[\w-]+", self.rule.column) and not re.fullmatch(NUMBER, self.rule.column)
        return f'"{self.rule.column}"' if dotted else self.rule.column

    def usual(self) -> float:
        """The present threshold, or one at which about nine of ten rows pass."""
        if self.rule.at is not None or not len(self.edges):
            return self.rule.at or 0.0
        share = self.passing.sum(axis=0) / max(1, (self.counts.sum() + self.always.sum()))
        return float(self.edges[np.argmin(np.abs(share - 0.9))])

    def place(self, at: float) -> int:
        """Index of a threshold among the edges."""
        return int(np.searchsorted(self.edges, at))

    def has(self, at: float) -> bool:
        return bool(np.isin(at, self.edges))

    def band(self, name: str, at: float | None = None) -> Band:
        """Rows that are `alive` at a threshold, `gained` and `lost` against the present one; without a threshold, all
        that `reached` the rule, and that pass `now`."""
        place = 0 if at is None else self.place(at)
        rows, low, high = (float(one[place]) for one in self._bands[name])
        return Band(rows, low, high)

    def heights(self) -> list[float]:
        """Rows of each bin of the histogram."""
        inside = np.add.reduceat(self.counts.sum(axis=0), self.bars + 1)[:-1]
        return [float(one) for one in inside * self._factor]

    def outside(self) -> tuple[float, float]:
        """Rows below the first and above the last bin."""
        whole = self.counts.sum(axis=0) * self._factor
        return float(whole[: self.bars[0] + 1].sum()), float(whole[self.bars[-1] + 1 :].sum())

    @property
    def _factor(self) -> float:
        return 1.0 if self.exact else self.all_rows / max(1, self.rows.sum())

    def borders(self, at: float) -> list[tuple[bool, str, Slice]]:
        """(whether they pass, their range as text, the rows) just inside and just outside of a threshold. None reaches
        beyond the present one, so that its rows are all alive or all rejected now."""
        whole, middle = self.counts.sum(axis=0), self.place(at)
        present = None if self.rule.at is None else self.place(self.rule.at)
        wanted = max(FEW, NEAR * whole.sum())
        found = []
        for step in (1, -1):
            end, rows = middle, 0
            while 0 <= end + step < len(self.edges) and rows < wanted and (end != present or end == middle):
                end += step
                rows += int(whole[max(end, end - step)])
            low, high = sorted((middle, end))
            if not rows:
                continue
            low_sign, high_sign = (">=", "<") if self.rule.sign in (">=", "<") else (">", "<=")
            words = [plain(float(self.edges[place])) for place in (low, high)]
            where = f"({self.name}) {low_sign} {words[0]} and ({self.name}) {high_sign} {words[1]}"
            inside = (step > 0) == (self.rule.sign in (">=", ">"))
            half = (self.edges[low] + self.edges[high]) / 2
            alive = not self.rule.parameter or self.rule.at is None or self.rule.passes(half, self.rule.at)
            if not alive and any(self.rule.words):
                loosest = ends("filter.where", self.rule)[0]
                where = f"({loosest}) and {where}"
            found.append((inside, f"{words[0]} to {words[1]}", Slice(self.rule.stage, None if alive else "", where)))
        return sorted(found, key=lambda one: one[0])

    def nearest(self, at: float, table: pa.Table, count: int) -> pa.Table:
        """The rows of a table with `columns` that lie nearest to a threshold, the nearest first."""
        column = self.rule.column
        if column in table.column_names:
            values = table.column(column)
        else:
            values = parse(column).measure(pl.from_arrow(table.select(self.columns))).to_arrow()  # type: ignore[arg-type]
        apart = np.abs(np.asarray(values, np.float64) - at)
        return table.take(pa.array(np.argsort(apart, kind="stable")[:count]))


def sampled(run: RunRecord, rule: Rule, at: float | None = None, seconds: float = 0.6) -> Distribution:
    """From up to SAMPLE shards, chosen by their ids, which are digests; no further ones after `seconds`."""
    until = time.monotonic() + seconds
    values = Values(run, rule)
    order = sorted(range(len(values.rows.shards)), key=lambda place: values.rows.shards[place].id)
    read: list[Read] = []
    tried = 0
    while len(read) < SAMPLE and tried < len(order) and (tried < LEAST or time.monotonic() < until):
        some = order[tried : tried + min(AT_ONCE, SAMPLE - len(read))]
        read += values.shards(some)
        tried += len(some)
    edges, bars = _edges([one.values for one in read], [one for one in (rule.at, at) if one is not None])
    return _counted(values, edges, bars, read)


def counted(run: RunRecord, first: Distribution) -> Distribution:
    """From all shards, at the edges of a sample."""
    values = Values(run, first.rule)
    return _counted(values, first.edges, first.bars, values.shards(range(len(values.rows.shards))))


def _counted(values: Values, edges: NDArray[np.float64], bars: NDArray[np.int64], read: Iterable[Read]) -> Distribution:
    side: Literal["left", "right"] = "right" if values.rule.sign in (">=", "<") else "left"
    counts, fixed = list[NDArray[np.int64]](), list[tuple[int, int, int]]()
    for one in read:
        with np.errstate(over="ignore"):  # 0.7 is the column's 0.7
            narrow = edges.astype(one.values.dtype) if one.values.dtype.kind == "f" else edges
        places = np.searchsorted(narrow, one.values, side=side)
        counts.append(np.bincount(places, minlength=len(edges) + 1))
        fixed.append((one.always, one.never, one.rows))
    if values.lost and not counts:
        raise InputError(f"stage: {values.rule.stage}: none of its shards can be read; run the recipe again")
    always, never, rows = np.array(fixed, np.int64).reshape(-1, 3).T
    left = [shard.rows for place, shard in enumerate(values.rows.shards) if place not in values.lost]
    table = np.array(counts, np.int64).reshape(-1, len(edges) + 1)
    return Distribution(
        values.rule, tuple(values.columns), edges, bars, table, always, never, rows, len(left), sum(left),
        len(values.lost),
    )  # fmt: skip


def _edges(values: Sequence[NDArray[Any]], single: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(edges (k,), places of the bounds of the bins): multiples of 1, 2 or 5 times a power of ten, and single ones."""
    whole = np.concatenate(values) if values else np.zeros(0)
    integer = whole.dtype.kind in "iu"
    finite = whole[np.isfinite(whole)].astype(np.float64)
    low, high = np.quantile(finite, [TAIL, 1 - TAIL]) if len(finite) else (0.0, 1.0)
    span = max(high - low, abs(high) * 1e-6, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / BINS))
    step = next(step * power for step in (1, 2, 5, 10) if span / (step * power) <= BINS)
    step = max(step, 1.0) if integer else step
    digits = max(0, -math.floor(math.log10(step)) + 1)
    first, last = math.floor(low / step), math.floor(high / step) + 1
    regular = np.round(np.arange(first, last + 1) * step, digits)
    edges = np.unique([*regular, *single])
    return edges, np.searchsorted(edges, regular)
