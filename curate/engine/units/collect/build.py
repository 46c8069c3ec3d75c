"""A Collect: workers deal external rows into buckets by group; then each bucket is sorted and divided into portions.

    artifacts/<op>/<fingerprint>/work/<deal>             rows of some parts, by bucket, until the commit
    artifacts/<op>/<fingerprint>/rows/<buckets>.parquet  portions, one per row group
    artifacts/<op>/<fingerprint>/portions.parquet        a line per portion, also for those of earlier artifacts
    artifacts/<op>/<fingerprint>/parts.parquet           the parts that were read

If an earlier artifact has the same parameters, each of its portions whose rows still all exist stays where it is, and
only the other rows become new portions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from curate.core.contracts import Collect, Portion
from curate.core.contracts.collect import PORTIONS
from curate.core.errors import InputError, PreflightError
from curate.core.hashing import digest
from curate.core.ledger import Entry, joined_skips
from curate.core.nouns.artifacts import FILES
from curate.core.recipe.pipeline import Node
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.fingerprints import stage_digest
from curate.engine.state import Built, Options
from curate.engine.units import shuffle
from curate.engine.units.collect.earlier import Earlier, Kept, find_earlier, parts_of, subtract
from curate.engine.units.collect.tasks import LINE, CutTask, DealTask, Fresh, cut_rows, deal_rows
from curate.engine.units.step import GlobalStep, Planned

LEAST_BUCKET_BYTES, BUCKET_BYTES = 16 << 20, 64 << 20
"""Input bytes of a bucket of small and of large inputs: one worker holds the rows of a bucket in memory. Rows of small
buckets fit into memory that was used before, which is faster than new memory; each bucket costs a range read per deal.
"""
FEW_BUCKETS = 256
"""Up to this number, buckets are small."""
DEAL_BYTES, DEALS = 256 << 20, 256
"""Input bytes of a deal, and about the most deals: each costs a range read per bucket."""
CUT_PORTIONS = 16
"""New rows of consecutive buckets are divided together until they fill about this many portions."""
DUPLICATE = "duplicate_row"


class CollectStep(GlobalStep):
    at_start: ClassVar[bool] = True

    def portions(self, storage: Storage, options: Options) -> Planned | None:
        """The whole input, in a canary run too: the artifact's portions depend on all of it."""
        stage = self.node.stage
        assert isinstance(stage, Collect)
        try:
            return stage.plan(), 1.0
        except (InputError, PreflightError) as error:
            raise self.node.located(error) from None

    def fingerprint(self, ctx: Context) -> str:
        parts, _ = ctx.portions[self.node.name]
        return digest([stage_digest(ctx.outputs, self.node), [part.content for part in parts]])

    def build(self, ctx: Context, built: Built) -> None:
        node, stage = self.node, self.node.stage
        assert isinstance(stage, Collect)
        parts, _ = ctx.portions[node.name]
        wanted = _buckets(sum(part.bytes for part in parts))
        earlier = find_earlier(ctx, node, built, parts, wanted)
        buckets = earlier.buckets if earlier else wanted
        with ctx.progress.step(node.name, sum(part.rows or 0 for part in parts)) as step:
            dealt: list[shuffle.ShuffleFile] = []
            for _, file in sorted(
                ctx.tasks.each(deal_rows, _deals(ctx, node, built, parts, buckets), stage, node.name)
            ):
                dealt.append(file)
                step.advance(file.note["rows"])
            dropped = sum((Counter(file.note["dropped"]) for file in dealt), Counter[str]())
            kept, cuts = _cuts(ctx, node, built, dealt, buckets, earlier)
            table, duplicates = _cut(ctx, node, built, cuts)
        duplicates += kept.duplicates if kept else 0
        files = set(table.column("file").to_pylist())
        table = pa.concat_tables([kept.lines, table]) if kept else table
        read, rows = sum(file.note["rows"] for file in dealt), pc.sum(table["rows"]).as_py() or 0
        dropped += Counter({DUPLICATE: duplicates} if duplicates else {})
        if not rows:
            why = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items()))
            raise InputError(f"{stage.op}: none of {read:,} rows can be used ({why or 'the input is empty'})")
        ctx.storage.publish_table(f"{built.base}/{PORTIONS}.parquet", table)
        ctx.storage.publish_table(f"{built.base}/parts.parquet", parts_of(parts))
        for file in ctx.storage.list(f"{built.base}/rows"):
            if f"rows/{file}" not in files:
                ctx.storage.remove_file(f"{built.base}/rows/{file}")
        bases = sorted(set(table.column("base").to_pylist()) - {built.base})
        entry = Entry(read, dropped, rows, skipped=joined_skips(*(part.skipped for part in parts)))
        ctx.outputs.finish(
            node, built, "artifact", entry, rows=rows, built_rows=read,
            content=digest(table.column("digest").to_pylist()),
            extra={FILES: [f"{PORTIONS}.parquet"], "bases": bases, "buckets": buckets},
        )  # fmt: skip


def _cut(ctx: Context, node: Node, built: Built, cuts: Iterable[CutTask]) -> tuple[pa.Table, int]:
    """Lines of the portions that are cut now, and the number of duplicate rows."""
    made, duplicates = [LINE.empty_table()], 0
    for _, cut in ctx.tasks.each(cut_rows, cuts, node.stage, node.name):
        made.append(pa.Table.from_pylist([line | {"base": built.base} for line in cut["lines"]], schema=LINE))
        duplicates += cut["duplicates"]
    return pa.concat_tables(made).sort_by([("first", "ascending"), ("index", "ascending")]), duplicates


def _buckets(size: int) -> int:
    """Number of buckets for `size` bytes of input."""
    each = min(BUCKET_BYTES, max(LEAST_BUCKET_BYTES, size // FEW_BUCKETS))
    return max(1, -(-size // each))


def _cuts(
    ctx: Context,
    node: Node,
    built: Built,
    dealt: Sequence[shuffle.ShuffleFile],
    buckets: int,
    earlier: Earlier | None,
) -> tuple[Kept | None, Iterable[CutTask]]:
    """The portions that stay, and the tasks that divide all other rows."""
    stage = node.stage
    assert isinstance(stage, Collect)
    most = stage.portion_rows
    if earlier is None:
        return None, _cuts_of_buckets(ctx, node, built, most, dealt, buckets)
    lines, found = subtract(ctx, node, built, dealt, buckets, earlier.lines)
    cuts: list[CutTask] = []
    held: list[int] = []
    rows = 0
    for number in [number for number in sorted(found) if found[number].rows]:
        held.append(number)
        rows += found[number].rows
        if rows >= CUT_PORTIONS * most:
            cuts.append(_cut_of(ctx, node, built, most, held, found))
            held, rows = [], 0
    cuts += [_cut_of(ctx, node, built, most, held, found)] if held else []
    return Kept(lines, sum(one.duplicates for one in found.values())), cuts


def _cuts_of_buckets(
    ctx: Context, node: Node, built: Built, most: int, dealt: Sequence[shuffle.ShuffleFile], buckets: int
) -> Iterator[CutTask]:
    """Made when they are sent: all of them name every bucket's pieces of every file."""
    for number in range(buckets):
        if pieces := shuffle.pieces(dealt, number):
            yield CutTask(ctx.storage, node.name, built.base, most, number, number, pieces)


def _cut_of(
    ctx: Context, node: Node, built: Built, most: int, held: Sequence[int], found: Mapping[int, Fresh]
) -> CutTask:
    files = tuple(found[number].path for number in held)
    return CutTask(ctx.storage, node.name, built.base, most, held[0], held[-1], files=files)


def _deals(ctx: Context, node: Node, built: Built, parts: Sequence[Portion], buckets: int) -> Iterator[DealTask]:
    """Tasks of consecutive parts; after a kill they have the same names."""
    stage = node.stage
    assert isinstance(stage, Collect)
    most = max(DEAL_BYTES, sum(part.bytes for part in parts) // DEALS)
    held: list[Portion] = []
    number = size = 0
    for place, part in enumerate(parts, 1):
        held.append(part)
        size += part.bytes
        if size >= most or place == len(parts):
            name = shuffle.stretch_name(number, [digest(one.content) for one in held], buckets)
            path = f"{built.base}/work/{name}"
            yield DealTask(ctx.storage, stage, node.name, path, tuple(held), buckets)
            held, size, number = [], 0, number + 1
