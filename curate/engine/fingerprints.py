"""Fingerprints: digests of everything that decides an output.

Facts depend on their stage and the columns it reads; the output of a global step also depends on the rows that reach
it. The rows enter by content (alive or not), never by the reasons of the others.
"""

from __future__ import annotations

from typing import Any

from curate.core.contracts import Collect, Derive, Filter, Map, Pack, Report, Select, Source
from curate.core.hashing import digest
from curate.core.nouns.pools import FORMAT_OF_POOL
from curate.core.nouns.selections import FORMAT_OF_SELECTION
from curate.core.recipe.pipeline import Node
from curate.engine.context import Context

DECODER_VERSION = 1
"""Increases when the same bytes decode to other pixels; facts of images are then recomputed."""


def fingerprint(ctx: Context, node: Node) -> str:
    """Fingerprint of a stage's output: its facts, or the result of a global step."""
    stage = node.stage
    what = stage_digest(ctx, node)
    if isinstance(stage, Map):
        what = _costly_digest(ctx, node, what)
        return digest([what, {name: column_fingerprint(ctx, node, name) for name in stage.reads()}])
    if isinstance(stage, Derive):
        return what
    if isinstance(stage, Collect):
        parts, _ = ctx.portions[node.name]
        return digest([what, [part.content for part in parts]])
    if isinstance(stage, Report):
        return digest(_global(ctx, node, what, _report_columns(ctx, node)) | {"alive": _reported(ctx, node)})
    reads = list(stage.reads())  # type: ignore[attr-defined]
    if isinstance(stage, Pack):
        existing = ctx.pipeline.fields(node.name)
        reads += [name for name in stage.text_columns() if name in existing]
    columns = {name: column_fingerprint(ctx, node, name) for name in reads}
    return digest([what, columns] if isinstance(stage, Filter) else _global(ctx, node, what, columns))


def stage_digest(ctx: Context, node: Node) -> str:
    """Digest of a stage's definition: op, version, parameters, identity, artifacts at its ports and the decoder."""
    stage = node.stage
    value: dict[str, Any] = {
        "op": stage.op,
        "version": stage.version,
        "parameters": stage.parameters(),
        "identity": stage.identity(),
        "ports": {port: ctx.built[name].content for port, name in node.ports.items()},
    }
    if isinstance(stage, Derive) or (isinstance(stage, Map) and stage.pixels):
        value["decoder"] = DECODER_VERSION
    return digest(value)


def column_fingerprint(ctx: Context, node: Node, column: str) -> str:
    """Fingerprint of a column that a stage reads: its maker's fingerprint and its name; for a pool's column, its name
    and the pool's format."""
    maker = ctx.pipeline.maker(node.name, column)
    return digest(["pool", column, FORMAT_OF_POOL] if maker is None else [ctx.built[maker].fingerprint, column])


def content_by_shard(ctx: Context, node: Node) -> dict[str, str]:
    """Shard -> digest of the rows that reach a stage there, for stages that keep results by shard."""
    ways, pool = ctx.ways(node.inputs), ctx.pool_upstream(node)
    masks = {mask.chain: mask for mask in ctx.masks}
    refs, select = ctx.mask_refs(ways), ctx.selection_among(ways)
    selected = [ctx.built[select].fingerprint] if select else []
    found = {}
    for shard in pool.shards:
        parts = [masks[ref.chain].by_shard[ref.point].get(shard.id, "") for ref in refs]
        found[shard.id] = digest([*parts, *selected, *([] if refs else [pool.alive.get(shard.id, "")])])
    return found


def _content(ctx: Context, node: Node) -> str:
    """Digest of the rows that reach a stage."""
    ways = ctx.ways(node.inputs)
    masks = {mask.chain: mask for mask in ctx.masks}
    parts = [masks[ref.chain].contents[ref.point] for ref in ctx.mask_refs(ways)]
    select = ctx.selection_among(ways)
    parts += [ctx.built[select].fingerprint] if select else []
    return digest(sorted(parts)) if parts else ctx.pool_upstream(node).fingerprint


def _global(ctx: Context, node: Node, what: str, columns: dict[str, str]) -> dict[str, Any]:
    """What the output of a global step depends on."""
    stage = node.stage
    value: dict[str, Any] = {"stage": what, "columns": columns, "namespace": ctx.pool(node).namespace}
    if not isinstance(stage, Report):
        value["alive"] = _content(ctx, node)
    if isinstance(stage, (Pack, Report)):
        upstream = (ctx.pipeline.reaches if isinstance(stage, Report) else ctx.pipeline.along)(node.name)
        makers = [up for up in upstream if not isinstance(up.stage, (Collect, Source, Derive, Map, Filter))]
        value["from"] = sorted(ctx.built[up.name].fingerprint for up in makers)
    if isinstance(stage, Select):
        value["format"] = FORMAT_OF_SELECTION
    if isinstance(stage, (Select, Pack, Report)) and ctx.tombstones:
        value["tombstones"] = ctx.tombstones.digest
    return value


def _costly_digest(ctx: Context, node: Node, what: str) -> str:
    """Digest of a costly stage with the number of times that gc removed its answers: recomputed answers may differ."""
    folder = f"facts/{node.stage.op}/{what}"
    times = ctx.removed.get(folder)
    if times is None:
        costly = isinstance(node.stage, Map) and node.stage.costly
        times = ctx.removed[folder] = len(ctx.storage.list(f"{folder}/removed")) if costly else 0
    return f"{what}-{times}" if times else what


def _report_columns(ctx: Context, node: Node) -> dict[str, str]:
    """Every column upstream of a report -> digest of the fingerprints of its makers."""
    makers: dict[str, list[str]] = {}
    for up in ctx.pipeline.reaches(node.name):
        for column in ctx.pipeline.columns_of(up.name):
            makers.setdefault(column, []).append(ctx.built[up.name].fingerprint)
    return {column: digest([found, column]) for column, found in sorted(makers.items())}


def _reported(ctx: Context, node: Node) -> list[Any]:
    """What a report shows in addition to artifacts: the ledger, and the live rows at each point upstream."""
    upstream = {up.name for up in ctx.pipeline.reaches(node.name)}
    ledgers = []
    for name in sorted(upstream):
        manifest = ctx.built[name].manifest
        if manifest is not None:
            ledgers.append([name, {**manifest.entry.to_json(), "counters": {}}])
    points = {point: reasons for mask in ctx.masks for point, reasons in mask.reasons.items()}
    return [ledgers, sorted(item for item in points.items() if upstream.issuperset(item[0].split("+")))]
