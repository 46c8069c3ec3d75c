"""A Pack: rank every copy, sort by rank, cut the order into near-equal output shards, and write each shard's members.

    work/ranks/<stretch>            copies of a stretch of pool shards, with the columns that `write` needs, by range
    work/order/<range>              a range of ranks, sorted, by output shard
    work/parts/<shard>.parquet      lines of the index for one output shard
    work/index/<stretch>.parquet    lines of the index for a stretch of output shards

Each pool shard's tables are read once. Members are read by byte range, for each output shard: only these reads grow
with the number of samples. Sorting the pool's bytes into the dataset's order first would double the bytes written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.codec import media
from curate.core.contracts import Pack
from curate.core.errors import TargetError
from curate.core.ledger import Entry
from curate.core.nouns.manifest import Manifest, read_index
from curate.core.nouns.selections import selection_places
from curate.core.recipe.pipeline import Node
from curate.engine.context import Context
from curate.engine.fingerprints import buried, column_fingerprints, rows_fingerprint
from curate.engine.state import Built
from curate.engine.units import shuffle
from curate.engine.units.common import made_of_rows
from curate.engine.units.fields import check_fields
from curate.engine.units.pack.tasks import (
    Common,
    FinishTask,
    IndexTask,
    OrderTask,
    PackScatterTask,
    ShardTask,
    pack_finish,
    pack_index,
    pack_order,
    pack_scatter,
    pack_shard,
)
from curate.engine.units.shuffle import Piece, ShuffleFile
from curate.engine.units.step import Explained, GlobalStep

if TYPE_CHECKING:
    from curate.engine.record.runs import RunRecord

RANGE_ROWS = 1 << 18
"""Approximate most copies in a range of ranks: each has captions and URLs, about a kilobyte."""
LAYOUT = 2
"""Version of a dataset's files. Since 2 there are Energon's index, a README and places of JSON members in the index;
`shards.parquet`, a list of the tars, is gone."""
INDEX_ROWS = 1 << 17
"""Least rows of a row group of the index."""


class PackStep(GlobalStep):
    folder: ClassVar[str] = "datasets"

    def fingerprint(self, ctx: Context) -> str:
        node, stage = self.node, self.node.stage
        assert isinstance(stage, Pack)
        existing = ctx.pipeline.fields(node.name)
        reads = [*stage.reads(), *(name for name in stage.text_columns() if name in existing)]
        more: dict[str, Any] = {"from": made_of_rows(ctx, ctx.pipeline.along(node.name))} | buried(ctx.outputs)
        if ctx.pipeline.media_upstream(node.name) != ("image",):
            more["decoders"] = {name: media.of(name).version for name in ctx.pipeline.media_seen(node.name)}
        return rows_fingerprint(ctx.outputs, node, column_fingerprints(ctx.outputs, node, reads), **more)

    def prepare(self, ctx: Context) -> Built:
        stage, fingerprint = self.node.stage, self.fingerprint(ctx)
        assert isinstance(stage, Pack)
        return Built(fingerprint, f"{self.folder}/{stage.name}/{fingerprint}")

    def arriving(self, ctx: Context, parent: Manifest) -> int | None:
        select = ctx.pipeline.selection(self.node.name)
        manifest = ctx.outputs.built[select].manifest if select else None
        items = manifest.entry.items if manifest else None
        if items is None:
            return super().arriving(ctx, parent)
        return items if parent.noun == "selection" else None  # a stage in between counts rows, this one items

    @staticmethod
    def explain(run: RunRecord, name: str, about: Explained) -> dict[str, Any] | None:
        """Where the members of a sample are."""
        base = run.datasets()[name]
        if not run.storage.exists(f"{base}/index.parquet"):
            return {"members": "dataset not complete"}
        table = read_index(run.storage, base, filters=pc.field("key") == about.key)
        there, dataset, places = run.storage.list(base), run.record["stages"][name]["parameters"]["name"], []
        for line in table.to_pylist():
            file = f"{dataset}-{line['shard']:06d}.tar"
            gone = "" if file in there else " (missing)"
            places.append(f"{file}{gone}: {_member(line)} at byte {line['offset']:,}")
        return {"members": places or "none", "dataset": run.storage.url_of(base)}

    def build(self, ctx: Context, built: Built) -> None:
        node, stage = self.node, self.node.stage
        assert isinstance(stage, Pack)
        chosen = ctx.pipeline.selection(node.name)
        assert chosen is not None
        selection = ctx.outputs.built[chosen]
        assert selection.manifest is not None
        copies = selection.manifest.entry.copies or 0
        if not copies:
            raise TargetError(f"the selection {chosen!r} keeps no rows; loosen the filters upstream")
        there = ctx.storage.list(built.base)
        check_fields(ctx, [node], ctx.outputs.rows(node), ctx.outputs.pool(node).shards, chosen)
        common: Common = (ctx.storage, stage, node.name, built.base)
        with ctx.progress.step(node.name, copies) as step:
            ranked = _scatter(ctx, node, selection.base, copies, common, there)
            sizes = np.sum([file.rows for file in ranked], axis=0)
            copies, rows = int(sizes.sum()), sum(file.note["rows"] for file in ranked)
            if not copies:
                raise TargetError(f"no row that {chosen!r} selects reaches it; loosen the filters between them")
            edges = _edges(sizes.reshape(max(1, len(stage.groups())), -1).sum(axis=1), stage.shard_rows)
            count = len(edges) - 1
            order = _order(ctx, node, ranked, sizes, edges, common, there)
            missing = [i for i in range(count) if f"work/parts/{i:06d}.parquet" not in there]
            shards = (ShardTask(*common, i, _pieces_of(order, i)) for i in missing)
            for _, result in ctx.tasks.each(pack_shard, shards, stage, node.name):
                step.advance(result)
            each = max(1, -(-INDEX_ROWS // stage.shard_rows))
            stretches = [(first, min(count, first + each)) for first in range(0, count, each)]
            parts = ctx.tasks.must(
                pack_index, (IndexTask(*common, *stretch) for stretch in stretches), stage, node.name
            )
            counts = tuple(number for part in parts for number in part)
            [done] = ctx.tasks.must(
                pack_finish, [FinishTask(*common, tuple(stretches), counts, built.fingerprint)], stage, node.name
            )
        rejected = Counter(done["rejected"])
        ctx.outputs.finish(
            node, built, "dataset", Entry(rows, rejected, rows - rejected.total(), copies=done["rows"]),
            rows=done["rows"], bytes=sum(done["tars"].values()),
            built_rows=int(np.diff(edges)[missing].sum()), extra={"tars": count, "layout": LAYOUT},
        )  # fmt: skip


def _scatter(
    ctx: Context, node: Node, selection: str, copies: int, common: Common, there: dict[str, int]
) -> list[ShuffleFile]:
    """Copies of the pool's shards by range of rank, a file for each stretch of the shards with copies."""
    stage, rows, places = node.stage, ctx.outputs.rows(node), selection_places(ctx.storage.url, selection)
    assert isinstance(stage, Pack)
    shards = [shard for shard in ctx.outputs.pool(node).shards if shard.id in places and places[shard.id].copies]
    ranges = shuffle.buckets_for(copies, RANGE_ROWS)
    tasks, buckets = [], ranges * max(1, len(stage.groups()))
    for i, (first, stop) in enumerate(shuffle.stretches([places[s.id].copies for s in shards], buckets)):
        some = tuple(shards[first:stop])
        name = shuffle.stretch_name(i, [s.id for s in some], ranges, shuffle.HELD_BYTES)
        tasks.append((f"work/ranks/{name}" in there, name, some))

    payloads = (
        PackScatterTask(
            *common,
            found,
            name,
            some,
            ctx.outputs.placed(rows, some),
            selection,
            {s.id: places[s.id] for s in some},
            ranges,
            ctx.pipeline.media_upstream(node.name) != ("image",),
        )
        for found, name, some in tasks
    )
    return ctx.tasks.must(pack_scatter, payloads, node.stage, node.name)


def _member(line: dict[str, Any]) -> str:
    """The members of a line of the index that a reader begins with."""
    frames = len(line.get("frame_sizes") or ())
    return f"{frames} frames of {line['name']}" if frames else f"{line['name']}.{line['ext']}"


def _edges(copies: NDArray[np.int64], shard_rows: int) -> NDArray[np.int64]:
    """First row of each output shard, and the end of the last, for the copies of each group."""
    edges, start = [0], 0
    for number in copies.tolist():
        count = -(-number // shard_rows)
        edges += [start + i * number // count for i in range(1, count + 1)]
        start += number
    return np.array(edges, np.int64)


def _order(
    ctx: Context,
    node: Node,
    ranked: list[ShuffleFile],
    sizes: NDArray[np.int64],
    edges: NDArray[np.int64],
    common: Common,
    there: dict[str, int],
) -> list[tuple[int, ShuffleFile]]:
    """(its first output shard, file) of each range of ranks that is not empty."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    full = np.flatnonzero(sizes)
    first = np.searchsorted(edges, starts[full], side="right") - 1
    after = np.searchsorted(edges, starts[full + 1], side="left")
    identity = [file.path for file in ranked]
    names = [shuffle.stretch_name(int(number), identity, int(edges[-1]), len(edges)) for number in full]
    payloads = (
        OrderTask(
            *common, f"work/order/{name}" in there, name, shuffle.pieces(ranked, int(number)),
            tuple((edges[low : high + 1] - starts[number]).tolist()),
        )
        for name, number, low, high in zip(names, full, first, after, strict=True)
    )  # fmt: skip
    files = ctx.tasks.must(pack_order, payloads, node.stage, node.name)
    return list(zip(first.tolist(), files, strict=True))


def _pieces_of(order: list[tuple[int, ShuffleFile]], shard: int) -> tuple[Piece, ...]:
    """Places of the rows of an output shard. Ranges are in order, and few of them have rows of one shard."""
    found: list[Piece] = []
    place = bisect_right(order, shard, key=lambda pair: pair[0]) - 1
    while place >= 0 and shard - order[place][0] < len(order[place][1].rows):
        first, file = order[place]
        found += shuffle.pieces([file], shard - first)
        place -= 1
    return tuple(reversed(found))
