"""Which workers there are while nodes come and go."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from curate.core.contracts import Resources
from curate.core.store.storage import open_storage
from curate.engine.backends import ClusterNode, Notify
from curate.engine.backends.local import LocalBackend
from curate.engine.progress import Progress
from curate.engine.record.events import Events, read_events
from curate.engine.workers import worker_set
from curate.engine.workers.lanes import Budget, Demand, FreeResources, covers
from curate.engine.workers.scheduler import Scheduler
from curate.engine.workers.worker_set import WorkerSet
from tests.engine.nodes import until
from tests.engine.workers.tasks import CPU, REMOTE, SECONDS, double, log_lines

PAIR = Resources(cpus=2)


class Actor:
    node = ""

    def __init__(self, cluster: Cluster, resources: Resources) -> None:
        self.cluster, self.resources = cluster, resources
        cluster.actors.append(self)

    def kill(self) -> None:
        self.cluster.actors.remove(self)


class Cluster(LocalBackend):
    """Nodes of two CPUs. Like Ray, it starts a worker once a node has room for it, and misses a lost node later."""

    def __init__(self, *names: str) -> None:
        self.names, self.listed, self.actors = [*names], [*names], list[Actor]()
        self.workers = WorkerSet(self, lambda event: None, lambda slot: None, "mine", Budget())

    def nodes(self) -> Sequence[ClusterNode]:
        return [ClusterNode(name, 2) for name in self.listed]

    def worker_limits(self) -> dict[str, int]:
        return {"remote": 1}

    def start(self, lane: str, resources: Resources, units: int, notify: Notify, run: str = "") -> Any:
        return Actor(self, resources)

    def lose(self, name: str) -> None:
        """Kill a node; it is still listed. The end of workers that run nothing is not reported."""
        self.names.remove(name)

    def turn(self, *demands: Demand) -> None:
        """Rebalance the workers, start those that have room, and report those that get a payload and are dead."""
        self.workers.dirty = False  # else it waits a few milliseconds
        self.workers.rebalance(demands)
        free = FreeResources([ClusterNode(name, 2) for name in self.names])
        for actor in sorted(self.actors, key=lambda actor: not actor.node):
            before = [*free._free]
            if actor.node in ("", *self.names) and free.put(actor.resources, actor.node):
                changed = [one != two for one, two in zip(before, free._free, strict=True)].index(True)
                actor.node = self.names[changed]
        for slot in [*self.workers.all]:
            slot.up = bool(slot.worker.node)
            wanted = any(covers(slot.resources, demand.resources) for demand in demands)
            if slot.up and wanted and slot.worker.node not in self.names:
                self.workers.dismiss(slot)

    def up(self, resources: Resources) -> int:
        """Workers that run tasks of this size."""
        here = [slot for slot in self.workers.all if slot.up and slot.worker.node in self.names]
        return sum(covers(slot.resources, resources) for slot in here)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_set, "NODES_SECONDS", 0.0)


def test_workers_make_room_for_one_that_was_started_on_a_lost_node() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.turn(Demand(CPU, 6))
    assert cluster.up(CPU) == 6
    cluster.lose("c")
    cluster.turn(Demand(CPU, 6))
    assert cluster.up(CPU) == 4
    cluster.turn(Demand(PAIR, 1))  # there seems to be room on the lost node
    assert cluster.up(PAIR) == 0 and len(cluster.actors) == 5
    cluster.listed.remove("c")
    for _ in range(3):
        cluster.turn(Demand(PAIR, 1))
    assert cluster.up(PAIR) == 1


def test_a_worker_that_does_not_come_up_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the console, as an event and in the log."""
    monkeypatch.setattr(worker_set, "LATE_SECONDS", 0.0)
    out, events = io.StringIO(), Events(open_storage(str(tmp_path)), "one")
    Progress(Console(file=out, width=200), events)
    cluster = Cluster("a")
    scheduler = Scheduler(cluster, storage=events.storage, run_id="one", events=events)
    call = scheduler.open(double, PAIR)
    call.put(1)
    until(out.getvalue, SECONDS)
    scheduler.post("wake")
    scheduler.close()
    text = (
        "cpu worker 0 waits for 1 CPUs, 0 GPUs; it is not up after 0 s: its node starts it slowly, or jobs of others "
    )
    text += "use the cluster"
    assert out.getvalue() == f"warning: {text}\n"
    events.flush()
    assert [event["text"] for event in read_events(events.storage, "one") if event["event"] == "warning"] == [text]
    assert [line["message"] for line in log_lines(tmp_path / "runs/one/logs", "driver")] == [text]


def test_what_a_run_waits_for_names_the_runs_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("a")
    runs = ["theirs"]
    monkeypatch.setattr(cluster, "other_runs", lambda run: [name for name in runs if name != run])
    assert cluster.workers.holders(cluster.workers.others()) == "theirs uses the cluster"
    runs += ["mine", "b", "c", "d"]
    assert cluster.workers.holders(cluster.workers.others()) == "theirs, b, c and 1 more use the cluster"
    monkeypatch.setattr(cluster, "other_runs", lambda run: 1 / 0)
    assert cluster.workers.holders(cluster.workers.others()).startswith("its node starts it slowly")


def test_a_run_keeps_to_its_budget() -> None:
    """Also while workers of one size make room for those of another."""
    cluster = Cluster("a", "b")
    cluster.workers.budget = Budget(cpus=3)
    for demands in ([Demand(CPU, 9)], [Demand(PAIR, 9)], [Demand(PAIR, 9), Demand(CPU, 9)], [Demand(CPU, 9)]):
        for _ in range(3):
            cluster.turn(*demands)
            assert sum(actor.resources.cpus for actor in cluster.actors) <= 3
        assert all(cluster.up(demand.resources) for demand in demands)


def test_idle_workers_are_given_up() -> None:
    cluster = Cluster("a")
    cluster.turn(Demand(CPU, 2))
    assert len(cluster.actors) == 2
    cluster.workers.dismiss_idle(3600.0)
    assert len(cluster.actors) == 2
    cluster.workers.dismiss_idle()
    assert cluster.actors == []


steps = st.one_of(
    st.tuples(st.just("lose"), st.integers(0, 3)),
    st.tuples(st.just("miss"), st.just(0)),
    st.tuples(st.just("join"), st.just(0)),
    st.tuples(st.just("want"), st.lists(st.sampled_from([CPU, PAIR, REMOTE]), max_size=3, unique=True)),
)


@given(
    st.lists(steps, max_size=12), st.lists(st.sampled_from([CPU, PAIR, REMOTE]), min_size=1, max_size=3, unique=True)
)
def test_whatever_nodes_are_lost_nothing_waits_forever(history: list[tuple[str, Any]], last: list[Resources]) -> None:
    cluster, wanted = Cluster("0", "1", "2"), [CPU]
    for number, (what, about) in enumerate(history, 3):
        if what == "lose" and about < len(cluster.names) > 1:
            cluster.lose(cluster.names[about])
        elif what == "miss":
            cluster.listed = [*cluster.names]
        elif what == "join":
            cluster.names.append(str(number))
            cluster.listed.append(str(number))
        elif what == "want":
            wanted = about
        cluster.turn(*(Demand(size, 9) for size in wanted))
    cluster.listed = [*cluster.names]
    left = [Demand(size, 9) for size in last]
    for _ in range(8):
        cluster.turn(*left)
        left = [demand for demand in left if not cluster.up(demand.resources)]
    assert left == []
