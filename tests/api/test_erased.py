"""After an erasure, earlier runs are read as before, without the sample, and their datasets have successors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from curate.api import Pipeline, Run, Slice, Workspace, make_stage
from curate.api.compare import GAINED, Comparison
from curate.engine.run import run
from tests.engine import toys

STAGES = ("pool", "inspect", "bright", "lit", "all")


def recipe(keep: str) -> Pipeline:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=30, shard_rows=10, broken=7))
    made.add("inspect", make_stage("image.inspect"), "pool").add("bright", toys.Brightness(), "inspect")
    made.add("lit", make_stage("filter.where", keep=keep, reason="dark"), "bright")
    made.add("all", make_stage("select.uniform", share=1.0), "lit")
    return made.add("set", make_stage("pack.webdataset", name="set"), "all").check()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = str(tmp_path_factory.mktemp("erased") / "workspace")
    for name, keep in (("one", "brightness > 124"), ("two", "brightness > 122")):
        run(recipe(keep), folder, run_id=name)
    return Workspace(folder)


@pytest.fixture
def after(before: Workspace, tmp_path: Path) -> Workspace:
    """A copy, to take samples out of."""
    return Workspace(str(shutil.copytree(before.root, tmp_path / "workspace")))


def rows(place: Workspace, name: str, stage: str) -> list[dict[str, Any]]:
    return place.table(name, stage, ["key", "caption", "brightness"]).table.to_pylist()


def kept(place: Workspace) -> list[str]:
    """Keys of both datasets."""
    return [row["key"] for row in rows(place, "one", "all")]


def test_earlier_runs_are_read_without_the_sample(before: Workspace, after: Workspace) -> None:
    key = kept(before)[0]
    after.takedown([key], "asked for", erase=True)
    for name in ("one", "two"):
        for stage in STAGES:
            expected = [row for row in rows(before, name, stage) if row["key"] != key]
            assert rows(after, name, stage) == expected
            page = after.run(name).slice(Slice(stage, rejected="erased"))
            assert (page.table["key"].to_pylist(), page.lost) == ([key], ())
        for stage in ("inspect", "lit"):
            reasons = [one.run(name).slice(Slice(stage, rejected="")).table for one in (before, after)]
            was, now = ({row["key"]: row["reason"] for row in table.to_pylist()} for table in reasons)
            assert now == was | {key: "erased"}


def test_comparisons_and_stories_know_the_sample_as_erased(before: Workspace, after: Workspace) -> None:
    key, other, *_ = kept(before)
    after.takedown([key], "asked for", erase=True)
    one, two = (after.run(name) for name in ("one", "two"))
    counts = [
        Comparison(*(place.run(name).record for name in ("one", "two")), "all").counts() for place in (before, after)
    ]
    assert (counts[1].both, counts[1].gained, counts[1].lost) == (counts[0].both - 1, counts[0].gained, counts[0].lost)
    assert counts[1].gained == len(Comparison(one.record, two.record, "all").page(GAINED).table) > 0
    told = {stage.stage: stage for stage in one.sample(key).stages}
    assert (told["pool"].status, told["pool"].reason) == ("unusable", "erased")
    assert {told[name].reason for name in STAGES[1:]} == {"pool: erased"} and told["set"].facts["members"] == "none"
    assert len(one.sample(other).stages[-1].facts["members"]) == 1


def base_of(place: Run) -> str:
    return place.products()[0][1].removeprefix(f"{place.workspace.url}/")


def test_a_version_has_the_runs_and_the_lineage_of_its_predecessors(after: Workspace) -> None:
    first, second, third, *_ = kept(after)
    old = base_of(after.run("one"))
    after.takedown([first], "asked for", erase=False)
    made = {one.base: one for one in after.datasets()}
    [new] = [base for base, one in made.items() if one.predecessor == old]
    assert made[new].runs == made[old].runs == ("one",) and base_of(after.run("one")) == old
    after.takedown([second], "asked for", erase=True)
    after.takedown([third], "asked for", erase=True)
    left = {one.base: one for one in after.datasets()}
    last = base_of(after.run("one"))
    assert len(left) == 2 and left[last].runs == ("one",) and left[last].rows == made[old].rows - 3
    assert old not in left and new not in left and left[last].predecessor
    nodes = {node.stage: node for node in after.lineage(last).nodes}
    assert (nodes["takedown"].rows, nodes["takedown"].up) == (left[last].rows, (old,))
    assert nodes["set"].id == old and nodes["all"].id in nodes["set"].up


def test_a_killed_erasure_hides_the_sample_already(after: Workspace) -> None:
    key = kept(after)[0]
    receipt = after.takedown([key], "asked for", erase=True)
    (Path(after.root) / receipt["receipt"]).unlink()
    assert key not in {row["key"] for row in rows(after, "one", "pool")}
