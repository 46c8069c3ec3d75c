"""What people should look at: runs without progress, and runs that lose too many rows."""

from __future__ import annotations

import pytest

from curate.service.reconcile.progress import EVENTS, PAGES, Progress, alert
from curate.service.states import State
from tests.service.reconcile.worlds import Clock, World


@pytest.mark.parametrize(
    ("idle", "budget", "text"),
    [
        (1800.0, 0.0, ""),
        (1801.0, 0.0, "no progress for 30 min"),
        (3000.0, 0.79, "no progress for 50 min"),
        (9000.0, 0.8, "no progress for 2 h; 80% of its failure budget is used"),
        (0.0, 3.0, "100% of its failure budget is used"),
    ],
)
def test_an_alert_says_what_is_wrong(idle: float, budget: float, text: str) -> None:
    assert alert(idle, 1800.0, budget) == text


def test_repeated_measurements_do_not_count_as_progress() -> None:
    clock = Clock()
    progress = Progress(clock)
    same = {"event": "progress", "stage": "embed", "lane": "gpu", "rows": 70, "rows_per_s": 1.0, "time": 1.0}
    progress.add(same)
    clock.now += 100

    progress.add(same | {"rows_per_s": 0.0, "time": 9.0, "busy": 1.0})
    progress.add({"event": "allocated", "gpu_seconds": 360.0, "cpu_seconds": 1.0, "time": 9.0})
    progress.add({"event": "spend", "stages": {}, "time": 9.0})
    progress.add({"event": "lost", "rows": 9, "allowed": 10, "time": 9.0})
    assert (progress.idle_seconds, progress.gpu_seconds, progress.budget) == (100.0, 360.0, 0.9)

    progress.add(same | {"rows": 71})
    assert progress.idle_seconds == 0.0


def test_what_was_spent_and_done_adds_up() -> None:
    progress = Progress(Clock())
    spend = {"caption": {"vlm": {"requests": 1, "prompt_tokens": 30, "completion_tokens": 12, "dollars": 0.5}}}
    for event in (
        {"event": "build", "stage": "pool"},
        {"event": "stage", "stage": "pool"},
        {"event": "stage", "stage": "embed"},
        {"event": "spend", "stages": spend},
    ):
        progress.add(event)

    assert (progress.stages_done, progress.tokens, progress.dollars) == ({"pool", "embed"}, 42, 0.5)


def test_a_look_reads_a_bounded_part_and_continues_there(world: World) -> None:
    driver = world.workspace.driver("run-1")
    driver.events = [{"event": "stage", "stage": str(number)} for number in range(EVENTS * PAGES + 3)]
    progress = Progress(Clock())

    progress.read(world.workspace.run("run-1"))
    assert len(progress.stages_done) == EVENTS * PAGES
    progress.read(world.workspace.run("run-1"))

    assert len(progress.stages_done) == EVENTS * PAGES + 3


def test_a_run_without_progress_has_an_alert_until_it_has_some(world: World) -> None:
    driver = world.running()
    driver.events.append({"event": "progress", "stage": "embed", "lane": "cpu", "rows": 1})
    world.passes(12)
    assert world.row().alert == ""

    world.clock.now += 1801
    world.pass_()
    assert world.row().alert == world.indexed().alert == "no progress for 30 min"

    driver.events.append({"event": "progress", "stage": "embed", "lane": "cpu", "rows": 2})
    world.passes(12)
    assert world.row().alert == world.indexed().alert == ""


def test_an_alert_ends_with_its_run(world: World) -> None:
    driver = world.running()
    driver.events.append({"event": "lost", "rows": 80, "allowed": 100})
    world.passes(12)
    assert world.row().alert == "80% of its failure budget is used"

    driver.end("failed")

    assert world.until(State.FAILED).alert == world.indexed().alert == ""


def test_the_list_shows_what_a_running_run_has_used(world: World) -> None:
    driver = world.running()
    version = world.row().version
    driver.events += [
        {"event": "stage", "stage": "pool"},
        {"event": "allocated", "gpu_seconds": 7200.0, "cpu_seconds": 0.0},
    ]

    world.passes(12)

    line = world.indexed()
    assert (line.stages, line.stages_done, line.gpu_hours) == (2, 1, 2.0)
    assert world.row().version == version
