"""The plan of a pass before it runs: its stages, the masks it stores, and which tables the workspace has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from curate.core.contracts import Filter, Map, trait
from curate.core.hashing import digest
from curate.core.nouns import facts
from curate.core.nouns.masks import mask_file
from curate.core.nouns.pools import Shard
from curate.core.recipe.pipeline import Node
from curate.core.rows import CHILDREN, Rows
from curate.engine.fingerprints import content_of_parents, facts_fingerprint, stage_digest
from curate.engine.outputs import Outputs, point_name
from curate.engine.passes.answers import index as answer_index
from curate.engine.passes.answers import log as answer_log
from curate.engine.passes.answers.lookup import IMPORTED, OTHERS
from curate.engine.passes.answers.merge import is_due
from curate.engine.passes.task import PassStage, Point, suspects
from curate.engine.state import Built, Mask

OtherTables = dict[str, tuple[tuple[str, int], ...]]
"""Shard -> (folder of another fingerprint, number of its table)."""


@dataclass
class PassPlan:
    stages: tuple[PassStage, ...]
    points: tuple[Point, ...]
    chain: str
    """Folder of the mask."""
    names: tuple[str, ...]
    """All stages of the DAG, in order."""
    outside: tuple[Mask, ...]
    """Masks of other passes that this pass combines with its own."""
    alive: Mapping[str, str]
    """For a derived pool: shard -> digest of its children with an alive parent, and of what these read of it."""
    numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    """Map -> shard -> number of its highest table."""
    others: dict[str, OtherTables] = field(default_factory=dict)
    indexes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Costly stage -> files of its index of answers -> bytes."""
    due: frozenset[str] = frozenset()
    """Costly stages whose index is to be merged or rebuilt."""
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Map -> file -> bytes."""
    suspects: set[str] = field(default_factory=set)
    """Shards that were under way when an earlier run died."""

    def bases(self, shard: Shard) -> tuple[str, ...]:
        """What else a shard's mask depends on: mask files from outside."""
        files = tuple(mask.files[shard.id] for mask in self.outside if shard.id in mask.files)
        return (*files, self.alive[shard.id]) if shard.id in self.alive else files

    def file(self, shard: Shard) -> str:
        """Path of a shard's mask for the tables of `numbers`."""
        numbers = {name: of_shard.get(shard.id, 0) for name, of_shard in self.numbers.items()}
        return mask_file(self.chain, shard.id, numbers, self.bases(shard))

    def rows(self) -> list[Rows]:
        """All rows from outside that stages and points refer to."""
        found = [*(s.base for s in self.stages), *(s.columns for s in self.stages), *(p.base for p in self.points)]
        return [rows for rows in found if rows is not None]

    def version(self, shards: Sequence[Shard]) -> str:
        """Base of the mask that combines the tables of `numbers`."""
        return f"{self.chain}/versions/{digest([self.file(shard) for shard in shards])}"


def make_plan(outputs: Outputs, nodes: list[Node], above: frozenset[str]) -> PassPlan:
    plan = lay_out(outputs, nodes, above)
    survey(outputs, plan)
    return plan


def lay_out(outputs: Outputs, nodes: list[Node], above: frozenset[str]) -> PassPlan:
    """The pass of some nodes, without the tables. Records each stage in `outputs.built`, and the mask that the pass
    will store; reads nothing that gc may remove. `above`: stages of the passes that this one follows, shard by
    shard."""
    names = {node.name for node in nodes}
    stages = tuple(_stage(outputs, node, names) for node in nodes)
    points = tuple(_points(outputs, nodes, names, above))
    bases = {id(rows): rows for rows in [*(s.base for s in stages), *(p.base for p in points)] if rows is not None}
    masks = {mask.chain: mask for mask in outputs.masks}
    outside: list[Any] = []
    for rows in bases.values():
        outside += [ref.chain for ref in rows.masks] + [rows.selection]
    described: list[Any] = [
        [s.name, s.place, outputs.built[s.name].fingerprint, s.inputs, s.keep_null, s.family] for s in stages
    ]
    described += [[p.name, p.inputs] for p in points]
    pool = outputs.pool(nodes[0])
    chain = f"masks/{digest([described, outside])}"
    alive = {} if pool.parents is None else pool.alive
    parents = content_of_parents(outputs, nodes[0], [name for s in stages for name in s.stage.reads()])
    alive = {shard: digest([alive.get(shard, ""), found]) for shard, found in parents.items()} or alive
    others = tuple(masks[ref.chain] for rows in bases.values() for ref in rows.masks)
    outputs.masks.append(Mask(chain, frozenset(names), tuple(point.name for point in points)))
    return PassPlan(stages, points, chain, tuple(outputs.pipeline.nodes), others, alive)


def _stage(outputs: Outputs, node: Node, names: set[str]) -> PassStage:
    stage, fingerprint = node.stage, facts_fingerprint(outputs, node)
    path = (
        f"facts/{stage.op}/{stage_digest(outputs, node)}/{fingerprint}"
        if outputs.pipeline.columns_of(node.name)
        else ""
    )
    outputs.built[node.name] = Built(fingerprint, "", path, content=fingerprint)
    inside = tuple(name for name in node.inputs if name in names)
    outside = [name for name in node.inputs if name not in names]
    families = outputs.pipeline.families(node.name)
    places = stage.places()
    family = families.get(places, places) if places is not None else ""
    read = [*stage.reads(), *([family] if family else [])]
    makers = {column: outputs.pipeline.maker(node.name, column) for column in read}
    return PassStage(
        name=node.name,
        place=outputs.order[node.name],
        stage=cast("Map | Filter", stage),
        inputs=inside,
        base=outputs.rows(node, outside) if not inside or outputs.ways(outside) else None,
        makers={column: maker for column, maker in makers.items() if maker is not None and maker in names},
        columns=outputs.rows(node, outside),
        path=path,
        ports=outputs.ports(node),
        keep_null=node.keep_null,
        may_mark=outputs.pipeline.passes_errors(node.name),
        family=family,
        families={column: family for column, family in families.items() if column in stage.reads()},
        where=node.place,
    )


def _points(outputs: Outputs, nodes: list[Node], names: set[str], above: frozenset[str]) -> Iterator[Point]:
    """The points where later steps read a mask. Paths through passes that this one does not follow are combined by the
    step that reads them: this pass would wait for them unnecessarily."""
    seen: set[str] = set()
    for consumer in outputs.pipeline.nodes.values():
        child = consumer.ports.get(CHILDREN)
        if child in names and child not in seen:
            seen.add(child)
            yield Point(child, (child,), None)
        mine = [name for name in consumer.inputs if name in names]
        if consumer.name in names or not mine:
            continue
        ways = outputs.ways(consumer.inputs)
        rest = [name for name in ways if name not in names]
        whole = all(name in above for name in rest)
        name = point_name(ways if whole else mine)
        if name not in seen:
            seen.add(name)
            yield Point(name, tuple(mine), outputs.rows(consumer, rest) if whole and rest else None)
    read = {up for node in outputs.pipeline.nodes.values() for up in node.inputs}
    for name in sorted(names - read - seen):  # no stage reads these, but `curate explain` does
        yield Point(name, (name,), None)


def survey(outputs: Outputs, plan: PassPlan) -> None:
    """List the existing tables and marks: one listing for each Map's folder, and one for the mask's."""
    shards = {shard.id for shard in outputs.pool(outputs.pipeline.nodes[plan.stages[0].name]).shards}
    for spec in plan.stages:
        if spec.path:
            plan.sizes[spec.name] = found = outputs.storage.list(spec.path)
            plan.numbers[spec.name] = {s: n for s, n in facts.latest(found).items() if s in shards}
            if trait(spec.stage, "costly"):
                plan.others[spec.name], index = _others(outputs, spec, shards)
                plan.indexes[spec.name] = answer_index.files_of(index)
                due = is_due(index)
                plan.due = plan.due | {spec.name} if due else plan.due - {spec.name}
    plan.suspects |= suspects(outputs.storage, plan.chain)


def _others(outputs: Outputs, spec: PassStage, shards: set[str]) -> tuple[OtherTables, dict[str, int]]:
    """Highest tables of the stage under a few other fingerprints, and the listing of its index."""
    folder, own = spec.path.rsplit("/", 1)
    by_fingerprint: dict[str, list[str]] = {}
    index: dict[str, int] = {}
    for file, size in outputs.storage.list(folder).items():
        name, _, rest = file.partition("/")
        if name == answer_index.FOLDER:
            index[rest] = size
        elif name not in (own, answer_log.FOLDER, "removed", IMPORTED):
            by_fingerprint.setdefault(name, []).append(rest)
    found: OtherTables = {}
    for name in sorted(by_fingerprint)[-OTHERS:]:
        for shard, number in facts.latest(by_fingerprint[name]).items():
            if shard in shards:
                found[shard] = (*found.get(shard, ()), (f"{folder}/{name}", number))
    return found, index
