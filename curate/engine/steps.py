"""The steps of a run: which stages go together, and what each step waits for. Decided by the pipeline and the lanes of
its stages alone, so that the same recipe makes the same passes whatever ends first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from curate.core.contracts import Derive, Filter, Map, Source
from curate.core.hashing import digest
from curate.core.recipe.pipeline import Node, Pipeline


@dataclass(frozen=True)
class Step:
    """A source, a global stage, or a pass of several Maps and Filters."""

    nodes: tuple[Node, ...]
    after: frozenset[int]
    """Steps that have to be complete before it begins."""
    follows: frozenset[int]
    """Passes that it follows shard by shard."""

    @property
    def is_pass(self) -> bool:
        return isinstance(self.nodes[0].stage, (Map, Filter))


def steps(pipeline: Pipeline, there: Collection[str] = ()) -> list[Step]:
    """Every stage in one step, in an order in which each comes after what it waits for; `there` are pins."""
    have, made = set(there), list[Step]()
    pools: list[str] = []

    def add(group: Sequence[Node]) -> None:
        made.append(_step(made, tuple(group)))
        have.update(node.name for node in group)

    for node in pipeline.nodes.values():
        if isinstance(node.stage, Source):
            add([node])
            pools.append(node.name)
    while left := [node for node in pipeline.nodes.values() if node.name not in have]:
        group = together(pipeline, pools, [node for node in left if isinstance(node.stage, (Map, Filter))], have)
        if not group:
            group = [next(node for node in left if have.issuperset(node.upstream))]
            pools += [node.name for node in group if isinstance(node.stage, Derive)]
        add(group)
    return made


def _step(made: Sequence[Step], nodes: tuple[Node, ...]) -> Step:
    own = {node.name for node in nodes}
    place = {node.name: number for number, step in enumerate(made) for node in step.nodes}
    ways = {place[up] for node in nodes for up in node.inputs if up in place and up not in own}
    needs = {place[up] for node in nodes for up in node.upstream if up in place and up not in own}
    is_pass = isinstance(nodes[0].stage, (Map, Filter))
    ports = {place[up] for node in nodes for up in node.ports.values() if up in place}
    follows = {number for number in ways - ports if is_pass and made[number].is_pass}
    return Step(nodes, frozenset(needs - follows), frozenset(follows))


def above(made: Sequence[Step], number: int) -> set[int]:
    """All steps that a step waits for or follows, directly or not."""
    found: set[int] = set()
    todo = [number]
    while todo:
        step = made[todo.pop()]
        fresh = (step.after | step.follows) - found
        found |= fresh
        todo += fresh
    return found


def together(pipeline: Pipeline, pools: Sequence[str], nodes: Sequence[Node], have: Collection[str]) -> list[Node]:
    """Maps and Filters that go in one pass: of one pool and one lane, everything else upstream in `have`. Empty when
    none can go yet. Filters go with what they judge. Two with the same facts go one after the other: the second finds
    what the first has computed."""
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
