"""Pins, tombstones, storage and gc of a workspace, by role."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select

from curate.api import Workspace
from curate.core.errors import CurateError, InputError, PinnedError
from curate.service.auth.roles import Principal
from curate.service.database.models import AuditEntry, IndexedDataset, IndexedRun
from curate.service.datasets import datasets as data
from curate.service.datasets import tags, upkeep
from curate.service.datasets.tags import NewTag
from curate.service.datasets.upkeep import GcOrder, NewPin, NewTombstones
from curate.service.problems import (
    ConflictProblem,
    ForbiddenProblem,
    InvalidProblem,
    NotFoundProblem,
    UnavailableProblem,
)
from curate.service.reconcile.index import reindex
from curate.service.service import Service
from tests.service.curated import Curated
from tests.service.people import People


def audited(service: Service) -> list[AuditEntry]:
    with service.database.read() as session:
        return list(session.scalars(select(AuditEntry).order_by(AuditEntry.id)))


def test_pins_come_and_go(service: Service, people: People, curated: Curated) -> None:
    operator = people.operator.principal
    made = upkeep.add_pin(service, operator, "main", "mine", NewPin(run="first-1", stage="total"))
    assert upkeep.pins(service, people.viewer.principal, "main") == [made]
    assert upkeep.remove_pin(service, operator, "main", "mine") == made
    assert upkeep.pins(service, people.viewer.principal, "main") == []
    with pytest.raises(NotFoundProblem, match="not a pin"):
        upkeep.remove_pin(service, operator, "main", "mine")
    assert [(entry.action, entry.target, entry.outcome) for entry in audited(service)] == [
        ("pin.add", "mine", "ok"), ("pin.remove", "mine", "ok"), ("pin.remove", "mine", "not_found"),
    ]  # fmt: skip
    assert audited(service)[0].detail == {"run": "first-1", "stage": "total"}


def test_a_pin_of_something_else_is_rejected(service: Service, people: People, curated: Curated) -> None:
    operator = people.operator.principal
    with pytest.raises(InputError, match="built no artifact"):
        upkeep.add_pin(service, operator, "main", "mine", NewPin(run="first-1", stage="bright"))
    upkeep.add_pin(service, operator, "main", "mine", NewPin(run="first-1", stage="total"))
    with pytest.raises(PinnedError, match="holds"):
        upkeep.add_pin(service, operator, "main", "mine", NewPin(run="first-1", stage="dataset"))
    assert [entry.outcome == "ok" for entry in audited(service)] == [False, True, False]


def test_pins_of_tags_belong_to_their_tags(service: Service, people: People, curated: Curated) -> None:
    operator, order = people.operator.principal, NewPin(run="first-1", stage="total")
    with pytest.raises(InvalidProblem, match="set a tag instead"):
        upkeep.add_pin(service, operator, "main", "tag.mine", order)
    tags.set_tag(service, operator, "main", "toys", "good", NewTag(base=curated.base))
    (pin,) = curated.workspace.pins
    with pytest.raises(ConflictProblem, match="toys@good"):
        upkeep.remove_pin(service, operator, "main", pin)
    curated.workspace.pin("tag.left", "first-1", "total")  # by a crash, or another service
    assert upkeep.remove_pin(service, operator, "main", "tag.left").stage == "total"
    assert list(curated.workspace.pins) == [pin]


def test_tombstones_count_and_name_the_datasets_that_have_them(
    service: Service, people: People, curated: Curated
) -> None:
    order = NewTombstones(entries=[curated.key, "https://example.org/a.jpg"], why="takedown")
    found = upkeep.add_tombstones(service, people.operator.principal, "main", order)
    assert found.counts == {"key": 1, "url": 1, "sha256": 0}
    assert set(found.affected) == {curated.workspace.url_of(curated.base)}
    assert found.unknown == ["https://example.org/a.jpg"]
    shown = upkeep.get_tombstones(service, people.viewer.principal, "main")
    assert shown == found.model_copy(update={"unknown": []})
    (entry,) = audited(service)
    assert (entry.action, entry.target, entry.detail) == ("tombstone.add", "takedown", {"entries": 2})
    with pytest.raises(InputError, match="the source id of 0 samples, and no key"):
        upkeep.add_tombstones(service, people.operator.principal, "main", NewTombstones(entries=["x"], why="y"))


def test_storage_is_computed_once_and_kept(
    service: Service, people: People, curated: Curated, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage, count = Workspace.usage, [0]

    def counted(workspace: Workspace) -> Any:
        count[0] += 1
        return usage(workspace)

    monkeypatch.setattr(Workspace, "usage", counted)
    first = upkeep.get_storage(service, people.viewer.principal, "main")
    assert first.bytes == sum(line.bytes for line in first.lines) > 0 and first.garbage == 0
    assert {"facts", "datasets", "pools"} <= {line.noun for line in first.lines}
    assert upkeep.get_storage(service, people.viewer.principal, "main") == first and count == [1]
    upkeep.get_storage(service, people.viewer.principal, "main", fresh=True)
    assert count == [2]


def test_gc_says_what_it_would_free_and_frees_it_on_request(service: Service, people: People, curated: Curated) -> None:
    keeper = people.keeper.principal
    kept = upkeep.collect_garbage(service, keeper, "main", GcOrder())
    assert (kept.paths, kept.bytes, kept.runs) == (0, 0, [])
    would = upkeep.collect_garbage(service, keeper, "main", GcOrder(keep=0))
    assert would.paths > 0 and would.bytes > 0 and would.runs == ["first-1"] and not would.deleted
    assert curated.workspace.has("first-1") and audited(service) == []
    done = upkeep.collect_garbage(service, keeper, "main", GcOrder(keep=0, delete=True))
    assert (done.bytes, done.runs, done.deleted) == (would.bytes, ["first-1"], True)
    assert not curated.workspace.has("first-1") and curated.workspace.datasets() == []
    begun, ended = audited(service)
    assert (begun.target, ended.target, ended.detail["bytes"]) == ("begun", "ended", done.bytes)
    assert data.list_datasets(service, keeper, "main").items == []  # gone from the index too
    with service.database.read() as session:
        assert session.get(IndexedRun, (people.workspace.id, "first")) is not None  # it was submitted here
    again = upkeep.collect_garbage(service, keeper, "main", GcOrder(keep=0, delete=True))
    assert (again.paths, again.runs) == (0, [])


def test_gc_forgets_runs_that_were_not_submitted_here(service: Service, people: People, curated: Curated) -> None:
    with service.database.write() as session:
        session.query(IndexedRun).update({"submitted": False})
    upkeep.collect_garbage(service, people.keeper.principal, "main", GcOrder(keep=0, delete=True))
    with service.database.read() as session:
        assert session.scalars(select(IndexedRun)).all() == [] == session.scalars(select(IndexedDataset)).all()


def test_gc_keeps_what_a_tag_names(service: Service, people: People, curated: Curated) -> None:
    tags.set_tag(service, people.operator.principal, "main", "toys", "good", NewTag(base=curated.base))
    upkeep.collect_garbage(service, people.keeper.principal, "main", GcOrder(keep=0, delete=True))
    assert curated.workspace.has("first-1")  # with its run, so that `explain` works
    upkeep.collect_garbage(service, people.keeper.principal, "main", GcOrder(drop=["first-1"], delete=True))
    assert [line.tags for line in data.list_datasets(service, people.viewer.principal, "main").items] == [["good"]]
    assert not curated.workspace.has("first-1")
    reindex(service)  # no record of a run names the dataset any more
    assert tags.resolve(service, people.viewer.principal, "toys", "good", "main").base == curated.base


def test_a_caller_that_leaves_a_slow_gc_may_join_it_again(
    service: Service, people: People, curated: Curated, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc, gate, count = Workspace.gc, threading.Event(), [0]

    def slow(*words: Any, **more: Any) -> Any:
        count[0] += 1
        assert gate.wait(60)
        return gc(*words, **more)

    monkeypatch.setattr(Workspace, "gc", slow)
    monkeypatch.setattr(service.kept, "_wait", 0.01)
    order = GcOrder(keep=0, delete=True)
    with pytest.raises(UnavailableProblem, match="gc of main"):
        upkeep.collect_garbage(service, people.keeper.principal, "main", order)
    monkeypatch.setattr(service.kept, "_wait", 60.0)
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(upkeep.collect_garbage, service, people.keeper.principal, "main", order)
        gate.set()
        assert joined.result(60).runs in (["first-1"], [])
    assert not curated.workspace.has("first-1")


def _asked(service: Service, who: Principal) -> dict[str, Callable[[], Any]]:
    return {
        "pins": lambda: upkeep.pins(service, who, "main"),
        "tombstones": lambda: upkeep.get_tombstones(service, who, "main"),
        "storage": lambda: upkeep.get_storage(service, who, "main"),
        "add_pin": lambda: upkeep.add_pin(service, who, "main", "mine", NewPin(run="first-1", stage="total")),
        "remove_pin": lambda: upkeep.remove_pin(service, who, "main", "mine"),
        "add_tombstones": lambda: upkeep.add_tombstones(
            service, who, "main", NewTombstones(entries=["a://b"], why="x")
        ),
        "gc": lambda: upkeep.collect_garbage(service, who, "main", GcOrder()),
        "delete": lambda: upkeep.collect_garbage(service, who, "main", GcOrder(delete=True)),
    }


READS = {"pins", "tombstones", "storage"}
ALLOWED = {
    "viewer": READS,
    "operator": {*READS, "add_pin", "remove_pin", "add_tombstones"},
    "keeper": {*READS, "add_pin", "remove_pin", "add_tombstones", "gc", "delete"},
    "stranger": set[str](),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_roles(service: Service, people: People, curated: Curated, name: str) -> None:
    who = getattr(people, name).principal
    problem: type[CurateError] = NotFoundProblem if name == "stranger" else ForbiddenProblem
    for action, ask in _asked(service, who).items():
        if action in ALLOWED[name]:
            ask()
        else:
            with pytest.raises(problem):
                ask()
    rejected = {entry.action for entry in audited(service) if entry.outcome in ("forbidden", "not_found")}
    writes = {"add_pin": "pin.add", "remove_pin": "pin.remove", "add_tombstones": "tombstone.add"}
    writes |= {"delete": "workspace.gc"}
    assert rejected == {writes[action] for action in writes.keys() - ALLOWED[name]}
