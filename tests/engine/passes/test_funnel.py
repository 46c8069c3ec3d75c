"""The funnel says what became of every row, and what the run computed."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from curate.cli.tables import funnel
from curate.core.store.storage import open_storage
from curate.engine.record.diff import diff
from curate.engine.record.runs import RunRecord
from curate.engine.run import run
from curate.engine.state import Options
from tests.engine import derived, experiment, toys

LOSSES = Options(failure_budget=1.0)


def shown(workspace: Path, run_id: str) -> dict[str, list[str]]:
    """First cell -> the others, of every line; the header's first cell is `stage`."""
    console = Console(file=io.StringIO(), width=300)
    table = funnel(RunRecord.load(open_storage(str(workspace)), run_id))
    console.print(table)
    cells = zip(*(list(column.cells) for column in table.columns), strict=True)
    return {"stage": [str(column.header) for column in table.columns]} | {
        str(first): [str(cell) for cell in rest] for first, *rest in cells
    }


def test_it_shows_what_was_computed_and_what_was_reused(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace), run_id="one")
    run(toys.pipeline(light__darkest=125.0), str(workspace), run_id="two")
    one, two = shown(workspace, "one"), shown(workspace, "two")
    assert one["stage"] == [
        "stage", "op", "alive before", "rejected", "alive after", "copies", "reasons", "this run",
    ]  # fmt: skip
    assert one["bright"][-1] == "computed 40, reused 0" and two["bright"][-1] == "computed 0, reused 40"
    assert two["light"] == ["toy.light", "40", "16", "24", "", "too_dark 16", "built"]
    assert two["dear"][-1] == "computed 0, reused 24" and two["contrast"][-1] == "computed 24, reused 0"
    assert (two["pool"][-1], two["total"][-1], one["total"][-1]) == ("reused", "built", "built")


def test_rows_that_could_not_be_computed_have_separate_columns(workspace: Path) -> None:
    recipe = toys.chain(toys.Brightness(), toys.Bad(numbers=(3,)), broken=20)
    run(recipe, str(workspace), options=LOSSES, run_id="one")
    lines = shown(workspace, "one")
    assert lines["stage"][2:7] == ["alive before", "rejected", "unusable", "error", "alive after"]
    assert lines["stage_1"][1:6] == ["40", "", "2", "", "38"] and lines["stage_1"][7] == "not_an_image 2"
    assert lines["stage_2"][1:6] == ["38", "", "", "1", "37"] and lines["stage_2"][7] == "ValueError 1"


def test_rows_that_pass_with_nulls_are_reported(workspace: Path) -> None:
    run(experiment.pipeline(keep_null=True, fails=(" 77",)), str(workspace), options=LOSSES, run_id="one")
    assert shown(workspace, "one")["caption"][-2] == "http_503 1, 1 of them pass with nulls"


def test_children_are_counted_in_addition_to_their_parents(workspace: Path) -> None:
    run(derived.pipeline(), str(workspace), run_id="one")
    run(derived.pipeline(light__darkest=125.0), str(workspace), run_id="two")
    one, two = shown(workspace, "one")["tiles"], shown(workspace, "two")["tiles"]
    assert one == ["toy.tiles", "20", "", "20", "40 children", "", "computed 20, reused 0"]
    assert two[-1] == f"computed 0, reused {two[1]}" and two[4] == f"{2 * int(two[1])} children"


def test_differences_of_two_runs_are_named(workspace: Path) -> None:
    run(toys.pipeline(), str(workspace), run_id="one")
    run(toys.pipeline(light__darkest=125.0), str(workspace), run_id="two")
    run(toys.chain(), str(workspace), run_id="three")
    storage = open_storage(str(workspace))
    one, two, three = (RunRecord.load(storage, name) for name in ("one", "two", "three"))
    states = {item.stage: item.state for item in diff(one, two)}
    assert states["pool"] == states["bright"] == "same"
    assert states["light"] == states["total"] == states["even"] == "differs"
    assert states["dear"] == states["parity"] == "other rows"
    assert {item.state for item in diff(one, one)} == {"same"}
    assert {item.state for item in diff(one, three)} == {"same", "only in one"}
