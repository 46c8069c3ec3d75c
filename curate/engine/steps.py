"""The steps of a run: stages that run together, and the steps that each step waits for. They depend only on the
pipeline and the lanes of its stages, so that the same recipe always has the same passes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from curate.core.contracts import Collect, Derive, Filter, Map, Source
from curate.core.hashing import digest
from curate.core.recipe.pipeline import Node, Pipeline


@dataclass(frozen=True)
class Step:
    """A source, a global stage, or a pass of several Maps and Filters."""

    nodes: tuple[Node, ...]
    after: frozenset[int]
    """Steps that must be complete before this one begins."""
    follows: frozenset[int]
    """Passes that this one follows shard by shard."""

    @property
    def is_pass(self) -> bool:
        return isinstance(self.nodes[0].stage, (Map, Filter))


def steps(pipeline: Pipeline, built: Collection[str] = ()) -> list[Step]:
    """All steps, each after the steps it waits for. `built`: pins, which no step builds."""
    have, found = set(built), list[Step]()
    pools: list[str] = []

    def add(group: Sequence[Node]) -> None:
        found.append(_step(found, tuple(group)))
        have.update(node.name for node in group)

    for node in pipeline.nodes.values():
        if isinstance(node.stage, (Collect, Source)) and have.issuperset(node.upstream):
            add([node])
            pools += [node.name] if isinstance(node.stage, Source) else []
    while left := [node for node in pipeline.nodes.values() if node.name not in have]:
        group = together(pipeline, pools, [node for node in left if isinstance(node.stage, (Map, Filter))], have)
        if not group:
            group = [next(node for node in left if have.issuperset(node.upstream))]
            pools += [node.name for node in group if isinstance(node.stage, (Derive, Source))]
        add(group)
    return found


def _step(before: Sequence[Step], nodes: tuple[Node, ...]) -> Step:
    own = {node.name for node in nodes}
    place = {node.name: number for number, step in enumerate(before) for node in step.nodes}
    ways = {place[up] for node in nodes for up in node.inputs if up in place and up not in own}
    needs = {place[up] for node in nodes for up in node.upstream if up in place and up not in own}
    is_pass = isinstance(nodes[0].stage, (Map, Filter))
    ports = {place[up] for node in nodes for up in node.ports.values() if up in place}
    follows = {number for number in ways - ports if is_pass and before[number].is_pass}
    return Step(nodes, frozenset(needs - follows), frozenset(follows))


def above(all_steps: Sequence[Step], number: int) -> set[int]:
    """All steps that a step waits for or follows, directly or indirectly."""
    found: set[int] = set()
    todo = [number]
    while todo:
        step = all_steps[todo.pop()]
        fresh = (step.after | step.follows) - found
        found |= fresh
        todo += fresh
    return found


def together(pipeline: Pipeline, pools: Sequence[str], nodes: Sequence[Node], have: Collection[str]) -> list[Node]:
    """Maps and Filters of the next pass: one pool and one lane, with all other upstream stages in `have`. Empty if none
    is ready. A Filter joins the pass of the stages it reads. Two Maps with the same facts go into separate passes, so
    that the second reuses the facts of the first."""
    for pool in pools:
        chosen: list[Node] = []
        names: set[str] = set()
        facts: set[str] = set()
        lane = ""
        for node in nodes:
            ready = all(up in have or (up in names and up in node.inputs) for up in node.upstream)
            if not ready or pipeline.pool_of(node.name) != pool:
                continue
            if isinstance(node.stage, Map):
                mine = node.stage.resources().lane
                same = digest([node.stage.op, node.stage.parameters(), dict(node.ports)])
                if same in facts or (lane and lane != mine):
                    continue
                facts.add(same)
                lane = mine
            chosen.append(node)
            names.add(node.name)
        if chosen:
            return chosen
    return []
