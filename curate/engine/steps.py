"""The steps of a run: which class carries out the stages of a contract, which stages share a pass, and what each step
waits for. They depend only on the pipeline and the lanes of its stages, so that the same recipe always has the same
passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from curate.core import contracts
from curate.core.contracts import Stage, by_contract
from curate.core.hashing import digest
from curate.core.recipe.pipeline import Node, Pipeline
from curate.engine.passes.step import PassStep
from curate.engine.units.collect.build import CollectStep
from curate.engine.units.derive.step import DeriveStep
from curate.engine.units.fit.build import FitStep
from curate.engine.units.pack.build import PackStep
from curate.engine.units.reduce import ReduceStep
from curate.engine.units.report import ReportStep
from curate.engine.units.select.build import SelectStep
from curate.engine.units.source.step import SourceStep
from curate.engine.units.step import Step

STEPS: Mapping[type[Stage], type[Step]] = {
    contracts.Collect: CollectStep,
    contracts.Source: SourceStep,
    contracts.Map: PassStep,
    contracts.Filter: PassStep,
    contracts.Derive: DeriveStep,
    contracts.Reduce: ReduceStep,
    contracts.Fit: FitStep,
    contracts.Select: SelectStep,
    contracts.Pack: PackStep,
    contracts.Report: ReportStep,
}
"""Contract -> how the engine carries out its stages."""


NOUNS: Mapping[str, type[Step]] = {
    "pools": DeriveStep,
    "facts": PassStep,
    "masks": PassStep,
    "artifacts": ReduceStep,
    "selections": SelectStep,
    "datasets": PackStep,
}
"""Folder of a noun -> a class of steps that knows its outputs, whichever contract made them."""


def maker_of(base: str) -> type[Step] | None:
    """The class of steps that knows an output, by its base."""
    return NOUNS.get(base.split("/")[0])


def class_of(stage: Stage) -> type[Step]:
    return by_contract(STEPS, stage)


def step_of(node: Node) -> Step:
    """The step of a stage alone."""
    return class_of(node.stage)(node)


def steps(pipeline: Pipeline, built: Collection[str] = ()) -> list[Step]:
    """All steps, each after the steps it waits for. `built`: pins, which no step builds."""
    have, found, pools = set(built), list[Step](), list[str]()

    def add(*nodes: Node) -> None:
        found.append(_linked(class_of(nodes[0].stage)(*nodes), found))
        have.update(node.name for node in nodes)
        pools.extend(node.name for node in nodes if pipeline.makes_pool(node.name))

    for node in pipeline.nodes.values():
        if class_of(node.stage).at_start and have.issuperset(node.upstream):
            add(node)
    while left := [node for node in pipeline.nodes.values() if node.name not in have]:
        group = together(pipeline, pools, [node for node in left if class_of(node.stage).by_shard], have)
        add(*group or [next(node for node in left if have.issuperset(node.upstream))])
    return found


def _linked(step: Step, before: Sequence[Step]) -> Step:
    """The step, with the steps before it that it waits for."""
    makers = {node.name: other for other in before for node in other.nodes}
    ways = {makers[up] for node in step.nodes for up in node.inputs if up in makers}
    needs = {makers[up] for node in step.nodes for up in node.upstream if up in makers}
    ports = {makers[up] for node in step.nodes for up in node.ports.values() if up in makers}
    step.follows = frozenset(other for other in ways - ports if step.by_shard and other.by_shard)
    step.after = frozenset(needs - step.follows)
    return step


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
            if pipeline.columns_of(node.name):
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
