"""What fails is a run's reason, is tried again, and holds up no other run."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from curate.core.errors import CurateError, StorageError
from curate.service.problems import UnavailableProblem
from curate.service.reconcile import queue, transitions
from curate.service.states import State
from tests.service.reconcile.worlds import World


def test_a_workspace_that_does_not_answer_is_the_reason_and_is_tried_again(world: World) -> None:
    driver = world.running()
    world.workspace.error = StorageError("s3://bucket: the object store does not answer")
    world.passes(30)
    assert world.row().state == State.RUNNING
    assert world.row().reason == "s3://bucket: the object store does not answer"
    asked = len(world.workspace.calls)
    world.passes(120, each=5.0)
    assert len(world.workspace.calls) - asked < 10  # waits longer each time

    world.workspace.error = None
    driver.end()
    world.passes(70, each=9.0)

    assert world.row().state == State.DONE


def test_a_queue_that_cannot_be_read_delays_no_run_under_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world.running()
    monkeypatch.setattr(queue, "verdicts", lambda *_: 1 / 0)
    driver.end()
    with pytest.raises(ZeroDivisionError):
        world.passes(30)
    assert world.row().state == State.DONE


def test_a_request_is_not_kept_waiting_by_an_earlier_failure(world: World) -> None:
    driver = world.running()
    world.workspace.error = StorageError("no answer")
    world.passes(60, each=9.0)
    world.workspace.error = None
    world.request("stop")

    world.pass_()

    assert driver.stop == "ann"


def test_a_run_whose_workspace_is_not_mounted_keeps_its_state_even_after_its_job_has_ended(world: World) -> None:
    driver = world.running(retries=1)
    world.workspace.mounted = False
    driver.end()
    world.job().status = "succeeded"
    world.passes(120)
    assert (world.row().state, world.row().attempt) == (State.RUNNING, 1)
    assert "not a workspace" in world.row().reason

    world.workspace.mounted = True
    world.passes(70)
    assert (world.row().state, world.cluster.submitted) == (State.DONE, ["run-1"])


def test_a_run_is_not_resubmitted_while_the_attempt_before_cannot_be_seen(world: World) -> None:
    driver = world.running(retries=1)
    world.head_restarts()
    world.until(State.LOST)
    world.workspace.mounted = False
    driver.begin()  # it was alive, in a broken network
    world.passes(60)
    assert (world.row().state, world.row().attempt) == (State.LOST, 1)

    world.workspace.mounted = True
    world.until(State.RUNNING, most=60)
    assert world.cluster.submitted == ["run-1"]


def test_one_broken_run_does_not_hold_the_others(world: World) -> None:
    world.running("good")
    world.running("bad")
    attempt = world.workspace.attempt

    def broken(name: str) -> Any:
        if name == "bad-1":
            raise ValueError("not JSON")
        return attempt(name)

    world.workspace.attempt = broken  # type: ignore[method-assign]
    world.workspace.driver("bad-1").die()
    world.workspace.driver("good-1").end()

    world.until(State.DONE, "good")

    assert world.row("bad").state == State.RUNNING and world.row("bad").reason == "ValueError: not JSON"


def test_a_workspace_that_hangs_does_not_hold_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curate.service.reconcile.loop.PASS_SECONDS", 0.1)
    world.running("hung")
    world.running("good")
    look = threading.Event()
    attempt = world.workspace.attempt

    def hanging(name: str) -> Any:
        if name == "hung-1":
            look.wait()
        return attempt(name)

    world.workspace.attempt = hanging  # type: ignore[method-assign]
    world.workspace.driver("hung-1").die()
    world.workspace.driver("good-1").end()

    until = time.monotonic() + 60
    try:
        while world.row("good").state != State.DONE and time.monotonic() < until:
            world.pass_()

        assert world.row("good").state == State.DONE
        assert world.row("hung").state == State.RUNNING
    finally:
        look.set()


def test_a_full_disk_is_the_reason_and_the_run_starts_later(world: World) -> None:
    world.submit()
    world.workspace.error = StorageError("/data: no space left; free some, or choose another workspace")
    world.pass_()
    assert world.row().state == State.SUBMITTING and "no space left" in world.row().reason

    world.workspace.error = None
    world.until(State.STARTING)

    assert world.row().reason == ""


def test_a_database_that_fails_for_a_moment_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world.running()
    driver.end()
    real = transitions.write

    def failing(*about: Any) -> bool:
        raise UnavailableProblem("the database does not take the request (disk full)")

    monkeypatch.setattr(transitions, "write", failing)
    world.passes(20)
    assert world.row().state == State.RUNNING
    monkeypatch.setattr(transitions, "write", real)

    world.until(State.DONE)


def test_a_submission_that_ray_rejects_is_an_error_in_one_line(world: World) -> None:
    world.submit()
    world.cluster.on_submit = lambda name: (_ for _ in ()).throw(CurateError("job server:\nno such environment"))

    world.pass_()

    assert world.row().reason == "job server: no such environment"
