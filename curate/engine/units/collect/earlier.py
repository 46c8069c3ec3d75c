"""The artifact on which a Collect builds: each of its portions stays if all its rows still exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from curate.core.contracts import Collect, Portion
from curate.core.contracts.collect import PORTIONS
from curate.core.hashing import digest
from curate.core.nouns.manifest import Manifest, read_lines
from curate.core.recipe.pipeline import Node
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.record import claims
from curate.engine.state import Built
from curate.engine.units import shuffle
from curate.engine.units.collect.tasks import LINE, Fresh, SubtractTask, names_of, subtract_rows

UNRELATED_TIMES = 4
"""An artifact that shares no part and no name with this one is compared with it unless it has more than this many times
the buckets: all its rows are read."""


@dataclass(frozen=True)
class Earlier:
    """Portions of an earlier artifact, by the buckets of this one."""

    base: str
    buckets: int
    lines: pa.Table


def find_earlier(ctx: Context, node: Node, built: Built, parts: Sequence[Portion], wanted: int) -> Earlier | None:
    """The artifact on which this one builds, divided into at least half as many buckets as `wanted`."""
    stage = node.stage
    assert isinstance(stage, Collect)
    while (base := _closest(ctx.storage, stage, built.base, parts, wanted)) is not None:
        claims.keep(ctx, [{"stage": node.name, "base": base, "path": ""}])
        manifest = Manifest.load(ctx.storage, base)
        if manifest is not None:  # gc may have removed it just before
            lines = read_lines(ctx.storage, base, file=f"{PORTIONS}.parquet")
            times = max(1, wanted // manifest.extra["buckets"])
            return Earlier(base, times * manifest.extra["buckets"], _divided(lines, times))
    return None


def _divided(lines: pa.Table, times: int) -> pa.Table:
    """The lines, once each bucket is divided into `times` buckets."""
    first, last = (lines.column(name).to_numpy() for name in ("first", "last"))
    edges = {"first": first * times, "last": (last + 1) * times - 1}
    for name, values in edges.items():
        lines = lines.set_column(lines.schema.get_field_index(name), LINE.field(name), pa.array(values, pa.int32()))
    return lines


def _closest(storage: Storage, stage: Collect, base: str, parts: Sequence[Portion], wanted: int) -> str | None:
    """Base of the artifact with the same parameters that shares most parts, or names of parts, with this one; among
    equals the latest. One that shares neither may have the same rows under other names, unless it is much larger."""
    folder = f"artifacts/{stage.op}"
    mine = {column: set(values) for column, values in parts_of(parts).to_pydict().items()}
    best: tuple[int, int, float] | None = None
    found: str | None = None
    for name in storage.list(folder):
        other, _, file = f"{folder}/{name}".rpartition("/")
        if file != "manifest.json" or other == base:
            continue
        manifest = Manifest.load(storage, other)
        if manifest is None or (manifest.version, manifest.parameters) != (stage.version, stage.parameters()):
            continue
        theirs = read_lines(storage, other, file="parts.parquet")
        same, named = (len(mine[column].intersection(theirs.column(column).to_pylist())) for column in mine)
        score = (same, named, float(manifest.extra["committed"]))
        if not (same or named) and manifest.extra["buckets"] > UNRELATED_TIMES * wanted:
            continue
        if best is None or score > best:
            best, found = score, other
    return found


@dataclass(frozen=True)
class Kept:
    """Portions of the earlier artifact that stay."""

    lines: pa.Table
    duplicates: int


def parts_of(parts: Sequence[Portion]) -> pa.Table:
    names = [str(part.content.get("path", "")) for part in parts]
    return pa.table({"part": [digest(part.content) for part in parts], "name": pa.array(names, pa.string())})


def subtract(
    ctx: Context, node: Node, built: Built, dealt: Sequence[shuffle.ShuffleFile], buckets: int, lines: pa.Table
) -> tuple[pa.Table, dict[int, Fresh]]:
    """(portions all of whose rows are still there, new rows by bucket)."""
    found: dict[int, Fresh] = {}
    todo: Sequence[int] = range(buckets)
    while True:
        first, last = (lines.column(name).to_numpy() for name in ("first", "last"))
        tasks = (
            SubtractTask(
                ctx.storage, node.name, built.base, number, shuffle.pieces(dealt, number),
                lines.filter(pa.array((first <= number) & (number <= last))),
            )
            for number in todo
        )  # fmt: skip
        for fresh in ctx.tasks.must(subtract_rows, tasks, node.stage, node.name):
            found[fresh.bucket] = fresh
        present = sum((Counter(fresh.present) for fresh in found.values()), Counter[str]())
        whole = [present[name] == rows for name, rows in zip(names_of(lines), lines["rows"].to_pylist(), strict=True)]
        if all(whole):
            return lines, found
        broken = lines.filter(pa.array([not one for one in whole]))
        lines = lines.filter(pa.array(whole))
        spans = zip(broken["first"].to_pylist(), broken["last"].to_pylist(), strict=True)
        todo = sorted({number for low, high in spans for number in range(low, high + 1)})
