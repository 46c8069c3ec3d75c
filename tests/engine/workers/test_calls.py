"""Calls: order, attempts, payloads that avoid a worker, and fairness to calls that share workers."""

from __future__ import annotations

import os
import queue
import threading
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.contracts import Resources
from curate.core.errors import InputError, StorageError, UnreachableError
from curate.engine.backends import CallOptions, Snapshots, TaskEnded, WorkerDown, WorkerUp
from curate.engine.backends.local import LocalBackend
from curate.engine.tasks import running as tasks
from curate.engine.tasks.job import ATTEMPTS, Job, Outcome
from curate.engine.workers import worker_set
from curate.engine.workers.calls import CallQueue, Payload, ahead_of
from curate.engine.workers.scheduler import Scheduler
from tests.engine.workers.tasks import CPU, SECONDS, Doors, double


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


def test_a_call_without_payloads_delays_no_other_call(local: Scheduler) -> None:
    empty = local.open(double, CPU)
    assert [outcome.value for outcome in local.map(double, [1], CPU)] == [2]
    empty.close()
    assert list(empty) == []


def wrong(value: int) -> int:
    if value == 3:
        raise InputError("three is bad; give another")
    return value


def test_an_input_error_ends_only_its_call(local: Scheduler) -> None:
    other = local.open(double, CPU)
    with pytest.raises(InputError, match="three is bad"):
        list(local.map(wrong, range(100), CPU))
    other.put(1)
    other.close()
    assert [outcome.value for outcome in other] == [2]


def test_an_error_is_retried_then_reported(local: Scheduler) -> None:
    tries: Counter[int] = Counter()

    def fails(value: int) -> int:
        tries[value] += 1
        if value < 2 and tries[value] <= (1, 9)[value]:
            raise OSError(f"not {value}")
        return value

    outcomes = {outcome.index: outcome for outcome in local.map(fails, range(3), CPU)}
    assert [outcomes[n].error for n in range(3)] == [None, "OSError: not 1", None]
    assert tries == {0: 2, 1: ATTEMPTS, 2: 1}


def test_a_full_disk_is_left_for_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise StorageError("/scratch: no space is left") from OSError(28, "no space")

    outcome = tasks.run_attempts(full, 1, 7)
    assert outcome.elsewhere and outcome.index == 7
    assert outcome.error == f"/scratch: no space is left (on {os.uname().nodename})"


class Fake:
    """A worker that does what a test has it do."""

    node = ""

    def __init__(self, notify: Any) -> None:
        self.notify = notify
        self.jobs: queue.Queue[tuple[int, Job]] = queue.Queue()
        notify(WorkerUp(self))  # type: ignore[arg-type]

    def run(self, ticket: int, job: Job, shared: Any) -> None:
        self.jobs.put((ticket, job))

    def given(self) -> tuple[int, Job]:
        return self.jobs.get(timeout=SECONDS)

    def ended(self, ticket: int, job: Job, **about: Any) -> None:
        self.notify(TaskEnded(self, ticket, Outcome(job.index, **about), {}))  # type: ignore[arg-type]

    def end(self, ticket: int) -> bool:
        return False

    def request_snapshots(self) -> None: ...
    def wind_down(self, tickets: Any) -> None: ...
    def flush(self) -> None:
        self.notify(Snapshots(self, {}))  # type: ignore[arg-type]

    def kill(self) -> None: ...


class Fakes(LocalBackend):
    def __init__(self, workers: int, separate: bool) -> None:
        self.workers, self.separate = workers, separate
        self.started: queue.Queue[Fake] = queue.Queue()

    def worker_limits(self) -> dict[str, int]:
        return {"cpu": self.workers}

    def start(self, lane: str, resources: Resources, units: int, notify: Any, run: str = "") -> Any:
        made = Fake(notify)
        self.started.put(made)
        return made


def test_payloads_of_a_dead_worker_may_have_been_started(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes(workers=1, separate=True)
    made = Scheduler(fakes)
    call = made.open(double, CPU)
    for value in range(2):
        call.put(value)
    call.close()
    first = fakes.started.get(timeout=SECONDS)
    assert [first.given()[1].again for _ in range(2)] == [False] * 2
    first.notify(WorkerDown(first, "died"))  # type: ignore[arg-type]
    second = fakes.started.get(timeout=SECONDS)
    for _ in range(2):
        ticket, job = second.given()
        assert job.again
        second.ended(ticket, job, value=job.index)
    assert [outcome.value for outcome in call] == [0, 1]
    made.close()


@pytest.mark.parametrize("sticky", [False, True])
def test_payloads_return_to_a_worker_with_a_full_disk_if_no_other_is_left(
    monkeypatch: pytest.MonkeyPatch, sticky: bool
) -> None:
    monkeypatch.setattr(worker_set, "NODES_SECONDS", 0.0)
    fakes = Fakes(workers=2, separate=False)
    made = Scheduler(fakes)
    call = made.open(double, CPU, CallOptions(sticky=sticky))
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
    other.notify(WorkerDown(other, "died"))  # type: ignore[arg-type]
    ticket, job = full.given()
    assert job.index == refused[1].index and job.again
    full.ended(ticket, job, error="no space", elsewhere=True)
    assert [outcome.error for outcome in call] == ["no space"]
    made.close()


def test_a_payload_that_avoids_a_worker_holds_up_no_other() -> None:
    work = CallQueue(CallOptions(), ahead=4)
    refused, other = Payload(0, None, avoid={"a"}), Payload(1, None)
    work.add(refused, first=True)
    work.add(other)
    assert work.take(0, "a", set()) is other and work.take(0, "a", set()) is None and work.waiting == 1
    work.forgive(["a", "b"])
    assert work.take(0, "a", set()) is None
    work.forgive(["a"])
    assert work.take(0, "a", set()) is refused and work.waiting == 0


def test_a_call_opened_while_the_scheduler_breaks_raises() -> None:
    class Broken(LocalBackend):
        @property
        def shared(self) -> bool:
            raise RuntimeError("out of order")

    made = Scheduler(Broken())
    with pytest.raises(RuntimeError, match="out of order"):
        made.open(double, CPU).next()
    made.close()


def test_a_cluster_in_trouble_is_waited_for_until_it_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    class Troubled(LocalBackend):
        lost = False
        said: ClassVar = ["its head is away"] * 3

        def trouble(self) -> str:
            if self.lost:
                raise UnreachableError("lost it")
            return self.said.pop() if self.said else ""

    backend = Troubled()
    made = Scheduler(backend)
    assert sorted(outcome.value for outcome in made.map(double, range(3), CPU)) == [0, 2, 4]
    assert [line.message for line in caplog.records] == ["its head is away"]
    backend.lost = True
    for _ in range(2):
        with pytest.raises(UnreachableError, match="lost it"):
            list(made.map(double, range(3), CPU))
    made.close()


def test_an_abandoned_call_frees_its_worker(local: Scheduler, doors: Doors) -> None:
    outcomes = local.map(doors.pass_through, range(10), CPU)
    threading.Thread(target=lambda: (doors.arrived.get(), doors.open.set()), daemon=True).start()
    assert next(outcomes).value == 0
    outcomes.close()  # type: ignore[attr-defined]
    assert [outcome.value for outcome in local.map(double, [1], CPU)] == [2]


@given(st.integers(0, 30), st.integers(1, 4), st.booleans(), st.sampled_from([None, 2, 5]), st.randoms())
@pytest.mark.long
def test_a_call_assigns_every_payload(
    payloads: int, workers: int, sticky: bool, window: int | None, chance: Any
) -> None:
    """Payloads of dead workers are retried, absent workers are replaced, and nothing exceeds the window."""
    work = CallQueue(CallOptions(sticky=sticky, window=window), ahead=4)
    for index in range(payloads):
        work.add(Payload(index, None))
    if sticky:
        work.set_homes(list(range(workers)))
    busy: dict[int, deque[Payload]] = {worker: deque() for worker in range(workers)}
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
