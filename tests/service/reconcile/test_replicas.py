"""Several replicas, leaders that die or are paused, and clocks that jump."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from curate.service.reconcile import transitions
from curate.service.reconcile.index import Counts, reindex
from curate.service.reconcile.leader import TAKE_OVER_SECONDS
from curate.service.reconcile.observe import Memory
from curate.service.service import Service
from curate.service.states import State, Step
from tests.service.people import people as made_people
from tests.service.reconcile.worlds import World


@pytest.mark.parametrize("state", ["queued", "submitting", "starting", "running", "stopping"])
def test_another_replica_continues_in_every_state(world: World, state: str) -> None:
    if state == "queued":
        world.submit(needs={"gpus": 1})
        world.pass_()
        world.cluster.amounts.gpus = 1.0
        world.reconciler.check_targets()
    elif state in ("submitting", "starting"):
        world.submit()
        world.until(State(state))
    else:
        world.running()
        if state == "stopping":
            world.request("stop")
            world.until(State.STOPPING)
    first, world.reconciler = world.reconciler, world.replica()
    assert not world.reconciler.once()

    world.clock.now += TAKE_OVER_SECONDS
    assert world.reconciler.once() and not first.once()
    driver = world.workspace.driver("run-1")
    if state in ("queued", "submitting", "starting"):
        world.until(State.STARTING)
        driver.begin()
        world.until(State.RUNNING)
    driver.end("stopped" if state == "stopping" else "done")

    world.until(State.STOPPED if state == "stopping" else State.DONE)
    assert world.cluster.submitted == ["run-1"]


def test_a_leader_that_dies_between_writing_and_submitting_loses_nothing(world: World) -> None:
    world.submit()
    world.workspace.error = KeyboardInterrupt()  # type: ignore[assignment]
    world.pass_()
    assert world.row().state == State.SUBMITTING and world.cluster.submitted == []
    world.workspace.error = None

    world.reconciler = world.replica()
    world.reconciler.once()
    world.clock.now += TAKE_OVER_SECONDS
    world.until(State.STARTING)

    assert world.cluster.submitted == ["run-1"]


def test_a_paused_leader_does_nothing_when_it_wakes_up(world: World) -> None:
    world.running()
    old, world.reconciler = world.reconciler, world.replica()
    stale = old._read()
    world.reconciler.once()
    world.clock.now += TAKE_OVER_SECONDS
    assert world.reconciler.once()
    world.request("kill")
    world.until(State.STOPPING)
    kills = world.cluster.stopped.copy()
    version = world.row().version

    old._step(stale, {})  # as if its pass had started before the pause

    assert not old.leads
    assert (world.cluster.stopped, world.row().version) == (kills, version)


def test_a_write_of_an_old_leader_does_not_apply(world: World) -> None:
    driver = world.running()
    (stale,) = world.reconciler._read()
    world.request("stop")
    driver.end("stopped")
    world.until(State.STOPPED)
    changes = world.changes()

    world.reconciler._stepper.step(stale, Memory(world.clock), None)

    assert world.row().state == State.STOPPED and world.changes() == changes


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_wall_clock_that_jumps_ends_no_run(world: World, jump: float) -> None:
    driver = world.running("running")
    world.submit("starting")
    world.until(State.STARTING, "starting")
    before = world.service.clock

    world.service.clock = lambda: before() + jump
    world.passes(60, each=5.0)
    assert [world.row(run).state for run in ("running", "starting")] == ["running", "starting"]
    driver.end()

    row = world.until(State.DONE, "running")
    assert world.indexed("running").seconds is not None and row.ended is not None
    assert (world.indexed("running").seconds or 0.0) >= 0.0


def test_threads_start_and_stop_and_the_lease_is_given_back(world: World) -> None:
    world.service.settings = world.service.settings.model_copy(update={"poll_seconds": 0.01})
    world.reconciler.start()
    world.submit()
    done = threading.Event()
    world.cluster.on_submit = lambda name: done.set()
    world.reconciler.wake()
    assert done.wait(60)

    world.reconciler.stop()

    assert world.replica().once()
    assert world.reconciler.passes > 0 and world.reconciler.failures == 0


# --- both databases ---


@pytest.fixture
def each_world(each_service: Service, tmp_path: Path) -> World:
    return World(each_service, made_people(each_service, str(tmp_path / "workspace")))


def test_a_run_is_lost_resubmitted_and_done_on_either_database(each_world: World) -> None:
    world = each_world
    world.running()
    world.head_restarts()
    world.until(State.SUBMITTING)
    world.workspace.driver("run-2").begin()
    world.until(State.RUNNING)
    world.workspace.driver("run-2").end()
    world.until(State.DONE)
    world.reconciler.discover()

    found = reindex(world.service, opened=lambda url: world.workspaces[url])  # type: ignore[arg-type,return-value]

    assert found == {"main": Counts(1, 0)} and world.indexed().state == "done"
    second = [after for _, after, attempt in world.changes() if attempt == 2]
    assert second == ["queued", "submitting", "running", "done"]


def test_one_writer_applies_on_either_database(each_world: World) -> None:
    world = each_world
    world.running()
    (run,) = world.reconciler._read()
    changes, together = world.changes(), threading.Barrier(4)

    def write(_: int) -> bool:
        together.wait()
        return transitions.write(world.service, run, Step(State.LOST, reason="its driver died"))

    with ThreadPoolExecutor(4) as pool:
        applied = list(pool.map(write, range(4)))

    assert applied.count(True) == 1
    assert world.changes() == [*changes, ("running", "lost", 1)] and world.row().lost == 1
