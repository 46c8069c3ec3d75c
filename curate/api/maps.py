"""Maps of a run: the rows that `project.place` placed, as points to draw, and regions drawn on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.api.clusters import PROFILE, clusters_of
from curate.api.tables import READERS
from curate.core.errors import CorruptError, CurateError, InputError, did_you_mean
from curate.core.hashing import digest
from curate.engine.record.live import LiveRows
from curate.engine.record.runs import RunRecord
from curate.engine.units.common import fetched
from curate.kernels.region import corners_of, inside

OP = "project.place"
MOST_POINTS = 1_000_000
CATEGORIES, STEPS = 10, 8
"""Values of a column that have their own colour, and ranges of a column of numbers."""
OTHER, NONE = "other", "no value"
GREY = "#9aa0a8"
COLOURS = (
    "#4e79a7", "#f28e2b", "#e15759", "#59a14f", "#b07aa1", "#3fa7a0", "#d4a72c", "#e377a8", "#9c755f", "#6d7fd6",
)  # fmt: skip
SCALE = ("#3b6fb6", "#5b9bd0", "#7fbcd2", "#a3b59a", "#d3b04c", "#ee9a3a", "#e46a35", "#c9302c")
Lines = tuple[NDArray[np.int64], list[tuple[str, str]]]
"""Line of the legend of each value, and the label and colour of each line."""
_CLUSTER = re.compile(r"(?:.*\.)?cluster_([0-9]+)")


@dataclass(frozen=True)
class Polygon:
    """A region of a map, as a part of a slice."""

    columns: tuple[str, str]
    """Those of x and y."""
    corners: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, text: str, column: str) -> Polygon:
        """Corners as in "0,0 4,0 4,3"; `column`: STAGE.NAME of NAME_x and NAME_y. Raises InputError."""
        try:
            found = corners_of([[float(part) for part in pair.split(",")] for pair in text.split()])
        except ValueError as error:
            why = str(error) if "expected" in str(error) else "expected corners as in 0,0 4,0 4,3"
            raise InputError(f"region: {text[:60]!r}: {why}") from None
        return cls((f"{column}_x", f"{column}_y"), tuple(found))

    def holds(self, table: pa.Table) -> NDArray[np.bool_]:
        x, y = (table.column(name).combine_chunks().to_numpy(zero_copy_only=False) for name in self.columns)
        return inside(self.corners, x.astype(np.float64), y.astype(np.float64))


@dataclass(frozen=True)
class Colour:
    """A line of the legend. `colour`: #rrggbb."""

    label: str
    colour: str
    points: int


@dataclass(frozen=True)
class MapPoints:
    """Points (n,) in an order drawn at random, so that the first ones are a fair sample of all."""

    stage: str
    column: str
    """Start of the names of the columns: map for map_x and map_y."""
    map: str
    """Version of the map: the digest of what was fitted."""
    xy: NDArray[np.float32]
    category: NDArray[np.uint8]
    """Line of the legend."""
    alive: NDArray[np.uint8]
    """1 for a row that passes the stage that was asked for."""
    shard: NDArray[np.int32]
    """Place in `shards`."""
    row: NDArray[np.int32]
    shards: list[str]
    """Ids."""
    legend: list[Colour]
    whole: int
    """Shards of the pool; more than `shards` if the points are a sample."""
    lost: list[str]
    """Why shards cannot be read: their tables are gone. Their rows are left out."""

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, bottom, right, top of all points, with a margin."""
        if not len(self.xy):
            return (-1.0, -1.0, 1.0, 1.0)
        low, high = (np.array([end(axis) for axis in self.xy.T], float) for end in (np.min, np.max))
        margin = np.maximum((high - low) * 0.03, 1e-6)
        return (*map(float, low - margin), *map(float, high + margin))  # type: ignore[return-value]


def maps_of(run: RunRecord) -> dict[str, str]:
    """Stage that placed rows -> start of the names of its columns."""
    ops, done = run.ops(), run.outputs
    about = run.record["stages"]
    return {name: about[name]["parameters"]["into"] for name, op in ops.items() if op == OP and name in done}


def chosen_map(run: RunRecord, stage: str | None) -> tuple[str, str]:
    """(stage, start of its columns' names); the first one by default. Raises InputError if there is none."""
    known = maps_of(run)
    if not known:
        remedy = "add `project.fit` and `project.place` after a stage that embeds, and run again"
        raise InputError(f"run {run.run_id}: has no map; {remedy}")
    if stage is not None and stage not in known:
        hint = did_you_mean(stage, known, f"the maps are {', '.join(known)}")
        raise InputError(f"stage {stage!r}: placed no rows in run {run.run_id}; {hint}")
    name = stage or next(iter(known))
    return name, known[name]


def points(run: RunRecord, stage: str | None = None, colour: str = "", alive: str = "") -> MapPoints:
    """The rows that are alive at a stage with a map. colour: a column of any stages, "": one colour; alive: a stage,
    whose rows have `alive` 1; "": all rows have. A pool of more than MOST_POINTS rows is shown by some of its shards,
    chosen by hash.
    Raises InputError for an unknown stage or column."""
    name, column = chosen_map(run, stage)
    rows = LiveRows(run, name)
    later = LiveRows(run, alive) if alive else None
    if later is not None and later.pool != rows.pool:
        raise InputError(f"{alive}: has rows of {later.pool}, and the map of {rows.pool}; name a stage over its rows")
    wanted = [f"{name}.{column}_x", f"{name}.{column}_y", *([colour] if colour else [])]
    fields = [rows.one_field(one) for one in wanted]
    if colour and not _colours(fields[-1].type):
        raise InputError(f"{colour}: holds {fields[-1].type}; expected a column of numbers, texts or truth values")
    hashed = sorted(range(len(rows.shards)), key=lambda place: digest(rows.shards[place].id))
    sizes = np.cumsum([rows.shards[place].rows for place in hashed])
    read = sorted(hashed[: int(np.searchsorted(sizes, MOST_POINTS)) + 1])

    def one(place: int) -> tuple[pa.Table, NDArray[np.int32], NDArray[np.bool_]] | CorruptError:
        shard = rows.shards[place]
        try:
            table, live, _ = rows.judged(shard, wanted)
            passed = later.judged(shard, [])[1] if later is not None else np.ones(len(live), bool)
        except CorruptError as error:
            return error
        for axis in table.columns[:2]:
            live &= axis.is_valid().to_numpy()
        at = np.flatnonzero(live).astype(np.int32)
        return table if len(at) == len(live) else table.take(pa.array(at)), at, passed[at]

    each = list(fetched(one, read, READERS))
    found = [part for part in each if not isinstance(part, CorruptError)]
    lost = [str(part) for part in each if isinstance(part, CorruptError)]
    read = [place for place, part in zip(read, each, strict=True) if not isinstance(part, CorruptError)]
    table = pa.concat_tables([part[0] for part in found]) if found else pa.schema(fields).empty_table()
    order = np.random.default_rng(0).permutation(len(table))[:MOST_POINTS]
    shard = np.repeat(np.arange(len(read), dtype=np.int32), [len(part[1]) for part in found])
    row, passed = (
        np.concatenate([np.zeros(0, kind), *(part[at] for part in found)])
        for at, kind in ((1, np.int32), (2, np.uint8))
    )
    xy = np.stack([axis.to_numpy()[order] for axis in table.columns[:2]], axis=1).astype(np.float32, copy=False)
    names = _names(run, *rows.places[colour]) if colour else {}
    lines, labels = _coloured(table.column(2), colour, names) if colour else _plain(len(table))
    category, legend = _legend(lines[order], labels)
    return MapPoints(
        name, column, (fields[0].metadata or {}).get(b"map", b"").decode(), xy, category, passed[order], shard[order],
        row[order], [rows.shards[place].id for place in read], legend, len(rows.shards), lost,
    )  # fmt: skip


def columns_of(run: RunRecord, stage: str) -> list[str]:
    """Columns that a map may be coloured by, those of stages before those of the pool."""
    rows = LiveRows(run, stage)
    names = [name for column in rows.fields if column != "key" for name in rows.ways(column)]
    names = [name for name in names if _colours(rows.field(name).type)]
    return sorted(names, key=lambda name: (rows.places[name][0] == rows.pool, name))


# --- colours ----------------------------------------------------------------------------------------------------------


def _colours(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_boolean,
    )
    return any(test(kind) for test in tests)


def _plain(rows: int) -> Lines:
    return np.zeros(rows, np.int64), [("all rows", COLOURS[0])]


def _names(run: RunRecord, stage: str, column: str) -> Mapping[Any, str]:
    """Names of clusters, if a stage wrote a level of a tree to the column, and a profile of this tree has names."""
    level, stages = _CLUSTER.fullmatch(column), run.record["stages"]
    tree = stages[stage]["ports"].get("tree")
    profiles = [name for name, kind in run.kinds().items() if kind == PROFILE and stages[name]["ports"]["tree"] == tree]
    if level is None or not profiles:
        return {}
    try:
        table = clusters_of(run, profiles[-1]).level(int(level[1]))
    except (CurateError, IndexError):
        return {}
    names = table.column("name").to_pylist() if "name" in table.column_names else []
    return {number: f"{number}: {name}" for number, name in enumerate(names) if name}


def _coloured(values: pa.ChunkedArray, column: str, names: Mapping[Any, str]) -> Lines:
    """A line for each of the most frequent values, or for each range of a score."""
    kind = values.type
    number = pa.types.is_floating(kind) or (pa.types.is_integer(kind) and not _CLUSTER.fullmatch(column))
    if number and pc.count_distinct(values).as_py() > CATEGORIES:
        return _ranges(values.cast(pa.float64(), safe=False).to_numpy())
    counts = values.drop_null().value_counts().to_pylist()
    counts.sort(key=lambda one: (-one["counts"], str(one["values"])))
    shown = [one["values"] for one in counts[:CATEGORIES]]
    place = pc.index_in(values, value_set=pa.array(shown, kind)) if shown else pa.nulls(len(values), pa.int32())
    found = pc.fill_null(place, -1).to_numpy().astype(np.int64)
    null = np.asarray(pc.is_null(values).to_numpy())
    labels = [(names.get(value, str(value)), colour) for value, colour in zip(shown, COLOURS, strict=False)]
    return np.where(found < 0, len(shown) + null, found), [*labels, (OTHER, GREY), (NONE, GREY)]


def _ranges(values: NDArray[np.float64]) -> Lines:
    good = np.isfinite(values)
    edges = np.unique(np.quantile(values[good], np.linspace(0, 1, STEPS + 1))) if good.any() else np.zeros(0)
    steps = max(1, len(edges) - 1)
    found = np.where(good, np.clip(np.searchsorted(edges, values, side="right") - 1, 0, steps - 1), steps)
    ends = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges.tolist())] or ["all"]
    picked = np.linspace(0, STEPS - 1, steps).round().astype(int)
    labels = [(end, SCALE[at]) for end, at in zip(ends, picked.tolist(), strict=True)]
    return found, [*labels, (NONE, GREY)]


def _legend(found: NDArray[np.int64], labels: Sequence[tuple[str, str]]) -> tuple[NDArray[np.uint8], list[Colour]]:
    counts = np.bincount(found, minlength=len(labels))
    legend = [Colour(label, colour, int(count)) for (label, colour), count in zip(labels, counts, strict=True)]
    while len(legend) > 1 and not legend[-1].points:
        legend.pop()
    return found.astype(np.uint8), legend
