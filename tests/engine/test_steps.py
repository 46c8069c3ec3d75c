"""Which stages go together in a pass, and what each step of a run waits for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import pyarrow as pa

from curate.core.contracts import Batch, Map, Reduce, Resources, Source, Table
from curate.core.recipe.pipeline import Pipeline
from curate.engine.steps import steps
from curate.engine.units.step import Step


class Pool(Source):
    op: ClassVar[str] = "steps.pool"
    namespace: str = "pool"


class OnCpu(Map):
    op: ClassVar[str] = "steps.cpu"
    column: str
    read: tuple[str, ...] = ()

    def reads(self) -> tuple[str, ...]:
        return self.read

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(self.column, pa.int64())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {self.column: [0] * len(batch)}


class OnGpu(OnCpu):
    op: ClassVar[str] = "steps.gpu"

    def resources(self) -> Resources:
        return Resources(gpus=1)


class OnEndpoint(OnCpu):
    op: ClassVar[str] = "steps.remote"

    def resources(self) -> Resources:
        return Resources(cpus=0.25, remote=True)


class Count(Reduce):
    op: ClassVar[str] = "steps.count"
    kind: ClassVar[str] = "count"

    def partial(self, table: Table) -> Table:
        return pa.table({"rows": [table.num_rows]})


class Counted(OnCpu):
    op: ClassVar[str] = "steps.counted"
    ports: ClassVar[dict[str, str]] = {"count": "count"}


def lanes() -> Pipeline:
    made = Pipeline()
    made.add("pool", Pool())
    made.add("size", OnCpu(column="size"), ["pool"])
    made.add("vector", OnGpu(column="vector"), ["size"])
    made.add("caption", OnEndpoint(column="caption", read=("vector",)), ["vector"])
    made.add("words", OnCpu(column="words", read=("caption",)), ["caption"])
    made.add("tags", OnCpu(column="tags"), ["pool"])
    return made.check()


def names(pipeline: Pipeline) -> list[list[str]]:
    return [[node.name for node in step.nodes] for step in steps(pipeline)]


def places(all_steps: list[Step], some: Iterable[Step]) -> set[int]:
    return {all_steps.index(step) for step in some}


def test_maps_of_one_lane_share_a_pass_and_lanes_follow_each_other_by_shard() -> None:
    assert names(lanes()) == [["pool"], ["size", "tags"], ["vector"], ["caption"], ["words"]]
    made = steps(lanes())
    assert [places(made, step.follows) for step in made] == [set(), set(), {1}, {2}, {3}]
    assert [places(made, step.after) for step in made] == [set(), {0}, set(), set(), set()]
    assert places(made, made[4].above) == {0, 1, 2, 3}


def test_a_map_with_a_port_waits_for_the_artifact_and_not_for_its_pass_alone() -> None:
    made = Pipeline()
    made.add("pool", Pool())
    made.add("size", OnCpu(column="size"), ["pool"])
    made.add("count", Count(), ["size"])
    made.add("share", Counted(column="share"), ["size"], count="count")
    found = steps(made.check())
    assert [[node.name for node in step.nodes] for step in found] == [["pool"], ["size"], ["count"], ["share"]]
    assert places(found, found[3].after) == {2}
    assert places(found, found[3].follows) == {1}


def test_branches_that_do_not_need_each_other_wait_for_nothing_of_each_other() -> None:
    made = Pipeline()
    made.add("pool", Pool())
    made.add("vector", OnGpu(column="vector"), ["pool"])
    made.add("caption", OnEndpoint(column="caption"), ["pool"])
    found = steps(made.check())
    assert [places(found, step.after | step.follows) for step in found] == [set(), {0}, {0}]


def test_the_same_facts_are_not_computed_twice_side_by_side() -> None:
    made = Pipeline()
    made.add("pool", Pool())
    made.add("one", OnCpu(column="size"), ["pool"])
    made.add("two", OnCpu(column="size"), ["pool"])
    assert names(made.check()) == [["pool"], ["one"], ["two"]]
