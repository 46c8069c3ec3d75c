"""`curate plan`: what it says a run would do is what the run then does, and it writes nothing."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from curate.core.contracts import Filter, Table
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_workspace
from curate.engine.backends.local import LocalBackend
from curate.engine.plan.lines import ESTIMATED, EXACT, UNKNOWN, PlanLine, table
from curate.engine.plan.planner import SAMPLE, plan
from curate.engine.preflight import preflight
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.workers.scheduler import Scheduler
from curate.filter.where import Where
from curate.image.embed import Embed
from curate.select.uniform import SelectUniform
from tests.engine import derived, experiment, toys
from tests.engine.experiment import IMAGES, SHARD_ROWS
from tests.engine.passes.test_items import Words

SMALL = IMAGES // 4
"""Images of the experiment that a high threshold rejects."""


def planned(pipeline: Pipeline, workspace: Path, *, exact: bool = False) -> dict[str, PlanLine]:
    """The plan by stage; the workspace stays as it was, to the byte and to the nanosecond."""
    storage = open_workspace(str(workspace))
    before = everything(workspace)
    steps = plan(
        pipeline.check(), storage, Options(), Scheduler(LocalBackend()), preflight(pipeline, storage, Options()), exact
    )
    assert everything(workspace) == before
    return {step.stage: step for step in steps}


def everything(workspace: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in workspace.rglob("*")}


def shown(steps: dict[str, PlanLine]) -> str:
    console = Console(width=250, file=io.StringIO(), record=True)
    console.print(table(list(steps.values())))
    return console.export_text()


def assert_nothing_to_do(steps: dict[str, PlanLine]) -> None:
    found = {name: (step.compute, step.certainty) for name, step in steps.items()}
    assert found == dict.fromkeys(steps, (0, EXACT))


def computed(result: Result) -> dict[str, int]:
    return {name: said["computed"] for name, said in result.stages().items() if said["computed"]}


# --- what would go wrong ---


def drawn(count: int, min_side: int = 60, images: int = IMAGES) -> Pipeline:
    """A random sample of the images that are large enough: three of four."""
    made = (
        Pipeline()
        .add("pool", experiment.Sizes(namespace="rules", rows=images))
        .add("inspect", experiment.Inspect(), "pool")
    )
    made.add("size", experiment.MinSide(min_side=min_side), "inspect")
    return made.add("sample", SelectUniform(count=count), "size").check()


def test_a_target_above_what_is_left_is_noted(workspace: Path) -> None:
    assert planned(drawn(IMAGES), workspace)["sample"].note == "depends on which rows pass size"  # is not known yet
    run(drawn(IMAGES - SMALL), str(workspace))
    assert_nothing_to_do(planned(drawn(IMAGES - SMALL), workspace))
    for min_side, count, left in ((60, 97, 96), (60, 96, None), (32, 128, None), (71, 1, 0)):
        note = planned(drawn(count, min_side), workspace)["sample"].note
        text = f"count {count} is more than the {left} rows that are left, so the run will fail; lower it"
        assert note == ("" if left is None else text)


def test_a_target_is_compared_with_an_estimate_where_the_rows_are_not_known(workspace: Path) -> None:
    """New files are expected to pass the filter as the others did."""
    run(drawn(96), str(workspace))
    more = drawn(193, images=2 * IMAGES)
    assert "count 193 is more than the about 192 rows that are left" in planned(more, workspace)["sample"].note


def test_filters_have_not_run_before_the_first_run(workspace: Path) -> None:
    steps = planned(drawn(96), workspace)
    assert (steps["size"].done, steps["size"].needed, steps["size"].compute) == (0, IMAGES, 0)
    (line,) = (line for line in shown(steps).splitlines() if " size " in line and "min_side" in line)
    assert line.split("│")[4].strip() == "not run" and [name for name in steps if steps[name].not_run] == ["size"]
    run(drawn(96), str(workspace))
    assert planned(drawn(96), workspace)["size"].done == IMAGES
    assert "not run" not in shown(planned(drawn(96), workspace))


def test_the_pace_of_encoders_is_noted_where_there_is_something_to_embed(workspace: Path) -> None:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=6, shard_rows=3))
    made.add("embed", Embed(encoder="tiny"), "pool").add("bright", toys.Brightness(), "embed")
    steps = planned(made, workspace)
    assert steps["embed"].note == "depends on pool; about 100 new images/s on 1 CPU, 0.1 s for 6"
    assert "images/s" not in steps["bright"].note
    run(made, str(workspace))
    assert "images/s" not in planned(made, workspace)["embed"].note


# --- masks that no file has ---


def test_a_threshold_that_rejects_no_row_leaves_nothing_to_do(workspace: Path) -> None:
    """Behind Maps that read an artifact, too: the next pass of the plan reads what the first one has folded."""
    run(experiment.pipeline(min_side=32), str(workspace))
    steps = planned(experiment.pipeline(min_side=experiment.SMALL), workspace)
    assert_nothing_to_do(steps)
    assert steps["contrast"].done == steps["contrast"].needed == IMAGES
    result = run(experiment.pipeline(min_side=experiment.SMALL), str(workspace))
    assert computed(result) == {} and result.reused["page"]


def test_a_threshold_that_rejects_some_leaves_the_global_stages_to_do(workspace: Path) -> None:
    run(experiment.pipeline(min_side=32), str(workspace))
    steps = planned(experiment.pipeline(min_side=60), workspace)
    for name in ("embed", "caption", "echo", "parity"):
        step = steps[name]
        assert (step.done, step.needed, step.compute, step.certainty) == (IMAGES - SMALL, IMAGES - SMALL, 0, EXACT)
    assert (steps["total"].done, steps["total"].compute) == (0, IMAGES - SMALL)
    assert (steps["contrast"].compute, steps["contrast"].certainty) == (IMAGES - SMALL, ESTIMATED)
    assert steps["contrast"].note == "depends on total"
    assert all(steps[name].certainty == ESTIMATED and steps[name].compute for name in ("even", "dataset", "page"))


def test_a_complete_branch_is_known_if_another_is_incomplete(workspace: Path) -> None:
    """Another branch of the same pass lacks a stage: that does not make the first one's global stages unknown."""
    made = toys.pipeline(pool__rows=20)
    run(made, str(workspace))
    changed = toys.pipeline(pool__rows=20, light__darkest=-1.0).add("other", toys.Costly(column="other"), "light")
    steps = planned(changed, workspace)
    assert (steps.pop("other").compute, steps["page"].compute) == (20, 0)
    assert_nothing_to_do(steps)


@pytest.fixture
def many(workspace: Path) -> Path:
    """A workspace with more shards than an estimate takes."""
    run(many_shards(0.0), str(workspace))
    return workspace


def many_shards(darkest: float) -> Pipeline:
    return toys.pipeline(pool__rows=2 * SAMPLE + 2, pool__shard_rows=2, light__darkest=darkest)


@pytest.mark.long
def test_many_shards_are_estimated_from_a_sample(many: Path) -> None:
    steps = planned(many_shards(-1.0), many)
    assert (steps["dear"].compute, steps["dear"].certainty) == (0, ESTIMATED)
    assert (steps["page"].compute, steps["page"].certainty) == (None, UNKNOWN)
    [line] = [line for line in shown(steps).splitlines() if "toy.costly" in line]
    assert "about 0" in line and f"from {SAMPLE} shards" in line


@pytest.mark.long
def test_an_exact_plan_folds_all_of_many_shards(many: Path) -> None:
    steps = planned(many_shards(-1.0), many, exact=True)
    assert_nothing_to_do(steps)
    assert "about" not in shown(steps)


def test_a_derived_pool_is_folded_too(workspace: Path) -> None:
    """A stricter filter of the parents, never run: all children exist, and the live parents decide the rest."""
    run(derived.pipeline(), str(workspace))
    assert_nothing_to_do(planned(derived.pipeline(light__darkest=-1.0), workspace))
    strict = derived.pipeline(light__darkest=125.0)
    steps = planned(strict, workspace)
    for name in ("tiles", "shade", "lit", "parity"):
        assert (steps[name].compute, steps[name].certainty) == (0, EXACT)
    assert steps["lit"].needed == 2 * 12
    assert steps["total"].compute == steps["lit"].needed == run(strict, str(workspace)).ledger["lit"].before


def test_a_report_on_a_derived_pool_is_found_by_what_it_shows(workspace: Path) -> None:
    """The list of the derived pool's versions is gone, but not its tables: the report still has its fingerprint."""
    run(derived.pipeline(), str(workspace))
    shutil.rmtree(workspace / "pools" / "tiles" / "versions")
    assert_nothing_to_do(planned(derived.pipeline(), workspace))


def test_a_report_on_items_is_found_by_what_it_shows(workspace: Path) -> None:
    """Its ledger counts items, so the plan's has to count them too."""

    def report_pipeline(darkest: float, longest: int) -> Pipeline:
        found = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=20)).add("words", Words(), "pool")
        found.add("bright", toys.Brightness(), "words").add("light", toys.Light(darkest=darkest), "bright")
        found.add("short", Short(longest=longest), "light").add("parity", toys.Parity(), "short")
        found.add("even", toys.Even(), "parity").add("dataset", toys.PlainPack(), "even")
        return found.add("page", toys.Page(), "dataset").check()

    result = run(report_pipeline(0.0, 3), str(workspace))
    assert result.ledger["short"].of_items["words"].rejected == {"long": 14}
    assert_nothing_to_do(planned(report_pipeline(-1.0, 3), workspace))
    stricter = planned(report_pipeline(-1.0, 2), workspace)
    assert stricter["page"].certainty == ESTIMATED
    assert stricter["short"].gains is None  # of rows, which an item filter does not judge


class Short(Filter):
    """Rejects words with too many letters."""

    op: ClassVar[str] = "toy.short"
    longest: int = 3

    def reads(self) -> tuple[str, ...]:
        return ("words",)

    def places(self) -> str | None:
        return "words"

    def keep(self, table: Table) -> Any:
        words = table.column("words").to_pylist()
        return [
            row and [None if word is None or len(word) <= self.longest else "long" for word in row] for row in words
        ]


def test_nothing_is_written_even_if_a_manifest_is_gone(workspace: Path) -> None:
    made = experiment.pipeline()
    run(made, str(workspace))
    for folder in workspace.glob("facts/*/*/*/versions"):
        shutil.rmtree(folder)
    assert_nothing_to_do(planned(made, workspace))
    assert_nothing_to_do(planned(experiment.pipeline(min_side=experiment.SMALL), workspace))


# --- filters that have changed since the last run of the recipe ---


def lit(keep: str, namespace: str = "toys", column: str = "brightness") -> Pipeline:
    """Two columns, and a filter by an expression."""
    made = Pipeline().add("pool", toys.Numbers(namespace=namespace, rows=20)).add("bright", toys.Brightness(), "pool")
    made.add("costly", toys.Costly(column="price" if column == "brightness" else column), "bright")
    return made.add("light", Where(keep=keep, reason="dark"), "costly").check()


@pytest.mark.parametrize("other", [lit("other > 125", "other", "other"), lit("brightness > 130", "other")])
def test_a_filter_is_compared_with_the_last_run_of_its_recipe(workspace: Path, other: Pipeline) -> None:
    """Not with a later run of another recipe, whose filter of this name reads other columns, or the same ones."""
    before = run(lit("brightness > 120"), str(workspace)).ledger["light"]
    run(other, str(workspace))
    changed = lit("brightness > 125 and price > 0")
    step = planned(changed, workspace)["light"]
    assert (step.gains, step.losses) == (0, before.after - step.after)
    assert step.after == run(changed, str(workspace)).ledger["light"].after < before.after
    assert planned(changed, workspace)["light"].gains is None


def test_a_filter_that_reads_other_columns_than_before_is_planned_without_a_comparison(workspace: Path) -> None:
    run(lit("brightness > 120 and price > 0"), str(workspace))
    changed = lit("price > 125")
    step = planned(changed, workspace)["light"]
    assert step.gains is None and "changed" not in shown({"light": step})
    assert step.after == run(changed, str(workspace)).ledger["light"].after


# --- rows that do not exist yet ---


def test_new_files_are_estimated_from_the_rows_that_are_done(workspace: Path) -> None:
    """A third shard: Maps compute its rows, and what depends on all rows is rebuilt."""
    before = run(toys.pipeline(pool__rows=20, light__darkest=120.0), str(workspace)).ledger
    assert 10 < before["light"].after < 20
    grown = toys.pipeline(pool__rows=30, light__darkest=120.0)
    steps = planned(grown, workspace)
    assert {step.certainty for step in steps.values()} == {ESTIMATED}
    assert all(step.seconds is not None for step in steps.values()) and "unknown" not in shown(steps)
    assert [(steps[name].done, steps[name].compute) for name in ("pool", "bright")] == [(20, 10), (20, 10)]
    alive = before["light"].after + round(before["light"].after / 2)
    for name in ("dear", "parity"):
        assert (steps[name].done, steps[name].needed) == (before["light"].after, alive)
    for name in ("total", "contrast", "brighter", "even"):
        assert steps[name].needed == alive and steps[name].compute == (0 if name == "brighter" else alive)
    result = run(grown, str(workspace))
    assert computed(result)["bright"] == steps["bright"].compute
    assert abs(computed(result)["dear"] - (steps["dear"].compute or 0)) <= 5
    assert_nothing_to_do(planned(grown, workspace))


def test_costly_results_of_shards_that_are_written_again_are_not_estimated_again(workspace: Path) -> None:
    """The second shard gets more rows: its facts are computed again, but costly results are found by content."""
    run(toys.pipeline(pool__rows=15), str(workspace))
    grown = toys.pipeline(pool__rows=20)
    steps = planned(grown, workspace)
    assert (steps["pool"].compute, steps["bright"].compute, steps["dear"].compute) == (10, 10, 5)
    said = computed(run(grown, str(workspace)))
    assert (said["bright"], said["dear"]) == (10, 5)
    run(toys.pipeline(pool__rows=5, pool__namespace="small"), str(workspace))
    steps = planned(toys.pipeline(pool__rows=8, pool__namespace="small"), workspace)  # no shard is left
    assert (steps["pool"].compute, steps["bright"].compute, steps["dear"].compute) == (8, 8, 3)


def test_a_first_run_is_estimated_from_the_rates_of_other_recipes(workspace: Path) -> None:
    empty = planned(toys.pipeline(pool__rows=20), workspace)
    assert {step.compute for step in empty.values()} >= {20}
    assert "unknown time: pool, bright" in shown(empty) and "s of work" not in shown(empty)
    run(toys.pipeline(pool__rows=20, pool__namespace="another"), str(workspace))
    steps = planned(toys.pipeline(pool__rows=40), workspace)
    assert {(steps[name].needed, steps[name].certainty) for name in ("bright", "dear", "even")} == {(40, ESTIMATED)}
    assert sum(step.seconds or 0 for step in steps.values()) > 0 and "unknown" not in shown(steps)


# --- answers ---


def embedding(namespace: str, **source: int) -> Pipeline:
    made = Pipeline().add("pool", experiment.Sizes(namespace=namespace, **source))
    return made.add("embed", experiment.Embed(), "pool").check()


def test_answers_of_another_pool_are_not_computed_again(workspace: Path) -> None:
    run(embedding("first"), str(workspace))
    run(Pipeline().add("pool", experiment.Sizes(namespace="second")), str(workspace))
    step = planned(embedding("second"), workspace)["embed"]
    assert (step.done, step.needed, step.compute, step.certainty) == (0, IMAGES, 0, EXACT)
    assert step.note == "128 rows copy existing answers"
    said = run(embedding("second"), str(workspace)).stages()["embed"]
    assert (said["computed"], said["copied"]) == (0, IMAGES)
    step = planned(embedding("second"), workspace)["embed"]
    assert (step.done, step.compute, step.note) == (IMAGES, 0, "")


def test_images_that_repeat_within_a_shard_are_computed_once(workspace: Path) -> None:
    made = embedding("rules", distinct=8, rows=SHARD_ROWS)
    run(Pipeline().add("pool", made.nodes["pool"].stage), str(workspace))
    step = planned(made, workspace)["embed"]
    assert (step.needed, step.compute) == (SHARD_ROWS, 8)
    assert computed(run(made, str(workspace))) == {"embed": 8}


def test_answers_are_looked_up_before_the_rows_are_known(workspace: Path) -> None:
    """An estimate: `inspect` lacks every row of the second pool, and `size` may reject any."""
    run(experiment.pipeline(namespace="first"), str(workspace))
    run(Pipeline().add("pool", experiment.Sizes(namespace="second")), str(workspace))
    steps = planned(experiment.pipeline(namespace="second"), workspace)
    assert (steps["inspect"].compute, steps["inspect"].certainty) == (IMAGES, EXACT)
    assert (steps["embed"].compute, steps["embed"].certainty) == (0, ESTIMATED)
    assert (steps["caption"].compute, steps["caption"].certainty) == (IMAGES, ESTIMATED)


def after_a_selection(namespace: str, first: float = 0.0, second: float = 0.0) -> Pipeline:
    """One filter reads a costly column in its own pass, another after a selection."""
    made = Pipeline().add("pool", toys.Numbers(namespace=namespace, rows=20, shard_rows=5))
    made.add("dear", toys.Costly(), "pool").add("lit", toys.Light(column="dear", darkest=first), "dear")
    made.add("parity", toys.Parity(reads_column="dear"), "lit").add("even", toys.Even(), "parity")
    made.add("light", toys.Light(column="dear", darkest=second), "even")
    return made.add("total", toys.Total(reads_column="dear"), "light").check()


def test_later_stages_read_facts_that_no_manifest_lists(workspace: Path) -> None:
    run(after_a_selection("toys"), str(workspace))
    for folder in workspace.glob("facts/*/*/*/versions"):
        shutil.rmtree(folder)
    assert_nothing_to_do(planned(after_a_selection("toys", first=-1.0, second=-1.0), workspace))


def test_later_stages_read_answers_that_are_not_copied_yet(workspace: Path) -> None:
    """The tables of a costly stage are removed; its answers come from another pool."""
    run(after_a_selection("first"), str(workspace))
    run(after_a_selection("second"), str(workspace))
    records = workspace.glob("pools/second/portions/*.json")
    shards = {json.loads(record.read_text())["shard"]["id"] for record in records}
    for folder in workspace.glob("facts/toy.costly/*/*/*"):
        if folder.name in shards:
            shutil.rmtree(folder)
    changed = after_a_selection("second", second=-1.0)
    steps = planned(changed, workspace)
    assert (steps["dear"].done, steps["dear"].needed) == (0, 20)
    assert_nothing_to_do(steps)
    assert computed(run(changed, str(workspace))) == {}


# --- what a row's own facts do not make unsure ---


def test_rows_that_lack_only_their_own_facts_are_needed_for_sure(workspace: Path) -> None:
    run(experiment.pipeline(min_side=60), str(workspace))
    steps = planned(experiment.pipeline(min_side=32), workspace)
    text, embed = steps["text"], steps["embed"]
    assert (text.done, text.needed, text.compute, text.certainty) == (IMAGES - SMALL, IMAGES, SMALL, EXACT)
    assert text.note == ""
    assert (embed.done, embed.compute, embed.certainty) == (IMAGES - SMALL, SMALL, ESTIMATED)
    assert embed.note == f"{SMALL} rows depend on facts that are not computed yet"
    assert computed(run(experiment.pipeline(min_side=32), str(workspace)))["text"] == SMALL
