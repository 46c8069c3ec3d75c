"""Fingerprints: digests of everything that decides an output.

Facts depend on their stage and the columns it reads; the output of a global step also depends on the rows that reach
it. The rows enter by content (alive or not), never by the reasons of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from curate.codec import media
from curate.core.contracts import trait
from curate.core.hashing import digest
from curate.core.nouns.pools import FORMAT_OF_POOL
from curate.core.recipe.pipeline import Node
from curate.core.rows import CHILDREN, PARENT, of_parent
from curate.engine.outputs import Outputs
from curate.engine.state import Pool


def stage_digest(outputs: Outputs, node: Node, decodes: bool = False) -> str:
    """Digest of a stage's definition: op, version, parameters, identity, artifacts at its ports, and the versions of
    the media that it sees in its pool."""
    stage = node.stage
    value: dict[str, Any] = {
        "op": stage.op,
        "version": stage.version,
        "parameters": stage.parameters(),
        "identity": stage.identity(),
        "ports": {port: outputs.built[name].content for port, name in node.artifacts.items()},
    }
    if decodes or trait(stage, "pixels"):
        versions = [media.of(name).version for name in outputs.pipeline.media_seen(node.name)]
        value["decoder"] = versions[0] if len(versions) == 1 else versions
    return digest(value)


def column_fingerprints(outputs: Outputs, node: Node, columns: Iterable[str]) -> dict[str, str]:
    """Fingerprints of columns that a stage reads: of their maker's fingerprint and their name; for a column of the
    pool, of its name and the pool's format; for a parent's column, its fingerprint where the children were made."""
    columns = list(columns)
    if of_children := [name for name in columns if name.startswith(f"{CHILDREN}.")]:
        own = column_fingerprints(outputs, node, [name for name in columns if name not in of_children])
        return own | {name: _of_children(outputs, node.ports[CHILDREN], name) for name in of_children}
    if above := of_parent(columns):
        derive = outputs.pipeline.nodes[outputs.pipeline.pool_upstream(node.name)]
        own = column_fingerprints(outputs, node, [name for name in columns if not name.startswith(PARENT)])
        found = column_fingerprints(outputs, derive, above)
        return own | {PARENT + name: fingerprint for name, fingerprint in found.items()}
    makers = {column: outputs.pipeline.maker(node.name, column) for column in columns}
    return {
        column: digest(
            ["pool", column, FORMAT_OF_POOL] if maker is None else [outputs.built[maker].fingerprint, column]
        )
        for column, maker in makers.items()
    }


def _of_children(outputs: Outputs, stage: str, column: str) -> str:
    """Fingerprint of a column of children as a stage leaves them: of the column, and of the rows alive there."""
    child, name = outputs.pipeline.nodes[stage], column.removeprefix(f"{CHILDREN}.")
    if name in outputs.pipeline.columns_of(stage):
        found = digest([outputs.built[stage].fingerprint, name])
    elif outputs.pipeline.makes_pool(stage):
        found = digest(["pool", name, FORMAT_OF_POOL])
    else:
        found = column_fingerprints(outputs, child, [name])[name]
    return digest([found, _content(outputs, child, (stage,), outputs.pool(child))])


def facts_fingerprint(outputs: Outputs, node: Node) -> str:
    """Fingerprint of a Map's facts, or of a Filter's decisions. That of a costly stage has the number of times that gc
    removed its answers: recomputed answers may differ."""
    what = stage_digest(outputs, node)
    folder = f"facts/{node.stage.op}/{what}"
    if trait(node.stage, "costly") and folder not in outputs.removed:
        outputs.removed[folder] = len(outputs.storage.list(f"{folder}/removed"))
    times = outputs.removed.get(folder)
    return digest([f"{what}-{times}" if times else what, column_fingerprints(outputs, node, node.stage.reads())])


def children_fingerprint(outputs: Outputs, node: Node) -> str:
    """Fingerprint of a Derive's children, by parent."""
    what, columns = stage_digest(outputs, node, decodes=True), column_fingerprints(outputs, node, node.stage.reads())
    return digest([what, columns]) if columns else what


def rows_fingerprint(outputs: Outputs, node: Node, columns: dict[str, str], **more: Any) -> str:
    """Fingerprint of an output that depends on the rows that reach its stage, on the fingerprints of the columns it
    reads, and on whatever else is given."""
    value = {"stage": stage_digest(outputs, node), "columns": columns, "namespace": outputs.pool(node).namespace}
    alive = {} if "alive" in more else {"alive": _content(outputs, node, node.inputs, outputs.pool_upstream(node))}
    return digest(value | alive | more)


def buried(outputs: Outputs) -> dict[str, str]:
    """What removed keys add to the fingerprint of a stage that leaves them out."""
    return {"tombstones": outputs.tombstones.digest} if outputs.tombstones else {}


def content_by_shard(outputs: Outputs, node: Node, reads: Sequence[str] | None = None) -> dict[str, str]:
    """Shard -> digest of the rows that reach a stage there, for stages that keep results by shard. `reads`: other
    columns than the stage's own."""
    ways, pool = outputs.ways(node.inputs), outputs.pool_upstream(node)
    masks = {mask.chain: mask for mask in outputs.masks}
    refs, select = outputs.mask_refs(ways), outputs.selection_among(ways)
    selected = [outputs.built[select].fingerprint] if select else []
    above = content_of_parents(outputs, node, node.stage.reads() if reads is None else reads)
    found = {}
    for shard in pool.shards:
        parts = [masks[ref.chain].by_shard[ref.point].get(shard.id, "") for ref in refs]
        parts += [*selected, *([] if refs else [pool.alive.get(shard.id, "")])]
        found[shard.id] = digest([*parts, *([above[shard.id]] if above else [])])
    return found


def content_of_parents(outputs: Outputs, node: Node, reads: Iterable[str]) -> dict[str, str]:
    """Shard -> digest of its parents' rows, if one of the columns is theirs and may be the null of an error, which a
    retry replaces; otherwise empty."""
    derive, columns = outputs.pipeline.nodes[outputs.pipeline.pool_upstream(node.name)], of_parent(reads)
    if not columns or not outputs.pipeline.passes_errors(derive.name):
        return {}
    above = content_by_shard(outputs, derive, columns)
    return {shard.id: above[shard.parent_shard().id] for shard in outputs.pool_upstream(node).shards}


def _content(outputs: Outputs, node: Node, inputs: Sequence[str], pool: Pool) -> str:
    """Digest of the rows that pass some inputs of a stage."""
    ways = outputs.ways(inputs)
    masks = {mask.chain: mask for mask in outputs.masks}
    parts = [masks[ref.chain].contents[ref.point] for ref in outputs.mask_refs(ways)]
    select = outputs.selection_among(ways)
    parts += [outputs.built[select].fingerprint] if select else []
    found = digest(sorted(parts)) if parts else pool.fingerprint
    above = content_of_parents(outputs, node, node.stage.reads())
    return digest([found, list(above.items())]) if above else found
