"""Lanes side by side, allocation of workers, and stopping."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.contracts import Resources
from curate.engine.backends import ClusterNode
from curate.engine.backends.local import LocalBackend
from curate.engine.tasks import beat
from curate.engine.workers import dispatch
from curate.engine.workers.lanes import Budget, Demand, allocate, fits
from curate.engine.workers.scheduler import Scheduler
from tests.engine.workers.tasks import CPU, GPU, REMOTE, SECONDS, Doors, double


def test_lanes_run_concurrently(local: Scheduler) -> None:
    """Two tasks on the gpu lane and four on the remote one are there at once with one on the CPU, or none would end."""
    meeting = threading.Barrier(7)
    calls = [local.open(meeting.wait, lane) for lane in (CPU, GPU, REMOTE)]
    for call, count in zip(calls, (1, 2, 4), strict=True):
        for _ in range(count):
            call.put(SECONDS)
        call.close()
    assert sorted(outcome.value for call in calls for outcome in call) == list(range(7))


def test_one_unit_of_the_gpu_lane_computes_at_a_time(local: Scheduler) -> None:
    inside: list[int] = []
    most: list[int] = []

    def compute(value: int) -> None:
        for _ in range(20):
            with beat.current().turn:
                inside.append(value)
                most.append(len(inside))
                time.sleep(0)
                inside.remove(value)

    list(local.map(compute, range(4), GPU))
    assert set(most) == {1} and len(most) == 80


def test_workers_are_laid_out_by_node() -> None:
    nodes = [ClusterNode("a", 4), ClusterNode("b", 3), ClusterNode("g", 8, gpus=2)]
    assert fits(nodes, Resources(cpus=2)) == 7 and fits(nodes, Resources(cpus=9)) == 0
    assert fits(nodes, Resources(cpus=1, gpus=1)) == 2 and fits(nodes, Resources(cpus=5, gpus=1)) == 1


def test_each_lane_gets_a_worker() -> None:
    wants = [Demand(CPU, 1000), Demand(Resources(cpus=2, gpus=1), 1000), Demand(REMOTE, 1000)]
    assert allocate([ClusterNode("a", 4, gpus=1)], wants, {"remote": 1}) == [1, 1, 1]
    assert allocate([ClusterNode("a", 16, gpus=2)], wants, {"remote": 1}) == [11, 2, 1]
    assert allocate([ClusterNode("a", 2)], [Demand(CPU, 9), Demand(Resources(cpus=2), 9)]) == [2, 0]


sizes = st.builds(Resources, cpus=st.sampled_from([0.25, 1.0, 2.0]), gpus=st.sampled_from([0, 1]))


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), min_size=1, max_size=4),
    st.lists(st.tuples(sizes, st.integers(1, 9)), max_size=4, unique_by=lambda pair: pair[0]),
    st.floats(0, 20),
)
def test_no_more_is_assigned_than_available(
    machines: list[tuple[int, int]], wanted: list[tuple[Resources, int]], budget: float
) -> None:
    nodes = [ClusterNode(str(number), cpus, gpus) for number, (cpus, gpus) in enumerate(machines)]
    wants = [Demand(*pair) for pair in wanted]
    got = allocate(nodes, wants)
    assert all(0 <= count <= want.workers for count, want in zip(got, wants, strict=True))
    for what in ("cpus", "gpus"):
        taken = sum(count * getattr(want.resources, what) for count, want in zip(got, wants, strict=True))
        assert taken <= sum(getattr(node, what) for node in nodes)
    less = allocate(nodes, wants, budget=Budget(budget, 100))
    assert sum(count * want.resources.cpus for count, want in zip(less, wants, strict=True)) <= budget + 1e-6
    room = Budget(budget, 100)
    assert any(less) or not any(count and room.workers(want.resources) for count, want in zip(got, wants, strict=True))


def test_stop_ends_what_does_not_end_itself(local: Scheduler, doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "GRACE_SECONDS", 2.0)

    def task(value: int) -> int:
        doors.arrived.put(value)
        if value == 0:  # winds down on request
            while not beat.current().stopping:
                time.sleep(0.01)
        else:
            doors.open.wait(SECONDS)
        return value

    calls = [local.open(task, lane) for lane in (CPU, GPU)]
    for call, value in zip(calls, (0, 1), strict=True):
        call.put(value)
        call.put(value)
        call.close()
    assert sorted(doors.arrived.get(timeout=SECONDS) for _ in range(3)) == [0, 1, 1]
    local.stop()
    local.stop()
    assert [[outcome.value for outcome in call] for call in calls] == [[0], []]
    assert list(local.map(double, range(3), CPU)) == []


def test_draining_starts_nothing_more(local: Scheduler, doors: Doors) -> None:
    call = local.open(doors.pass_through, CPU)
    for value in range(3):
        call.put(value)
    doors.arrived.get(timeout=SECONDS)
    local.draining.set()
    doors.open.set()
    assert [outcome.value for outcome in call] == [0]


def test_closing_leaves_no_thread() -> None:
    before = threading.active_count()
    made = Scheduler(LocalBackend())
    list(made.map(double, range(5), CPU))
    list(made.map(double, range(5), GPU))
    made.close()
    until = time.monotonic() + SECONDS
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before
