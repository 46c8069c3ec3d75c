"""The state machine: a table of what matters, and invariants over all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from curate.service.states import (
    ENDED,
    RESUMABLE,
    Action,
    Driver,
    Job,
    Record,
    Request,
    Seen,
    State,
    Step,
    Timeouts,
    decide,
)

Q, SUB, START, RUN, STOPPING = State.QUEUED, State.SUBMITTING, State.STARTING, State.RUNNING, State.STOPPING
DONE, FAILED, STOPPED, KILLED, LOST = State.DONE, State.FAILED, State.STOPPED, State.KILLED, State.LOST
STOP, KILL = Request.STOP, Request.KILL
ALIVE, DEAD, UNSURE = Driver.ALIVE, Driver.DEAD, Driver.UNSURE
LONG = 1e6
RESULTS = {Record.DONE: DONE, Record.FAILED: FAILED, Record.REFUSED: FAILED, Record.STOPPED: STOPPED}


def seen(state: State, **about: object) -> Seen:
    return Seen(state, **about)  # type: ignore[arg-type]


TABLE = [
    # queued
    (seen(Q), Q, Action.NONE),
    (seen(Q, chosen=True), SUB, Action.SUBMIT),
    (seen(Q, chosen=True, earlier=ALIVE), Q, Action.NONE),
    (seen(Q, chosen=True, earlier=UNSURE), Q, Action.NONE),
    (seen(Q, chosen=True, request=STOP), STOPPED, Action.NONE),
    (seen(Q, request=KILL), KILLED, Action.NONE),
    (seen(Q, tried=True, request=STOP), STOPPED, Action.KILL),
    (seen(Q, tried=True, request=STOP, job=Job.RUNNING), STOPPING, Action.KILL),
    (seen(Q, tried=True, job=Job.PENDING), START, Action.NONE),
    (seen(Q, tried=True, job=Job.UNREACHABLE, record=Record.OPEN), RUN, Action.NONE),
    (seen(Q, tried=True, job=Job.UNREACHABLE, record=Record.DONE), DONE, Action.NONE),
    # submitting
    (seen(SUB), SUB, Action.SUBMIT),
    (seen(SUB, job=Job.UNREACHABLE), SUB, Action.SUBMIT),
    (seen(SUB, seconds=LONG), Q, Action.NONE),
    (seen(SUB, job=Job.PENDING), START, Action.NONE),
    (seen(SUB, job=Job.FAILED), START, Action.NONE),
    (seen(SUB, record=Record.OPEN), RUN, Action.NONE),
    (seen(SUB, request=STOP), STOPPED, Action.KILL),
    (seen(SUB, request=STOP, job=Job.PENDING), STOPPING, Action.KILL),
    (seen(SUB, request=STOP, job=Job.UNREACHABLE), STOPPING, Action.KILL),
    (seen(SUB, request=STOP, record=Record.OPEN, driver=ALIVE), STOPPING, Action.STOP),
    # starting
    (seen(START, job=Job.PENDING), START, Action.NONE),
    (seen(START, job=Job.RUNNING), START, Action.NONE),
    (seen(START, job=Job.RUNNING, seconds=LONG), FAILED, Action.KILL),
    (seen(START, job=Job.RUNNING, record=Record.OPEN, seconds=LONG), RUN, Action.NONE),
    (seen(START, job=Job.FAILED), FAILED, Action.NONE),
    (seen(START, job=Job.SUCCEEDED), FAILED, Action.NONE),
    (seen(START, job=Job.UNKNOWN), LOST, Action.NONE),
    (seen(START, job=Job.UNREACHABLE, seconds=500, silent=3), START, Action.NONE),
    (seen(START, job=Job.UNREACHABLE, silent=LONG), LOST, Action.NONE),
    (seen(START, job=Job.PENDING, request=KILL), STOPPING, Action.KILL),
    (seen(START, job=Job.PENDING, request=KILL, draining=LONG), KILLED, Action.KILL),
    (seen(START, job=Job.STOPPED, request=KILL), KILLED, Action.KILL),
    (seen(START, job=Job.STOPPED, request=STOP), STOPPED, Action.KILL),
    # running
    (seen(RUN, record=Record.OPEN, driver=ALIVE, job=Job.RUNNING), RUN, Action.NONE),
    (seen(RUN, record=Record.OPEN, driver=ALIVE, job=Job.UNREACHABLE, silent=LONG, seconds=LONG), RUN, Action.NONE),
    (seen(RUN, record=Record.OPEN, driver=UNSURE, job=Job.UNKNOWN), RUN, Action.NONE),
    (seen(RUN, record=Record.OPEN, driver=DEAD, job=Job.RUNNING), RUN, Action.NONE),
    (seen(RUN, record=Record.OPEN, driver=DEAD, job=Job.RUNNING, dead=LONG), LOST, Action.KILL),
    (seen(RUN, record=Record.OPEN, driver=DEAD, job=Job.UNREACHABLE), LOST, Action.NONE),
    (seen(RUN, record=Record.OPEN, driver=DEAD, job=Job.FAILED), LOST, Action.NONE),
    (seen(RUN, record=Record.OPEN, driver=DEAD, job=Job.STOPPED), KILLED, Action.NONE),
    (seen(RUN, record=Record.OPEN, driver=ALIVE, request=STOP), STOPPING, Action.STOP),
    (seen(RUN, record=Record.OPEN, driver=ALIVE, request=KILL), STOPPING, Action.KILL),
    (seen(RUN, job=Job.RUNNING), RUN, Action.NONE),
    (seen(RUN, job=Job.UNKNOWN), LOST, Action.NONE),
    # stopping
    (seen(STOPPING, request=STOP, record=Record.OPEN, driver=ALIVE), STOPPING, Action.STOP),
    (seen(STOPPING, request=STOP, record=Record.OPEN, driver=ALIVE, draining=61), STOPPING, Action.KILL),
    (seen(STOPPING, request=STOP, record=Record.OPEN, driver=DEAD, job=Job.STOPPED), KILLED, Action.NONE),
    (seen(STOPPING, request=STOP, record=Record.OPEN, driver=DEAD, job=Job.RUNNING, draining=130), KILLED, Action.KILL),
    (seen(STOPPING, request=STOP, record=Record.STOPPED, job=Job.RUNNING), STOPPED, Action.NONE),
    (seen(STOPPING, request=STOP, record=Record.DONE), DONE, Action.NONE),
    # lost
    (seen(LOST, retries_left=1), Q, Action.NEXT_ATTEMPT),
    (seen(LOST), LOST, Action.NONE),
    (seen(LOST, retries_left=1, record=Record.OPEN, driver=UNSURE), LOST, Action.NONE),
    (seen(LOST, retries_left=1, record=Record.OPEN, driver=DEAD), Q, Action.NEXT_ATTEMPT),
    (seen(LOST, retries_left=1, request=STOP), STOPPED, Action.KILL),
    (seen(LOST, retries_left=1, request=KILL, record=Record.OPEN, driver=DEAD), KILLED, Action.KILL),
    (seen(LOST, retries_left=1, request=KILL, record=Record.OPEN, driver=UNSURE), LOST, Action.KILL),
    (seen(LOST, request=KILL), LOST, Action.NONE),
    (seen(LOST, record=Record.OPEN, driver=ALIVE), RUN, Action.NONE),
    (seen(LOST, record=Record.DONE), DONE, Action.NONE),
    # ended
    (seen(DONE, record=Record.OPEN, request=KILL), DONE, Action.NONE),
    (seen(FAILED, record=Record.DONE), FAILED, Action.NONE),
    (seen(KILLED, retries_left=1, record=Record.OPEN, driver=DEAD), KILLED, Action.NONE),
]


@pytest.mark.parametrize(("given", "state", "action"), TABLE, ids=lambda value: value if isinstance(value, str) else "")
def test_the_next_state_and_action(given: Seen, state: State, action: Action) -> None:
    found = decide(given)

    assert (found.state, found.action) == (state, action)


def test_every_state_is_in_the_table() -> None:
    assert {given.state for given, *_ in TABLE} >= set(State) - {STOPPED}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (seen(Q, detail="waits: target big has no GPU"), "waits: target big has no GPU"),
        (seen(SUB, seconds=LONG, detail="no space left"), "no space left"),
        (
            seen(START, job=Job.FAILED, detail="no module curate"),
            "its job ended before the run began: no module curate",
        ),
        (seen(START, record=Record.REFUSED, detail="recipe: unknown op"), "recipe: unknown op"),
        (seen(RUN, record=Record.OPEN, driver=ALIVE, job=Job.UNREACHABLE), "its target does not answer"),
        (
            seen(STOPPING, request=STOP, record=Record.OPEN, driver=DEAD, draining=61, job=Job.STOPPED),
            "killed: it did not drain within 60 s",
        ),
        (seen(STOPPING, request=KILL, record=Record.OPEN, driver=DEAD, job=Job.STOPPED), "killed on request"),
    ],
)
def test_the_reason_says_why(given: Seen, reason: str) -> None:
    assert decide(given).reason == reason


# --- invariants -------------------------------------------------------------------------------------------------------

TIMES = [(0.0, 0.0, 0.0, 0.0), (LONG, 0.0, 0.0, 0.0), (LONG, 61.0, LONG, LONG), (LONG, LONG, LONG, LONG)]
"""In the state, draining, dead, silent."""


@cache
def everything() -> tuple[tuple[Seen, Step], ...]:
    return tuple((given, decide(given)) for given in _combinations())


def _combinations() -> Iterator[Seen]:
    flags = itertools.product((False, True), (False, True), (0, 1), (DEAD, ALIVE))
    for tried, chosen, left, earlier in flags:
        for state, request, job, record, driver in itertools.product(State, Request, Job, Record, Driver):
            if (tried or chosen or earlier is ALIVE) and state is not Q:
                continue  # they matter to queued runs only
            for seconds, draining, dead, silent in TIMES:
                yield Seen(
                    state, request, job, record, driver, tried, earlier, seconds, draining, dead, silent,
                    retries_left=left, chosen=chosen,
                )  # fmt: skip


def test_a_result_in_the_workspace_always_wins() -> None:
    for given, step in everything():
        if given.record in RESULTS and (given.state is LOST or not given.state.ended):
            assert (step.state, step.action) == (RESULTS[given.record], Action.NONE), given


def test_a_run_that_is_done_has_no_reason_although_its_cluster_does_not_answer() -> None:
    assert decide(seen(RUN, job=Job.UNREACHABLE, record=Record.DONE, detail="no answer")).reason == ""
    assert decide(seen(RUN, record=Record.FAILED, detail="it broke")).reason == "it broke"


def test_an_ended_run_is_unchanged_unless_it_was_lost() -> None:
    for given, step in everything():
        if given.state.ended and given.state is not LOST:
            assert step == Step(given.state), given
        if given.state is LOST:
            assert step.state in {LOST, Q, RUN, STOPPED, KILLED, *RESULTS.values()}, given


def test_a_lost_run_changes_only_with_a_result_a_living_driver_a_request_or_a_new_attempt() -> None:
    for given, step in everything():
        if given.state is not LOST or step.state is LOST or given.record in RESULTS:
            continue
        if step.state is RUN:
            assert given.record is Record.OPEN and given.driver is ALIVE, given
        elif given.request:
            assert given.retries_left and (given.record is Record.NONE or given.driver is DEAD), given
            assert step == Step(KILLED if given.request is KILL else STOPPED, Action.KILL, step.reason), given
        else:
            assert step == Step(Q, Action.NEXT_ATTEMPT, step.reason) and given.retries_left, given


def test_a_run_is_resubmitted_only_when_its_old_driver_is_dead() -> None:
    for given, step in everything():
        if step.action is Action.NEXT_ATTEMPT:
            assert given.record is Record.NONE or given.driver is DEAD, given
        if step.action is Action.SUBMIT:
            assert given.state in (Q, SUB) and given.earlier is DEAD, given
            assert given.record is Record.NONE, given


def test_nothing_is_submitted_once_an_end_is_requested() -> None:
    for given, step in everything():
        if given.request:
            assert step.action not in (Action.SUBMIT, Action.NEXT_ATTEMPT), given


def test_a_kill_request_ends_every_run_without_a_living_driver() -> None:
    for given, step in everything():
        without = given.record is not Record.OPEN or given.driver is DEAD
        if given.request is KILL and without and given.draining == LONG and not (given.state is Q and not given.tried):
            assert step.state.ended or step.state is RUN, given
            assert step.state is not RUN or given.state is Q, given


def test_a_kill_request_of_a_living_driver_kills_until_it_is_dead() -> None:
    for given, step in everything():
        living = given.record is Record.OPEN and given.driver is not DEAD and given.state in (SUB, START, RUN, STOPPING)
        if living and given.request is KILL:
            assert step == Step(STOPPING, Action.KILL, step.reason), given


def test_a_cluster_that_does_not_answer_never_ends_a_run_with_a_living_driver() -> None:
    for given, step in everything():
        if given.job is Job.UNREACHABLE and given.record is Record.OPEN and given.driver is not DEAD:
            assert given.state.ended or not step.state.ended, given


def test_time_alone_never_ends_a_run_with_a_living_driver() -> None:
    for given, step in everything():
        living = given.record is Record.OPEN and given.driver is ALIVE and not given.request
        if living and given.state in (Q, SUB, START, RUN):
            assert step == Step(RUN, reason=step.reason), given


def test_the_time_to_drain_counts_only_after_a_request() -> None:
    for given, step in everything():
        if not given.request and given.state is not STOPPING:
            assert decide(replace(given, draining=0.0)) == step, given


def test_every_killed_or_given_up_run_has_a_reason() -> None:
    for given, step in everything():
        if step.state in (KILLED, LOST) and not given.state.ended:
            assert step.reason, given


def test_only_runs_that_are_not_done_can_be_resumed() -> None:
    assert ENDED - {DONE} == RESUMABLE
    assert {state for state in State if state.active} == {SUB, START, RUN, STOPPING}


# --- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [state for state in State if not state.ended])
def test_every_state_reaches_done_if_all_goes_well(state: State) -> None:
    def world(now: State) -> Seen:
        started = now in (START, RUN, STOPPING)
        record = Record.DONE if now in (RUN, STOPPING) else Record.OPEN if started else Record.NONE
        return seen(now, chosen=True, record=record, job=Job.RUNNING if now is not Q else Job.UNKNOWN, driver=ALIVE)

    assert _walk(state, world)[-1] is DONE


@pytest.mark.parametrize("request_", [STOP, KILL])
def test_every_requested_end_comes_once_the_driver_is_dead(request_: Request) -> None:
    states = [state for state in State if not state.ended]
    for state, record, job in itertools.product(states, Record, Job):
        about = {"request": request_, "record": record, "job": job}

        def world(now: State, about: dict[str, object] = about) -> Seen:
            return seen(now, driver=DEAD, tried=True, draining=LONG, **about)

        assert _walk(state, world)[-1].ended, (state, about)


@pytest.mark.parametrize("state", [SUB, START, RUN])
def test_every_state_ends_or_returns_to_the_queue_if_the_cluster_is_gone(state: State) -> None:
    def world(now: State) -> Seen:
        record = Record.OPEN if now is RUN else Record.NONE
        times = {"seconds": LONG, "dead": LONG, "silent": LONG}
        return seen(now, record=record, job=Job.UNREACHABLE, driver=DEAD, **times)

    assert _walk(state, world)[-1] in (Q, LOST)


def _walk(state: State, world: object) -> list[State]:
    walked = [state]
    for _ in range(8):
        step = decide(world(walked[-1]), Timeouts())  # type: ignore[operator]
        if step.state is walked[-1]:
            break
        walked.append(step.state)
    return walked
