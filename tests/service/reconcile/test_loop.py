"""Runs move from state to state, and wait for their turn."""

from __future__ import annotations

import itertools

from curate.service.database.models import Change, IndexedRun, Quota
from curate.service.reconcile.step import HELD_SECONDS
from curate.service.states import State
from tests.service.reconcile.clusters import refused
from tests.service.reconcile.worlds import World


def test_a_run_is_submitted_started_and_done(world: World) -> None:
    world.submit(drain_seconds=33.0, options={"sample": 0.5})

    world.pass_()
    assert world.row().state == State.SUBMITTING
    assert world.cluster.submitted == ["run-1"]
    assert world.job().entrypoint == "curate run --submission run-1"
    assert world.job().environment == {"RAY_JOB_STOP_WAIT_TIME_S": "33"}
    assert world.workspace.driver("run-1").prepared == {
        "recipe": "stages: {}",
        "options": {"sample": 0.5},
        "about": {"run": "run", "attempt": "1", "user": "operator", "service": "service"},
    }
    world.until(State.STARTING)
    driver = world.workspace.driver("run-1")
    driver.begin()
    row = world.until(State.RUNNING)
    assert row.started is not None and row.ended is None
    driver.summary = {"gpu_hours": 1.5, "dollars": 0.25, "tokens": 70, "datasets": [("datasets/cats/ab", "cats", 9)]}
    driver.end()
    row = world.until(State.DONE)

    assert (row.gpu_hours, row.dollars, row.tokens, row.attempt) == (1.5, 0.25, 70, 1)
    assert row.ended is not None and row.request == ""
    steps = ["queued", "submitting", "starting", "running", "done"]
    assert world.changes() == [(before, after, 1) for before, after in itertools.pairwise(steps)]
    line = world.indexed()
    assert (line.state, line.attempt_id, line.gpu_hours, line.rows, line.stages_done) == ("done", "run-1", 1.5, 9, 3)
    assert line.ended == row.ended and line.seconds is not None


def test_an_ended_run_is_never_looked_at_again(world: World) -> None:
    driver = world.running()
    driver.end("failed", "embed: out of memory")
    world.until(State.FAILED)
    assert world.row().reason == "embed: out of memory"
    world.workspace.calls.clear()
    version = world.row().version

    world.passes(10)

    assert world.workspace.calls == [] and world.row().version == version


def test_a_running_run_costs_one_look_and_no_call_of_its_cluster(world: World) -> None:
    world.running()
    world.pass_()
    world.workspace.calls.clear()
    asked, version = world.cluster.calls, world.row().version

    for _ in range(4):
        world.pass_()

    assert [name for name in world.workspace.calls if name != "events"] == ["look"] * 4
    assert world.workspace.calls.count("events") <= 1
    assert (world.cluster.calls, world.row().version) == (asked, version)


# --- the queue ---


def test_a_queued_run_says_why_it_waits(world: World) -> None:
    world.submit(needs={"gpus": 1, "stage": "embed"})

    world.pass_()

    assert world.row().reason == "waits: target local has no GPU, its stage embed needs 1"
    assert world.indexed().reason == world.row().reason
    version = world.row().version
    world.passes(6)
    assert world.row().version == version


def test_no_more_runs_start_than_the_target_takes(world: World) -> None:
    with world.service.database.write() as session:
        session.merge(world.people.target).max_runs = 2
    for name, priority in (("low", 0), ("high", 9), ("middle", 5)):
        world.submit(name, priority=priority)

    world.pass_()

    assert sorted(world.cluster.submitted) == ["high-1", "middle-1"]
    assert world.row("low").reason == "waits: target local has 2 of 2 runs under way"


def test_gpu_hours_of_thirty_days_count(world: World) -> None:
    """If the first attempt of a run ended long ago, only the second counts."""
    now = world.service.clock()
    world.submit("resumed", state="done", attempt=2, gpu_hours=10.0, ended=now - 86_400)
    with world.service.database.write() as session:
        for attempt, days, hours in ((1, 31, 7.0), (2, 1, 3.0)):
            about = {"before": "running", "after": "done", "time": now - days * 86_400, "gpu_hours": hours}
            session.add(Change(submission_id="resumed", attempt=attempt, **about))
        session.add(Quota(gpu_hours=4.0))
    world.running("now")
    with world.service.database.write() as session:
        session.get_one(IndexedRun, (world.people.workspace.id, "now")).gpu_hours = 1.0
    world.submit("new")

    world.pass_()
    assert world.row("new").reason == "waits: operator has used 4.0 of 4 GPU-hours in 30 days"

    with world.service.database.write() as session:
        session.add(Quota(user_id=world.people.operator.principal.user_id, gpu_hours=100.0))
    world.pass_()
    assert world.row("new").state == State.SUBMITTING


def test_a_run_on_gpus_is_stopped_once_its_user_has_no_gpu_hours_left(world: World) -> None:
    gpu, cpu = world.running("gpu"), world.running("cpu")
    allocated = {"event": "allocated", "cpu_seconds": 0.0, "time": 9.0}
    gpu.events, cpu.events = [allocated | {"gpu_seconds": 3 * 3600.0}], [allocated | {"gpu_seconds": 0.0}]
    with world.service.database.write() as session:
        session.add(Quota(gpu_hours=4.0))
    world.passes(30)
    assert gpu.stop == "" and world.indexed("gpu").gpu_hours == 3.0

    gpu.events.append(allocated | {"gpu_seconds": 5 * 3600.0})
    row = world.until(State.STOPPING, "gpu")
    assert (gpu.stop, cpu.stop) == ("the quota of GPU-hours", "")
    assert row.reason == "requested by the quota of GPU-hours"
    [entry] = world.audit("run.stop")
    assert (entry.user, entry.target) == ("service", "gpu")
    assert entry.detail == {"reason": "operator has used 5.0 of 4 GPU-hours in 30 days"}

    gpu.summary = {"gpu_hours": 5.0}
    gpu.end("stopped")
    assert world.until(State.STOPPED, "gpu").gpu_hours == 5.0
    world.submit("next")
    world.pass_()
    assert world.row("next").reason == "waits: operator has used 5.0 of 4 GPU-hours in 30 days"
    assert world.row("cpu").state == State.RUNNING


def test_a_target_that_does_not_take_a_run_gets_it_again_later(world: World) -> None:
    world.submit()
    world.cluster.error = refused()
    world.until(State.SUBMITTING)
    row = world.until(State.QUEUED, most=50, each=5.0)
    assert "connection refused" in row.reason
    assert world.changes() == [("queued", "submitting", 1), ("submitting", "queued", 1)]

    world.cluster.error = None
    world.passes(HELD_SECONDS + 4)

    assert world.cluster.submitted == ["run-1"]


def test_a_queued_run_whose_job_had_arrived_after_all_is_not_submitted_twice(world: World) -> None:
    world.submit()

    def lost_answer(name: str) -> None:
        world.cluster.error = refused()
        raise refused()

    world.cluster.on_submit = lost_answer
    world.until(State.SUBMITTING)
    world.until(State.QUEUED, most=50, each=5.0)

    world.workspace.driver("run-1").begin()
    world.until(State.RUNNING)

    assert world.cluster.submitted == ["run-1"]
