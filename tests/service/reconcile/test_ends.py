"""Stop, kill, and what happens when drivers and clusters die."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from curate.service.database.models import Change, Submission
from curate.service.reconcile.loop import LOST_SECONDS
from curate.service.states import State
from tests.service.reconcile.clusters import refused
from tests.service.reconcile.worlds import GONE, World

# --- stop and kill ---


def test_stop_drains_and_commits(world: World) -> None:
    driver = world.running()
    world.request("stop")

    world.pass_()
    assert (world.row().state, driver.stop, driver.kill) == (State.STOPPING, "ann", "")
    driver.end("stopped", "stopped: ann requested it")

    assert world.until(State.STOPPED).reason == "stopped: ann requested it"
    assert world.cluster.stopped == []


def test_a_waiting_run_ends_at_once_and_has_no_duration(world: World) -> None:
    world.submit()
    world.cluster.error = refused(world.people.target.address)
    world.reconciler.check_targets()
    world.pass_()
    assert world.row().reason == "waits: target local does not answer (no answer (connection refused))"
    world.request("stop")
    world.pass_()

    assert (world.row().state, world.row().reason) == (State.STOPPED, "ended before it was submitted")
    assert world.indexed().seconds is None and world.indexed().ended is not None


def test_a_run_that_does_not_drain_is_killed(world: World) -> None:
    driver = world.running(drain_seconds=30.0)
    world.request("stop")
    world.passes(28)
    assert driver.kill == ""

    world.passes(8)
    assert (driver.kill, world.cluster.stopped) == ("ann", ["run-1"])
    assert world.row().state == State.STOPPING
    driver.die()
    world.job().status = "stopped"

    assert world.until(State.KILLED).reason == "killed: it did not drain within 30 s"


def test_kill_ends_it_at_once(world: World) -> None:
    driver = world.running()
    world.request("kill")
    world.pass_()
    assert driver.kill == "ann" and world.cluster.stopped == ["run-1"]
    driver.die()
    world.job().status = "stopped"

    assert world.until(State.KILLED).reason == "killed on request"


def test_kill_works_while_the_cluster_does_not_answer(world: World) -> None:
    driver = world.running()
    world.cluster.error = refused()
    world.reconciler.check_targets()
    world.request("kill")
    world.pass_()
    assert driver.kill == "ann"

    driver.die()

    world.until(State.KILLED)


def test_a_queued_run_is_stopped_without_a_job(world: World) -> None:
    world.submit(needs={"gpus": 1})
    world.pass_()
    world.request("stop")

    world.until(State.STOPPED)

    assert world.cluster.submitted == [] and world.workspace.calls == []


def test_a_pending_job_ends_although_ray_cannot_stop_it(world: World) -> None:
    world.submit()
    world.until(State.STARTING)
    world.job().status = "pending"
    world.request("stop")

    world.until(State.STOPPED, most=50)

    assert world.workspace.driver("run-1").kill == "ann"  # for the driver, should the job be placed after all


# --- what dies ---


def test_a_run_whose_cluster_restarts_is_lost_resubmitted_and_done(world: World) -> None:
    world.running().summary = {"gpu_hours": 1.0}
    world.head_restarts()

    world.until(State.LOST)
    assert world.row().lost == 1
    world.until(State.SUBMITTING)

    assert world.cluster.submitted == ["run-1", "run-2"]
    assert world.workspace.driver("run-1").kill == "service"
    second = world.workspace.driver("run-2")
    second.begin()
    world.until(State.RUNNING)
    second.summary = {"gpu_hours": 2.0}
    second.end()
    row = world.until(State.DONE)
    assert (row.attempt, row.gpu_hours, world.indexed().attempt_id) == (2, 3.0, "run-2")


def test_a_run_is_resubmitted_as_often_as_it_may(world: World) -> None:
    world.running(retries=1)
    world.head_restarts()
    world.until(State.SUBMITTING)
    world.workspace.driver("run-2").begin()
    world.until(State.RUNNING)
    world.head_restarts()

    row = world.until(State.LOST)
    world.passes(30)

    assert world.row().state == State.LOST and row.lost == 2
    assert row.reason == "its driver died"
    assert world.cluster.submitted == ["run-1", "run-2"]


def test_a_cluster_that_does_not_answer_harms_no_living_run(world: World) -> None:
    driver = world.running()
    world.cluster.error = refused()
    world.reconciler.check_targets()

    world.passes(600, each=9.0)
    assert world.row().state == State.RUNNING and world.row().reason == "its target does not answer"
    driver.end()

    world.until(State.DONE)


@pytest.mark.parametrize(("request_", "end"), [("stop", State.STOPPED), ("kill", State.KILLED)])
def test_a_lost_run_that_is_requested_to_end_is_not_resubmitted(world: World, request_: str, end: State) -> None:
    world.running(retries=1)
    world.head_restarts()
    world.until(State.LOST)
    world.request(request_)

    row = world.until(end)
    world.passes(5)

    assert row.reason == "ended before it was resubmitted" and world.row().state == end
    assert world.changes()[-1] == ("lost", end, 1) and world.cluster.submitted == ["run-1"]
    assert world.workspace.driver("run-1").kill == "ann"


def test_a_lost_run_without_retries_is_left_alone_after_an_hour(world: World) -> None:
    long_ago = world.service.clock() - 2 * LOST_SECONDS
    world.submit(state="lost", lost=2, retries=1, since=long_ago, ended=long_ago)
    world.workspace.calls.clear()
    world.passes(10)
    assert world.row().state == State.LOST and "attempt" not in world.workspace.calls


def test_a_lost_run_whose_driver_comes_back_is_running(world: World) -> None:
    driver = world.running(retries=0)
    world.cluster.error = refused()
    world.reconciler.check_targets()
    driver.die()
    world.until(State.LOST)

    driver.alive = True
    world.until(State.RUNNING)
    driver.end()

    world.until(State.DONE)


def test_a_driver_that_wrote_its_record_has_time_to_take_its_lease(world: World) -> None:
    world.submit()
    world.until(State.STARTING)
    world.workspace.driver("run-1").state = "open"
    world.job().status = "failed"
    world.until(State.RUNNING)

    world.passes(GONE - 8)
    assert world.row().state == State.RUNNING

    world.until(State.LOST)


def test_a_job_that_ends_before_the_run_began_fails_with_rays_words(world: World) -> None:
    world.submit()
    world.until(State.STARTING)
    world.job().status, world.job().message = "failed", "Traceback …\nModuleNotFoundError: No module named 'curate'"

    row = world.until(State.FAILED)

    assert row.reason == "its job ended before the run began: ModuleNotFoundError: No module named 'curate'"


def test_the_time_between_attempts_is_not_counted(world: World) -> None:
    before, later = world.service.clock, 0.0
    world.service.clock = lambda: before() + later
    world.running(retries=1)
    later = 100.0
    world.workspace.driver("run-1").summary = {"gpu_hours": 1.0}
    world.head_restarts()
    row = world.until(State.LOST)
    assert 100.0 <= (row.seconds_until(world.service.clock()) or 0.0) < 160.0
    later = 100_000.0
    world.until(State.SUBMITTING)
    world.workspace.driver("run-2").summary = {"gpu_hours": 2.0}
    world.workspace.driver("run-2").begin()
    world.until(State.RUNNING)
    later = 100_050.0
    world.workspace.driver("run-2").end()
    row = world.until(State.DONE)

    assert 150.0 <= (row.seconds_until(world.service.clock()) or 0.0) < 300.0
    assert 150.0 <= (world.indexed().seconds or 0.0) < 300.0
    with world.service.database.read() as session:
        changes = session.scalars(select(Change).order_by(Change.id)).all()
    assert [one.gpu_hours for one in changes if one.gpu_hours] == [1.0, 2.0]


def test_what_a_lost_attempt_used_counts_once_if_its_driver_comes_back(world: World) -> None:
    driver = world.running(retries=0)
    driver.summary = {"gpu_hours": 2.0, "dollars": 3.0, "tokens": 5}
    world.head_restarts()
    row = world.until(State.LOST)
    assert (row.gpu_hours, row.dollars, row.tokens) == (2.0, 3.0, 5)

    driver.begin()
    row = world.until(State.RUNNING)
    assert (row.gpu_hours, row.dollars, row.tokens, world.indexed().gpu_hours) == (0.0, 0.0, 0, 0.0)

    driver.summary = {"gpu_hours": 6.0, "dollars": 7.0, "tokens": 8}
    driver.end()
    row = world.until(State.DONE)
    assert (row.gpu_hours, row.dollars, row.tokens, world.indexed().gpu_hours) == (6.0, 7.0, 8, 6.0)
    with world.service.database.read() as session:
        changes = session.scalars(select(Change).order_by(Change.id)).all()
    assert [one.gpu_hours for one in changes if one.gpu_hours] == [2.0, -2.0, 6.0]
    assert sum(one.tokens for one in changes) == 8


def test_a_resumed_run_waits_until_the_driver_before_is_dead(world: World) -> None:
    driver = world.running()
    driver.alive = None
    with world.service.database.write() as session:
        values = {"state": "queued", "attempt": 2, "version": Submission.version + 1}
        session.execute(update(Submission).where(Submission.id == "run").values(**values))

    world.passes(10)
    assert world.row().reason == "waits until the driver of its last attempt has ended"
    driver.die()
    world.until(State.SUBMITTING)

    assert world.cluster.submitted == ["run-1", "run-2"] and driver.kill == "service"
