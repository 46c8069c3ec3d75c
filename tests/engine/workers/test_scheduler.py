"""Lanes side by side, payloads as workers take them, what hangs or dies, stopping, runs that share a cluster."""

from __future__ import annotations

import json
import logging
import os
import queue
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.contracts import Resources, Stage
from curate.core.errors import CurateError, InputError, StorageError
from curate.core.store.storage import open_storage
from curate.engine import backends
from curate.engine.backends import Down, Ended, How, Job, Looked, Outcome, Up, isolated
from curate.engine.backends.address import checked
from curate.engine.backends.local import LocalBackend
from curate.engine.record import logs
from curate.engine.workers import beat, dispatch, meter, staff
from curate.engine.workers.beat import Told
from curate.engine.workers.calls import END, Item, Work, ahead_of
from curate.engine.workers.lanes import Budget, Node, Want, divide, fair, fits
from curate.engine.workers.meter import Meter
from curate.engine.workers.scheduler import Scheduler

CPU, GPU, REMOTE = Resources(), Resources(gpus=1), Resources(cpus=0.25, remote=True)
SECONDS = 30
"""What waits for another waits no longer; nothing takes that long."""


@pytest.fixture
def local(at_once: None) -> Iterator[Scheduler]:
    made = Scheduler(LocalBackend())
    yield made
    made.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    """Looks often, and takes a unit that does nothing for half a second to hang."""
    made = Scheduler(LocalBackend(), deadline=0.5)
    yield made
    made.close()


class Doors:
    """Where tasks of this process wait until a test lets them go on."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def pass_through(self, payload: Any) -> Any:
        self.arrived.put(payload)
        assert self.open.wait(SECONDS)
        return payload


@pytest.fixture
def doors() -> Iterator[Doors]:
    made = Doors()
    yield made
    made.open.set()


def double(value: int) -> int:
    return 2 * value


# --- calls -----------------------------------------------------------------------------------------------------------


def test_every_payload_ends_once(local: Scheduler) -> None:
    outcomes = list(local.map(double, range(100), CPU))
    assert sorted((outcome.index, outcome.value) for outcome in outcomes) == [(n, 2 * n) for n in range(100)]


def test_payloads_are_made_as_workers_take_them(local: Scheduler) -> None:
    made = 0

    def payloads() -> Iterator[int]:
        nonlocal made
        while made < 10**6:
            made += 1
            yield made

    outcomes = local.map(double, payloads(), CPU)
    for seen, _ in zip(range(1, 50), outcomes, strict=False):
        assert made <= seen + ahead_of(local.slots(CPU))
    outcomes.close()  # type: ignore[attr-defined]


def test_no_payloads_and_no_worker() -> None:
    class Nothing(LocalBackend):
        def start(self, *_: Any) -> Any:
            raise AssertionError("a worker is started")

    made = Scheduler(Nothing())
    assert list(made.map(double, [], CPU)) == []
    made.close()


def test_calls_that_share_an_inbox(local: Scheduler) -> None:
    inbox: queue.Queue[Any] = queue.Queue()
    calls = [local.open(double, CPU, inbox=inbox, label=name) for name in "ab"]
    for number, call in enumerate(calls):
        assert [call.put(10 * number), call.put(10 * number + 1)] == [0, 1]
        call.close()
    found: dict[str, list[Any]] = {"a": [], "b": []}
    while any(values[-1:] != [None] for values in found.values()):
        call, outcome = inbox.get(timeout=SECONDS)
        found[call.label].append(outcome and outcome.value)
    assert found == {"a": [0, 2, None], "b": [20, 22, None]}


def test_a_call_without_payloads_holds_nobody_up(local: Scheduler) -> None:
    empty = local.open(double, CPU)
    assert [outcome.value for outcome in local.map(double, [1], CPU)] == [2]
    empty.close()
    assert list(empty) == []


def wrong(value: int) -> int:
    if value == 3:
        raise InputError("three is no good; give another")
    return value


def test_what_cannot_be_mended_ends_its_own_call_only(local: Scheduler) -> None:
    other = local.open(double, CPU)
    with pytest.raises(InputError, match="three is no good"):
        list(local.map(wrong, range(100), CPU))
    other.put(1)
    other.close()
    assert [outcome.value for outcome in other] == [2]


def test_an_error_is_tried_again_then_told(local: Scheduler) -> None:
    tries: Counter[int] = Counter()

    def fails(value: int) -> int:
        tries[value] += 1
        if value < 2 and tries[value] <= (1, 9)[value]:
            raise OSError(f"not {value}")
        return value

    outcomes = {outcome.index: outcome for outcome in local.map(fails, range(3), CPU)}
    assert [outcomes[n].error for n in range(3)] == [None, "OSError: not 1", None]
    assert tries == {0: 2, 1: backends.ATTEMPTS, 2: 1}


def test_a_full_disk_is_left_for_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise StorageError("/scratch: no space is left") from OSError(28, "no space")

    outcome = backends.attempted(full, 1, 7)
    assert outcome.elsewhere and outcome.index == 7
    assert outcome.error == f"/scratch: no space is left (on {os.uname().nodename})"


class Fake:
    """A worker that does what a test has it do."""

    node = ""

    def __init__(self, tell: Any) -> None:
        self.tell = tell
        self.jobs: queue.Queue[tuple[int, Job]] = queue.Queue()
        tell(Up(self))  # type: ignore[arg-type]

    def run(self, ticket: int, job: Job, shared: Any) -> None:
        self.jobs.put((ticket, job))

    def given(self) -> tuple[int, Job]:
        return self.jobs.get(timeout=SECONDS)

    def ended(self, ticket: int, job: Job, **how: Any) -> None:
        self.tell(Ended(self, ticket, Outcome(job.index, **how), {}))  # type: ignore[arg-type]

    def end(self, ticket: int) -> bool:
        return False

    def look(self) -> None: ...
    def wind_down(self, tickets: Any) -> None: ...
    def flush(self) -> None:
        self.tell(Looked(self, {}))  # type: ignore[arg-type]

    def kill(self) -> None: ...


class Fakes(LocalBackend):
    def __init__(self, workers: int, queued: int) -> None:
        self.workers, self.queued = workers, queued
        self.started: queue.Queue[Fake] = queue.Queue()

    def most(self) -> dict[str, int]:
        return {"cpu": self.workers}

    def start(self, lane: str, resources: Resources, units: int, tell: Any) -> Any:
        made = Fake(tell)
        self.started.put(made)
        return made


def test_what_lay_with_a_dead_worker_may_have_been_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(workers=1, queued=3)
    made = Scheduler(fakes)
    call = made.open(double, CPU)
    for value in range(3):
        call.put(value)
    call.close()
    first = fakes.started.get(timeout=SECONDS)
    assert [first.given()[1].again for _ in range(3)] == [False] * 3
    first.tell(Down(first, "died"))  # type: ignore[arg-type]
    second = fakes.started.get(timeout=SECONDS)
    for _ in range(3):
        ticket, job = second.given()
        assert job.again
        second.ended(ticket, job, value=job.index)
    assert [outcome.value for outcome in call] == [0, 1, 2]
    made.close()


@pytest.mark.parametrize("sticky", [False, True])
def test_what_a_full_disk_refused_is_tried_there_again_when_nobody_else_is_left(
    monkeypatch: pytest.MonkeyPatch, sticky: bool
) -> None:
    monkeypatch.setattr(staff, "NODES_SECONDS", 0.0)
    fakes = Fakes(workers=2, queued=0)
    made = Scheduler(fakes)
    call = made.open(double, CPU, How(sticky=sticky))
    for value in range(2):
        call.put(value)
    call.close()
    full, other = (fakes.started.get(timeout=SECONDS) for _ in range(2))
    refused, held = full.given(), other.given()
    full.ended(*refused, error="no space", elsewhere=True)
    fakes.workers = 1
    other.ended(*held, error="no space", elsewhere=True)
    again = {full: full.given(), other: other.given()}
    assert {worker: job.index for worker, (_, job) in again.items()} == {full: held[1].index, other: refused[1].index}
    full.ended(*again[full], value=1)
    assert call.next().value == 1
    other.tell(Down(other, "died"))  # type: ignore[arg-type]
    ticket, job = full.given()
    assert job.index == refused[1].index and job.again
    full.ended(ticket, job, error="no space", elsewhere=True)
    assert [outcome.error for outcome in call] == ["no space"]
    made.close()


def test_a_payload_that_avoids_a_worker_holds_up_no_other() -> None:
    work = Work(How(), ahead=4)
    refused, other = Item(0, None, avoid={"a"}), Item(1, None)
    work.add(refused, first=True)
    work.add(other)
    assert work.take(0, "a", set()) is other and work.take(0, "a", set()) is None and work.waiting == 1
    work.relent(["a", "b"])
    assert work.take(0, "a", set()) is None
    work.relent(["a"])
    assert work.take(0, "a", set()) is refused and work.waiting == 0


def test_a_call_opened_while_the_scheduler_breaks_is_told() -> None:
    class Broken(LocalBackend):
        def parked(self, tell: Any) -> Any:
            raise RuntimeError("out of order")

    made = Scheduler(Broken())
    with pytest.raises(RuntimeError, match="out of order"):
        made.open(double, CPU).next()
    made.close()


def test_an_abandoned_call_frees_its_worker(local: Scheduler, doors: Doors) -> None:
    outcomes = local.map(doors.pass_through, range(10), CPU)
    threading.Thread(target=lambda: (doors.arrived.get(), doors.open.set()), daemon=True).start()
    assert next(outcomes).value == 0
    outcomes.close()  # type: ignore[attr-defined]
    assert [outcome.value for outcome in local.map(double, [1], CPU)] == [2]


@given(st.integers(0, 30), st.integers(1, 4), st.booleans(), st.sampled_from([None, 2, 5]), st.randoms())
def test_a_call_hands_out_all_in_its_way(
    payloads: int, workers: int, sticky: bool, window: int | None, chance: Any
) -> None:
    """Workers that die give theirs back; whoever is away for long is stood in for; nothing runs ahead of the window."""
    work = Work(How(sticky=sticky, window=window), ahead=4)
    for index in range(payloads):
        work.add(Item(index, None))
    if sticky:
        work.settle_on(list(range(workers)))
    busy: dict[int, deque[Item]] = {worker: deque() for worker in range(workers)}
    done: set[int] = set()
    while work.waiting or any(busy.values()):
        worker, away = chance.randrange(workers), {chance.randrange(workers)} if chance.random() < 0.2 else set()
        if (item := work.take(worker, None, away)) is not None:
            assert not sticky or item.index % workers in (worker, *away)
            far = (window or 0) * (workers if sticky else 1)
            assert window is None or item.index < min(set(range(payloads)) - done) + far
            busy[worker].append(item)
        elif busy[worker] and chance.random() < 0.2:
            for item in reversed(busy[worker]):
                work.add(item, first=True)
            busy[worker].clear()
        elif busy[worker]:
            item = busy[worker].popleft()
            assert item.index not in done
            done.add(item.index)
            work.settle(item.index)
    assert done == set(range(payloads))


# --- lanes -----------------------------------------------------------------------------------------------------------


def test_lanes_are_alive_side_by_side(local: Scheduler) -> None:
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
    nodes = [Node("a", 4), Node("b", 3), Node("g", 8, gpus=2)]
    assert fits(nodes, Resources(cpus=2)) == 7 and fits(nodes, Resources(cpus=9)) == 0
    assert fits(nodes, Resources(cpus=1, gpus=1)) == 2 and fits(nodes, Resources(cpus=5, gpus=1)) == 1


def test_each_lane_gets_a_worker() -> None:
    wants = [Want(CPU, 1000), Want(Resources(cpus=2, gpus=1), 1000), Want(REMOTE, 1000)]
    assert divide([Node("a", 4, gpus=1)], wants, {"remote": 1}) == [1, 1, 1]
    assert divide([Node("a", 16, gpus=2)], wants, {"remote": 1}) == [11, 2, 1]
    assert divide([Node("a", 2)], [Want(CPU, 9), Want(Resources(cpus=2), 9)]) == [2, 0]


sizes = st.builds(Resources, cpus=st.sampled_from([0.25, 1.0, 2.0]), gpus=st.sampled_from([0, 1]))


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), min_size=1, max_size=4),
    st.lists(st.tuples(sizes, st.integers(1, 9)), max_size=4, unique_by=lambda pair: pair[0]),
    st.floats(0, 20),
)
def test_no_more_is_given_out_than_there_is(
    machines: list[tuple[int, int]], wanted: list[tuple[Resources, int]], budget: float
) -> None:
    nodes = [Node(str(number), cpus, gpus) for number, (cpus, gpus) in enumerate(machines)]
    wants = [Want(*pair) for pair in wanted]
    got = divide(nodes, wants)
    assert all(0 <= count <= want.workers for count, want in zip(got, wants, strict=True))
    for what in ("cpus", "gpus"):
        taken = sum(count * getattr(want.resources, what) for count, want in zip(got, wants, strict=True))
        assert taken <= sum(getattr(node, what) for node in nodes)
    less = divide(nodes, wants, budget=Budget(budget, 100))
    first = {want.resources.lane: want.resources.cpus for want in reversed(wants)}
    taken = sum(count * want.resources.cpus for count, want in zip(less, wants, strict=True))
    assert taken <= budget + 2 * len(first) + 1e-6  # the first worker of a lane may go over it
    assert all(any(less[n] for n, w in enumerate(wants) if w.resources.lane == want.resources.lane)
               for count, want in zip(got, wants, strict=True) if count)  # fmt: skip


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 50), min_size=1, max_size=5), st.integers(1, 40))
def test_a_cluster_is_shared_fairly(wants: dict[str, float], total: int) -> None:
    shares = {name: fair(total, wants, name) for name in wants}
    used = {name: min(share, wants[name]) for name, share in shares.items()}
    assert sum(used.values()) == pytest.approx(min(total, sum(wants.values())))
    assert all(used[name] >= min(wants[name], total / len(wants)) - 1e-9 for name in wants)


# --- what hangs ------------------------------------------------------------------------------------------------------


def test_a_unit_that_hangs_is_ended_and_named(quick: Scheduler, doors: Doors) -> None:
    def task(value: int) -> int:
        mine = beat.current()
        mine.doing("before", [0])
        mine.done("before", 1, 0.0)
        mine.doing("caption", [4, 5, 6])
        if value == 1:
            doors.open.wait(SECONDS)
        mine.done("caption", 3, 0.0)
        return value

    outcomes = {outcome.index: outcome for outcome in quick.map(task, range(3), CPU)}
    assert [outcomes[n].value for n in (0, 2)] == [0, 2]
    hung = outcomes[1]
    assert hung.error is not None and hung.hung is not None and not doors.open.is_set()
    assert hung.error.startswith("hung: caption finished no batch for ") and "(rows 4-6 of its unit)" in hung.error
    assert hung.hung.stage == "caption" and hung.hung.rows == (4, 5, 6)


def test_a_task_without_batches_that_hangs_is_tried_again(quick: Scheduler, doors: Doors) -> None:
    tries = Counter[int]()

    def task(value: int) -> int:
        tries[value] += 1
        if value == 2 or (value == 1 and tries[1] == 1):
            doors.open.wait(SECONDS)
        return value

    outcomes = {outcome.index: outcome for outcome in quick.map(task, range(4), CPU, label="merge")}
    assert [outcomes[n].value for n in (0, 1, 3)] == [0, 1, 3]
    assert str(outcomes[2].error).startswith("hung: merge finished no batch for ")
    assert tries == {0: 1, 1: 2, 2: backends.ATTEMPTS, 3: 1}


def test_batches_that_end_are_no_hang(quick: Scheduler) -> None:
    def task(value: int) -> int:
        for _ in range(12):
            beat.current().doing("slow", [0])
            time.sleep(0.1)
            beat.current().done("slow", 1, 0.1)
        return value

    assert [outcome.value for outcome in quick.map(task, [7], CPU)] == [7]


def test_who_hangs_in_its_turn_gives_it_up(quick: Scheduler, doors: Doors) -> None:
    def task(value: int) -> int:
        mine = beat.current()
        with mine.turn:
            mine.doing("embed", [value])
            if value == 0:
                doors.open.wait(SECONDS)
            mine.done("embed", 1, 0.0)
        return value

    outcomes = {outcome.index: outcome for outcome in quick.map(task, range(4), GPU)}
    assert outcomes[0].hung is not None and [outcomes[n].value for n in (1, 2, 3)] == [1, 2, 3]


def test_a_process_of_its_own_that_hangs_is_killed(
    quick: Scheduler, doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It relays its beat, so that its step learns where it hung."""
    monkeypatch.setattr(isolated, "START_METHOD", "fork")
    monkeypatch.setattr(isolated, "RELAY_SECONDS", 0.05)

    def task(value: int) -> int:
        beat.current().doing("crawl", [value])
        (tmp_path / str(value)).write_text(str(os.getpid()))
        time.sleep(SECONDS * value)
        return value

    outcomes = {o.index: o for o in quick.map(task, range(2), CPU, How(isolated=True))}
    assert outcomes[0].value == 0 and outcomes[1].hung is not None and outcomes[1].hung.rows == (1,)
    pid = int((tmp_path / "1").read_text())
    until = time.monotonic() + SECONDS
    while psutil.pid_exists(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not psutil.pid_exists(pid)


def test_how_long_a_batch_may_take() -> None:
    meter = Meter()
    assert meter.limit("caption") == 3600
    meter.hear("cpu", {"caption": Told(batches=4, recent=[100.0] * 4)})
    assert meter.limit("caption") == 3600
    meter.hear("cpu", {"caption": Told(batches=1, recent=[100.0])})
    assert meter.limit("caption") == 1000
    meter.hear("cpu", {"merge": Told(batches=5, recent=[2.0] * 5)})
    assert meter.limit("merge") == 600 and meter.limit("other") == 3600
    assert Meter(deadline=7).limit("caption") == 7


def test_a_step_that_is_not_one_of_many_batches_may_take_an_hour() -> None:
    meter = Meter()
    meter.hear("cpu", {"merge": Told(batches=5, recent=[2.0] * 5)})
    assert meter.limit("merge", beat.LONG) == 3600
    meter.hear("cpu", {"merge": Told(batches=20, recent=[1000.0] * 20)})
    assert meter.limit("merge", beat.LONG) == 10_000
    assert meter.silent_limit([]) == meter.silent_limit([2.0] * 5) == 3600 and meter.silent_limit([500.0]) == 5000
    quick = Meter(deadline=7)
    assert quick.limit("merge", beat.LONG) == quick.silent_limit([500.0]) == 7
    assert quick.limit("clip (setting up)", beat.SET_UP) == 3600


@pytest.mark.parametrize("speaks", [False, True])
def test_short_tasks_do_not_make_a_long_one_hang(monkeypatch: pytest.MonkeyPatch, speaks: bool) -> None:
    """Ten short steps of a fit, in a call of their own and beside it, whether they say that they are steps or not."""
    monkeypatch.setattr(meter, "LEAST_SECONDS", 0.1)
    monkeypatch.setattr(dispatch, "LOOK_SECONDS", 0.1)
    tries = Counter[float]()

    def step(seconds: float) -> None:
        tries[seconds] += 1
        if speaks:
            beat.current().doing("fit")
        time.sleep(seconds)
        if speaks:
            beat.current().done("fit", 1, seconds)

    made = Scheduler(LocalBackend())
    for payloads in ([0.0] * 5, [0.0] * 5 + [1.0]):
        assert [outcome.error for outcome in made.map(step, payloads, CPU, label="fit")] == [None] * len(payloads)
    made.close()
    assert tries == {0.0: 10, 1.0: 1}


def test_a_set_up_is_no_batch(quick: Scheduler, tmp_path: Path) -> None:
    """It may take longer than the deadline, and so may those who wait for it; the beat then goes on where it was."""

    class Slow(Stage):
        op: ClassVar[str] = "test.slow"

        def setup(self, artifacts: Any) -> None:
            began.set()
            looks.append(beat.current().look())
            time.sleep(1.2)

    began, looks, storage = threading.Event(), list[Any](), open_storage(str(tmp_path))

    def task(value: int) -> int:
        beat.current().doing("embed", [value])
        backends.set_up("slow", Slow(), {}, storage)
        looks.append(beat.current().look())
        return value

    outcomes = list(quick.map(task, [0, 1], GPU))
    assert sorted(outcome.value for outcome in outcomes) == [0, 1]
    setting_up, *after = looks
    assert setting_up["stage"] == "test.slow (setting up)" and setting_up["pace"] == beat.SET_UP
    assert [(look["stage"], look["pace"], look["idle"] < 0.5) for look in after] == [("embed", beat.BATCH, True)] * 2


def test_progress_says_rows_and_rates() -> None:
    meter = Meter()
    meter.units["gpu"] = 2
    meter.hear("gpu", {"embed": Told(2, 64, 1000, 1.0, [0.5, 0.5])})
    [said] = meter.moved()
    assert said["stage"] == "embed" and said["lane"] == "gpu" and said["rows"] == 64
    assert said["rows_per_s"] == pytest.approx(64, rel=0.2) and 0.3 < said["busy"] <= 0.5
    assert meter.moved() == []


# --- stopping --------------------------------------------------------------------------------------------------------


def test_stop_ends_what_does_not_end_itself(local: Scheduler, doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "GRACE_SECONDS", 0.3)

    def task(value: int) -> int:
        doors.arrived.put(value)
        if value == 0:  # winds down when it is told
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


# --- stages that are set up ------------------------------------------------------------------------------------------


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


# --- logs ------------------------------------------------------------------------------------------------------------


def test_a_failed_attempt_is_logged_with_its_traceback(tmp_path: Path, at_once: None) -> None:
    storage = open_storage(str(tmp_path))
    made = Scheduler(LocalBackend(), storage=storage, run_id="one")

    def fails(_: int) -> None:
        raise ValueError("a bad value")

    assert [outcome.error for outcome in made.map(fails, [1], CPU, label="merge")] == ["ValueError: a bad value"]
    made.close()
    lines = said(tmp_path / "runs/one/logs")
    failed = [line for line in lines if "attempt 1 of 3 failed" in line["message"]]
    assert len(failed) == 1 and "ValueError: a bad value" in failed[0]["traceback"]
    assert failed[0]["level"] == "warning" and failed[0]["unit"] == "merge 0" and failed[0]["lane"] == "cpu"
    assert failed[0]["worker"] == "driver" and not [h for h in logs.LOGGER.handlers if isinstance(h, logs.Log)]


def test_what_a_process_of_its_own_says_is_in_the_log(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "START_METHOD", "fork")
    made = Scheduler(LocalBackend(), storage=open_storage(str(tmp_path)), run_id="one")

    def fails(_: int) -> None:
        beat.current().doing("caption", [3])
        raise ValueError(f"a bad value in {beat.current().run}")

    outcomes = list(made.map(fails, [1], CPU, How(isolated=True), label="merge"))
    assert [outcome.error for outcome in outcomes] == ["ValueError: a bad value in one"]
    made.close()
    failed = [line for line in said(tmp_path / "runs/one/logs") if "attempt 1 of 3 failed" in line["message"]]
    assert len(failed) == 1 and "ValueError: a bad value in one" in failed[0]["traceback"]
    assert (failed[0]["level"], failed[0]["unit"], failed[0]["stage"]) == ("warning", "merge 0", "caption")


def said(folder: Path, worker: str = "") -> list[dict[str, Any]]:
    files = sorted(folder.glob(f"{worker}*.jsonl"))
    assert all(file.name.rpartition("-")[2] == f"{number:06d}.jsonl" for number, file in enumerate(files, 1))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_log_that_cannot_be_published_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.attach(str(tmp_path), "one", "driver")
    log = next(handler for handler in logs.LOGGER.handlers if isinstance(handler, logs.Log))
    with monkeypatch.context() as patch:
        patch.setattr(type(log.storage), "publish_bytes", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        logging.getLogger("curate.any").warning("%s", "kept")
        log.publish()
    logs.detach(str(tmp_path), "one")
    assert [line["message"] for line in said(tmp_path / "runs/one/logs")] == ["kept"]


# --- addresses -------------------------------------------------------------------------------------------------------


def test_nothing_listens_at_an_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    began = time.monotonic()
    for address, words in [
        (f"127.0.0.1:{port}", "no Ray cluster answers there (Connection refused); check it with `ray status`"),
        (f"ray://127.0.0.1:{port}", "no Ray cluster answers there (Connection refused)"),
        ("auto", "no Ray cluster runs on this machine; start one with `ray start --head`"),
        ("somewhere", "expected HOST:PORT of a Ray cluster"),
        ("host:99999", "expected HOST:PORT of a Ray cluster"),
    ]:
        with pytest.raises(CurateError) as raised:
            checked(address)
        assert str(raised.value).startswith(f"--address {address}: ") and words in str(raised.value)
    assert time.monotonic() - began < 10


def test_something_else_listens_at_an_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            there, _ = server.accept()
            there.recv(100)
            there.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            there.close()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(CurateError, match="something else listens there"):
            checked(f"127.0.0.1:{server.getsockname()[1]}")


# --- Ray -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def over_ray(on_ray: Any) -> Iterator[Scheduler]:
    made = Scheduler(on_ray)
    yield made
    made.close()


def dies(value: int) -> int:
    if value == 3:
        os._exit(1)
    return os.getpid() if value < 0 else value


def sleeps(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def test_a_worker_that_dies_takes_one_payload_along(over_ray: Scheduler) -> None:
    outcomes = {outcome.index: outcome for outcome in over_ray.map(dies, range(6), CPU)}
    assert outcomes[3] == Outcome(3, error="the worker process died", crashed=True)
    assert [outcomes[n].value for n in (0, 1, 2, 4, 5)] == [0, 1, 2, 4, 5]


def pid_or_death(value: tuple[int, str]) -> int:
    number, mark = value
    if mark and not os.path.exists(mark):
        Path(mark).touch()
        os._exit(1)
    return number


def test_whoever_is_left_takes_over_what_was_meant_for_the_dead(over_ray: Scheduler, tmp_path: Path) -> None:
    """The last payload of a sticky call has lost its worker, and one worker is enough for one payload."""
    began = time.monotonic()
    for call in range(3):
        payloads = [(number, str(tmp_path / str(call)) if number == 3 else "") for number in range(4)]
        outcomes = over_ray.map(pid_or_death, payloads, CPU, How(sticky=True, window=4))
        assert sorted(outcome.value for outcome in outcomes) == [0, 1, 2, 3]
    assert time.monotonic() - began < 2 * SECONDS


def test_lanes_of_ray_are_processes_of_their_own(over_ray: Scheduler) -> None:
    calls = [over_ray.open(sleeps, lane) for lane in (CPU, REMOTE)]
    for call in calls:
        for _ in range(4):
            call.put(0.1)
        call.close()
    here, there = ({outcome.value for outcome in call} for call in calls)
    assert here and there and not here & there


def test_a_hang_on_ray_costs_its_worker(on_ray: Any) -> None:
    made = Scheduler(on_ray)
    [before] = [outcome.value for outcome in made.map(sleeps, [0.0], CPU)]
    made.meter.deadline = 1.0
    outcomes = {outcome.index: outcome for outcome in made.map(hangs, [0, 1, 0], CPU)}
    made.close()
    assert outcomes[1].hung is not None and str(outcomes[1].error).startswith("hung: crawl finished no batch for ")
    assert outcomes[0].value == outcomes[2].value == 0 and before


def hangs(value: int) -> int:
    beat.current().doing("crawl", [1])
    time.sleep(SECONDS * value)
    return value


def raises(value: int) -> None:
    raise ValueError(f"no {value}")


def test_what_workers_on_ray_say_is_in_the_log(on_ray: Any, tmp_path: Path) -> None:
    made = Scheduler(on_ray, storage=open_storage(str(tmp_path)), run_id="one")
    assert [outcome.error for outcome in made.map(raises, [5], CPU, label="merge")] == ["ValueError: no 5"]
    made.close()
    lines = said(tmp_path / "runs/one/logs", "cpu-")
    assert [line["unit"] for line in lines] == ["merge 0"] * backends.ATTEMPTS
    assert all("in raises" in line["traceback"] and line["worker"].startswith("cpu-") for line in lines)


def test_stop_on_ray_is_quick(on_ray: Any) -> None:
    made = Scheduler(on_ray)
    list(made.map(sleeps, [0.0], CPU))
    call = made.open(sleeps, CPU)
    for _ in range(4):
        call.put(10.0 * SECONDS)
    call.close()
    began = time.monotonic()
    made.stop()
    assert [outcome for outcome in call if outcome.error is None] == []
    made.close()
    assert time.monotonic() - began < 8


def test_two_runs_share_a_cluster(on_ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal runs: the second has a third of the workers, here one of two, within a minute."""
    monkeypatch.setattr(dispatch, "POST_SECONDS", 1.0)
    one, two = Scheduler(on_ray), Scheduler(on_ray)
    busy = one.open(sleeps, CPU)
    for _ in range(4):
        busy.put(0.2)
    assert next(iter(busy)).value
    stop = threading.Event()

    def feed() -> None:
        for outcome in busy:
            if stop.is_set():
                busy.close()
            elif outcome is not END:
                busy.put(0.2)

    feeding = threading.Thread(target=feed)
    feeding.start()
    began = time.monotonic()
    assert [outcome.error for outcome in two.map(sleeps, [0.1] * 4, CPU)] == [None] * 4
    seconds = time.monotonic() - began
    stop.set()
    feeding.join(SECONDS)
    one.close()
    two.close()
    assert seconds < 60
